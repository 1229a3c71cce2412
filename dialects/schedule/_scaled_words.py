"""Packed weights of a loop as numbers times scales in one `fma`: the power of two by which numbers are less on the way
to bf16, for its range, is what sums are multiplied by behind the loop."""

from __future__ import annotations

from math import frexp

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._dims import body_of, contraction, producer, structure
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.mlir import arith, ir, linalg, math


def _number(value: ir.Value) -> float | None:
    """The number that a value of floats is; None for a computed one."""
    made_by = producer(value)
    if made_by is None or made_by.name != "arith.constant":
        return None
    found = made_by.attributes["value"]
    return float(found.value) if isinstance(found, ir.FloatAttr) else None


def _made(value: ir.Value, name: str) -> list[ir.Value] | None:
    """The operands of the op of this name that a value is; None for another value."""
    made_by = producer(value)
    return list(made_by.operands) if made_by is not None and made_by.name == name else None


class _Scaled:
    """A weight (bits * power + middle) * (scale * factor), as `quantize/lowering.py` writes it, where the scale is an
    argument of its body, and middle and factor are numbers; `factor` is 0 where it is none of these."""

    def __init__(self, op: ir.Operation):
        self.op, self.factor = op, 0.0
        self.end = list(body_of(op).operations)[-1].operation
        product = _made(self.end.operands[0], "arith.mulf") or []
        for total, scaled in (product, product[::-1]) if product else ():
            sums, parts = _made(total, "arith.addf"), _made(scaled, "arith.mulf")
            bits = _made(sums[0], "arith.mulf") if sums else None
            if bits is None or sums is None or parts is None or _number(sums[1]) is None:
                continue
            factor = _number(parts[1])
            if factor and abs(frexp(factor)[0]) == 0.5 and abs(frexp(_number(sums[1]) or 0.0)[0]) == 0.5:
                if isinstance(parts[0].owner, ir.Block) and isinstance(parts[0].type, ir.BF16Type):
                    self.factor, self.bits, self.middle, self.scale = factor, bits, sums[1], parts[0]

    def rewrite(self) -> None:
        """Makes it `factor` times less, rounded once, as before: all products of powers of two are exact."""
        with ir.InsertionPoint(self.end), self.end.location:
            power = arith.MulFOp(self.bits[1], self.scale).result
            middle = arith.MulFOp(self.middle, self.scale).result
            self.end.operands[0] = math.FmaOp(self.bits[0], power, middle).result


def scale_sums(loop: ir.Operation) -> None:
    """Rewrites the weights of a loop over k and what follows it; nothing where one weight is of another form, or what
    the loop gives is no operand of an elementwise op behind it (as with parts of K)."""
    ops = [o.operation for o in loop.regions[0].blocks[0].operations]
    found = {op.results[0]: s for op in ops if DEQUANTIZE in op.attributes and (s := _Scaled(op)).factor}
    products = [op for op in ops[:-1] if op.name == "linalg.generic" and contraction(op)]
    weights = [found.get(structure(p).inputs[0]) for p in products]
    yielded = list(ops[-1].operands)
    if not products or None in weights or any(p.results[0] not in yielded for p in products):
        return
    results = [loop.results[yielded.index(p.results[0])] for p in products]
    users = [u.owner.operation for r in results for u in r.uses]
    if loop.parent.name != "scf.forall" or any(u.name != "linalg.generic" or u.parent != loop.parent for u in users):
        return
    for weight in dict.fromkeys(w for w in weights if w is not None):
        weight.rewrite()
    for weight, result in zip([w for w in weights if w is not None], results, strict=True):
        uses = [(u.owner.operation, u.operand_number) for u in result.uses]
        with ir.InsertionPoint.after(loop), loop.location:
            scaled = _times(result, loop.operands[3 + result.result_number], weight.factor)
        for user, number in uses:
            user.operands[number] = scaled


def _times(value: ir.Value, like: ir.Value, factor: float) -> ir.Value:
    element = ir.RankedTensorType(value.type).element_type
    rank = len(ir.RankedTensorType(value.type).shape)
    out = _build.empty(sizes_of(like), element)
    op = _build.generic([value], [out], [list(range(rank))] * 2, [True] * rank)
    block = op.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        number = arith.ConstantOp(element, ir.FloatAttr.get(element, factor)).result
        linalg.YieldOp([arith.MulFOp(block.arguments[0], number).result])
    return op.results[0]
