"""In-place operations on tensors that nothing else looks at, made pure, so that a program with `nn.ReLU(inplace=True)`
is taken apart call by call, as one without writes is, and not traced a second time as a whole."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.evaluate import evaluate_fake
from mlirc.frontend.graph_copy import copied

# What writes more than the values of its first argument, or has no pure form that means the same.
_NEVER = ("copy_", "set_", "resize_", "resize_as_", "requires_grad_", "detach_", "swap_", "rename_")
# Composite operations of which it is known that they make a new tensor; `dropout`, say, may give its argument back.
_MAKE_NEW = (
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "batch_norm",
    "layer_norm", "group_norm", "instance_norm", "linear", "matmul", "max_pool1d", "max_pool2d", "max_pool3d",
)  # fmt: skip

_DROPOUTS = [
    getattr(torch.ops.aten, name).default
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
]


def without_writes(graph: Graph) -> Graph | None:
    """A copy of a graph in which writes to fresh tensors are pure operations; None if there are no such writes.

    `relu_(x)` becomes `relu(x)`, which stands for x from there on, where x is a new tensor, nothing before the write
    can be a view of it, and the pure form has x's dtype.
    """
    new = copied(graph)
    seen: set[Node] = set()
    changed = False
    for node in list(new.nodes):
        pure = _pure_form(node)
        if pure is not None and _is_alone(node.args[0], seen):
            old = node.args[0]
            with new.inserting_before(node):
                made = new.call_function(pure, node.args, node.kwargs)
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            new.erase_node(node)
            for user in [u for u in old.users if u not in seen and u is not made]:
                user.replace_input_with(old, made)
            node, changed = made, True
        seen.add(node)
    return new if changed else None


def without_idle_ops(graph: Graph) -> Graph:
    """A copy of a graph where a dropout outside of training is its argument, as in PyTorch: a write to the one is a
    write to the other, which PyTorch's own export loses. So is what `detach_` gives, as of `torch.tensor`."""
    new = copied(graph)
    for node in list(new.nodes):
        arguments: Any = node.args if node.target in (*_DROPOUTS, torch.ops.aten.detach_.default) else (None,)
        of, *rest = arguments
        is_idle = len(rest) == 2 and rest[1] is False and of.op == "call_function" if rest else True
        if isinstance(of, Node) and is_idle:
            node.replace_all_uses_with(of)
            new.erase_node(node)
    return new


def _pure_form(node: Node) -> Any:
    """The operation whose result an in-place one leaves in its first argument; None where there is none."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    name = target._schema.name.removeprefix("aten::")
    written = [i for i, a in enumerate(target._schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    if target.namespace != "aten" or name in _NEVER or not name.endswith("_") or written != [0] or not node.args:
        return None
    pure = _overload_of(getattr(torch.ops.aten, name[:-1], None), target._schema)
    return pure if pure is not None and _keeps_dtype(node, pure) else None


def _overload_of(packet: Any, schema: Any) -> Any:
    """The pure overload that takes what an in-place one does: that of `pow_.Scalar` is `pow.Tensor_Scalar`."""
    wanted = [(a.name, str(a.real_type)) for a in schema.arguments]
    for overload in (getattr(packet, name) for name in packet.overloads()) if packet is not None else ():
        found = overload._schema
        if not found.is_mutable and len(found.returns) == 1:
            if [(a.name, str(a.real_type)) for a in found.arguments] == wanted:
                return overload
    return None


def _keeps_dtype(node: Node, pure: Any) -> bool:
    """Whether promotion of the arguments gives the dtype and the shape of the tensor that is written."""
    first = node.args[0].meta.get("val") if isinstance(node.args[0], Node) else None
    if not isinstance(first, torch.Tensor):
        return False
    for value in (*node.args[1:], *node.kwargs.values()):
        if isinstance(value, Node):
            other = value.meta.get("val")
            if not isinstance(other, torch.Tensor) or other.dtype != first.dtype:
                return False
        elif isinstance(value, float) and not first.dtype.is_floating_point:
            return False
    if not hasattr(first, "fake_mode"):  # inside of a higher-order op
        return False
    with first.fake_mode, torch.no_grad():
        return evaluate_fake(pure, node.args, node.kwargs).dtype == first.dtype  # not for a comparison


def _is_alone(node: Node, seen: set[Node]) -> bool:
    """Whether the memory of a node's tensor is new, and no operation that was seen gives it another name."""
    made_by = node.args[0] if node.target is operator.getitem else node
    if not isinstance(made_by, Node) or not _makes_new(made_by):
        return False
    return all(_makes_new(user) for user in node.users if user in seen)


def _makes_new(node: Node) -> bool:
    """Whether an operation's results share no memory with its arguments, which it does not write."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    schema = target._schema
    if schema.is_mutable or any(r.alias_info for r in schema.returns):
        return False
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
    return not composite or schema.name.removeprefix("aten::") in _MAKE_NEW
