"""Elementwise ops, and those that leave every element where it is: padding stays padding."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.fx import Node

from mlirc.frontend.sizes.layout import Unknown, broadcast
from mlirc.frontend.sizes.rules.registry import Number, rule

aten = torch.ops.aten
_SAME = (
    aten.clone.default, aten.contiguous.default, aten.detach.default, aten.alias.default, aten.to.dtype,
    aten.to.dtype_layout, aten.to.device, aten.to.other, aten._to_copy.default, aten.lift_fresh_copy.default,
    aten.type_as.default, aten.ones_like.default, aten.zeros_like.default, aten.empty_like.default,
)  # fmt: skip
_TENSOR = {"Scalar", "Tensor_Scalar"}  # overloads that take a number where another takes a tensor


def pointwise(w: Any, *args: Any, **kwargs: Any) -> Node:
    """Any elementwise op; numbers that are computed from sizes are tensors of no dimension there."""
    target = w.node.target
    made = [_operand(w, a) for a in args]
    named = {k: _operand(w, v) for k, v in kwargs.items()}
    if any(isinstance(a, Number) for a in (*args, *kwargs.values())):
        target = _of_tensors(target)
        types = {a.name: str(a.type) for a in target._schema.arguments}
        made = [_as_taken(w, a, type_) for a, type_ in zip(made, types.values(), strict=False)]
        named = {name: _as_taken(w, a, types[name]) for name, a in named.items()}
    tensors = [a for a in torch.utils._pytree.tree_leaves((made, named)) if isinstance(a, Node)]
    layout = broadcast([w.layouts[t] for t in tensors])
    dtype = w.meant().dtype
    node = w.made(layout, target, *made, **named)
    return node if node.meta["val"].dtype == dtype else w.made(layout, aten._to_copy.default, node, dtype=dtype)


def _operand(w: Any, value: Any) -> Any:
    return w.tensor(value.expr) if isinstance(value, Number) else value


def _as_taken(w: Any, value: Any, type_: str) -> Any:
    """A plain number as a tensor where the op takes a tensor: the other bound of a clamp to a size."""
    return w.tensor(sympy.sympify(value)) if "Tensor" in type_ and type(value) in (int, float) else value


def _of_tensors(target: Any) -> Any:
    """The overload for tensors of an op that takes a number."""
    name = target._overloadname
    packet = target.overloadpacket
    for other in {"Scalar": ("Tensor",), "Tensor_Scalar": ("Tensor_Tensor", "Tensor"), "default": ("Tensor",)}.get(
        name, (name,)
    ):
        if hasattr(packet, other) and other.startswith("Tensor"):
            return getattr(packet, other)
    raise Unknown("it takes a number that is computed from sizes")


@rule(*_SAME)
def same(w: Any, x: Node, *args: Any, **kwargs: Any) -> Node:
    return w.made(w.layouts[x], w.node.target, x, *args, **kwargs)


@rule(aten.dropout.default)
def dropout(w: Any, x: Node, p: float, train: bool) -> Node:
    if train:
        raise Unknown("random numbers are drawn for one size alone")
    return x


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar, aten.masked_fill.Scalar,
      aten.masked_fill.Tensor, aten.__and__.Tensor, aten.__or__.Tensor, aten.__xor__.Tensor, aten.__and__.Scalar,
      aten.__or__.Scalar, aten.rsub.Scalar, aten.prelu.default, aten.clamp.Tensor)  # fmt: skip
def spelled(w: Any, *args: Any, **kwargs: Any) -> Node:
    """Elementwise ops that PyTorch does not mark so."""
    if w.node.target is aten.prelu.default and args[1].meta["val"].numel() != 1:
        x, weight = args
        layout = w.layouts[x]
        if len(layout) > 1 and any(p.padded for p in layout[1]):
            raise Unknown("its channels have no fixed number")
        return w.made(layout, w.node.target, x, weight)
    return pointwise(w, *args, **kwargs)


@rule(aten.full_like.default)
def full_like(w: Any, x: Node, value: Any, **kwargs: Any) -> Node:
    if not isinstance(value, Number):
        return w.made(w.layouts[x], aten.full_like.default, x, value, **kwargs)
    number = w.made((), aten._to_copy.default, w.tensor(value.expr), dtype=w.meant().dtype)
    return w.made(w.layouts[x], aten.expand.default, number, list(x.meta["val"].shape))


@rule(aten.full.default, aten.new_full.default, aten.zeros.default, aten.ones.default, aten.empty.memory_format,
      aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default)  # fmt: skip
def full(w: Any, *args: Any, **kwargs: Any) -> Node:
    """New tensors, of sizes computed from sizes."""
    sizes, value = (args[0], args[1:]) if not isinstance(args[0], Node) else (args[1], args[2:])
    layout = tuple(w.fresh(n) for n in sizes)
    shape = [w.size(n) for n in sizes]
    if value and isinstance(value[0], Number):
        number = w.made((), aten._to_copy.default, w.tensor(value[0].expr), dtype=w.meant().dtype)
        return w.made(layout, aten.expand.default, number, shape)
    known = {aten.zeros: 0, aten.new_zeros: 0, aten.ones: 1, aten.new_ones: 1, aten.empty: 0, aten.new_empty: 0}
    fill = value[0] if value else known[w.node.target.overloadpacket]
    return w.made(layout, aten.full.default, shape, fill, dtype=w.meant().dtype)


@rule(aten.scalar_tensor.default)
def scalar_tensor(w: Any, value: Any, **kwargs: Any) -> Node:
    number = w.tensor(value.expr)
    return w.made((), aten._to_copy.default, number, dtype=w.meant().dtype)


@rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(w: Any, *args: Any, **kwargs: Any) -> Node:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if isinstance(step, Number) or isinstance(start, float) or isinstance(step, float) or isinstance(end, float):
        raise Unknown("its step is computed from sizes")
    (size,) = w.meant().shape
    layout = (w.fresh(size),)
    dtype = w.meant().dtype
    found = w.made(layout, aten.arange.default, w.space.most(w.expr(size)), dtype=dtype)
    if step != 1:
        found = w.made(layout, aten.mul.Scalar, found, step)
    if isinstance(start, Number):
        return w.made(layout, aten.add.Tensor, found, w.tensor(start.expr))
    return found if start == 0 else w.made(layout, aten.add.Scalar, found, start)


@rule(aten.tril.default, aten.triu.default)
def triangle(w: Any, x: Node, diagonal: Any = 0) -> Node:
    if isinstance(diagonal, Number) or any(len(d) > 1 for d in w.layouts[x][-2:]):
        raise Unknown("its diagonal depends on sizes")
    return w.made(w.layouts[x], w.node.target, x, diagonal)
