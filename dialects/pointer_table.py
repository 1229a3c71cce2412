"""`mlirc.pointer` and `mlirc.pointer_table`: an array of pointers to buffers as an argument of a launch, by value.

    %p = "mlirc.pointer"(%a) : (memref<5x64xf32>) -> !llvm.ptr
    %q = "mlirc.pointer"(%b) : (memref<9x64xf32>) -> !llvm.ptr
    %t = "mlirc.pointer_table"(%p, %q) : (!llvm.ptr, !llvm.ptr) -> !llvm.ptr
    gpu.launch_func @k_gpu::@k_0 ... args(%t : !llvm.ptr)

are of the `gpu` level's host functions. The kernel takes the table as an argument of type `!llvm.ptr` with the
attributes of `table_argument`, and loads from it pointers of type `!llvm.ptr<1>`.
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from collections.abc import Sequence
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc
from mlirc.mlir import ext, ir

POINTER, POINTER_TABLE = "mlirc.pointer", "mlirc.pointer_table"


class PointerOp(Mlirc.Operation, name="pointer", traits=[ext.Pure]):  # type: ignore
    """The address of a memref, for a table."""

    buffer: ext.Operand[Any]
    result: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier; emits one error at the op's location for the first broken rule."""
        memref, result = op.operation.operands[0].type, op.operation.results[0].type
        if isinstance(memref, ir.MemRefType) and memref.has_static_shape and str(result) == "!llvm.ptr":
            return True
        op.operation.location.emit_error(f"'{POINTER}' op takes a memref of static shape and makes a !llvm.ptr")
        return False


class PointerTableOp(Mlirc.Operation, name="pointer_table", traits=[ext.Pure]):  # type: ignore
    """Some pointers, in order; see the module's docstring."""

    pointers: Sequence[ext.Operand[Any]]
    result: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier; emits one error at the op's location for the first broken rule."""
        makers = [v.owner for v in op.operation.operands]
        if makers and all(not isinstance(m, ir.Block) and m.name == POINTER for m in makers):
            return True
        op.operation.location.emit_error(f"'{POINTER_TABLE}' op takes results of {POINTER}, at least one")
        return False


def table_argument(count: int) -> ir.DictAttr:
    """The attributes of a kernel's argument that is a table of so many pointers, by value. The back end adds
    `nvvm.grid_constant`, so that no thread has a copy."""
    return ir.DictAttr(ir.Attribute.parse(f"{{llvm.align = 8 : i64, llvm.byval = !llvm.array<{count} x ptr>}}"))
