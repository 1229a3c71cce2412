"""Reductions: in registers, then across lanes by butterfly shuffles, then across warps through shared memory, that of
other blocks, too, where these have parts of the rows. The order is fixed, so results are the same from run to run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mlirc.ir.combiners import combining, neutral
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.registers import WARP, Factor, Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.elementwise import Body
from mlirc.passes.distribute.tiles.values import Fragment, elementwise_op, load


@dataclass
class Combiner:
    """How one result of a reduction is accumulated: `name(value, out)`."""

    name: str
    value: ir.Value
    element: ir.Type
    attributes: dict
    neutral: ir.Attribute

    def apply(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return elementwise_op(self.name, [a.type], [a, b], self.attributes)[0]


def find_combiners(op: ir.Operation, num_inputs: int) -> list[Combiner] | None:
    """The combiners of a reducing generic; None if some result is not of the form combine(f(inputs), out)."""
    block = op.regions[0].blocks[0]
    outs = list(block.arguments)[num_inputs:]
    found = []
    for out, value in zip(outs, block.operations[len(block.operations) - 1].operands, strict=True):
        combine = combining(value, out)
        if combine is None or combine.operands[0] == combine.operands[1]:
            return None
        lhs, rhs = combine.operands
        attr = neutral(combine.name, out.type)
        if attr is None:
            return None
        attributes = {name: combine.attributes[name] for name in combine.attributes}
        found.append(Combiner(combine.name, rhs if lhs == out else lhs, out.type, attributes, attr))
    return found


def mask(em: Emitter, frag: Fragment, dims: list[int], fill: ir.Attribute) -> Fragment:
    """Replaces the elements that lie past the tile's sizes along the given dimensions by `fill`."""
    layout = frag.layout
    dims = [d for d in dims if not (isinstance(frag.sizes[d], int) and layout.shape[d] <= frag.sizes[d])]
    if not dims:
        return frag
    filler = em.constant(fill, frag.piece)
    memo: dict = {}
    pieces = []
    for p, value in enumerate(frag.pieces):
        for d in dims:
            spread = d == layout.rank - 1 and frag.piece > 1
            offset = int(layout.reg_offsets[p * frag.piece, d])
            if (d, offset) not in memo:
                memo[d, offset] = _inside(em, frag, d, p, spread)
            value = arith.SelectOp(memo[d, offset], value, filler).result
        pieces.append(value)
    return Fragment(em, frag.element, frag.shape, frag.sizes, layout, pieces, frag.piece)


def _inside(em: Emitter, frag: Fragment, dim: int, p: int, spread: bool) -> ir.Value:
    """i1 (or a vector of them) that tells whether piece p lies inside the tile along a dimension."""
    layout, size = frag.layout, frag.sizes[dim]
    first = p * frag.piece
    c = em.team.coordinate(layout, dim, first)
    if not spread or em.divisor(size) >= frag.piece:
        return em.value(em.less(c, size)) if not isinstance(c, int) else _compare(em, c, size)
    flags = []
    for k in range(frag.piece):
        ck = em.team.coordinate(layout, dim, first + k)
        flags.append(_compare(em, ck, size))
    return em.pack(flags)


def _compare(em: Emitter, c: IndexValue, size: IndexValue) -> ir.Value:
    return arith.CmpIOp(arith.CmpIPredicate.slt, em.value(c), em.value(size)).result


def reduce_generic(em: Emitter, op, num_inputs: int, operands, inits, space, dims_reduced: list[int], scalars):
    """Lowers a reducing generic.

    operands: (tile, dims) of the inputs; inits: (tile, dims) of the outputs; space: (layout, shape, sizes) of the
    iteration space. Returns one fragment per result."""
    layout, shape, sizes = space
    layout = layout.plain  # what is reduced across lanes must not change what else a lane has
    combiners = find_combiners(op, num_inputs)
    if combiners is None:
        raise Unsupported("a reduction whose body is not combine(f(inputs), out); use the generic script")
    bound = [(tile.get(layout.project(dims)), dims) for tile, dims in operands]
    body = Body(em, op, layout, sizes, [*bound, *[None] * len(inits)], scalars)
    out = []
    for combiner, (init, dims) in zip(combiners, inits, strict=True):
        value = Fragment(em, combiner.element, shape, sizes, layout, body.fragment_pieces(combiner.value), body.piece)
        value = mask(em, value, dims_reduced, combiner.neutral)
        result = _reduce(em, value, combiner, dims)
        start = init.get(result.layout)
        pieces = [
            combiner.apply(a, b) for a, b in zip(result.pieces, start.with_piece(result.piece).pieces, strict=True)
        ]
        out.append(Fragment(em, combiner.element, init.shape, init.sizes, result.layout, pieces, result.piece))
    return out


def _reduce(em: Emitter, value: Fragment, combiner: Combiner, dims: list[int | None]) -> Fragment:
    layout = value.layout
    target = layout.project(dims)
    kept = {d for d in dims if d is not None}
    reduced = [d for d in range(layout.rank) if d not in kept]
    registers = _in_thread(em, value, combiner, target, dims)
    for d in reduced:
        for f, _ in layout.thread_factors(d, "l"):
            step = f.stride
            while step < f.stride * f.size:
                registers = [combiner.apply(x, em.shuffle_xor(x, step)) for x in registers]
                step *= 2
    p = target.piece
    pieces = [em.pack(registers[i : i + p]) for i in range(0, len(registers), p)]
    shape = [value.shape[d] if d is not None else 1 for d in dims]
    sizes = [value.sizes[d] if d is not None else 1 for d in dims]
    frag = Fragment(em, value.element, shape, sizes, target, pieces, p)
    warp_factors = [f for d in reduced for f, _ in layout.thread_factors(d, "w")]
    across = _across_blocks if em.spread > 1 else _across_warps
    return across(em, frag, combiner, warp_factors) if warp_factors else frag


def _in_thread(em: Emitter, value: Fragment, combiner: Combiner, target: Layout, dims) -> list[ir.Value]:
    """Combines the registers that fall on the same result; returns one scalar per register of the target."""
    layout, piece = value.layout, value.piece
    index = target.registers

    def result_of(register: int) -> int:
        row = layout.reg_offsets[register]
        return index[tuple(0 if d is None else int(row[d]) for d in dims)]

    along = layout.rank - 1 not in dims  # the pieces' own dimension is reduced
    if not along and piece > 1:
        out: list = [None] * target.num_regs
        for r in range(layout.num_regs):
            i, x = result_of(r), value.scalar(r)
            out[i] = x if out[i] is None else combiner.apply(out[i], x)
        return out
    partial: list = [None] * target.num_regs
    for p, x in enumerate(value.pieces):
        i = result_of(p * piece)
        partial[i] = x if partial[i] is None else combiner.apply(partial[i], x)
    if piece == 1:
        return partial
    return [_tree(combiner, [em.extract(v, k) for k in range(piece)]) for v in partial]


def _tree(combiner: Combiner, values: list[ir.Value]) -> ir.Value:
    while len(values) > 1:
        pairs = [combiner.apply(values[i], values[i + 1]) for i in range(0, len(values) - 1, 2)]
        values = pairs + (values[-1:] if len(values) % 2 else [])
    return values[0]


def _across_warps(em: Emitter, frag: Fragment, combiner: Combiner, factors: list[Factor]) -> Fragment:
    """Every warp writes its partial results to shared memory; all read and combine them in the order of warps."""
    count = math.prod(f.size for f in factors)
    partial_layout = Layout((tuple(factors), *frag.layout.dims))
    shape = list(partial_layout.shape)
    buffer = em.alloc_smem(shape, access.storage_type(frag.element))
    everything = list(range(len(shape)))
    em.team.meet()
    partial = Fragment(em, frag.element, shape, shape, partial_layout, frag.pieces, frag.piece)
    partial = partial.with_piece(partial_layout.piece) if frag.layout.rank else partial
    access.store(em, partial, access.View(buffer, [0] * len(shape), everything), whole=True)
    em.team.meet()
    total: Fragment | None = None
    for w in range(count):
        view = access.View(buffer, [w, *[0] * (len(shape) - 1)], everything[1:])
        part = load(em, view, frag.element, frag.shape, frag.sizes, frag.layout, whole=True)
        if total is None:
            total = part
        else:
            pieces = [combiner.apply(a, b) for a, b in zip(total.pieces, part.pieces, strict=True)]
            total = Fragment(em, frag.element, frag.shape, frag.sizes, frag.layout, pieces, part.piece)
    assert total is not None
    return total


def _across_blocks(em: Emitter, frag: Fragment, combiner: Combiner, factors: list[Factor]) -> Fragment:
    """The same for warps of all blocks of a cluster: each leaves its partial results in its own block's shared memory.
    Each warp reads all of them, a lane one warp's (PTX ISA, "mapa", ld.shared::cluster), and its lanes combine them."""
    count, own = factors[0].size, em.team.warps // em.spread
    by_row = any(f.kind != "r" for d in frag.layout.dims for f in d)
    if by_row or len(factors) > 1 or factors[0].stride != 1:  # warps from number `count` on have copies
        raise Unsupported(f"mlirc.spread = {em.spread}: warps have other rows: give one row to a block")
    values = [frag.scalar(i) for i in range(frag.layout.num_regs)]
    stored = access.storage_type(frag.element)
    buffer = em.alloc_smem([own, len(values)], stored)
    with access.predicated(em.equal(em.lane, 0)):
        for i, x in enumerate(values):
            wide = x if stored == frag.element else arith.ExtUIOp(stored, x).result
            memref.StoreOp(wide, buffer, [em.value(em.own_warp), em.c(i)])
    nvvm.ClusterArriveOp()
    nvvm.ClusterWaitOp()
    parts = [_of_warp(em, buffer, em.rem(em.add(em.lane, first), count), own) for first in range(0, count, WARP)]
    totals = []
    for i in range(len(values)):
        total, *rest = [access.join(em, [load(i)], 1, frag.element, 1) for load in parts]
        for x in rest:
            total = combiner.apply(total, x)
        step = 1
        while step < min(count, WARP):
            total = combiner.apply(total, em.shuffle_xor(total, step))
            step *= 2
        totals.append(total)
    pieces = [em.pack(totals[i : i + frag.piece]) for i in range(0, len(totals), frag.piece)]
    return Fragment(em, frag.element, frag.shape, frag.sizes, frag.layout, pieces, frag.piece)


def _of_warp(em: Emitter, buffer: ir.Value, warp: IndexValue, own: int) -> Callable[[int], ir.Value]:
    """What loads a partial result, by its number, of a warp of the cluster, of which each block has `own`."""
    t, i32 = ir.MemRefType(buffer.type), ir.IntegerType.get_signless(32)
    base = em.shared_pointer(memref.ExtractAlignedPointerAsIndexOp(buffer).result)
    rank = arith.IndexCastOp(i32, em.value(em.div(warp, own))).result
    there = nvvm.MapaOp(ir.Type.parse("!llvm.ptr<7>"), base, rank).result
    size, row = element_bytes(t.element_type), em.mul(em.rem(warp, own), t.shape[1])

    def load(i: int) -> ir.Value:
        number = arith.IndexCastOp(i32, em.value(em.mul(em.add(row, i), size))).result
        where = llvm.GEPOp(there.type, there, [number], [-(1 << 31)], ir.IntegerType.get_signless(8), None).result
        return llvm.LoadOp(t.element_type, where, alignment=size).result

    return load
