"""`mlirc-contract`: a product of floats that is added or subtracted once becomes `math.fma`, which rounds once.

What a GPU computes is decided here, and nowhere else: the back end emits `mul.rn` and `add.rn` for what is left, which
ptxas must not contract (PTX ISA, "Floating Point Instructions: mul"), so that the `gpu` level as it is printed, the
host device and a GPU compute the same bits. A product that is used twice stays: it costs an instruction anyway, and
`a*b - a*b` is 0. Of two products the first one goes into the fma. A subtraction negates an operand, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable

from mlirc.mlir import arith, find, ir, math, nested, vector
from mlirc.passes import register

_FLOATS = (ir.F16Type, ir.BF16Type, ir.F32Type, ir.F64Type)
_PATH = ("arith.mulf", "arith.negf", "vector.extract", "vector.from_elements")
_NONE = "#arith.fastmath<none>"


def _may(op: ir.Operation, everywhere: bool) -> bool:
    """Whether an operation may be contracted: by its own flags, or, everywhere, without any."""
    flags = str(op.attributes["fastmath"]) if "fastmath" in op.attributes else _NONE
    return "contract" in flags or "<fast>" in flags or (everywhere and flags == _NONE)


Factors = Callable[[], tuple[ir.Value, ir.Value]]


def _owner(value: ir.Value) -> ir.Operation | None:
    owner = value.owner
    return owner.operation if isinstance(owner, ir.Operation | ir.OpView) else None


def _once(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1


def _factors(value: ir.Value, block: ir.Block, everywhere: bool) -> Factors | None:
    """What builds the factors of a product of this block that has one use, be it an element of a vector of products, or
    a vector put together from products; None if the value is none."""
    op = _owner(value)
    if op is None or op.block != block or not _once(value):
        return None
    if op.name == "arith.mulf" and _may(op, everywhere):
        return lambda: (op.operands[0], op.operands[1])
    if op.name == "vector.extract" and len(op.operands) == 1 and not isinstance(value.type, ir.VectorType):
        whole = _owner(op.operands[0])
        if whole is None or whole.name != "arith.mulf" or whole.block != block or not _may(whole, everywhere):
            return None
        if all(use.owner.operation.name == "vector.extract" for use in whole.results[0].uses):
            at = list(ir.DenseI64ArrayAttr(op.attributes["static_position"]))
            return lambda: (_element(whole.operands[0], at), _element(whole.operands[1], at))
    if op.name == "vector.from_elements":
        parts = [_factors(v, block, everywhere) for v in op.operands]
        if all(parts):
            return lambda: _packed(value.type, [p() for p in parts if p])
    return None


def _element(vector_value: ir.Value, at: list[int]) -> ir.Value:
    return vector.ExtractOp(vector_value, [], at).result


def _packed(t: ir.Type, pairs: list[tuple[ir.Value, ir.Value]]) -> tuple[ir.Value, ir.Value]:
    """Two vectors out of pairs of elements; one that every element shares is broadcast."""
    a, b = (
        vector.BroadcastOp(t, side[0]).result if len(set(side)) == 1 else vector.FromElementsOp(t, list(side)).result
        for side in zip(*pairs, strict=True)
    )
    return a, b


def _through_negation(value: ir.Value, block: ir.Block, everywhere: bool) -> tuple[Factors | None, bool]:
    """The factors of a product, or of a negated one, and whether it is."""
    op = _owner(value)
    if op is not None and op.name == "arith.negf" and op.block == block and _once(value):
        return _factors(op.operands[0], block, everywhere), True
    return _factors(value, block, everywhere), False


def _negated(value: ir.Value) -> ir.Value:
    """-value; a constant's is a constant."""
    if _is_constant(value):
        attr = value.owner.attributes["value"]
        scalar = attr.get_splat_value() if isinstance(attr, ir.DenseElementsAttr) and attr.is_splat else attr
        if isinstance(scalar, ir.FloatAttr):
            fresh = ir.FloatAttr.get(scalar.type, -ir.FloatAttr(scalar).value)
            splat = ir.DenseElementsAttr.get_splat(value.type, fresh) if scalar is not attr else fresh
            return arith.ConstantOp(value.type, splat).result
    return arith.NegFOp(value).result


def _contracted(op: ir.Operation, everywhere: bool) -> ir.Value | None:
    """The fma that a sum or difference becomes, built in front of it."""
    for i in (0, 1):
        found, negative = _through_negation(op.operands[i], op.block, everywhere)
        if found is None:
            continue
        rest = op.operands[1 - i]
        with op.location, ir.InsertionPoint(op):
            a, b = found()
            if op.name == "arith.subf":
                if i == 0:
                    rest = _negated(rest)
                else:
                    negative = not negative
            if negative:
                a, b = (a, _negated(b)) if _is_constant(b) else (_negated(a), b)
            return math.FmaOp(a, b, rest).result
    return None


def _is_constant(value: ir.Value) -> bool:
    op = _owner(value)
    return op is not None and op.name == "arith.constant"


def _erase_unused(value: ir.Value) -> None:
    """Erases a product that nothing uses any more, and what took it to its use."""
    op = _owner(value)
    if op is None or op.name not in _PATH or any(list(r.uses) for r in op.results):
        return
    operands = [] if op.name == "arith.mulf" else list(dict.fromkeys(op.operands))
    op.erase()
    for operand in operands:
        _erase_unused(operand)


def contract(top: ir.Operation, everywhere: bool) -> None:
    """Contracts what is nested in an operation, in place: where products and sums carry no fastmath flags, too, or
    only those that `contract` or `fast` allows it."""
    sums = [op for op in find(top, "arith.addf", "arith.subf") if _may(op, everywhere)]
    for op in sums:
        t = op.results[0].type
        if not isinstance(t.element_type if isinstance(t, ir.VectorType) else t, _FLOATS):
            continue
        fused = _contracted(op, everywhere)
        if fused is not None:
            operands = list(op.operands)
            op.results[0].replace_all_uses_with(fused)
            op.erase()
            for value in operands:
                _erase_unused(value)


def settle_floats(top: ir.Operation) -> None:
    """What is left to do for a kernel at the `gpu` level, before it is lowered or executed: contracts what its fastmath
    flags allow, and drops the flags, by which LLVM could compute other bits than the text says."""
    contract(top, everywhere=False)
    none = ir.Attribute.parse(_NONE, top.context)
    for op in nested(top):
        if "fastmath" in op.attributes and op.attributes["fastmath"] != none:
            op.attributes["fastmath"] = none


@register("mlirc-contract")
def run(module: ir.Module) -> None:
    """Makes `math.fma` of products and sums; see the file's head."""
    with module.context:
        contract(module.operation, everywhere=True)
