"""Parts of tiles that differ in number and lie anywhere among the blocks of a launch (`schedule.stream_k`): which block
of the launch has a part of which tile, and how many a tile has, is computed. Whether that agrees is found out here, for
every block, before the last one of a tile may count on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlirc.ir.affine import affine_value
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.memory import slices
from mlirc.passes.distribute.program import gates


@dataclass(frozen=True)
class StreamedParts:
    """`tile`, `part`: numbers of the part that a block of the first forall has where `condition` holds; `count`: how
    many parts a tile has, in the second one, of whose induction variables the first is the tile."""

    tile: ir.Value
    condition: ir.Value
    count: ir.Value


def find(first: ir.Operation, forall: ir.Operation) -> StreamedParts | str:
    """How parts of `first` are told apart, which `forall` combines; or why they are not."""
    body, found = first.regions[0].blocks[0], gates.gates_of(first.regions[0].blocks[0])
    inside = set(nested(forall))
    read = {r: n for n, r in enumerate(first.results) if any(u.owner.operation in inside for u in r.uses)}
    if not read:
        return "it reads nothing of the launch in front of it"
    shared = list(body.arguments)[-len(first.results) :]
    parts = [g for i, g in found.items() if i.operands[1] in [shared[n] for n in read.values()]]
    if len(parts) != len(read):
        return "a block in front of it writes its parts more than once, or whether or not it has one"
    places = {tuple(_lead(g.insert)) for g in parts}
    if len(places) != 1 or len({g.condition for g in parts}) != 1:
        return "a block in front of it writes parts of different tiles"
    [(tile, part)] = places
    number = forall.regions[0].blocks[0].arguments[0]
    counts = set()
    for use in (u.owner.operation for r in read for u in r.uses if u.owner.operation in inside):
        if use.name != "tensor.extract_slice":
            return "it reads more than the parts of its own tile"
        offsets, _, sizes = slices.slice_geometry(use, lambda value: value)
        loop = use.parent.operation
        if (
            loop.name != "scf.for"
            or offsets[:2] != [number, loop.regions[0].blocks[0].arguments[0]]
            or sizes[:2] != [1, 1]
        ):
            return "it reads more than the parts of its own tile, one after the other"
        lower, upper, step = list(loop.operands)[:3]
        if (slices.known(lower), slices.known(step)) != (0, 1):
            return "it does not read all parts of its tile"
        counts.add(upper)
    if len(counts) != 1:
        return "it reads different numbers of parts"
    [count] = counts
    problem = _disagree(first, forall, (tile, part, parts[0].condition), count)
    return problem or StreamedParts(tile, parts[0].condition, count)


def _lead(insert: ir.Operation) -> list:
    offsets, _, sizes = slices.slice_geometry(insert, lambda value: value)
    return offsets[:2] if sizes[:2] == [1, 1] else [None, None]


def _disagree(first: ir.Operation, forall: ir.Operation, part: tuple, count: ir.Value) -> str:
    """Whether some tile has other parts than 0, 1, ... of as many as are read; "" if none has."""
    upper = [list(ir.DenseI64ArrayAttr(f.attributes["staticUpperBound"])) for f in (first, forall)]
    every = np.indices(upper[0]).reshape(len(upper[0]), -1)
    known = dict(zip(first.regions[0].blocks[0].arguments, every, strict=False))
    tiles = np.arange(upper[1][0])
    try:
        tile, number, some = (np.broadcast_to(_values(v, known), every.shape[1]) for v in part)
        counts = _values(count, {forall.regions[0].blocks[0].arguments[0]: tiles})
    except KeyError:
        return "which tiles a block has parts of is not computed of its number alone"
    has = some.astype(bool)
    pairs = sorted(zip(tile[has].tolist(), number[has].tolist(), strict=True))
    wanted = [(t, p) for t, n in enumerate(np.broadcast_to(counts, tiles.shape).tolist()) for p in range(n)]
    return "" if pairs == wanted else "the parts that it reads are not those that the blocks in front of it have"


_COMPARE = {0: np.equal, 1: np.not_equal, 2: np.less, 3: np.less_equal, 4: np.greater, 5: np.greater_equal}
_FOLDS = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.andi": np.bitwise_and,
}  # fmt: skip


def _values(value: ir.Value, known: dict) -> np.ndarray:
    """A number for every block. Raises KeyError for one that depends on anything but what is known."""
    if isinstance(value, int):
        return np.asarray(value)
    if value not in known:
        if isinstance(value.owner, ir.Block):
            raise KeyError(value)
        op = value.owner.operation
        if op.name == "arith.constant":
            known[value] = np.asarray(int(op.attributes["value"].value))
            return known[value]
        if op.name not in (*_FOLDS, "affine.apply", "affine.min", "affine.max", "arith.cmpi", "arith.select"):
            raise KeyError(value)
        operands = [_values(v, known) for v in op.operands]
        if op.name in _FOLDS:
            known[value] = _FOLDS[op.name](*operands)
        elif op.name == "arith.select":
            known[value] = np.where(*operands)
        elif op.name == "arith.cmpi":
            predicate = ir.IntegerAttr(op.attributes["predicate"]).value
            if predicate not in _COMPARE:
                raise KeyError(value)
            known[value] = _COMPARE[predicate](*operands)
        else:
            m = ir.AffineMapAttr(op.attributes["map"]).value
            results = [affine_value(e, operands[: m.n_dims], operands[m.n_dims :]) for e in m.results]
            fold = np.maximum if op.name == "affine.max" else np.minimum
            known[value] = results[0]
            for r in results[1:]:
                known[value] = fold(known[value], r)
    return known[value]
