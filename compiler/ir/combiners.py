"""Operations that a reduction combines elements with: associative and commutative (of floats, but for rounding), with a
neutral element."""

from __future__ import annotations

from mlirc.mlir import ir

_INF = float("inf")
# 0 is not neutral to a sum of floats: -0 + 0 is 0.
_FLOATS = {
    "arith.addf": -0.0, "arith.mulf": 1.0, "arith.maximumf": -_INF, "arith.maxnumf": -_INF, "arith.minimumf": _INF,
    "arith.minnumf": _INF,
}  # fmt: skip
_INTEGERS = {
    "arith.addi": 0, "arith.muli": 1, "arith.ori": 0, "arith.xori": 0, "arith.andi": -1, "arith.maxui": 0,
    "arith.minui": -1,
}  # fmt: skip
COMBINERS = frozenset({*_FLOATS, *_INTEGERS, "arith.maxsi", "arith.minsi"})


def neutral(name: str, element: ir.Type) -> ir.Attribute | None:
    """The neutral element of a combiner of this type; None for another operation, and for indices."""
    if isinstance(element, ir.IntegerType):
        value = _INTEGERS.get(name)
        if name in ("arith.maxsi", "arith.minsi"):
            top = (1 << (element.width - 1)) - 1  # of i1: 0, and true is -1
            value = top if name == "arith.minsi" else -top - 1
        return None if value is None else ir.IntegerAttr.get(element, value)
    return (
        ir.FloatAttr.get(element, _FLOATS[name]) if name in _FLOATS and not isinstance(element, ir.IndexType) else None
    )


def combining(value: ir.Value, accumulator: ir.Value) -> ir.Operation | None:
    """The combiner that makes `value` of `accumulator`, which nothing else reads, and of something else; None where it
    is made otherwise. Both are of the body of a linalg op: what it yields, and the argument of that result."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name not in COMBINERS or len(list(accumulator.uses)) != 1:
        return None
    return owner.operation if accumulator in list(owner.operands) else None
