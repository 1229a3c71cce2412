"""a * b + c, rounded once: the host's own instruction, in a loop that LLVM compiles for this machine. NumPy has none,
and a sum in the next wider type is rounded twice."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from mlirc.device.numbers import round_once

_LOOP = """
define void @{name}(ptr noalias %out, ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %n) {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %pa = getelementptr {type}, ptr %a, i64 %i
  %pb = getelementptr {type}, ptr %b, i64 %i
  %pc = getelementptr {type}, ptr %c, i64 %i
  %po = getelementptr {type}, ptr %out, i64 %i
  %x = load {type}, ptr %pa
  %y = load {type}, ptr %pb
  %z = load {type}, ptr %pc
  %r = call {type} @llvm.fma.{suffix}({type} %x, {type} %y, {type} %z)
  store {type} %r, ptr %po
  %next = add nuw i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
declare {type} @llvm.fma.{suffix}({type}, {type}, {type})
"""


@functools.cache
def _loops() -> dict[np.dtype, Callable]:
    """Per dtype a function of four addresses (the result first) and a count."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, jit=True
    )
    text = "".join(
        _LOOP.format(name=f"fma_{suffix}", type=t, suffix=suffix) for t, suffix in (("float", "f32"), ("double", "f64"))
    )
    module = llvm.parse_assembly(text)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
    found: dict[np.dtype, Callable] = {}
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        function = kind(engine.get_function_address(f"fma_f{8 * dtype.itemsize}"))
        function.engine = engine  # type: ignore[attr-defined]  # whose memory the code lies in
        found[dtype] = function
    return found


def _sixteen_bits(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """For f16 and bf16: the product is exact in f64, the sum rounded to odd there and once more to the type."""
    product = np.multiply(a, b, dtype=np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    part = total - product
    lost = (product - (total - part)) + (addend - part)  # Knuth's two-sum
    near = np.ascontiguousarray(total)
    word = near.view(np.int64)
    away = (lost > 0) == (near > 0)
    inexact = ((lost > 0) | (lost < 0)) & ((word & 1) == 0)
    word += np.where(inexact, np.where(away, 1, -1), 0)
    return round_once(near, a.dtype)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c for arrays of one float dtype (f16, bf16, f32, f64) that broadcast, rounded to it once."""
    loop = _loops().get(a.dtype)
    if loop is None:
        with np.errstate(all="ignore"):
            return _sixteen_bits(a, b, c)
    shape = np.broadcast(a, b, c).shape
    out = np.empty(shape, dtype=a.dtype)
    operands = [np.ascontiguousarray(x if x.shape == shape else np.broadcast_to(x, shape)) for x in (a, b, c)]
    loop(out.ctypes.data, *(x.ctypes.data for x in operands), out.size)
    return out
