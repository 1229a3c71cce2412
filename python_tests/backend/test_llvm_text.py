"""Floating-point constants survive the trip from one LLVM's text to the other's."""

from __future__ import annotations

import ctypes
import struct

import llvmlite.binding as llvm_binding
import ml_dtypes
import numpy as np
import pytest

from mlirc import mlir
from mlirc.backend.llvm_text import for_older_llvm
from mlirc.mlir import llvm

TYPES = {
    "f16": (np.float16, "H"),
    "bf16": (ml_dtypes.bfloat16, "H"),
    "f32": (np.float32, "I"),
    "f64": (np.float64, "Q"),
}


@pytest.mark.parametrize("name", TYPES)
def test_constants_are_the_same_bits(name):
    dtype, code = TYPES[name]
    width = np.dtype(dtype).itemsize * 8
    rng = np.random.default_rng(3)
    patterns = [int(x) for x in rng.integers(0, 1 << (width - 1), 60, dtype=np.uint64)]
    values = [0.0, -0.0, 1.1, -1.5, 1e-5, 65504.0, float("inf"), float("-inf"), float("nan"), 3.0e-40]
    patterns += [int(np.array(v).astype(dtype).view(f"u{width // 8}")) for v in values]
    body = "\n".join(
        f"%c{i} = llvm.mlir.constant(0x{p:0{width // 4}X} : {name}) : {name}\n"
        f"%p{i} = llvm.getelementptr %p[{i}] : (!llvm.ptr) -> !llvm.ptr, {name}\n"
        f"llvm.store %c{i}, %p{i} : {name}, !llvm.ptr"
        for i, p in enumerate(patterns)
    )
    module = mlir.parse(f"llvm.func @f(%p: !llvm.ptr) {{\n{body}\nllvm.return\n}}")
    text = for_older_llvm(llvm.translate_module_to_llvmir(module.operation))
    llvm_binding.initialize_native_target()
    llvm_binding.initialize_native_asmprinter()
    machine = llvm_binding.Target.from_default_triple().create_target_machine()
    engine = llvm_binding.create_mcjit_compiler(llvm_binding.parse_assembly(text), machine)
    engine.finalize_object()
    out = (ctypes.c_uint8 * (len(patterns) * width // 8))()
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address("f"))(ctypes.addressof(out))
    assert list(struct.unpack(f"<{len(patterns)}{code}", bytes(out))) == patterns


def test_untyped_operands_take_the_line_s_type():
    text = "%3 = fadd float %1, 1.100000e+00\n%4 = fmul <2 x double> %2, splat (double f0x3FF0000000000000)\n"
    assert for_older_llvm(text) == (
        "%3 = fadd float %1, 0x3FF19999A0000000\n%4 = fmul <2 x double> %2, splat (double 0x3FF0000000000000)\n"
    )


def test_tensor_copies_that_reduce_are_called_by_their_kind():
    name = "@llvm.nvvm.cp.async.bulk.tensor.reduce"
    text = f"""call void {name}.tile.2d(ptr addrspace(3) %1, ptr %0, i32 %2, i32 %2, i64 0, /* red_op=xor */ i32 7, i1 false)
declare void {name}.tile.2d(ptr addrspace(3) readonly, ptr readonly, i32, i32, i64, i32 immarg, i1 immarg) #0"""
    want = f"call void {name}.xor.tile.2d(ptr addrspace(3) %1, ptr %0, i32 %2, i32 %2, i64 0, i1 false)"
    assert for_older_llvm(text) == want
