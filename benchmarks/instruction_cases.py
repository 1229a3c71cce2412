"""Saved kernels out of the tests of single instructions: what those tests run on the host device without a finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import kernel_cases  # noqa: F401  (finds the tests)
import numpy as np
import test_host_device_convert as convert
import test_host_device_grid as grid
import test_host_device_hopper as hopper
import test_host_device_instructions as instructions
import test_host_device_order as order
import test_host_device_tensor_copies as copies
import test_host_device_wgmma as wgmma
import test_tensor_cores as tensor_cores
from saved_kernels import Argument, SavedKernel

from mlirc import mlir
from mlirc.backend.llvm_text import for_older_llvm
from mlirc.backend.ptx import ptx_from_llvm
from mlirc.host.device.tensor_maps import Im2colMap, TensorMap
from mlirc.mlir import llvm
from mlirc.targets import get_target

# All agree in every bit, sums of tensor cores too; but not approximate functions.
_TESTS: tuple[tuple[str, Callable, tuple, float], ...] = (
    *((f"redux_{k}", instructions.test_redux, (k, f), 0.0) for k, f in (("add", np.add), ("umax", None))),
    ("match", instructions.test_match, (), 0.0),
    ("elect", instructions.test_elect_and_lane_masks, (), 0.0),
    ("shuffle", instructions.test_shuffle_with_predicate, (), 0.0),
    *((f"atomic{k.strip('_')}", instructions.test_atomics_of_other_kinds, (k, f), 0.0) for k, f in
      (("max", lambda x: x.max()), ("_and", np.bitwise_and.reduce), ("_xor", np.bitwise_xor.reduce))),
    *((f"mma_{n}_k{k}", instructions.test_mma, (n, d, k), 0.0) for n, d, k in
      (("s8", np.int8, 16), ("s8", np.int8, 32), ("u8", np.uint8, 32))),
    *((f"mma_{n}_k{k}_{o}", tensor_cores.test_sums_are_cut_where_the_hardware_cuts_them, (n, d, k, o), 0.0)
      for n, d, k in tensor_cores.MMA for o in (0, 3, 12)),
    *((f"f32_to_{n}{'_relu' if relu else ''}", convert.test_f32_to_f8, (n, relu), 0.0)
      for n in ("f8E4M3FN", "f8E5M2") for relu in (False, True)),
    *((f"f16_to_{n}", convert.test_f16_to_f8_and_back, (n,), 0.0) for n in ("f8E4M3FN", "f8E5M2")),
    *((f"f32_to_{n}_{r}", convert.test_f32_to_pairs_of_16_bits, (n, r), 0.0)
      for n in ("f16", "bf16") for r in ("rn", "rz")),
    *((f"f32_to_tf32_{r}", convert.test_f32_to_tf32, (r,), 0.0) for r in ("rna", "rn", "rz")),
    *((f.replace(".", "_"), convert.test_approximate_functions, (f,), 1e-6) for f in convert.FUNCTIONS),
    ("ex2_ftz", convert.test_flushing_to_zero, (True,), 0.0),
    *((f"prmt_{m}", convert.test_prmt, (m,), 0.0) for m in ("default", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")),
    *((f"dot_{w}way", convert.test_dot_products_of_bytes, (w, s), 0.0)
      for w, s in ((4, ("signed", "unsigned")), (2, ("unsigned", "signed")))),
    ("special_registers", convert.test_special_registers, (), 0.0),
    ("mma_f16_half", tensor_cores.test_half_accumulators_are_rounded_once, (), 0.0),
    *((f"matrices_{x}", instructions.test_stmatrix_and_ldmatrix_are_inverse, (x,), 0.0) for x in ("row", "col")),
    ("distributed_memory", instructions.test_distributed_shared_memory, (), 0.0),
    ("bulk_copy", instructions.test_bulk_copy, (), 0.0),
    ("bulk_store", instructions.test_bulk_store_is_read_until_its_group_is_waited_for, (), 0.0),
    ("multicast", instructions.test_multicast, (), 0.0),
    ("wgmma_bf16", hopper.test_product, (5,), 0.0),
    *((f"wgmma_{n}", hopper.test_products_of_other_types, (n, d), 0.0) for n, d in
      (("f16", np.float16), ("tf32", np.float32), ("e4m3", instructions.E4M3), ("e5m2", instructions.E5M2))),
    *((f"wgmma_registers_{a}_{d}", wgmma.test_a_in_registers, (wgmma.PLAIN, a, b, d, flags, tolerance), 0.0)
      for a, b, d, flags, tolerance in
      (("bf16", "bf16", "f32", ", 1, 1, 0", 1e-5), ("tf32", "tf32", "f32", ", 1, 1", 1e-5),
       ("e4m3", "e5m2", "f32", ", 1, 1", 1e-3), ("f16", "f16", "f16", ", 1, 1, 0", 2e-3),
       ("e5m2", "e5m2", "f16", ", 1, 1", 2e-3), ("s8", "s8", "s32", "", 0.0), ("u8", "s8", "s32", "", 0.0))),
    ("wgmma_transposed", wgmma.test_b_with_its_columns_along_k, ("bf16",), 0.0),
    ("tensor_store", copies.test_a_box_is_stored_where_it_lies_inside, (), 0.0),
    *((f"tensor_{k}", copies.test_reductions, (k, f), 0.0) for k, f in (("add", np.add), ("min", np.minimum))),
    ("tensor_inc", copies.test_counters, ("inc",), 0.0),
    ("tensor_im2col", copies.test_im2col_gathers_the_positions_of_a_convolution, (), 0.0),
    ("setmaxregister", grid.test_registers_that_one_warpgroup_gives_are_those_that_the_others_take, (), 0.0),
    ("pipeline", order.test_a_right_pipeline_has_no_finding_in_any_order, (), 0.0),
    ("named_barrier", order.test_a_named_barrier_hands_over, (), 0.0),
)  # fmt: skip
_PASSES = (
    "gpu.module(convert-gpu-to-nvvm,convert-scf-to-cf,convert-nvvm-to-llvm,convert-arith-to-llvm,"
    "reconcile-unrealized-casts)",
    "convert-cf-to-llvm,convert-arith-to-llvm,reconcile-unrealized-casts",
)


def ptx_of(text: str) -> str:
    """PTX of a gpu.module of llvm.funcs; of a newer ISA than the target's default, which fp8's mma.sync wants."""
    module = mlir.parse(text)
    with mlir.context():
        for passes in _PASSES:
            mlir.run_passes(module, passes)
        container = next(op.operation for op in module.body.operations if op.operation.name == "gpu.module")
        ir_text = llvm.translate_module_to_llvmir(container)
    return ptx_from_llvm(for_older_llvm(ir_text), dataclasses.replace(get_target("sm_90a"), ptx_isa=86))


def save_all(folder: Path) -> int:
    """Runs the tests and saves the first run without a finding of each; returns how many."""
    for name, test, arguments, tolerance in _TESTS:
        first_run(name, test, arguments, tolerance).save(folder)
    return len(_TESTS)


def _argument(a: np.ndarray | TensorMap | Im2colMap) -> Argument:
    """An argument of a kernel; all of them are compared, for a kernel may write through a tensor map."""
    if isinstance(a, np.ndarray):
        return Argument(a.dtype.name, True)
    if isinstance(a, TensorMap):
        return Argument(a.array.dtype.name, True, list(a.box), a.swizzle)
    return Argument(a.array.dtype.name, True, [a.pixels, a.channels], a.swizzle, list(a.lower), list(a.upper))


def first_run(name: str, test: Callable, arguments: tuple, tolerance: float) -> SavedKernel:
    """The first run of a test, as a saved kernel."""
    runs: list[SavedKernel] = []

    def spy(module, symbol, args, grid, block, smem=0, **options):
        before = [(a if isinstance(a, np.ndarray) else a.array).copy() for a in args]
        text = str(module)
        report = original(module, symbol, args, grid, block, smem, **options)
        if not runs and report.ok:
            listed = [_argument(a) for a in args]
            launch = {"symbol": symbol, "grid": list(grid), "block": list(block), "smem": smem,
                      "args": list(range(len(args))), "offsets": [0] * len(args)}  # fmt: skip
            host = {i: (a if isinstance(a, np.ndarray) else a.array).copy() for i, a in enumerate(args)}
            runs.append(
                SavedKernel(name, ptx_of(text), [launch], [], listed, before, host, tolerance == 0.0, tolerance)
            )
        return report

    modules = (instructions, order, hopper, wgmma, tensor_cores)
    original = instructions.run_function
    for m in modules:
        m.run_function = spy  # type: ignore[attr-defined]
    try:
        test(*arguments)
    finally:
        for m in modules:
            m.run_function = original  # type: ignore[attr-defined]
    return runs[0]
