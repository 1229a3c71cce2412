"""Rewrites of an exported and decomposed graph before its import: constants, attention masks, embeddings.

What depends on nothing but constants (position ids, rotary tables, causal masks) is computed here, with PyTorch. A
uniform result becomes `aten.full`, any other becomes a constant argument. A mask that is a causal or window pattern
becomes an attribute of the attention.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from mlirc.frontend.attention import ATTENTIONS, is_lowest, pattern_of
from mlirc.frontend.dims import count_dims_from_front
from mlirc.frontend.evaluate import evaluate_constant, evaluate_fake, place
from mlirc.frontend.prefix_scan import prefix_extremum_op, prefix_scan_op
from mlirc.frontend.scatter import scatter_elements_op, scatter_op
from mlirc.frontend.score_tables import tabulate, unexpanded
from mlirc.frontend.sorting import sort_op
from mlirc.frontend.spelled_attention import find_attention
from mlirc.runtime.lazy import resolved

aten = torch.ops.aten
_CPU = torch.device("cpu")  # constants are computed here, wherever the model is
_ARANGES = tuple(getattr(aten.arange, name) for name in aten.arange.overloads())
_LARGEST = 1 << 26  # bytes of one folded constant
_COUNTED = 1 << 16  # bytes from which on a kernel counts by itself, rather than reading numbers
_FOLDED = tuple(
    op._opoverload for op in (scatter_op, scatter_elements_op, prefix_scan_op, prefix_extremum_op, sort_op)
)  # our own
_NEVER = ("rand", "bernoulli", "dropout", "multinomial", "empty", "normal", "uniform")


class Constants:
    """The values of the graph's nodes that depend on constants alone, computed on demand and kept."""

    def __init__(self, graph: Graph, placeholders: dict[str, torch.Tensor]):
        self._values: dict[Node, Any] = {}
        self._is: dict[Node, bool] = {}
        for node in graph.nodes:
            self._classify(node, placeholders)

    def _classify(self, node: Node, placeholders: dict[str, torch.Tensor]) -> None:
        constant = False
        if node.op == "placeholder":
            constant = node.name in placeholders
            if constant:
                self._values[node] = placeholders[node.name]
        elif node.op == "call_function":
            target: Any = node.target
            known = isinstance(target, torch._ops.OpOverload) or target is operator.getitem
            name = str(target)
            if (
                known
                and (target in _FOLDED or not name.startswith("mlirc"))
                and not any(word in name for word in _NEVER)
            ):
                constant = all(self._is.get(n, False) for n in node.all_input_nodes)
                if target is not operator.getitem and target._schema.is_mutable:
                    constant = False
        self._is[node] = constant

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and self._is.get(node, False)

    def value(self, node: Node) -> Any:
        """The value of a constant node, without gradients."""
        todo = [node]
        while todo:
            top = todo[-1]
            missing = [n for n in top.all_input_nodes if n not in self._values]
            if missing:
                todo += missing
                continue
            todo.pop()
            if top not in self._values:
                args, kwargs = torch.fx.node.map_arg((top.args, dict(top.kwargs)), lambda n: self._values[n])
                args = tuple(_CPU if isinstance(a, torch.device) else a for a in args)
                kwargs = {k: _CPU if isinstance(a, torch.device) else a for k, a in kwargs.items()}
                with torch.no_grad():
                    self._values[top] = evaluate_constant(top.target, args, kwargs)
        return self._values[node]

    def add(self, node: Node) -> None:
        """Makes a new node known, which is computed like any other."""
        self._classify(node, {})

    def set(self, node: Node, value: Any) -> None:
        """Makes a new node known."""
        self._values[node], self._is[node] = value, True


def simplify(graph: Graph, placeholders: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Simplifies the graph in place. `placeholders`: the values of placeholders that are constants, by node name.

    Returns the values of the new constant placeholders, by node name, that were added after the existing ones.
    """
    count_dims_from_front(graph)
    _drop_no_ops(graph)
    constants = Constants(graph, placeholders)
    if find_attention(graph, constants, _call):
        graph.eliminate_dead_code()
        constants = Constants(graph, placeholders)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in ATTENTIONS:
            _simplify_attention(graph, node, constants)
    graph.eliminate_dead_code()
    for node in list(graph.nodes):
        if node.target in (aten.embedding.default, aten.index.Tensor):
            _simplify_lookup(graph, node, constants)
    graph.eliminate_dead_code()
    made = _fold(graph, constants)
    _widen_equal_branches(graph)
    return made


def _widen_equal_branches(graph: Graph) -> None:
    """Has `where` with what may be the same tensor on both sides take it in the result's shape: torch-mlir, which may
    be first to see that it is the same, gives the tensor as it is, whatever the condition's shape."""
    for node in graph.find_nodes(op="call_function", target=aten.where.self):
        shape, (one, other) = node.meta["val"].shape, node.args[1:]
        filled = one.target is aten.full.default is other.target
        if one.meta["val"].shape == other.meta["val"].shape != shape and (not filled or one.args == other.args):
            with graph.inserting_before(node):
                wide = [_call(graph, node, aten.expand.default, side, list(shape)) for side in (one, other)]
            node.args = (node.args[0], *wide)


def _drop_no_ops(graph: Graph) -> None:
    """Copies, detaches and additions of zero that tracing leaves behind."""
    same = (aten.alias.default, aten.clone.default, aten.detach.default, aten.lift_fresh_copy.default)
    for node in list(graph.nodes):
        if node.op == "call_function" and "_assert_" in str(node.target) and not node.users:
            graph.erase_node(node)
            continue
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        source = node.args[0]
        if node.target in _FILLS:
            _replace_fill(graph, node)
            continue
        val = node.meta.get("val")
        if isinstance(val, torch.Tensor) and not val.numel():
            _replace(graph, node, 0)  # torch-mlir crashes on reshapes of nothing, and refuses to concatenate it
            continue
        if not isinstance(source, Node) or not _same_tensor(node, source):
            continue
        copies = node.target in same or node.target in (aten.expand.default, aten.view.default, aten.permute.default)
        if node.target is aten.permute.default:
            copies = list(node.args[1]) == list(range(len(node.args[1])))  # type: ignore[arg-type]
        elif node.target in (aten._to_copy.default, aten.to.dtype, aten.slice.Tensor):
            copies = True
        elif node.target in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar):
            copies = isinstance(node.args[1], (int, float)) and node.args[1] == 1
        elif node.target in (aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar):
            copies = _adds_nothing(node)
        if copies:
            node.replace_all_uses_with(source)
            graph.erase_node(node)


def _adds_nothing(node: Node) -> bool:
    """Whether a sum or difference is its first operand to the last bit: -0.0 + 0 is 0.0, -0.0 - 0 is not."""
    number = node.args[1]
    if not isinstance(number, (int, float)) or number != 0:
        return False
    is_sum = node.target in (aten.add.Tensor, aten.add.Scalar)
    return not node.meta["val"].is_floating_point() or (math.copysign(1, number) < 0) == is_sum


_FILLS = {
    aten.full_like.default: None,
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
    aten.new_full.default: None,
}


def _replace_fill(graph: Graph, node: Node) -> None:
    """A fill takes nothing but a shape from its operand."""
    value: Any = _FILLS[node.target]  # type: ignore[index]
    if value is None:
        value = node.args[2] if node.target is aten.new_full.default else node.args[1]
    if not isinstance(value, Node):
        _replace(graph, node, value)


def _replace(graph: Graph, node: Node, value: Any) -> None:
    """Puts a tensor filled with `value` in a node's place."""
    val = node.meta["val"]
    with graph.inserting_before(node):
        new = graph.call_function(aten.full.default, (list(val.shape), value), {"dtype": val.dtype})
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _same_tensor(node: Node, source: Node) -> bool:
    a, b = node.meta.get("val"), source.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.shape == b.shape and a.dtype == b.dtype


def _call(graph: Graph, like: Node, target: Callable, *args: Any) -> Node:
    """A new node at the insertion point, with metadata computed from its arguments'."""
    node = graph.call_function(target, args)
    values = [n.meta["val"] for n in (*node.all_input_nodes, like)]
    modes = [value.fake_mode for value in values if hasattr(value, "fake_mode")]  # higher-order ops hold plain tensors
    with modes[0] if modes else contextlib.nullcontext(), torch.no_grad():
        node.meta = {"val": evaluate_fake(target, args, {}), **place(like)}
    return node


def _simplify_attention(graph: Graph, node: Node, constants: Constants) -> None:
    """Splits the mask into attributes (causal, window) and what remains, and merges that with the bias."""
    arguments: Any = node.args
    q, k, v, mask, bias, inputs, scale, causal, window, softcap, *more = arguments
    q_len, kv_len = q.meta["val"].shape[2], k.meta["val"].shape[2]  # type: ignore[union-attr]
    rest: list[Node] = []
    terms = _terms(mask) if isinstance(mask, Node) else []
    if isinstance(bias, Node):
        visible, bias = _split_bias(graph, bias, constants, (q_len, kv_len), exact=not _padding_rows(node))
        terms += visible
    fixed = [t for t in terms if t in constants]
    if fixed:
        # Only the conjunction of all constant terms may be a pattern: a window alone is none.
        seen = functools.reduce(torch.logical_and, (constants.value(t) for t in fixed))
        pattern = pattern_of(seen, q_len, kv_len)
        if pattern is None:
            rest += fixed
        else:
            causal = causal or pattern[0]
            window = min(w for w in (window, pattern[1]) if w) if window or pattern[1] else 0  # type: ignore[type-var]
    rest += [t for t in terms if t not in constants]
    with graph.inserting_before(node):
        merged = None
        for term in rest:
            term = _shrink(graph, _rank4(graph, term), constants)
            merged = term if merged is None else _call(graph, node, aten.logical_and.default, merged, term)
        if isinstance(bias, Node):
            bias = _shrink(graph, _rank4(graph, bias), constants)
        score, *after = [*more[1:], ""] if len(more) < 2 else more[1:]
        merged, bias, inputs, score = tabulate(graph, node, merged, bias, inputs, score, constants, _call)
        if score:
            more = [more[0] if more else False, score, *after]
        if isinstance(bias, Node):
            if merged is not None:
                dtype = bias.meta["val"].dtype
                lowest = graph.call_function(aten.full.default, ([], float("-inf")), {"dtype": dtype})
                lowest.meta = {"val": bias.meta["val"].new_empty(()), **place(node)}
                merged = _call(graph, node, aten.where.self, merged, bias, lowest)
            else:
                merged = bias
    node.args = (q, k, v, merged, None, inputs, scale, causal, window, softcap, *more)


def _padding_rows(node: Node) -> bool:
    """Whether a row that a finite mask hides whole is padding, so that what it gives is not defined."""
    return bool((*node.args, *[None] * 15)[14])


def _terms(mask: Node) -> list[Node]:
    """The masks that a bool mask is the conjunction of; expansions are looked through, since masks broadcast."""
    mask = unexpanded(mask)
    if mask.target in (aten.bitwise_and.Tensor, aten.logical_and.default):
        parts = [a for a in mask.args if isinstance(a, Node)]
        if len(parts) == 2:
            return [t for part in parts for t in _terms(part)]
    return [mask]


def _split_bias(
    graph: Graph, bias: Node, constants: Constants, sizes: tuple[int, int], exact: bool = False
) -> tuple[list[Node], Node | None]:
    """The bool masks that a float mask says with lowest values, and what else it adds to the scores, of `sizes`
    (queries, keys). `exact`: a row of lowest values that are finite weighs its keys by their scores, so that such
    values must be known."""
    if bias in constants:
        value = constants.value(bias)
        visible = ~is_lowest(value)
        finite = exact and not bool((visible.any(-1) | (value == float("-inf")).all(-1)).all())
        zeros = bool((~visible | (value == 0)).all())
        if finite or visible.all() and not zeros or not zeros and pattern_of(visible, *sizes) is None:
            return [], bias
        rest = None if zeros else _of_keys(graph, bias, visible, constants)
        with graph.inserting_after(bias):
            below = float(value[~visible].max()) if not visible.all() else float("-inf")
            node = graph.call_function(aten.gt.Scalar, (bias, below))
        node.meta = {"val": bias.meta["val"] > below, **place(bias)}
        constants.set(node, visible)
        return [node], rest
    inner = unexpanded(bias)
    if inner.target is aten.where.self:
        arguments: Any = inner.args
        cond, yes, no = arguments
        limit = constants.value(no) if no in constants else None
        sees = cond in constants and bool(constants.value(cond).any(-1).all())  # every row a key
        lowest = limit is not None and (limit == float("-inf") if exact and not sees else is_lowest(limit)).all()
        if lowest and isinstance(cond, Node):
            more, rest = _split_bias(graph, yes, constants, sizes, exact) if isinstance(yes, Node) else ([], yes)
            return [*_terms(cond), *more], rest
    return [], bias


def _of_keys(graph: Graph, bias: Node, visible: torch.Tensor, constants: Constants) -> Node:
    """A constant bias, as [..., 1, keys] if what it adds to visible scores depends on the key alone (ALiBi)."""
    value = constants.value(bias)
    highest = value.amax(-2, keepdim=True)
    if not bool((~visible | (value == highest)).all()):
        return bias
    with graph.inserting_after(bias):
        node = _call(graph, bias, aten.amax.default, bias, [-2], True)
    constants.set(node, highest)
    return node


def _rank4(graph: Graph, node: Node) -> Node:
    while node.meta["val"].dim() < 4:
        node = _call(graph, node, aten.unsqueeze.default, node, 0)
    return node


def _shrink(graph: Graph, node: Node, constants: Constants) -> Node:
    """A constant mask without the dimensions along which it is uniform."""
    if node not in constants:
        return node
    value = constants.value(node)
    for dim, size in enumerate(value.shape):
        first = value.narrow(dim, 0, 1) if size else value
        if size > 1 and bool((value == first).all()):
            node = _call(graph, node, aten.slice.Tensor, node, dim, 0, 1)
            value = first
            constants.set(node, value)
    return node


def _simplify_lookup(graph: Graph, node: Node, constants: Constants) -> None:
    """A lookup of constant rows that count up by one, or are all equal, is a slice of the table."""
    table: Any = node.args[0]
    indices: Any = node.args[1]
    if node.target is aten.index.Tensor and isinstance(indices, (list, tuple)) and len(indices) == 1:
        indices = indices[0]
    if indices not in constants or table in constants or table.meta["val"].dim() != 2:
        return
    value = constants.value(indices)
    if value.dtype not in (torch.int64, torch.int32):
        return
    if value.numel() == 0 or value.dim() == 0 or int(value.min()) < 0:
        return
    row = value.reshape(-1, value.shape[-1])[0]
    first, count = int(row[0]), value.shape[-1]
    if not bool((value == row).all()):
        return
    width = table.meta["val"].shape[1]
    with graph.inserting_before(node):
        if bool((row == first).all()):
            new = _call(graph, node, aten.slice.Tensor, table, 0, first, first + 1)
        elif torch.equal(row, torch.arange(first, first + count, dtype=row.dtype)):
            new = _call(graph, node, aten.slice.Tensor, table, 0, first, first + count)
        else:
            return
        rows = new.meta["val"].shape[0]
        new = _call(graph, node, aten.view.default, new, [1] * (value.dim() - 1) + [rows, width])
        new = _call(graph, node, aten.expand.default, new, [*value.shape, width])
    node.replace_all_uses_with(new)


def _fold(graph: Graph, constants: Constants) -> dict[str, torch.Tensor]:
    """Replaces the constant nodes that others read."""
    frontier = []
    for node in graph.nodes:
        if node in constants:
            if any(user not in constants for user in node.users):
                frontier.append(node)
    last = [n for n in graph.nodes if n.op == "placeholder"][-1:]
    made: dict[str, torch.Tensor] = {}
    known: dict[Any, Node] = {}
    folded = []
    for source in frontier:
        while source.target is aten.expand.default and source.args[0] in constants:
            source = source.args[0]  # type: ignore[assignment]
        folded.append((source, constants.value(source)))  # before the graph changes: values are made on demand
    for source, value in folded:
        if not isinstance(value, torch.Tensor):
            continue
        if source.target in _ARANGES and value.numel() * value.element_size() >= _COUNTED:
            continue
        if source.target is aten.full.default or value.numel() * value.element_size() > _LARGEST:
            continue
        new = _uniform(graph, source, value)
        if new is None and source.op == "placeholder":
            continue
        if new is None:
            key = (
                value.dtype,
                tuple(value.shape),
                resolved(value).contiguous().view(-1).view(torch.uint8).numpy().tobytes(),
            )
            new = known.get(key)
            if new is None:
                new = known[key] = _placeholder(graph, last, len(made), source, value)
                made[new.name] = value.contiguous()
        constants.set(new, value)  # an expand of it, read by others, is looked through once more
        users = [u for u in source.users if u not in constants or u.target is aten.expand.default]
        for user in users:
            user.replace_input_with(source, new)
    graph.eliminate_dead_code()
    return {name: value for name, value in made.items()}


def _uniform(graph: Graph, node: Node, value: torch.Tensor) -> Node | None:
    if value.numel() == 0 or value.is_complex() or not bool((value == value.reshape(-1)[0]).all()):
        return None
    if not value.any() and len(torch.signbit(value).unique()) > 1:  # zeros of both signs
        return None
    anchor = next(n for n in graph.nodes if n.op != "placeholder") if node.op == "placeholder" else node
    with graph.inserting_before(anchor):
        new = graph.call_function(
            aten.full.default, (list(value.shape), value.reshape(-1)[0].item()), {"dtype": value.dtype}
        )
    new.meta = {"val": node.meta["val"], **place(node)}
    return new


def _placeholder(graph: Graph, last: list[Node], count: int, node: Node, value: torch.Tensor) -> Node:
    if last:
        with graph.inserting_after(last[0]):
            new = graph.placeholder(f"folded_constant_{count}")
    else:
        with graph.inserting_before(next(iter(graph.nodes))):
            new = graph.placeholder(f"folded_constant_{count}")
    last[:] = [new]
    new.meta = {"val": node.meta["val"].contiguous(), **place(node)}
    return new
