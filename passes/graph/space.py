"""The loops of a kernel, and how each tensor that it reads lies in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from mlirc.mlir import ir
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.scalar import Scalar


@dataclass(frozen=True)
class Loop:
    """A loop of a kernel: one or more adjacent dimensions of the payload that all accesses walk together."""

    dims: tuple[int, ...]
    size: int


class Space:
    """An ordered list of loops made of numbered dimensions, merged where every access allows it."""

    def __init__(self, classes: Sequence[Sequence[tuple[int, int]]], scalars: Iterable[Scalar]) -> None:
        """`classes` are lists of (dimension, size) that may not merge with each other; `scalars` are all that the
        kernel computes. A read that is not plain, or a use of a loop index, keeps its dimensions unmerged."""
        self._plain: dict[int, tuple[int, ...] | None] = {}
        fixed: set[int] = set()
        for root in scalars:
            for node in root.walk():
                if node.kind == "load" and node.number not in self._plain:
                    found = plain_dims(node.data[1], node.data[0].type.shape)
                    self._plain[node.number] = tuple(d for d, _ in found) if found is not None else None
                    fixed |= set() if found is not None else node.dims
                elif node.kind == "index":
                    fixed |= node.dims
        self.loops = [loop for dims in classes for loop in self._merge(list(dims), fixed)]
        self._loop_of = {d: i for i, loop in enumerate(self.loops) for d in loop.dims}

    def _merge(self, dims: list[tuple[int, int]], fixed: set[int]) -> list[Loop]:
        merged: list[list[tuple[int, int]]] = []
        for number, size in dims:
            if merged and self._adjacent(merged[-1][-1][0], number, fixed):
                merged[-1].append((number, size))
            else:
                merged.append([(number, size)])
        return [Loop(tuple(d for d, _ in group), prod(n for _, n in group)) for group in merged]

    def _adjacent(self, a: int, b: int, fixed: set[int]) -> bool:
        if a in fixed or b in fixed:
            return False
        for dims in self._plain.values():
            if dims is not None and (a in dims or b in dims):
                if a not in dims or b not in dims or dims.index(b) != dims.index(a) + 1:
                    return False
        return True

    def loops_of(self, dims: Iterable[int]) -> list[int]:
        """The loops of these dimensions (given in order), each once."""
        return list(dict.fromkeys(self._loop_of[d] for d in dims))

    def plain_loops(self, load: Scalar) -> list[int] | None:
        """The loops that a load walks, in the tensor's physical order; None if it is not a plain read."""
        dims = self._plain[load.number]
        return None if dims is None else self.loops_of(dims)

    def index_loop(self, dimension: int) -> int:
        """The loop of an unmerged dimension."""
        return self._loop_of[dimension]

    def sizes(self, loops: Sequence[int]) -> list[int]:
        return [self.loops[i].size for i in loops]


def affine_map(loops: Sequence[int], results: Sequence[int | None]) -> ir.AffineMap:
    """The map from `loops` to `results` (loop numbers, None for the constant 0)."""
    position = {loop: i for i, loop in enumerate(loops)}
    exprs = [ir.AffineConstantExpr.get(0) if r is None else ir.AffineDimExpr.get(position[r]) for r in results]
    return ir.AffineMap.get(len(loops), 0, exprs)


def tensor_type(sizes: Sequence[int], element: ir.Type) -> ir.RankedTensorType:
    return ir.RankedTensorType.get(list(sizes), element)
