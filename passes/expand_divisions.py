"""`mlirc-expand-divisions`: x / y and 1 / x in f32 without branches, for NVPTX.

`div.rn.f32` and `rcp.rn.f32` are subroutines: ptxas tests each operand for what is special, and branches, so that a
thread computes one quotient after the other (of a gated layer's tile, 64 of them). Here all take one way: the
hardware's approximation of 1 / y (PTX ISA, "rcp.approx": 1 ulp), a step of Newton's iteration for it, and two for the
quotient (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990), which is what
the subroutines do for ordinary operands. The divisor is scaled into [2^-85, 2^64] first, so that its reciprocal is not
subnormal, and a tiny x is made larger, so that neither the steps nor what they leave over are; what is the same for
many quotients, as a row's sum is, is computed once.

So results are those of a rounded division, but for the last bit of subnormal ones, which are rounded twice. Of 0,
infinity and NaN, and where a result overflows, the steps would make NaN, and what they start from is exact. The back
end runs this last; the `gpu` level and the host device keep the division.
"""

from __future__ import annotations

from mlirc.mlir import arith, find, ir
from mlirc.passes import register
from mlirc.passes.mathlib.builder import Number, element_type, fma, select

FAR = 2.0**64
TINY = 2.0**-62


def _is_one(value: ir.Value) -> bool:
    owner = value.owner
    if not isinstance(owner, ir.Operation | ir.OpView) or owner.operation.name != "arith.constant":
        return False
    attr = owner.operation.attributes["value"]
    if isinstance(attr, ir.DenseElementsAttr):
        if not attr.is_splat:
            return False
        attr = attr.get_splat_value()
    return bool(ir.FloatAttr(attr).value == 1.0)


def _reciprocal(x: Number) -> Number:
    one, approximate = x.const(1.0), ir.Attribute.parse("#arith.fastmath<afn>")
    near = Number(arith.DivFOp(one.value, x.value, fastmath=approximate).result)
    refined = fma(near, fma(-x, near, 1.0), near)
    return select(refined.is_nan(), near, refined)


def _quotient(x: Number, y: Number) -> Number:
    size = abs(y)
    near_one = select(size.compare("lt", 1.0 / FAR), x.const(FAR), x.const(1.0))
    scale = select(size.compare("gt", FAR), x.const(1.0 / FAR), near_one)
    y = y * scale
    share = _reciprocal(y)
    tiny = abs(x).compare("lt", TINY)
    x = x * select(tiny, x.const(FAR), x.const(1.0))
    scale = select(tiny, scale * (1.0 / FAR), scale)
    first = x * share
    second = fma(fma(-first, y, x), share, first)
    refined = fma(fma(-second, y, x), share, second)
    return select(abs(refined).compare("gt", 0.0), refined, first) * scale  # the steps lose the sign of 0, too


def expand_divisions(top: ir.Operation) -> None:
    """Rewrites the divisions of f32 nested in an operation, in place."""
    for op in find(top, "arith.divf"):
        if not isinstance(element_type(op.results[0].type), ir.F32Type):
            continue
        with op.location, ir.InsertionPoint(op):
            x, y = (Number(v) for v in op.operands)
            result = _reciprocal(y) if _is_one(op.operands[0]) else _quotient(x, y)
        op.results[0].replace_all_uses_with(result.value)
        op.erase()


@register("mlirc-expand-divisions")
def run(module: ir.Module) -> None:
    """Makes quotients of an approximation and steps of Newton's iteration; see the file's head."""
    with module.context:
        expand_divisions(module.operation)
