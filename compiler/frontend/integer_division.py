"""Division of integers as one op: torch-mlir's own goes through f64, and the processor's traps on some operands.
With it the greatest common divisor.

`trunc` and `floor` are the rounded quotient, `fmod` and `remainder` what they leave (with the sign of the dividend and
of the divisor). PyTorch raises an error for a divisor of zero, which a kernel cannot: here the quotient is -1 and the
remainder is the dividend. The least value divided by -1 is itself, with remainder 0.

`gcd` is Euclid's algorithm on sizes, in as many steps as the worst numbers of the width need (G. Lamé, 1844): two
Fibonacci numbers that follow each other. A size that is the least value is negative, as in PyTorch.
"""

from __future__ import annotations

import torch

from mlirc.errors import MlircError
from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.elementwise import broadcast_map, filled_with
from mlirc.mlir import arith, ir, linalg, tensor

KINDS = ("trunc", "floor", "fmod", "remainder", "gcd")
_STEPS = {32: 46, 64: 93}  # by bits
OPERATOR = "torch.mlirc.integer_division"


@torch.library.custom_op("mlirc::integer_division", mutates_args=())
def integer_division(x: torch.Tensor, y: torch.Tensor, kind: str) -> torch.Tensor:
    """x / y, of one dtype (int32 or int64), broadcast together; `kind` is one of KINDS."""
    if kind in ("trunc", "floor"):
        return torch.div(x, y, rounding_mode=kind)
    if kind == "gcd":
        return torch.gcd(x, y)
    return torch.fmod(x, y) if kind == "fmod" else torch.remainder(x, y)


@integer_division.register_fake
def _(x, y, kind):
    return x.new_empty(torch.broadcast_shapes(x.shape, y.shape))


def lower_integer_division(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of that name, whose shapes are static, by an elementwise linalg op.

    Raises MlircError for a divisor that is the constant zero.
    """
    kind = ir.StringAttr(op.operands[2].owner.attributes["value"]).value
    with op.location, ir.InsertionPoint(op):
        filled = [filled_with(v) for v in op.operands[:2]]
        numbers = [None if n is None else int(n) for n in filled]
        if numbers[1] == 0 and kind != "gcd":
            raise MlircError(
                f"division of integers by the constant zero at {op.location}: PyTorch refuses it when it runs"
            )
        tensors = [builtin_tensor(v) for v in op.operands[:2]]
        read = [t for t, n in zip(tensors, numbers, strict=True) if n is None]
        shape = list(torch.broadcast_shapes(*(list(t.type.shape) for t in tensors)))
        element = tensors[0].type.element_type
        init = tensor.empty(shape, element)
        every = [ir.AffineDimExpr.get(d) for d in range(len(shape))]
        maps = [broadcast_map(t.type.shape, every) for t in read] + [ir.AffineMap.get(len(shape), 0, every)]
        generic = linalg.GenericOp(
            [init.type],
            read,
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * len(shape)),
        )
        block = generic.regions[0].blocks.append(*[element] * len(maps))
        with ir.InsertionPoint(block):
            given = iter(block.arguments)
            x, y = (
                next(given) if n is None else arith.constant(element, ir.IntegerAttr.get(element, n)) for n in numbers
            )
            linalg.YieldOp([_common_divisor(x, y) if kind == "gcd" else _divide(x, y, kind, numbers[1])])
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _common_divisor(x: ir.Value, y: ir.Value) -> ir.Value:
    zero, one = (arith.constant(x.type, ir.IntegerAttr.get(x.type, n)) for n in (0, 1))
    for _ in range(_STEPS[x.type.width]):
        is_left = arith.cmpi(arith.CmpIPredicate.ne, x, zero)
        rest = arith.remsi(y, arith.select(is_left, x, one))
        x, y = rest, arith.select(is_left, x, y)
    return y


def _divide(x: ir.Value, y: ir.Value, kind: str, divisor: int | None) -> ir.Value:
    type_ = x.type

    def number(n: int) -> ir.Value:
        return arith.constant(type_, ir.IntegerAttr.get(type_, n))

    zero, one = number(0), number(1)
    safe, by_zero = y, None
    if divisor is not None:
        if divisor == -1:
            return arith.subi(zero, x) if kind in ("trunc", "floor") else zero
    else:
        by_zero = arith.cmpi(arith.CmpIPredicate.eq, y, zero)
        least = arith.cmpi(arith.CmpIPredicate.eq, x, number(-(1 << (type_.width - 1))))
        overflow = arith.andi(least, arith.cmpi(arith.CmpIPredicate.eq, y, number(-1)))
        safe = arith.select(arith.ori(by_zero, overflow), one, y)
    rest = None if kind == "trunc" else arith.remsi(x, safe)
    other_sign = None
    if kind in ("floor", "remainder"):
        signs = arith.cmpi(arith.CmpIPredicate.slt, arith.xori(rest, safe), zero)
        other_sign = arith.andi(arith.cmpi(arith.CmpIPredicate.ne, rest, zero), signs)
    if kind in ("trunc", "floor"):
        out, exception = arith.divsi(x, safe), number(-1)
        if other_sign is not None:
            out = arith.select(other_sign, arith.subi(out, one), out)
    else:
        out, exception = rest, x
        if other_sign is not None:
            out = arith.select(other_sign, arith.addi(out, safe), out)
    return out if by_zero is None else arith.select(by_zero, exception, out)
