"""PTX of kernels by hand, which have no host function."""

from __future__ import annotations

import dataclasses

from mlirc import mlir
from mlirc.backend.llvm_text import for_older_llvm
from mlirc.backend.ptx import ptx_from_llvm
from mlirc.mlir import llvm
from mlirc.targets import get_target

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
