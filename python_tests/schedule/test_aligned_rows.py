"""Products whose operands have rows that are no multiple of 16 bytes: copied into rows that are, or multiplied as they are;
on the CPU at the `tiles` level, and on the host device."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mlirc import mlir
from mlirc.driver.kernel_build import to_async
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import check_schedule, run_tiles
from support.kernels.payloads import assert_same, matmul
from support.randomness import generator


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "knobs", "layout", "copies"),
    [
        (3, 7, 1, "bf16", "mma=mma", {}, 2),
        (21, 25, 131, "f16", "mma=mma,copy=tma,block_k=64,stages=2", {"transposed": False}, 2),
        (67, 129, 259, "bf16", "mma=wgmma,copy=tma,stages=2,block_m=64,block_n=64", {"left": True}, 2),
        (33, 24, 193, "bf16", "mma=wgmma,copy=tma,stages=2,block_m=64,block_n=32", {"gates": True}, 3),
        (65, 40, 257, "f16", "mma=wgmma,copy=tma,stages=2,parts=2,block_m=64,block_n=64", {"transposed": False}, 2),
        (66, 35, 129, "f32", "mma=tf32x3,copy=tma,stages=2,block_m=32,block_n=32", {}, 2),
        (64, 33, 131, "f32", "mma=wgmma_tf32x3,copy=tma,stages=2", {"transposed": False}, 2),
        (5, 17, 133, "f32", "mma=fma,block_m=4,block_n=16", {"batch": 2}, 2),
        (41, 37, 66, "i32", "mma=fma", {"left": True, "transposed": False}, 2),
        (40, 37, 66, "f32", "mma=fma", {"left": True, "transposed": False}, 1),  # the rows of one alone
    ],
)
def test_rows_are_copied(m: int, n: int, k: int, dtype: str, knobs: str, layout: dict, copies: int) -> None:
    schedule, tolerance = (f"matmul_0=matmul:align_rows=true,{knobs}",), {"f32": 1e-5, "i32": 0}.get(dtype, 1e-2)
    text = matmul(m, n, k, dtype, **layout)
    assert_same(text, schedule, tolerance)
    tiles, _ = check_schedule(text, schedule, tolerance)
    assert tiles.count("scf.forall (") == copies + (3 if "parts" in knobs else 1)


def test_what_the_copies_add_is_zero() -> None:
    """Infinities and NaN spoil the sums that they are terms of, and no others."""
    text = matmul(19, 21, 67, "f32", epilogue=False)
    tiles, _ = Schedules(["matmul_0=matmul:align_rows=true,mma=tf32x3,copy=tma,stages=2"]).schedule_kernel(
        mlir.parse(text), get_target("sm_90a")
    )
    rng = generator()
    x, w = (rng.standard_normal((n, 67)).astype(np.float32) for n in (19, 21))
    x[3, 66], x[5, 0], w[7, 66] = np.inf, np.nan, -np.inf
    others = [np.zeros(21, np.float32), np.zeros((19, 21), np.float32)]
    [found], _ = run_tiles(tiles, [x, w, *others])
    with np.errstate(invalid="ignore"):
        want = x.astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(found, want, atol=1e-4)


@pytest.mark.parametrize(
    ("k", "layout", "why"),
    [(64, {}, "multiples of 16 bytes already"), (65, {"prologue": True}, "operands are computed")],
)
def test_rows_that_cannot_be_copied(k: int, layout: dict, why: str) -> None:
    kernel = mlir.parse(matmul(32, 32, k, "bf16", **layout))
    with pytest.raises(MlircError, match=f"align_rows=true: .*{why}.*leave it out"):
        Schedules(["matmul_0=matmul:align_rows=true"]).schedule_kernel(kernel, get_target("sm_90a"))


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "transposed", "aligned"),
    [
        (210, 215, 9067, "f16", False, True),
        (512, 4097, 4097, "bf16", True, True),
        (512, 1025, 1023, "f32", True, True),
        (311, 352, 4390, "bf16", True, False),  # 4 bytes at a time
        (48, 156, 1163, "f16", True, False),  # small
        (16, 4097, 4097, "bf16", True, False),  # weights are read once
        (512, 4096, 4104, "bf16", True, False),  # aligned already
    ],
)
def test_rows_are_copied_where_that_was_faster(
    m: int, n: int, k: int, dtype: str, transposed: bool, aligned: bool
) -> None:
    kernel = mlir.parse(matmul(m, n, k, dtype, transposed=transposed, epilogue=False))
    _, record = Schedules([]).schedule_kernel(kernel, get_target("sm_90a"))
    assert record.knobs.get("align_rows", False) == aligned


@pytest.mark.parametrize(
    ("m", "n", "k", "knobs", "layout"),
    [
        (16, 23, 1029, "parts=1", {}),
        (1, 17, 4 * 64 + 1, "parts=1,block_k=64", {"transposed": False}),
        (7, 33, 5 * 32, "parts=1,block_k=32,stages=3", {"left": True}),
        (3, 19, 515, "block_k=64,mma=mma,block_m=16,block_n=16,parts=1", {"batch": 2}),
    ],
)
def test_slices_are_read_ahead(m: int, n: int, k: int, knobs: str, layout: dict) -> None:
    text, schedule = matmul(m, n, k, "bf16", **layout), (f"matmul_0=matmul:{knobs}",)
    check_schedule(text, schedule, 1e-2)
    tiles, _ = Schedules(list(schedule)).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    to_async(tiles, "matmul_0", get_target("sm_90a"))
    assert re.search(r'copy = "registers", depth = 2', str(tiles))
