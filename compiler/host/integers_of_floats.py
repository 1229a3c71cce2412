"""Floats that become integers, as PTX's `cvt.rzi` converts them, which x86 does not: what an integer cannot hold is the
nearest that it can, and of NaN comes 0, or, to or from 64 bits, the bits 100...0 (PTX ISA, "cvt").

To fewer than 32 bits it goes by way of 32, as in PyTorch."""

from __future__ import annotations

from mlirc.mlir import arith, ir, nested


def saturate_conversions(module: ir.Module) -> None:
    """Expands the conversions of scalars in a module of loops."""
    for op in [o for o in nested(module.operation) if o.name in ("arith.fptosi", "arith.fptoui")]:
        if isinstance(op.results[0].type, ir.IntegerType):
            with op.location, ir.InsertionPoint(op):
                found = _converted(op.operands[0], op.results[0].type, op.name == "arith.fptosi")
            op.results[0].replace_all_uses_with(found)
            op.erase()


def _converted(x: ir.Value, type_: ir.IntegerType, signed: bool) -> ir.Value:
    of_doubles = isinstance(x.type, ir.F64Type)
    if ir.FloatType(x.type).width < 32:
        x = arith.ExtFOp(ir.F32Type.get(), x).result
    bits = max(type_.width, 32)
    wide = ir.IntegerType.get_signless(bits)
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    least, most = (1 << (bits - 1), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)

    def compared(predicate: arith.CmpFPredicate, number: float) -> ir.Value:
        return arith.cmpf(predicate, x, arith.constant(x.type, number))

    def integer(word: int) -> ir.Value:  # as the attribute takes it: signed
        return arith.constant(wide, word - (1 << bits) if word >> (bits - 1) else word)

    below, above = compared(arith.CmpFPredicate.OLT, low), compared(arith.CmpFPredicate.OGE, high)
    no_number = arith.cmpf(arith.CmpFPredicate.UNO, x, x)
    outside = arith.ori(arith.ori(below, above), no_number)
    inside = arith.select(outside, arith.constant(x.type, 0.0), x)
    plain = (arith.FPToSIOp if signed else arith.FPToUIOp)(wide, inside).result
    of_nan = integer(1 << (bits - 1) if of_doubles or bits == 64 else 0)
    found = arith.select(below, integer(least), arith.select(above, integer(most), plain))
    found = arith.select(no_number, of_nan, found)
    return found if type_.width == bits else arith.TruncIOp(type_, found).result
