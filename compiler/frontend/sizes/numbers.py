"""Numbers that a model computes from its sizes, as tensors of no dimension: int64, float64 or bool."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Unknown

aten = torch.ops.aten
_TWO = {
    "FloorDiv": (aten.div.Tensor_mode, {"rounding_mode": "floor"}),
    "CleanDiv": (aten.div.Tensor_mode, {"rounding_mode": "floor"}),
    "Mod": (aten.remainder.Tensor, {}),
    "PythonMod": (aten.remainder.Tensor, {}),
    "Max": (aten.maximum.default, {}),
    "Min": (aten.minimum.default, {}),
    "Equality": (aten.eq.Tensor, {}),
    "Unequality": (aten.ne.Tensor, {}),
    "LessThan": (aten.le.Tensor, {}),
    "StrictLessThan": (aten.lt.Tensor, {}),
    "GreaterThan": (aten.ge.Tensor, {}),
    "StrictGreaterThan": (aten.gt.Tensor, {}),
}
_FLOAT_OF_TWO = {
    "IntTrueDiv": aten.div.Tensor, "FloatTrueDiv": aten.div.Tensor, "FloatPow": aten.pow.Tensor_Tensor,
    "PowByNatural": aten.pow.Tensor_Tensor,
}  # fmt: skip
_ONE = {"sqrt": aten.sqrt.default, "exp": aten.exp.default, "log": aten.log.default, "cos": aten.cos.default,
        "sin": aten.sin.default, "tanh": aten.tanh.default, "log2": aten.log2.default}  # fmt: skip


def number_of(walker: Any, expr: sympy.Expr) -> Node:
    """The tensor of an expression in sizes. Raises Unknown for a function that has no op here."""
    known = walker.numbers.get(expr)
    if known is None:
        known = walker.numbers[expr] = _make(walker, expr)
        walker.layouts[known] = ()
    return known


def _make(walker: Any, expr: sympy.Expr) -> Node:
    name = type(expr).__name__
    if expr.is_Integer:
        return walker.made((), aten.full.default, [], int(expr), dtype=torch.int64)
    if expr.is_Number:
        return walker.made((), aten.full.default, [], float(expr), dtype=torch.float64)
    if name == "ToFloat":
        return _float(walker, number_of(walker, expr.args[0]))
    if name in ("Add", "Mul"):
        return _chain(walker, aten.add.Tensor if name == "Add" else aten.mul.Tensor, expr.args)
    if name in _TWO:
        op, kwargs = _TWO[name]
        return _pairs(walker, op, expr.args, kwargs)
    if name in _FLOAT_OF_TWO:
        made = [_float(walker, number_of(walker, a)) for a in expr.args]
        found = walker.made((), _FLOAT_OF_TWO[name], *made)
        return walker.made((), aten._to_copy.default, found, dtype=torch.int64) if name == "PowByNatural" else found
    if name == "Pow" and expr.args[1].is_Integer and 0 < expr.args[1] <= 8:
        return _chain(walker, aten.mul.Tensor, (expr.args[0],) * int(expr.args[1]))
    for function, op in _ONE.items():
        if name == f"OpaqueUnaryFn_{function}":
            return walker.made((), op, _float(walker, number_of(walker, expr.args[0])))
    if name in ("TruncToInt", "FloorToInt", "CeilToInt"):
        op = {"T": aten.trunc.default, "F": aten.floor.default, "C": aten.ceil.default}[name[0]]
        rounded = walker.made((), op, _float(walker, number_of(walker, expr.args[0])))
        return walker.made((), aten._to_copy.default, rounded, dtype=torch.int64)
    raise Unknown(f"no op computes {expr} from the sizes")


def _chain(walker: Any, op: Any, args: tuple) -> Node:
    found = number_of(walker, args[0])
    for a in args[1:]:
        found = walker.made((), op, *_alike(walker, found, number_of(walker, a)))
    return found


def _pairs(walker: Any, op: Any, args: tuple, kwargs: dict) -> Node:
    found = number_of(walker, args[0])
    for a in args[1:]:
        found = walker.made((), op, *_alike(walker, found, number_of(walker, a)), **kwargs)
    return found


def _alike(walker: Any, one: Node, other: Node) -> tuple[Node, Node]:
    if one.meta["val"].dtype == other.meta["val"].dtype:
        return one, other
    return _float(walker, one), _float(walker, other)


def _float(walker: Any, node: Node) -> Node:
    if node.meta["val"].dtype == torch.float64:
        return node
    return walker.made((), aten._to_copy.default, node, dtype=torch.float64)
