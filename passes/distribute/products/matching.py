"""Recognises products of tiles among the generics of a tile program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlirc.ir.contractions import multiply_accumulate
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.tiles.elementwise import map_dims

_T = TypeVar("_T")


@dataclass
class Contraction:
    """A generic recognised as C[m, n] += A[m, k] * B[n, k]: iteration dimensions (None: of size 1 and absent), per
    operand the position of its two dimensions, and the chains of casts applied to A and B in the body. C's rows are
    m: where the generic's first factor runs along C's columns, it is B (`swapped`), and A its second."""

    m: int | None
    n: int | None
    k: int | None
    maps: list[list[int | None]]
    casts: list[list]
    multiply: str
    add: str
    swapped: bool = False

    def arrange(self, operands: Sequence[_T]) -> list[_T]:
        """What belongs to the generic's three operands, as A, B, C."""
        first, second, result = operands
        return [second, first, result] if self.swapped else [first, second, result]


def match(op: ir.Operation) -> Contraction | None:
    """Recognises a product of tiles; None for anything else."""
    maps_attr = list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    if len(maps_attr) != 3 or len(op.operands) != 3:
        return None
    found = multiply_accumulate(op)
    if found is None:
        return None
    try:
        dims = [map_dims(ir.AffineMapAttr(m).value) for m in maps_attr]
    except Unsupported:
        return None
    return _classify(op, dims, list(found.casts), found.multiply, found.add)


def _classify(op, dims, casts, multiply: str, add: str) -> Contraction | None:
    in_a, in_b, in_c = ({d for d in m if d is not None} for m in dims)
    extents: dict[int, int] = {}
    for m, v in zip(dims, op.operands, strict=True):
        for d, e in zip(m, ir.RankedTensorType(v.type).shape, strict=True):
            if d is not None:
                extents[d] = e if e >= 0 else 1 << 30
    ms, ns = (in_a & in_c) - in_b, (in_b & in_c) - in_a
    ks, batch = (in_a & in_b) - in_c, in_a & in_b & in_c
    if not ms or not ns or not ks or any(extents[d] != 1 for d in batch):
        return None
    chosen = []
    for group in (ms, ns, ks):
        real = [d for d in group if extents[d] != 1]
        if len(real) > 1:
            return None
        chosen.append(real[0] if real else min(group))
    m, n, k = chosen
    # Accumulators number their registers row by row, as layouts do with a result's dimensions in order.
    if dims[2].index(n) < dims[2].index(m):
        dims, casts = [dims[1], dims[0], dims[2]], casts[::-1]
        return Contraction(n, m, k, maps=dims, casts=casts, multiply=multiply, add=add, swapped=True)
    return Contraction(m, n, k, maps=dims, casts=casts, multiply=multiply, add=add)
