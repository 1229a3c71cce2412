"""Saved kernels: what is written is read back, and the comparison tells right from wrong."""

from __future__ import annotations

from pathlib import Path

import agreement
import counters
import kernel_cases
import ml_dtypes
import numpy as np
import pytest
import saved_kernels

from mlirc.errors import MlircError


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    kernel_cases.make("sums", kernel_cases.transposed_sum(5, 7, "bf16"), exact=True, count=True).save(path)
    return path


def test_round_trip(folder):
    (kernel,) = saved_kernels.load_all(folder)
    assert kernel.name == "sums" and ".entry sums" in kernel.ptx and kernel.counters["global load requests"]
    x, z, _ = (saved_kernels.widened(a, "bfloat16") for a in kernel.data)
    want = (x + z.T).astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_array_equal(saved_kernels.widened(kernel.host[2], "bfloat16"), want)


def test_comparison(folder):
    (kernel,) = saved_kernels.load_all(folder)
    same = agreement.compare(kernel, {2: kernel.host[2].copy()})
    assert same["ok"] and same["different"] == 0
    other = kernel.host[2].copy()
    other[1, 2] ^= 1
    one = agreement.compare(kernel, {2: other})
    assert not one["ok"] and one["different"] == 1
    kernel.exact, kernel.tolerance = False, 1e-1
    assert agreement.compare(kernel, {2: other})["ok"]


def test_page_of_counters(folder):
    (kernel,) = saved_kernels.load_all(folder)
    read = {"l1tex__t_sectors_pipe_lsu_mem_global_op_st": float(2 * kernel.counters["global store sectors"])}
    data = {"about": {"gpu": "a GPU", "ncu": "1"}, "kernels": {"sums": {"host": kernel.counters, "ncu": read}}}
    line = next(x for x in counters.page(data).split("\n") if x.startswith("| global store sectors"))
    assert line.endswith("| 0.50 |")


def test_an_empty_folder(tmp_path):
    with pytest.raises(MlircError, match="holds no saved kernels"):
        saved_kernels.load_all(tmp_path)
