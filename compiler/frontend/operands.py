"""Operands of float arithmetic and comparisons in the dtype that PyTorch computes in.

torch-mlir compares a tensor with a scalar in FP64, and rounds the scalar of 16-bit products to 16 bits; PyTorch makes
the scalar an element of the tensor's dtype (`x == 0.1` is true of f32's 0.1), except for the second operand of mul and
div, which stays an f32 number beside 16 bits (`x / 70000`), and so does a tensor of no dimension there.

The rewrite comes after attention and masks were found, which look for plain ops.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.opmath import HALF, promoted, rounded

aten = torch.ops.aten

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_PRODUCTS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
_SUMS = (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Tensor, aten.rsub.Scalar)


def legalize_operands(graph: Graph) -> None:
    """Rewrites the graph in place, which holds no 8-bit floats any more."""
    for node in list(graph.nodes):
        _keep_doubles(graph, node)
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is not None:
            mode = next(n.meta["val"].fake_mode for n in node.all_input_nodes)
            with graph.inserting_before(node), mode, torch.no_grad():
                new = rule(_Builder(graph, node), *node.args, **node.kwargs)
            if new is not None:
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _keep_doubles(graph: Graph, node: Node) -> None:
    """Makes f64 tensors of numbers that stand for tensors in f64: torch-mlir makes f32 ones, as of 0.1 in `0.1 - x`."""
    value, target = node.meta.get("val"), node.target
    if (
        not isinstance(value, torch.Tensor)
        or value.dtype != torch.float64
        or not isinstance(target, torch._ops.OpOverload)
    ):
        return
    for i, (argument, given) in enumerate(zip(target._schema.arguments, node.args, strict=False)):
        if isinstance(given, float) and str(argument.type) == "Tensor":
            with graph.inserting_before(node), value.fake_mode, torch.no_grad():  # type: ignore[attr-defined]
                node.update_arg(i, _Builder(graph, node).tensor(given, torch.float64))


class _Builder:
    """Makes nodes before the one that is rewritten."""

    def __init__(self, graph: Graph, node: Node):
        self.graph, self.node = graph, node

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": evaluate_fake(target, args, kwargs), **place(self.node)}
        return node

    def tensor(self, value: Any, dtype: torch.dtype) -> Node:
        """An operand, a node or a number, as a tensor of `dtype`."""
        if not isinstance(value, Node):
            return self.call(aten.full.default, [], rounded(value, dtype), dtype=dtype)
        given = value.meta["val"].dtype
        if given == torch.float64 and dtype in HALF:
            value = self.call(aten._to_copy.default, value, dtype=torch.float32)
        return value if given == dtype else self.call(aten._to_copy.default, value, dtype=dtype)


def _value(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, Node) else operand


def _compared(b: _Builder, x: Any, y: Any) -> Node | None:
    dtype = promoted(_value(x), _value(y))
    if not dtype.is_floating_point:
        return None
    packet = getattr(aten, b.node.target._schema.name.split("::")[1])  # type: ignore[union-attr]
    return b.call(packet.Tensor, b.tensor(x, dtype), b.tensor(y, dtype))


def _multiplied(b: _Builder, x: Any, y: Any) -> Node | None:
    dtype = b.node.meta["val"].dtype
    if dtype not in HALF or not _keeps_f32(y, dtype):
        return None
    packet = aten.mul if b.node.target in (aten.mul.Tensor, aten.mul.Scalar) else aten.div
    out = b.call(packet.Tensor, b.tensor(b.tensor(x, dtype), torch.float32), b.tensor(y, torch.float32))
    return b.tensor(out, dtype)


def _keeps_f32(y: Any, dtype: torch.dtype) -> bool:
    """Whether the second operand of a product is no element of the 16-bit dtype."""
    if isinstance(y, Node):
        value = y.meta["val"]
        return value.dim() == 0 and value.dtype != dtype
    return rounded(y, dtype) != float(y)


def _scaled_sum(b: _Builder, x: Any, y: Any, alpha: float = 1) -> Node | None:
    """add, sub and rsub whose alpha is not 1: one rounding of what is computed in f32."""
    dtype = b.node.meta["val"].dtype
    if dtype not in HALF or alpha == 1:
        return None
    wide = [b.tensor(b.tensor(v, dtype), torch.float32) for v in (x, y)]
    return b.tensor(b.call(b.node.target, *wide, alpha=rounded(alpha, dtype)), dtype)


_RULES: dict[Any, Any] = {
    **{getattr(getattr(aten, name), kind): _compared for name in _COMPARISONS for kind in ("Tensor", "Scalar")},
    **dict.fromkeys(_PRODUCTS, _multiplied),
    **dict.fromkeys(_SUMS, _scaled_sum),
}
