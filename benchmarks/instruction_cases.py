"""Saved kernels out of the tests of single instructions: what those tests run on the host device without a finding."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tests_path
from saved_kernels import Argument, SavedKernel

from mlirc.device import direct
from mlirc.device.tensor_maps import Im2colMap, TensorMap
from mlirc.errors import MlircError
from support.kernels.by_hand import ptx_of

_F8, _PLAIN = ("f8E4M3FN", "f8E5M2"), "{wgmma}1{flags};"  # the latter: wgmma without a predicate
# Of each: the kernel's name, in which the parameters of the test are filled in; the file and name of the test; which
# parameters are wanted, where not all; and the tolerance. All agree in every bit, sums of tensor cores too; but not
# approximate functions.
_TESTS: tuple[tuple[str, str, dict[str, Any], float], ...] = (
    ("redux_{kind}", "instructions::test_redux", {"kind": ("add", "umax")}, 0.0),
    ("match", "instructions::test_match", {}, 0.0),
    ("elect", "instructions::test_elect_and_lane_masks", {}, 0.0),
    ("shuffle", "instructions::test_shuffle_with_predicate", {}, 0.0),
    *((f"atomic{kind.strip('_')}", "instructions::test_atomics_of_other_kinds", {"kind": kind}, 0.0)
      for kind in ("max", "_and", "_xor")),
    ("mma_{name}_k{k}", "instructions::test_mma", {"name": ("s8", "u8")}, 0.0),
    ("mma_{name}_k{k}_{octaves}", "tensor_cores::test_sums_are_cut_where_the_hardware_cuts_them", {}, 0.0),
    ("f32_to_{name}", "convert::test_f32_to_f8", {"name": _F8, "relu": False}, 0.0),
    ("f32_to_{name}_relu", "convert::test_f32_to_f8", {"name": _F8, "relu": True}, 0.0),
    ("f16_to_{name}", "convert::test_f16_to_f8_and_back", {"name": _F8}, 0.0),
    ("f32_to_{name}_{rounding}", "convert::test_f32_to_pairs_of_16_bits", {}, 0.0),
    ("f32_to_tf32_{rounding}", "convert::test_f32_to_tf32", {}, 0.0),
    ("{name}", "convert::test_approximate_functions", {}, 1e-6),
    ("ex2_ftz", "convert::test_flushing_to_zero", {"ftz": True}, 0.0),
    ("prmt_{mode}", "convert::test_prmt", {}, 0.0),
    ("dot_{way}way", "convert::test_dot_products_of_bytes", {}, 0.0),
    ("special_registers", "convert::test_special_registers", {}, 0.0),
    ("mma_f16_half", "tensor_cores::test_half_accumulators_are_rounded_once", {}, 0.0),
    ("matrices_{layout}", "instructions::test_stmatrix_and_ldmatrix_are_inverse", {}, 0.0),
    ("distributed_memory", "instructions::test_distributed_shared_memory", {}, 0.0),
    ("bulk_copy", "instructions::test_bulk_copy", {}, 0.0),
    ("bulk_store", "instructions::test_bulk_store_is_read_until_its_group_is_waited_for", {}, 0.0),
    ("multicast", "instructions::test_multicast", {}, 0.0),
    ("wgmma_bf16", "hopper::test_product", {"tiles": 5}, 0.0),
    ("wgmma_{name}", "hopper::test_products_of_other_types", {}, 0.0),
    *(("wgmma_registers_{a}_{d}", "wgmma::test_a_in_registers", {"form": _PLAIN, "a": a, "d": d}, 0.0)
      for a, d in ((("bf16", "tf32", "e4m3"), "f32"), (("f16", "e5m2"), "f16"), (("s8", "u8"), "s32"))),
    ("wgmma_transposed", "wgmma::test_b_with_its_columns_along_k", {"name": "bf16"}, 0.0),
    ("tensor_store", "tensor_copies::test_a_box_is_stored_where_it_lies_inside", {}, 0.0),
    ("tensor_{kind}", "tensor_copies::test_reductions", {"kind": ("add", "min")}, 0.0),
    ("tensor_inc", "tensor_copies::test_counters", {"kind": "inc"}, 0.0),
    ("tensor_im2col", "tensor_copies::test_im2col_gathers_the_positions_of_a_convolution", {}, 0.0),
    ("setmaxregister", "grid::test_registers_that_one_warpgroup_gives_are_those_that_the_others_take", {}, 0.0),
    ("pipeline", "order::test_a_right_pipeline_has_no_finding_in_any_order", {}, 0.0),
    ("named_barrier", "order::test_a_named_barrier_hands_over", {}, 0.0),
)  # fmt: skip


def save_all(folder: Path) -> int:
    """Runs the tests and saves the first run without a finding of each; returns how many. Raises MlircError where a
    test is missing, fails, or runs nothing."""
    kernels = _Runs()
    tests = dict.fromkeys(_path(test) for _, test, _, _ in _TESTS)
    status = pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[kernels])
    if status != pytest.ExitCode.OK:
        raise MlircError(f"the tests end with status {status}, so that there are no kernels of them")
    for name, saved in kernels.saved.items():
        if saved is None:
            raise MlircError(f"{name}: its test runs no kernel without a finding")
        saved.save(folder)
    return len(kernels.saved)


def _path(test: str) -> str:
    module, _, name = test.partition("::")
    return f"{tests_path.FOLDER / 'host_device' / f'test_{module}.py'}::{name}"


def _argument(a: np.ndarray | TensorMap | Im2colMap) -> Argument:
    """An argument of a kernel; all of them are compared, for a kernel may write through a tensor map."""
    if isinstance(a, np.ndarray):
        return Argument(a.dtype.name, True)
    if isinstance(a, TensorMap):
        return Argument(a.array.dtype.name, True, list(a.box), a.swizzle)
    return Argument(a.array.dtype.name, True, [a.pixels, a.channels], a.swizzle, list(a.lower), list(a.upper))


class _Runs:
    """A plugin of pytest: `saved` is the first run of each test that is wanted, by the kernel's name."""

    def __init__(self) -> None:
        self.saved: dict[str, SavedKernel | None] = {}
        self._named: dict[str, tuple[str, float]] = {}
        self._now: tuple[str, float] | None = None
        self._patches = ExitStack()

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Names what is wanted, and leaves out the rest."""
        for name, test, wanted, tolerance in _TESTS:
            found = [i for i in items if f"{i.path}::{i.originalname}" == _path(test) and _is_wanted(i, wanted)]
            if not found:
                raise MlircError(f"{name}: there is no test {_path(test)} with parameters {wanted}")
            for item in found:
                given = _parameters(item)
                full = name.format(**given).replace(".", "_")
                assert full not in self.saved and item.nodeid not in self._named, full
                self.saved[full] = None
                self._named[item.nodeid] = full, tolerance
        items[:] = [i for i in items if i.nodeid in self._named]

    def pytest_collection_finish(self) -> None:
        """Every module has a name of its own for the function that runs kernels."""
        original = direct.run_function

        def spy(module, symbol, args, grid, block, smem=0, **options):
            before = [(a if isinstance(a, np.ndarray) else a.array).copy() for a in args]
            text = str(module)
            report = original(module, symbol, args, grid, block, smem, **options)
            if self._now and report.ok and self.saved[self._now[0]] is None:
                name, tolerance = self._now
                launch = {"symbol": symbol, "grid": list(grid), "block": list(block), "smem": smem,
                          "args": list(range(len(args))), "offsets": [0] * len(args)}  # fmt: skip
                host = {i: (a if isinstance(a, np.ndarray) else a.array).copy() for i, a in enumerate(args)}
                self.saved[name] = SavedKernel(
                    name, ptx_of(text), [launch], [], [_argument(a) for a in args], before, host, tolerance == 0.0,
                    tolerance,
                )  # fmt: skip
            return report

        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get("run_function") is original:
                self._patches.enter_context(mock.patch.object(module, "run_function", spy))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        self._now = self._named[item.nodeid]
        try:
            return (yield)
        finally:
            self._now = None

    def pytest_sessionfinish(self) -> None:
        self._patches.close()


def _parameters(item: pytest.Function) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _is_wanted(item: pytest.Function, wanted: dict[str, Any]) -> bool:
    given = _parameters(item)
    return all(given[k] in (v if isinstance(v, tuple) else (v,)) for k, v in wanted.items())
