"""Makes saved kernels: a `kernels`-level function through its schedule down to PTX, and its run on the host device.
Needs MLIR; the payloads are those of the tests."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import tests_path  # noqa: F401
from saved_kernels import Argument, SavedKernel

from mlirc import mlir
from mlirc.backend.ptx import compile_kernel
from mlirc.device import DeviceKernel
from mlirc.driver.kernel_build import to_gpu
from mlirc.host.jit import tensor_spec
from mlirc.mlir import ir
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import function_name
from support.kernels.payloads import generic, inputs_of, kernel

TARGET = "sm_90a"


def softmax(rows: int, length: int, dtype: str = "f32") -> str:
    """Softmax of every row of [rows, length]."""
    x, s = f"tensor<{rows}x{length}x{dtype}>", f"tensor<{rows}xf32>"
    widen, v = ("", "%x0") if dtype == "f32" else (f"%e0 = arith.extf %x0 : {dtype} to f32\n    ", "%e0")
    y = "%y = arith.divf %p, %x2 : f32" if dtype == "f32" else (
        f"%d9 = arith.divf %p, %x2 : f32\n    %y = arith.truncf %d9 : f32 to {dtype}")  # fmt: skip
    power = f"{widen}%d = arith.subf {v}, %x1 : f32\n    %p = math.exp %d : f32\n    "
    lines = [
        "  %low = arith.constant 0xFF800000 : f32", "  %zero = arith.constant 0.0 : f32",
        f"  %ex = tensor.empty() : {x}", f"  %es = tensor.empty() : {s}",
        f"  %f0 = linalg.fill ins(%low : f32) outs(%es : {s}) -> {s}",
        generic("top", "a, b", [("%x", x, "a, b")], ("%f0", s, "a"), f"{widen}%y = arith.maximumf %o, {v} : f32"),
        f"  %f1 = linalg.fill ins(%zero : f32) outs(%es : {s}) -> {s}",
        generic("sum", "a, b", [("%x", x, "a, b"), ("%top", s, "a")], ("%f1", s, "a"),
                f"{power}%y = arith.addf %o, %p : f32"),
        generic("r", "a, b", [("%x", x, "a, b"), ("%top", s, "a"), ("%sum", s, "a")], ("%ex", x, "a, b"), power + y),
    ]  # fmt: skip
    return kernel("reduction_0", "reduction", {"x": x}, x, "\n".join(lines))


def transposed_sum(rows: int, columns: int, dtype: str = "f32") -> str:
    """x [rows, columns] + y [columns, rows] transposed."""
    x, y = f"tensor<{rows}x{columns}x{dtype}>", f"tensor<{columns}x{rows}x{dtype}>"
    ins = [("%x", x, "a, b"), ("%z", y, "b, a")]
    lines = [f"  %e = tensor.empty() : {x}", generic("r", "a, b", ins, ("%e", x, "a, b"),
                                                      f"%y = arith.addf %x0, %x1 : {dtype}")]  # fmt: skip
    return kernel("elementwise_0", "elementwise", {"x": x, "z": y}, x, "\n".join(lines))


def scheduled(text: str, knobs: str, symbol: str) -> tuple[ir.Module, list[np.ndarray], list[np.ndarray]]:
    """The `gpu` level of a kernel renamed to `symbol`, its inputs, and room for its results."""
    module = mlir.parse(text)
    module = mlir.parse(text.replace(f"@{function_name(module)}(", f"@{symbol}("))
    tiles, _ = Schedules([knobs] if knobs else []).schedule_kernel(module, get_target(TARGET))
    with mlir.context(), ir.Location.unknown():
        inputs = inputs_of(module)
        types = ir.FunctionType(ir.TypeAttr(tiles.body.operations[0].attributes["function_type"]).value).results
        results = [np.zeros(spec.shape, spec.dtype) for spec in map(tensor_spec, types)]
        mlir.run_passes(tiles, "func.func(linalg-generalize-named-ops)")
        to_gpu(tiles, function_name(tiles), get_target(TARGET))
    return mlir.parse(str(tiles)), inputs, results


def make(
    name: str, text: str, knobs: str = "", *, exact: bool = False, tolerance: float = 0.0, count: bool = False
) -> SavedKernel:
    """Compiles a kernel and runs it on the host device, with its counters if asked for. Raises MlircError for any
    finding."""
    module, inputs, results = scheduled(text, knobs, name)
    return saved(name, module, inputs, results, knobs, exact=exact, tolerance=tolerance, count=count)


def saved(
    name: str, module: ir.Module, inputs: list[np.ndarray], results: list[np.ndarray], note: str = "", *,
    exact: bool = False, tolerance: float = 0.0, count: bool = False,
) -> SavedKernel:  # fmt: skip
    """Compiles and runs a kernel's `gpu`-level module; see `make`."""
    report = DeviceKernel(module, count=count).run([*inputs, *results])
    report.raise_if_bad()
    compiled = compile_kernel(module, get_target(TARGET))
    arrays = [*inputs, *results]
    arguments = [Argument(a.dtype.name, i >= len(inputs)) for i, a in enumerate(arrays)]
    counters: dict[str, int] = {}
    for table in report.counters.values():
        for key, value in table.items():
            counters[key] = counters.get(key, 0) + value
    return SavedKernel(
        name, compiled.ptx, [asdict(x) for x in compiled.launches], compiled.workspaces, arguments,
        [*inputs, *(np.zeros_like(r) for r in results)],
        {len(inputs) + i: r for i, r in enumerate(results)}, exact, tolerance, counters, note,
    )  # fmt: skip


def probe(name: str, width: int, first: str) -> SavedKernel:
    """One warp that loads `width` f32 per lane from shared memory, from the element `first`: an affine expression in
    `t`, the lane."""
    w, shared = f"vector<{width}xf32>", "#gpu.address_space<workgroup>"
    types = f"%x: memref<2048xf32>, %y: memref<{32 * width}xf32>"
    module = mlir.parse(f"""
module attributes {{gpu.container_module}} {{
  gpu.module @{name}_gpu {{
    gpu.func @{name}({types}) kernel attributes {{known_block_size = array<i32: 32, 1, 1>}} {{
      %t = gpu.thread_id x
      %c0 = arith.constant 0 : index
      %c32 = arith.constant 32 : index
      %n = arith.constant 2048 : index
      %all = gpu.dynamic_shared_memory : memref<?xi8, {shared}>
      %s = memref.view %all[%c0][] : memref<?xi8, {shared}> to memref<2048xf32, {shared}>
      scf.for %i = %t to %n step %c32 {{
        %v = memref.load %x[%i] : memref<2048xf32>
        memref.store %v, %s[%i] : memref<2048xf32, {shared}>
      }}
      gpu.barrier
      %at = affine.apply affine_map<(t) -> ({first})>(%t)
      %r = vector.load %s[%at] {{alignment = {4 * width} : i64}} : memref<2048xf32, {shared}>, {w}
      %to = affine.apply affine_map<(t) -> (t * {width})>(%t)
      vector.store %r, %y[%to] {{alignment = {4 * width} : i64}} : memref<{32 * width}xf32>, {w}
      gpu.return
    }}
  }}
  func.func @{name}({types}) {{
    %one = arith.constant 1 : index
    %threads = arith.constant 32 : index
    %smem = arith.constant 8192 : i32
    gpu.launch_func @{name}_gpu::@{name} blocks in (%one, %one, %one) threads in (%threads, %one, %one)
        dynamic_shared_memory_size %smem args(%x : memref<2048xf32>, %y : memref<{32 * width}xf32>)
    return
  }}
}}""")
    with mlir.context():
        mlir.run_passes(module, "lower-affine,canonicalize")
    x = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    return saved(name, module, [x], [np.zeros(32 * width, np.float32)], first, exact=True, count=True)
