"""Numbers of bf16 as 16 bits, in the LLVM dialect.

Where processors have AVX512-BF16, LLVM keeps a bf16 that lives from one block to another as an f32, and rounds it back
by an instruction that makes zeros of subnormal numbers. All arithmetic on bf16 is expanded in f32 by then: what is left
moves numbers, and moves integers as well.
"""

from __future__ import annotations

import struct

from mlirc.mlir import ir, nested

_MOVES = ("llvm.load", "llvm.store", "llvm.select", "llvm.br", "llvm.cond_br", "llvm.switch", "llvm.freeze")
_MADE = ("llvm.mlir.undef", "llvm.mlir.poison", "llvm.mlir.zero")
_KNOWN = (*_MOVES, *_MADE, "llvm.mlir.constant", "llvm.bitcast", "llvm.fpext")


def keep_bf16_bits(module: ir.Module) -> None:
    """Rewrites a lowered module in place: its values of bf16 become i16. Functions that take or return bf16, or that
    have other operations on it, stay as they are."""
    bf16, i16 = ir.BF16Type.get(), ir.IntegerType.get_signless(16)
    for function in module.body.operations:
        if function.operation.name != "llvm.func" or "bf16" in str(function.attributes["function_type"]):
            continue
        ops = list(nested(function.operation))
        if not all(op.name in _KNOWN for op in ops if _has_bf16(op)):
            continue
        arguments = [a for op in (function.operation, *ops) for r in op.regions for b in r.blocks for a in b.arguments]
        for value in (*arguments, *(r for op in ops if op.name in (*_MOVES, *_MADE) for r in op.results)):
            if value.type == bf16:
                value.set_type(i16)
        for op in ops:
            with op.location, ir.InsertionPoint(op):
                _rewrite(op, {bf16, i16})


def _has_bf16(op: ir.Operation) -> bool:
    return any("bf16" in str(v.type) for v in (*op.operands, *op.results))


def _rewrite(op: ir.Operation, types: set[ir.Type]) -> None:
    """Has an operation take or make i16 for bf16: casts between the two go, others and constants are of integers."""
    i16, i32 = (ir.IntegerType.get_signless(width) for width in (16, 32))
    if op.name == "llvm.mlir.constant" and isinstance(op.results[0].type, ir.BF16Type):
        bits = struct.unpack("<I", struct.pack("<f", ir.FloatAttr(op.attributes["value"]).value))[0] >> 16
        new = _make("llvm.mlir.constant", i16, value=ir.IntegerAttr.get(i16, bits - (bits >> 15 << 16)))
    elif op.name == "llvm.bitcast" and {op.operands[0].type, op.results[0].type} <= types:
        new = op.operands[0]
    elif op.name == "llvm.fpext" and op.operands[0].type in types:
        shift = _make("llvm.mlir.constant", i32, value=ir.IntegerAttr.get(i32, 16))
        none = ir.Attribute.parse("#llvm.overflow<none>")
        wide = _make("llvm.shl", i32, _make("llvm.zext", i32, op.operands[0]), shift, overflowFlags=none)
        new = _make("llvm.bitcast", ir.F32Type.get(), wide)
        if op.results[0].type != new.type:
            new = _make("llvm.fpext", op.results[0].type, new)
    else:
        return
    op.results[0].replace_all_uses_with(new)
    op.erase()


def _make(name: str, type_: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> ir.Value:
    return ir.Operation.create(name, [type_], list(operands), attributes).results[0]
