"""Finds the iterations of a Python loop in an exported graph: where a run of nodes repeats, and how the repetitions
hang together."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten
MIN_COUNT = 8  # iterations: fewer are as good one by one
_MIN_NODES = 24
_MOST_PERIODS = 64  # that are tried
# Which arguments are the index of a step: (first, how many).
INDICES = {aten.select.int: (2, 1), aten.slice.Tensor: (2, 2)}


@dataclass(frozen=True)
class Run:
    """`count` times `period` nodes from the one numbered `start` on, equal but for what they read."""

    start: int
    period: int
    count: int


def find_runs(nodes: Sequence[Node]) -> Iterator[Run]:
    """Runs of repetitions, those that hold the most nodes first, and each from every node at which it may begin."""
    ids: dict[Any, int] = {}
    numbers = np.array([ids.setdefault(_look(n), len(ids)) for n in nodes], dtype=np.int64)
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, number in enumerate(numbers.tolist()):
        if number in last:
            distances[i - last[number]] += 1
        last[number] = i
    found = []
    for period, _ in distances.most_common(_MOST_PERIODS):
        same = np.concatenate(([False], numbers[:-period] == numbers[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1]).tolist()
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if (stop - start) // period + 1 >= MIN_COUNT and stop - start + period >= _MIN_NODES:
                found.append((start, stop + period, period))
    for start, end, period in sorted(found, key=lambda r: (r[0] - r[1], r[2])):
        for offset in range(2 * period):  # an iteration may begin at any node, and the first one may be another
            count = (end - start - offset) // period
            if count >= MIN_COUNT:
                yield Run(start + offset, period, count)


def _look(node: Node) -> Any:
    """What is the same in every iteration."""
    target: Any = node.target
    first, count = INDICES.get(target, (0, 0))
    args = [None if first <= i < first + count and isinstance(a, int) else a for i, a in enumerate(node.args)]
    leaves, spec = pytree.tree_flatten((args, node.kwargs))
    values = [v for v in pytree.tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
    shapes = tuple((tuple(v.shape), v.dtype) for v in values)
    return str(node.target), tuple("node" if isinstance(x, Node) else repr(x) for x in leaves), str(spec), shapes


@dataclass(frozen=True)
class Slice:
    """A slice that moves with the iterations: index `first + step * i` of a dimension. `kept`: the dimension stays, as
    one of size 1."""

    dim: int
    first: int
    step: int
    kept: bool


@dataclass
class Iterations:
    """How the repetitions hang together, by positions in a period. `leaves`: for each position, what each Node among
    its flat arguments is: (`inner`, position), (`carry`, position, distance) or (`outer`, node). `starts`: values of
    before the first iteration, by position and (negative) iteration. `slices`: positions that read a moving slice of
    what all iterations share; `writes`: positions whose slices are written, with the position of the copy."""

    nodes: list[list[Node]]
    leaves: list[list[Any]] = field(default_factory=list)
    starts: dict[tuple[int, int], Node] = field(default_factory=dict)
    slices: dict[int, Slice] = field(default_factory=dict)
    writes: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.nodes)

    @property
    def first(self) -> list[Node]:
        return self.nodes[0]


class NoLoop(Exception):
    """Repeated nodes that are not the iterations of a loop."""


def read_iterations(nodes: Sequence[Node], run: Run, known: dict[Node, list[Any]] | None = None) -> Iterations:
    """Reads a run as a loop; raises NoLoop for one that is none. `known`: the flat arguments of nodes that were read
    before; a graph of layers has many runs that are none, and each would flatten all of them again."""
    known = {} if known is None else known
    starts = range(run.start, run.start + run.period * run.count, run.period)
    found = Iterations([list(nodes[s : s + run.period]) for s in starts])
    places = {n: (i, q) for i, part in enumerate(found.nodes) for q, n in enumerate(part)}
    for position in range(run.period):
        column = [part[position] for part in found.nodes]
        flat = [_flat(n, known) for n in column]
        moving = _moving(column)
        if moving is not None:
            found.slices[position] = moving
        leaves: list[Any] = []
        for values in zip(*flat, strict=True):
            if isinstance(values[0], Node):
                leaves.append(_leaf(found, values, places))
            elif moving is None and any(type(v) is not type(values[0]) or v != values[0] for v in values):
                raise NoLoop("a number changes")
        found.leaves.append(leaves)
        if moving is not None and leaves[0][0] != "outer":
            raise NoLoop("a moving slice of what an iteration makes")
    _find_writes(found)
    return found


def _flat(node: Node, known: dict[Node, list[Any]]) -> list[Any]:
    if node not in known:
        known[node] = pytree.tree_leaves((node.args, node.kwargs))
    return known[node]


def _leaf(found: Iterations, values: Sequence[Any], places: dict[Node, tuple[int, int]]) -> Any:
    """What an argument is in all iterations."""
    last = len(values) - 1
    if values[last] not in places:
        if any(v is not values[0] for v in values):
            raise NoLoop("an argument changes")
        return "outer", values[0]
    iteration, position = places[values[last]]
    distance = last - iteration
    if distance > 2:
        raise NoLoop("an iteration reads what one long before it made")
    for i, value in enumerate(values):
        if i >= distance:
            if places.get(value) != (i - distance, position):
                raise NoLoop("an argument is not always from one place")
        elif value in places or found.starts.setdefault((position, i - distance), value) is not value:
            raise NoLoop("an argument has two beginnings")
    return ("inner", position) if distance == 0 else ("carry", position, distance)


def _moving(column: Sequence[Node]) -> Slice | None:
    """The slice that a node takes, if it moves with the iterations; raises NoLoop for one that moves in jumps."""
    target, node = column[0].target, column[0]
    if target not in INDICES or all(n.args[1:] == node.args[1:] for n in column):
        return None
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    dim = node.args[1] % value.dim()  # type: ignore[operator]
    size = int(value.shape[dim])
    places = []
    for n in column:
        arguments: Any = n.args
        if target is aten.slice.Tensor and (len(arguments) != 4 or int(n.meta["val"].shape[dim]) != 1):
            raise NoLoop("slices of more than one index")
        places.append(arguments[2] % size)
    step = places[1] - places[0]
    if step == 0 or any(p != places[0] + step * i for i, p in enumerate(places)):
        raise NoLoop("slices in no order")
    return Slice(dim, places[0], step, target is aten.slice.Tensor)


def _find_writes(found: Iterations) -> None:
    """Slices that are written in place; raises NoLoop for any other operation in place."""
    for position, node in enumerate(found.first):
        target: Any = node.target
        if target is operator.getitem:
            continue
        if not isinstance(target, torch._ops.OpOverload):
            raise NoLoop("an operation of higher order")
        if not target._schema.is_mutable:
            continue
        written = found.leaves[position][0]
        if target is not aten.copy_.default or written[0] != "inner" or written[1] not in found.slices:
            raise NoLoop("an operation in place")
        if any(p[position].users or len(p[written[1]].users) != 1 for p in found.nodes):
            raise NoLoop("what is written is read")
        found.writes[written[1]] = position
