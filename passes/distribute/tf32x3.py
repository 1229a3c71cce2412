"""FP32 products on tensor cores: each factor is the sum of two TF32 numbers, x = hi + lo, and three products of them,
lo * hi + hi * lo + hi * hi, are as exact as FP32's one (Ootomo and Yokota, arXiv 2203.03341).

The tensor cores cut their sums, they do not round them, so that errors grow with K. Products of `CHAIN` elements of K
are therefore summed from zero, the small ones first, and then added to the running sums in FP32.

`hi` of an infinity leaves no `lo`, and infinity times a `lo` has any sign: where a thread finds a sum that is not
finite, its warp computes these products again, by FMA. A factor that is not finite spoils a whole row or column of
sums, so one sum of each row and column is looked at. Finite factors whose `hi` overflows are found in the same way.

Of eight elements along k, lane t of four reads 2t and 2t + 1, and of rows and columns, neighbours: any order of k is as
good as another, and the reads are wide and, of rows of 128 swizzled bytes, without bank conflicts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlirc.mlir import arith, ir, nvgpu, nvvm, scf, vector
from mlirc.passes.distribute import memory
from mlirc.passes.distribute.accumulators import PartialSums
from mlirc.passes.distribute.emitter import Emitter, IndexValue, vec
from mlirc.passes.distribute.layout import Factor, Layout, lane, reg, warp
from mlirc.passes.distribute.values import Fragment

if TYPE_CHECKING:
    from mlirc.passes.distribute.contraction import Product

STEP_K = 8
# Elements of K in one accumulator: on random numbers the error is that of a plain FP32 sum at K = 64, and below it from
# there on. With 32 it would be larger at K = 64.
CHAIN = 16
KEPT_BITS = 0xFFFFE000 - (1 << 32)  # of an f32, those of a TF32 number
HALF_BIT = 0x1000  # half of the last bit that is kept


def neighbours(tiles: int, k_last: bool) -> int:
    """How many neighbouring columns of B a thread reads: 16 bytes of a row along n, or two rows along k."""
    return 4 if not k_last and tiles % 4 == 0 else 2 if tiles % 2 == 0 else 1


def _rows(block_m: int, warps_m: int, warps_n: int) -> tuple[Factor, ...]:
    return warp(warps_m, warps_n), reg(block_m // warps_m // 16), lane(8, 4), reg(2)


def accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int, k_last: bool) -> Layout:
    """The sums: dims (m, n). `k_last`: rows of B run along k."""
    tiles = block_n // warps_n // 8
    g = neighbours(tiles, k_last)
    return Layout.of(_rows(block_m, warps_m, warps_n), (warp(warps_n, 1), reg(tiles // g), lane(4, 1), reg(2), reg(g)))


class Operand:
    """Reads one operand's fragments; rows (or columns) of a thread in order, two elements along k of each."""

    def __init__(self, em: Emitter, view: memory.View, k_last: bool, outer: tuple[Factor, ...]):
        self.em, self.view, self.k_last = em, view, k_last
        k = (lane(4, 1), reg(2))
        self.layout = Layout.of(outer, k) if k_last else Layout.of(k, outer)
        self.count = Layout.of(outer).num_regs

    def step(self, k: int) -> list[list[tuple[ir.Value, ir.Value]]]:
        """(hi, lo) of the thread's elements of k .. k + 7, [row][element along k]."""
        view = _moved(self.em, self.view, k)
        if not self.k_last:
            view = replace(view, dims=view.dims[::-1])
        shape = list(self.layout.shape)
        frag = memory.load(self.em, view, ir.F32Type.get(), shape, shape, self.layout, whole=True)
        parts = [self._split(p, frag.piece) for p in frag.pieces]

        def pair(register: int) -> tuple[ir.Value, ir.Value]:
            hi, lo = parts[register // frag.piece]
            at = register % frag.piece
            return self.em.extract(hi, at), self.em.extract(lo, at)

        return [[pair(2 * r + e if self.k_last else e * self.count + r) for e in range(2)] for r in range(self.count)]

    def _split(self, x: ir.Value, n: int) -> tuple[ir.Value, ir.Value]:
        """`hi`, x rounded to TF32, and `lo`, the exact rest (of which the tensor cores read TF32's bits)."""
        em, i32 = self.em, ir.IntegerType.get_signless(32)
        bits = arith.BitcastOp(vec(i32, n), x).result
        rounded = arith.AddIOp(bits, em.constant(ir.IntegerAttr.get(i32, HALF_BIT), n)).result
        kept = arith.AndIOp(rounded, em.constant(ir.IntegerAttr.get(i32, KEPT_BITS), n)).result
        hi = arith.BitcastOp(x.type, kept).result
        return hi, arith.SubFOp(x, hi).result


def multiply(product: Product, acc: Fragment) -> Fragment:
    """The products of one tile, added to `acc`; where warps share out the slice's k, sums that are to be added."""
    em, g = product.em, product.geometry
    (view_a, a_last), (view_b, b_last) = product.operand_views()
    extent = g.k_padded // g.warps_k
    if g.warps_k > 1:
        part = em.mul(em.div(em.warp, product.warps_m * product.warps_n), extent)
        view_a, view_b = (_moved(em, v, part) for v in (view_a, view_b))
    tiles_n = product.layout2d.shape[1] // product.warps_n // 8
    group = neighbours(tiles_n, g.k_last(1))
    a = Operand(em, view_a, a_last, _rows(product.layout2d.shape[0], product.warps_m, product.warps_n))
    columns = (warp(product.warps_n, 1), reg(tiles_n // group), lane(8, 4), reg(group))
    b = Operand(em, view_b, b_last, columns)
    grid = (a.count, 2 * tiles_n)
    sums = PartialSums.pack(em, acc, grid) if g.warps_k > 1 else list(acc.with_piece(2 * tiles_n).pieces)
    for first in range(0, extent, CHAIN):
        last = min(first + CHAIN, extent)
        found = _chain(em, a, b, first, last, group)
        branch = scf.IfOp(_spoiled(em, found), [s.type for s in sums], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            rows, width = len(sums), 2 * tiles_n
            scf.YieldOp(product.fma_range(view_a, view_b, first, last, 1, rows, width))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([em.pack(row) for row in found])
        sums = [arith.AddFOp(x, y).result for x, y in zip(sums, branch.results, strict=True)]
    if g.warps_k > 1:
        return PartialSums(em, acc.element, acc.shape, acc.sizes, product.layout, sums, grid)
    return Fragment(em, acc.element, acc.shape, acc.sizes, acc.layout, sums, 2 * tiles_n)


def _moved(em: Emitter, view: memory.View, k: IndexValue) -> memory.View:
    """An operand from its element k on."""
    offsets = list(view.offsets)
    offsets[view.dims[1]] = em.add(offsets[view.dims[1]], k)
    return replace(view, offsets=offsets)


def _chain(em: Emitter, a: Operand, b: Operand, first: int, last: int, group: int) -> list[list[ir.Value]]:
    """The products of elements first .. last of K, [row][column] of the thread's sums."""
    steps = [(a.step(k), b.step(k)) for k in range(first, last, STEP_K)]
    f32 = ir.F32Type.get()
    zero = em.constant(ir.FloatAttr.get(f32, 0.0))
    t = ir.VectorType.get([2, 2], f32)
    tiles_m, tiles_n = a.count // 2, b.count
    start = vector.FromElementsOp(t, [zero] * 4).result
    tiles = [[start] * tiles_n for _ in range(tiles_m)]
    for part_a, part_b in ((1, 0), (0, 1), (0, 0)):  # lo * hi, hi * lo, hi * hi
        for rows, columns in steps:
            packed_a = [_pack_a(rows[2 * i : 2 * i + 2], part_a) for i in range(tiles_m)]
            packed_b = [_pack([e[part_b] for e in column]) for column in columns]
            for i in range(tiles_m):
                for j in range(tiles_n):
                    tiles[i][j] = _mma(packed_a[i], packed_b[j], tiles[i][j])
    # Column tile j1 * group + j0 holds, in its columns 2t and 2t + 1, the t-th and its neighbour of every group's.
    order = [(j1 * group + j0, d) for j1 in range(tiles_n // group) for d in range(2) for j0 in range(group)]
    return [[vector.ExtractOp(tiles[r // 2][j], [], [r % 2, d]).result for j, d in order] for r in range(2 * tiles_m)]


def _pack_a(rows: list[list[tuple[ir.Value, ir.Value]]], part: int) -> ir.Value:
    return _pack([rows[h][e][part] for e in range(2) for h in range(2)])


def _pack(registers: list[ir.Value]) -> ir.Value:
    return vector.FromElementsOp(ir.VectorType.get([len(registers), 1], registers[0].type), registers).result


def _mma(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    shape = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), x) for x in (16, 8, STEP_K)])
    return nvgpu.MmaSyncOp(c.type, a, b, c, shape, tf32Enabled=True).result


def _spoiled(em: Emitter, sums: list[list[ir.Value]]) -> ir.Value:
    """Whether a thread of the warp has a row or column of sums that are not finite."""
    rows, columns = len(sums), len(sums[0])
    terms = [sums[i % rows][i % columns] for i in range(max(rows, columns))]
    while len(terms) > 1:  # a sum of these that overflows costs time, nothing else
        pairs = [arith.AddFOp(x, y).result for x, y in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    test = arith.MulFOp(terms[0], em.constant(ir.FloatAttr.get(ir.F32Type.get(), 0.0))).result
    unordered = arith.CmpFOp(arith.CmpFPredicate.UNO, test, test).result
    return nvvm.VoteSyncOp(em.full_mask(), unordered, ir.Attribute.parse("#nvvm<vote_sync_kind any>")).result
