"""Recognises products of tiles among the generics of a tile program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from mlirc.mlir import ir
from mlirc.passes.distribute.elementwise import map_dims
from mlirc.passes.distribute.emitter import Unsupported

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

    def order(self, operands: Sequence[_T]) -> list[_T]:
        """What belongs to the generic's three operands, as A, B, C."""
        first, second, result = operands
        return [second, first, result] if self.swapped else [first, second, result]


_PRODUCTS = {"arith.addf": "arith.mulf", "arith.addi": "arith.muli"}


def match(op: ir.Operation) -> Contraction | None:
    """Recognises a product of tiles; None for anything else."""
    maps_attr = list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    if len(maps_attr) != 3 or len(op.operands) != 3:
        return None
    block = op.regions[0].blocks[0]
    a, b, out = block.arguments
    total = block.operations[len(block.operations) - 1].operands[0].owner
    if isinstance(total, ir.Block) or total.name not in _PRODUCTS or out not in list(total.operands):
        return None
    product = next((v for v in total.operands if v != out), None)
    if product is None or isinstance(product.owner, ir.Block) or product.owner.name != _PRODUCTS[total.name]:
        return None
    casts = [_casts(product.owner.operands[i], arg) for i, arg in ((0, a), (1, b))]
    swapped = [_casts(product.owner.operands[i], arg) for i, arg in ((1, a), (0, b))]
    casts = casts if None not in casts else swapped
    if None in casts:
        return None
    try:
        dims = [map_dims(ir.AffineMapAttr(m).value) for m in maps_attr]
    except Unsupported:
        return None
    return _classify(op, dims, casts, product.owner.name, total.name)


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


_CASTS = ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")


def _casts(value: ir.Value, argument: ir.Value) -> list | None:
    """The cast ops between a block argument and its use as a factor, first applied first."""
    chain: list = []
    while value != argument:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name not in _CASTS:
            return None
        chain.append(owner)
        value = owner.operands[0]
    return chain[::-1]
