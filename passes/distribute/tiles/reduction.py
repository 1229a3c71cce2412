"""Reductions: in registers, then across lanes by butterfly shuffles, then across warps through shared memory (across
blocks: `cluster_reduction.py`). The order is fixed, so results are the same from run to run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from mlirc.ir.combiners import combining, neutral
from mlirc.mlir import arith, ir, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.registers import Factor, Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.cluster_reduction import AcrossBlocks
from mlirc.passes.distribute.tiles.elementwise import Body
from mlirc.passes.distribute.tiles.values import Fragment, Tile, elementwise_op, load


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
    # The most that a thread's first coordinate can be: with some registers all threads are inside.
    most = {d: layout.shape[d] - 1 - int(layout.reg_offsets[:, d].max()) for d in dims}
    pieces = []
    for p, value in enumerate(frag.pieces):
        for d in dims:
            spread = d == layout.rank - 1 and frag.piece > 1
            offset = int(layout.reg_offsets[p * frag.piece, d])
            size, last = frag.sizes[d], offset + most[d] + (frag.piece - 1 if spread else 0)
            if isinstance(size, int) and last < size:
                continue
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
        if isinstance(result, AcrossBlocks):
            result.finish = partial(_with_init, em, combiner, init)
        out.append(result if isinstance(result, AcrossBlocks) else _with_init(em, combiner, init, result))
    return out


def _with_init(em: Emitter, combiner: Combiner, init: Tile, result: Fragment) -> Fragment:
    start = init.get(result.layout).with_piece(result.piece)
    pieces = [combiner.apply(a, b) for a, b in zip(result.pieces, start.pieces, strict=True)]
    return Fragment(em, combiner.element, init.shape, init.sizes, result.layout, pieces, result.piece)


def _reduce(em: Emitter, value: Fragment, combiner: Combiner, dims: list[int | None]) -> Fragment | AcrossBlocks:
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
    if not warp_factors:
        return frag
    across = AcrossBlocks if em.spread > 1 else _across_warps
    return across(em, frag, combiner, warp_factors)


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
    sums: list = [None] * target.num_regs
    for p, x in enumerate(value.pieces):
        i = result_of(p * piece)
        sums[i] = x if sums[i] is None else combiner.apply(sums[i], x)
    if piece == 1:
        return sums
    return [_tree(combiner, [em.extract(v, k) for k in range(piece)]) for v in sums]


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
    em.meet_before_writing(buffer)
    each = Fragment(em, frag.element, shape, shape, partial_layout, frag.pieces, frag.piece)
    each = each.with_piece(partial_layout.piece) if frag.layout.rank else each
    access.store(em, each, access.View(buffer, [0] * len(shape), everything), whole=True)
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


def any_not_finite(em: Emitter, terms: list[ir.Value]) -> ir.Value:
    """Whether one of a few FP32 numbers is no finite one in any thread of the warp; or where their sum overflows."""
    while len(terms) > 1:
        pairs = [arith.AddFOp(x, y).result for x, y in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    test = arith.MulFOp(terms[0], em.constant(ir.FloatAttr.get_f32(0.0))).result
    unordered = arith.CmpFOp(arith.CmpFPredicate.UNO, test, test).result
    return nvvm.VoteSyncOp(em.full_mask(), unordered, ir.Attribute.parse("#nvvm<vote_sync_kind any>")).result
