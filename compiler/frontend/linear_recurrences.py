"""Loops over time steps whose state is a linear recurrence, h = a h + b with a and b of the step alone, as a selective
scan is (Gu and Dao, 2023, "Mamba"): one `mlirc::linear_scan`, and what the steps compute besides for all of them at
once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

from mlirc.frontend import prefix_scan  # noqa: F401  the op
from mlirc.frontend.scan import one_step

aten = torch.ops.aten
Tensor = torch.Tensor


@dataclass
class _Linear:
    """A step whose new state is `factor` times the old one, plus `term`."""

    graph: Graph
    carry: Node
    new: Node
    factor: Node
    term: Node
    results: list[Node]  # slices of the loop's results
    reads_old: bool  # whether these need the old state, too


def straighten(
    init: list[Tensor], xs: list[Tensor], closed: list[Tensor], count: int, reverse: bool, step: int
) -> Any:  # fmt: skip
    """What a loop (`mlirc::scan`) makes, without a loop; NotImplemented where its state is no linear recurrence."""
    if len(init) != 1 or not xs or not init[0].dtype.is_floating_point:
        return NotImplemented
    with disable_proxy_modes_tracing():
        found = _read(init, xs, closed, step)
    if found is None:
        return NotImplemented
    if reverse:
        xs = [x.flip(0) for x in xs]
    slices = [n for n in found.graph.nodes if n.op == "placeholder"][1:]
    shared = dict(zip(slices[len(xs) :], closed, strict=True))
    shape = init[0].shape

    def coefficients(*tensors: Tensor) -> list[Tensor]:
        known = shared | dict(zip(slices, tensors, strict=False))
        return [x.expand(shape) for x in _run(known, [found.factor, found.term])]

    def results(new: Tensor, old: Tensor | None, *tensors: Tensor) -> list[Tensor]:
        known = shared | dict(zip(slices, tensors, strict=False)) | {found.new: new}
        return _run(known | ({found.carry: old} if old is not None else {}), found.results)

    a, b = torch.vmap(coefficients)(*xs)
    states = torch.ops.mlirc.linear_scan(a, b, init[0], 0)
    old = torch.cat([init[0].unsqueeze(0), states[:-1]]) if found.reads_old else None
    in_dims = (0, None if old is None else 0, *[0] * len(xs))
    rows = torch.vmap(results, in_dims=in_dims)(states, old, *xs) if found.results else []
    return [states[-1], *(y.flip(0) if reverse else y for y in rows)]


def _read(init: list[Tensor], xs: list[Tensor], closed: list[Tensor], step: int) -> _Linear | None:
    """The step, None where it is not linear."""
    graph = _trace(init, xs, closed, step)
    if graph is None:
        return None
    carry = next(iter(graph.nodes))
    new, *results = next(n for n in graph.nodes if n.op == "output").args[0]  # type: ignore[misc, union-attr]
    if not isinstance(new, Node) or not all(isinstance(y, Node) for y in results):
        return None
    parts = _sum_of_product(new, carry)
    if parts is None or any(_depends(n, {carry}, set()) for n in parts):
        return None
    factor, term = parts
    reads_old = any(_depends(y, {carry}, {new}) for y in results)
    return _Linear(graph, carry, new, factor, term, results, reads_old)  # type: ignore[arg-type]


def _trace(init: list[Tensor], xs: list[Tensor], closed: list[Tensor], step: int) -> Graph | None:
    """The graph of a step over the carries, the slices and what is the same for all; None where it writes in place,
    draws random numbers or makes constants."""

    def function(*tensors: Tensor) -> list[Tensor]:
        carries, rest = list(tensors[: len(init)]), list(tensors[len(init) :])
        new, ys = one_step(step, carries, rest[: len(xs)], rest[len(xs) :])
        return [*new, *ys]

    with init[0].fake_mode, torch.no_grad():  # type: ignore[attr-defined]
        shapes = [*((v.shape, v.dtype) for v in init), *((v.shape[1:], v.dtype) for v in xs)]
        shapes += [(v.shape, v.dtype) for v in closed]
        examples = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
        try:
            graph = make_fx(function, _allow_non_fake_inputs=True)(*examples).graph
        except Exception:  # which is said where the loop is imported
            return None
    for node in graph.nodes:
        if node.op == "get_attr":
            return None
        if isinstance(node.target, torch._ops.OpOverload):
            if node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags:
                return None
    return graph


def _sum_of_product(new: Node, carry: Node) -> tuple[Node, Node] | None:
    """(a, b) where a node is a * carry + b."""
    if new.target is not aten.add.Tensor or new.kwargs or len(new.args) != 2:
        return None
    for product, term in (new.args, new.args[::-1]):
        if isinstance(product, Node) and isinstance(term, Node) and product.target is aten.mul.Tensor:
            for x, factor in (product.args, product.args[::-1]):
                if x is carry and isinstance(factor, Node) and factor is not carry:
                    return factor, term
    return None


def _depends(node: Node, on: set[Node], but: set[Node]) -> bool:
    """Whether a node is made of one of the nodes `on`, otherwise than through those in `but`."""
    waiting, seen = [node], set(but)
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        if here in on:
            return True
        seen.add(here)
        waiting += here.all_input_nodes
    return False


def _run(known: dict[Node, Tensor], wanted: Sequence[Node]) -> list[Tensor]:
    """The values of nodes, where those of some are known."""
    values: dict[Node, Any] = dict(known)

    def value(node: Node) -> Any:
        if node not in values:
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), value)
            function: Callable = _PRODUCTS.get(node.target, node.target)  # type: ignore[arg-type, assignment]
            values[node] = function(*arguments[0], **arguments[1])
        return values[node]

    return [value(n) for n in wanted]


def _product(x: Tensor, y: Tensor) -> Tensor:
    """A product of matrices; with one column as the sum of products of elements, which joins the kernel of the scan."""
    if y.shape[-1] != 1:
        return torch.matmul(x, y)
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x.to(wide) * y.to(wide).transpose(-1, -2)).sum(-1, keepdim=True).to(x.dtype)


def _product_with_vector(x: Tensor, y: Tensor) -> Tensor:
    return _product(x, y.unsqueeze(-1)).squeeze(-1)


_PRODUCTS: dict[Any, Callable] = {
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.mv.default: _product_with_vector,
}
