"""Integer ops that torch-mlir lacks or computes in floats, as others. See `integers.py`, which calls them.

Each takes the rewriter, the dtype to compute in (int32 or int64), the dtype that the result will be cut to, and the
op's arguments, already of the computing dtype or int32; it gives back the node of the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from mlirc.frontend import integer_division

aten = torch.ops.aten
REWRITES: dict[str, Callable] = {}


def _rewrites(*names: str) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for name in names:
            REWRITES[name] = function
        return function

    return add


def _operand(r: Any, value: Any, dtype: torch.dtype) -> Node:
    """An operand, maybe a number, as a tensor of the computing dtype."""
    return r.convert(value, dtype) if isinstance(value, Node) else r.number(int(value), dtype)


def _division(r: Any, dtype: torch.dtype, x: Any, y: Any, kind: str) -> Node:
    operands = (_operand(r, x, dtype), _operand(r, y, dtype))
    return r.call(integer_division.integer_division._opoverload, *operands, kind)


@_rewrites("div")
def _div(r: Any, dtype: torch.dtype, cut: torch.dtype, x: Any, y: Any, *, rounding_mode: str) -> Node:
    return _division(r, dtype, x, y, rounding_mode)


for _name, _kind in (("floor_divide", "floor"), ("remainder", "remainder"), ("fmod", "fmod")):
    REWRITES[_name] = lambda r, dtype, cut, x, y, kind=_kind: _division(r, dtype, x, y, kind)


@_rewrites("gcd")
def _gcd(r: Any, dtype: torch.dtype, cut: torch.dtype, x: Any, y: Any) -> Node:
    """Of sizes in the width of the result, in which the least value has itself as size."""
    sizes = [r.call(aten.abs.default, _operand(r, v, dtype)) for v in (x, y)]
    if cut in (torch.int8, torch.int16):
        sizes = [r.convert(r.convert(v, cut), dtype) for v in sizes]
    return r.call(integer_division.integer_division._opoverload, *sizes, "gcd")


@_rewrites("lcm")
def _lcm(r: Any, dtype: torch.dtype, cut: torch.dtype, x: Any, y: Any) -> Node:
    divisor = _gcd(r, dtype, cut, x, y)
    multiple = r.call(aten.mul.Tensor, _division(r, dtype, x, divisor, "trunc"), _operand(r, y, dtype))
    is_zero = r.call(aten.eq.Scalar, divisor, 0)
    return r.call(aten.where.self, is_zero, r.number(0, dtype), r.call(aten.abs.default, multiple))


@_rewrites("neg", "negative")
def _neg(r: Any, dtype: torch.dtype, cut: torch.dtype, x: Node) -> Node:
    return r.call(aten.rsub.Scalar, x, 0)


def _bitwise(op: Any, r: Any, dtype: torch.dtype, cut: torch.dtype, x: Any, y: Any) -> Node:
    return r.call(op, _operand(r, x, dtype), _operand(r, y, dtype))


REWRITES["bitwise_and"] = functools.partial(_bitwise, aten.bitwise_and.Tensor)
REWRITES["bitwise_or"] = functools.partial(_bitwise, aten.bitwise_or.Tensor)
REWRITES["bitwise_xor"] = functools.partial(_bitwise, aten.bitwise_xor.Tensor)


def _shift(left: bool, r: Any, dtype: torch.dtype, cut: torch.dtype, x: Any, y: Any) -> Node:
    """PyTorch defines shifts by negative amounts and by the width or more: all bits go; MLIR does not."""
    x, y = _operand(r, x, dtype), _operand(r, y, dtype)
    last = torch.iinfo(cut).bits - 1
    outside = r.call(aten.logical_or.default, r.call(aten.lt.Scalar, y, 0), r.call(aten.gt.Scalar, y, last))
    most = r.number(last + 1 if cut == torch.uint8 else last, dtype)  # no bit of a byte is its sign
    amount = r.call(aten.where.self, outside, most, y)
    if not left:
        return r.call(aten.bitwise_right_shift.Tensor, x, amount)
    shifted = r.call(aten.bitwise_left_shift.Tensor, x, amount)
    return r.call(aten.where.self, outside, r.number(0, dtype), shifted)


for _name in ("__lshift__", "bitwise_left_shift"):
    REWRITES[_name] = functools.partial(_shift, True)
for _name in ("__rshift__", "bitwise_right_shift"):
    REWRITES[_name] = functools.partial(_shift, False)
