"""FP64 numbers rounded to 16-bit floats, which neither the x86 back end nor the C library does."""

from __future__ import annotations

from mlirc.mlir import arith, ir, math


def narrow_doubles(module: ir.Module) -> None:
    """Rounds scalars once, through f32: where f32 cannot hold a number, its last bit is set, which tells the second
    rounding on which side of a half the number lies (Boldo and Melquiond, "Emulation of FMA and correctly rounded
    sums: proved algorithms using rounding to odd", 2008)."""
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "arith.truncf" and isinstance(op.operands[0].type, ir.F64Type):
            if isinstance(op.results[0].type, ir.BF16Type | ir.F16Type):
                found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        with op.location, ir.InsertionPoint(op):
            narrow = arith.TruncFOp(op.results[0].type, _to_odd(op.operands[0])).result
        op.results[0].replace_all_uses_with(narrow)
        op.erase()


def _to_odd(x: ir.Value) -> ir.Value:
    """An f64 as f32: the neighbour towards zero where it is none, with its last bit set."""
    f32, f64, i32 = ir.F32Type.get(), ir.F64Type.get(), ir.IntegerType.get_signless(32)
    near = arith.TruncFOp(f32, x).result
    back = arith.ExtFOp(f64, near).result
    bits, one = arith.BitcastOp(i32, near).result, arith.constant(i32, 1)
    beyond = arith.cmpf(arith.CmpFPredicate.OGT, math.absf(back), math.absf(x))
    towards_zero = arith.select(beyond, arith.subi(bits, one), bits)
    inexact = arith.cmpf(arith.CmpFPredicate.ONE, back, x)
    return arith.BitcastOp(f32, arith.select(inexact, arith.ori(towards_zero, one), bits)).result
