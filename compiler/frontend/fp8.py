"""8-bit floats (float8_e4m3fn, float8_e5m2): stored and moved as they are, computed with in f32.

What PyTorch computes of them (`abs`, `eq`, `mul`, products of matrices) is computed in f32, and rounded to 8 bits where
the result has them. Conversions go through f32, as PyTorch's do, and are the op `mlirc::to_fp8` or `mlirc::from_fp8`.
To float8_e4m3fn, which has no infinity, what is too large becomes the largest number, an infinity too: that is PyTorch
2.13's rule (earlier ones made it NaN). To float8_e5m2 it becomes an infinity.

The rewrite comes after the constants have been folded, and before that of integers.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.elementwise import replace_op
from mlirc.frontend.evaluate import evaluate_fake, place
from mlirc.frontend.integers import MOVES, is_own, map_arguments, op_name
from mlirc.mlir import arith, ir

aten = torch.ops.aten
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LARGEST = torch.finfo(torch.float8_e4m3fn).max
_CASTS = ("_to_copy", "convert_element_type")


@torch.library.custom_op("mlirc::to_fp8", mutates_args=())
def to_fp8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x, of f32, rounded to an 8-bit float."""
    return (torch.clamp(x, -LARGEST, LARGEST) if dtype == torch.float8_e4m3fn else x).to(dtype)


@torch.library.custom_op("mlirc::from_fp8", mutates_args=())
def from_fp8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x, of 8-bit floats, in a wider float type: all of them have its values."""
    return x.to(dtype)


@to_fp8.register_fake
def _(x, dtype):
    return x.new_empty(x.shape, dtype=dtype)


@from_fp8.register_fake
def _(x, dtype):
    return x.new_empty(x.shape, dtype=dtype)


def lower_to_fp8(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of `mlirc::to_fp8`, whose shape is static."""

    def body(x: ir.Value, to: ir.Type) -> ir.Value:
        if str(to) == "f8E4M3FN":
            low, high = (arith.constant(x.type, ir.FloatAttr.get(x.type, s * LARGEST)) for s in (-1, 1))
            x = arith.minimumf(arith.maximumf(x, low), high)  # which keep NaN
        return arith.truncf(to, x)

    with op.location, ir.InsertionPoint(op):
        replace_op(op, [builtin_tensor(op.operands[0])], body)


def lower_from_fp8(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of `mlirc::from_fp8`, whose shape is static."""
    with op.location, ir.InsertionPoint(op):
        replace_op(op, [builtin_tensor(op.operands[0])], lambda x, to: arith.extf(to, x))


def legalize_fp8(graph: Graph) -> None:
    """Rewrites, in place, what a graph computes with 8-bit floats."""
    with torch.no_grad():
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target is not operator.getitem and _touches(node):
                _Rewriter(graph, node).run()
    graph.eliminate_dead_code()


def _dtypes(value: Any) -> set[torch.dtype]:
    return {v.dtype for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)}


def _touches(node: Node) -> bool:
    values = [node.meta.get("val"), *(n.meta.get("val") for n in node.all_input_nodes)]
    return bool(_dtypes(values) & set(FP8)) and not is_own(node)


class _Rewriter:
    def __init__(self, graph: Graph, node: Node):
        self.graph, self.node = graph, node
        self.mode = next(v.fake_mode for v in torch.utils._pytree.tree_leaves(node.meta["val"]) if hasattr(v, "shape"))

    def run(self) -> None:
        name = op_name(self.node)
        if name in MOVES and name != "view" or self.node.target is aten.view.default:
            return
        with self.graph.inserting_before(self.node), self.mode:
            new = self._cast() if name in _CASTS else self._compute()
        self._replace(new)

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta = {"val": evaluate_fake(target, args, kwargs), **place(self.node)}
        return node

    def _wide(self, value: Node, dtype: torch.dtype = torch.float32) -> Node:
        """An operand in a wider type, if it has 8-bit floats."""
        is_fp8 = _dtypes(value.meta["val"]) & set(FP8)
        return self._call(torch.ops.mlirc.from_fp8.default, value, dtype) if is_fp8 else value

    def _narrow(self, value: Node, dtype: torch.dtype) -> Node:
        """A result in `dtype`, an 8-bit float's or another."""
        given = value.meta["val"].dtype
        if dtype in FP8:
            value = value if given == torch.float32 else self._call(aten._to_copy.default, value, dtype=torch.float32)
            return self._call(torch.ops.mlirc.to_fp8.default, value, dtype)
        return value if given == dtype else self._call(aten._to_copy.default, value, dtype=dtype)

    def _cast(self) -> Node:
        dtype = self.node.meta["val"].dtype
        wide = torch.float32 if dtype in FP8 or not dtype.is_floating_point else dtype
        return self._narrow(self._wide(self.node.args[0], wide), dtype)  # type: ignore[arg-type]

    def _compute(self) -> Any:
        def argument(_: str, value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [argument("", v) for v in value]
            return self._wide(value) if isinstance(value, Node) else torch.float32 if value in FP8 else value

        args, kwargs = map_arguments(self.node, argument)
        new = self._call(self.node.target, *args, **kwargs)
        wanted = self.node.meta["val"]
        if not isinstance(wanted, (tuple, list)):
            return self._narrow(new, wanted.dtype)
        parts = []
        for i, result in enumerate(wanted):
            part = self.graph.call_function(operator.getitem, (new, i))
            part.meta = {**new.meta, "val": new.meta["val"][i]}
            parts.append(self._narrow(part, result.dtype))
        return parts

    def _replace(self, new: Any) -> None:
        if isinstance(new, list):
            for user in list(self.node.users):
                user.replace_all_uses_with(new[user.args[1]])  # type: ignore[index]
                self.graph.erase_node(user)
        else:
            self.node.replace_all_uses_with(new)
        self.graph.erase_node(self.node)
