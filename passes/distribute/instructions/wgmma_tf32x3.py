"""FP32 products by wgmma (sm_90a): each factor is the sum of two TF32 numbers, as in `tf32x3.py`, and a warpgroup
multiplies 64 rows at a time.

wgmma reads TF32 from shared memory along k alone, but what it has in registers may come from anywhere. One operand is
*held*: its slice is read into registers, whichever way its rows run, and split there. The other one, whose rows run
along k, is *split* in shared memory: what the tensor cores make of it as it lies there is `hi`, its numbers cut to
TF32, and a second buffer has the rest `lo`, which the producer's neighbours write (`rewriting.py`) or the warps that
compute.
Weights [K, N] are held, so that few rows of the other operand are few columns of wgmma, of which 8 are enough.

Cut numbers leave rests of their own sign; `lo` is therefore rounded, and `hi` of the held operand as well: the products
that are left out, and the bits that the tensor cores cut, have any sign then.

Sums of `CHAIN` elements of K start from zero, the small products first, and are added to the running sums in FP32. Sums
that are not finite are made again by FMA."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from mlirc.mlir import arith, ir, llvm, memref, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pending import Group
from mlirc.passes.distribute.instructions import (
    BlockProduct,
    ElementTypes,
    Spread,
    instruction,
    tf32x3,
    wgmma,
)
from mlirc.passes.distribute.instructions.base import WarpgroupInstruction, round_up
from mlirc.passes.distribute.instructions.fma import Fma, OuterProducts
from mlirc.passes.distribute.layouts.registers import Factor, Layout, lane, reg, warp
from mlirc.passes.distribute.layouts.shared import ATOM_ROWS, LINE
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import rewriting
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.products.tf32_operands import Parts, Split, Step, moved, split
from mlirc.passes.distribute.tiles.accumulators import PartialSums, struct_type
from mlirc.passes.distribute.tiles.values import Fragment, load

STEP_K = 8
CHAIN = 32  # elements of K in one accumulator: one row of 128 bytes
ROWS = 64  # of a warpgroup's product
# Of a multiprocessor; of a helper's thread; and of a computing one, for addresses and the like.
REGISTERS, REGISTERS_HELPER, REGISTERS_REST = 65536, 56, 40


@instruction
class WgmmaThreeTf32(WarpgroupInstruction):
    """Three TF32 products of a warpgroup, 64 rows of one operand by up to 256 of the other, for an FP32 one."""

    name = "wgmma_tf32x3"
    meaning = "three of Hopper's TF32 warpgroup products for one FP32 product"
    takes = "f32 operands and sums"
    tile = (8, 64)
    step_k = CHAIN
    accumulators = 2
    shares_k = True
    reads_narrow = True  # of the held operand
    rewrite: ClassVar[str] = "rests"  # of the split operand
    by_warps: ClassVar[str] = "tf32x3"  # what takes other layouts

    def takes_types(self, types: ElementTypes) -> bool:
        return set(types) == {"f32"}

    def spread(self, p: BlockProduct) -> Spread:
        held = _held(self, p)
        along, across = groups(p, held, self.name)
        extents = (p.n, p.m) if held else (p.m, p.n)
        tiles, columns = -(-extents[0] // (along * ROWS)), round_up(-(-extents[1] // across), 8)
        if columns > 256:
            raise Unsupported(f"wgmma computes at most 256 columns per warpgroup, not {columns}: use more warps")
        left = Layout.of(_rows(p.k_last[held], along, across, tiles)).dims[0]
        right = Layout.of((warp(across, 4), reg(columns // 8), lane(4, 1), reg(2))).dims[0]
        sums = Layout((right, left) if held else (left, right))
        warps_k = p.warps // (p.grid[0] * p.grid[1])
        rows = Layout((sums.dims[0],)).num_regs, Layout((sums.dims[1],)).num_regs
        form = PartialSums if warps_k > 1 else None
        rewrites = ("", self.rewrite) if held == 0 else (self.rewrite, "")
        return Spread(sums, round_up(p.k, CHAIN * warps_k), warps_k, form, rows, rewrites)

    def in_panels(self, k_last: bool, k: int) -> bool:
        return True

    def lower(self, product: Product) -> Fragment:
        """Where warpgroups share out the slice's k, gives sums that are to be added."""
        product.begin()
        acc = product.accumulator()
        em, s = product.em, product.spread
        read = s.rewrites.index(self.rewrite)
        views, held = (product.shared(0)[0], product.shared(1)[0]), 1 - read
        along, across = groups(product.geometry.block, held)
        columns, extent = s.sums.shape[read] // across, s.k // s.warps_k
        first = em.mul(em.div(em.team.warp, 4 * along * across), extent) if s.warps_k > 1 else 0
        row = em.mul(em.rem(em.div(em.team.warp, 4), across), columns) if across > 1 else 0
        left = Held(em, moved(em, views[held], first), product.geometry.block.k_last[held], s.sums.dims[held])
        rest = rewriting.rewritten(product, read)
        right = Matrix(em, views[read], row, first), Matrix(em, rest, row, first)
        sums = PartialSums.pack(em, acc, s.tiles) if s.warps_k > 1 else list(acc.with_piece(s.tiles[1]).pieces)
        found = [em.pack(row) for row in _slice(product, left, right, extent, columns)]
        branch = scf.IfOp(tf32x3.spoiled(em, found, s.tiles[1]), [x.type for x in sums], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            mine = moved(em, views[0], first), moved(em, views[1], first)
            scf.YieldOp(OuterProducts(product, Fma(), mine).sum(0, extent, 1))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(found)
        sums = [arith.AddFOp(x, y).result for x, y in zip(sums, branch.results, strict=True)]
        if s.warps_k > 1:
            return PartialSums(em, acc.element, acc.shape, acc.sizes, product.layout, sums, s.tiles)
        return Fragment(em, acc.element, acc.shape, acc.sizes, acc.layout, sums, s.tiles[1])


def _held(instruction: WgmmaThreeTf32, p: BlockProduct) -> int:
    """Which operand comes through registers (0: A, 1: B): the other one's rows must run along k. Where both may, it
    is the one along which there are warpgroups."""
    if not any(p.k_last):
        other = instruction.by_warps
        raise Unsupported(f"{instruction.name}: rows of one operand must run along k; use {other}")
    if all(p.k_last):
        return 1 if p.grid[1] % 4 == 0 else 0
    return 1 if p.k_last[0] else 0


def groups(p: BlockProduct, held: int, name: str = "") -> tuple[int, int]:
    """Warpgroups along the held operand's rows, and along the other's."""
    along, across = (p.grid[1], p.grid[0]) if held else p.grid
    if along % 4:
        which = "warps_n" if held else "warps_m"
        what = f"{name} takes {which} in multiples of 4, not {along}: a warpgroup is four warps along it"
        raise Unsupported(what)
    return along // 4, across


def _rows(k_last: bool, along: int, across: int, tiles: int) -> tuple[Factor, ...]:
    """The held operand's rows. Where they run along k, a warp's lanes read eight of them, four neighbours of each; else
    neighbours in a row of k are a thread's, 8 or 16 bytes, and the chunks that lanes of four rows of k read differ in
    what the swizzle leaves alone: no two meet in a bank either way."""
    groups = warp(along, 4 * across)
    if k_last:
        return groups, reg(tiles), warp(4, 1), reg(2), lane(8, 4)
    if tiles % 2 == 0:
        return groups, reg(tiles // 2), warp(4, 1), lane(2, 4), lane(4, 8), reg(4)
    return groups, reg(tiles), warp(2, 2), lane(2, 8), warp(2, 1), lane(2, 16), lane(2, 4), reg(2)


class Held:
    """Reads the held operand's fragments: of a thread's rows, in the order of its registers, its elements along k."""

    def __init__(self, em: Emitter, view: access.View, k_last: bool, outer: tuple[Factor, ...], parts: Split = split):
        self.em, self.view, self.k_last, self.parts = em, view, k_last, parts
        k = (reg(2), lane(4, 1))
        self.layout = Layout((outer, k) if k_last else (k, outer))
        self.count = Layout((outer,)).num_regs

    def step(self, k: int) -> Step:
        """The parts of elements k + t and k + t + 4, t the thread's number in four, [row][element along k]."""
        view = moved(self.em, self.view, k)
        if not self.k_last:
            view = replace(view, dims=view.dims[::-1])
        shape = list(self.layout.shape)
        frag = load(self.em, view, ir.F32Type.get(), shape, shape, self.layout, whole=True)
        pieces = [self.parts(self.em, p, frag.piece) for p in frag.pieces]

        def parts(register: int) -> Parts:
            return tuple(self.em.extract(part, register % frag.piece) for part in pieces[register // frag.piece])

        return [[parts(2 * r + e if self.k_last else e * self.count + r) for e in range(2)] for r in range(self.count)]


class Matrix:
    """Descriptors of one part of the split operand: rows of 128 bytes along k, in panels; from a row on, and an element
    of K that begins a panel."""

    def __init__(self, em: Emitter, view: access.View, first_row: IndexValue, first: IndexValue):
        shared, self.em = view.shared, em
        if shared is None or shared.swizzle != LINE or shared.panel != CHAIN or shared.rows % ATOM_ROWS:
            raise Unsupported("wgmma_tf32x3 reads panels of 32 elements along k; use tf32x3")
        em.shared_accesses.by_matrices(str(view.element), shared, "wgmma")
        self.shared, self.bits = shared, shared.descriptor(k_last=True).bits
        with em.at_entry():
            start = memref.ExtractAlignedPointerAsIndexOp(view.base).result
        stage = em.mul(view.offsets[0], shared.slot_bytes)
        inside = em.add(em.mul(first_row, shared.row_bytes), em.mul(em.div(first, CHAIN), shared.panel_bytes))
        address = em.value(em.add(em.add(start, stage), inside))
        i32 = ir.IntegerType.get_signless(32)
        shifted = arith.ShRUIOp(arith.IndexCastUIOp(i32, address).result, self._word(4)).result
        self.low = arith.OrIOp(shifted, self._word(self.bits & 0xFFFFFFFF)).result

    def _word(self, n: int) -> ir.Value:
        return self.em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), n))

    def at(self, k: int) -> ir.Value:
        """The descriptor of all rows' elements from `first` + k on. Its upper half is constant: one addition each."""
        i64, offset = ir.IntegerType.get_signless(64), self.shared.offset(0, k) >> 4
        low = arith.AddIOp(self.low, self._word(offset)).result if offset else self.low
        upper = self.em.constant(ir.IntegerAttr.get(i64, self.bits >> 32 << 32))
        return arith.OrIOp(arith.ExtUIOp(i64, low).result, upper).result


def _slice(
    product: Product, source: Held, parts: tuple[Matrix, Matrix], extent: int, columns: int
) -> list[list[ir.Value]]:
    """The products of a slice's `extent` elements of K, [m][n] of the thread's sums. Where registers allow, a chain is
    under way while the sums of the one before are added."""
    em, tiles = source.em, source.count // 2
    sums: list[list[ir.Value] | None] = [None] * tiles
    ahead = 1 if _fits(em, tiles, columns) else 0
    waiting: list[tuple[int, ir.Value, Group]] = []

    def finish(left: int) -> None:
        for i, struct, group in waiting[: len(waiting) - left]:
            group.settle()
            found = [_element(struct, r) for r in range(columns // 2)]
            known = sums[i]
            sums[i] = found if known is None else [arith.AddFOp(x, y).result for x, y in zip(known, found, strict=True)]
        del waiting[: len(waiting) - left]

    for k in range(0, extent, CHAIN):
        steps = [source.step(k + d) for d in range(0, CHAIN, STEP_K)]
        descriptors = [[m.at(k + d) for d in range(0, CHAIN, STEP_K)] for m in parts]
        words = [[[words_of(rows, 2 * i, part) for rows in steps] for part in range(2)] for i in range(tiles)]
        if k == 0:
            product.rewritten(0 if product.spread.rewrites[0] else 1)
        for i in range(tiles):
            waiting.append((i, *_chain(em, words[i], descriptors, columns)))
            if len(waiting) > ahead:
                finish(ahead)
    finish(0)

    def element(row: int, column: int) -> ir.Value:
        found = sums[row // 2]
        assert found is not None
        return found[4 * (column // 2) + 2 * (row % 2) + column % 2]

    rows, wide = range(source.count), range(columns // 4)
    if product.spread.rewrites[0]:
        return [[element(r, c) for r in rows] for c in wide]
    return [[element(r, c) for c in wide] for r in rows]


def _element(struct: ir.Value, register: int) -> ir.Value:
    return llvm.ExtractValueOp(ir.F32Type.get(), struct, ir.DenseI64ArrayAttr.get([register])).result


def _fits(em: Emitter, tiles: int, columns: int) -> bool:
    """Whether a thread has registers for the sums, a slice's, another chain's, and two chains' factors."""
    helpers = 32 * (em.block_warps - em.team.warps) * REGISTERS_HELPER
    each = min((REGISTERS - helpers) // em.team.threads, 240)
    return 2 * tiles * columns // 2 + columns // 2 + 64 + REGISTERS_REST <= each


def _chain(em: Emitter, words: list, descriptors: list[list[ir.Value]], columns: int) -> tuple[ir.Value, Group]:
    """Starts the products of `CHAIN` elements of K, the small ones first."""
    value = None
    wgmma.fence()
    for hold, read in ((1, 0), (0, 1), (0, 0)):  # lo * hi, hi * lo, hi * hi
        for left, right in zip(words[hold], descriptors[read], strict=True):
            value = one(em, left, right, value, columns)
    assert value is not None
    return value, em.team.groups.commit()


def words_of(rows: Step, first: int, part: int) -> list[ir.Value]:
    """A as wgmma has it in registers: of two rows, one after the other, elements t and t + 4 along k."""
    i32 = ir.IntegerType.get_signless(32)
    return [arith.BitcastOp(i32, rows[first + h][e][part]).result for e in range(2) for h in range(2)]


def one(em: Emitter, words: list[ir.Value], right: ir.Value, value: ir.Value | None, columns: int) -> ir.Value:
    """One wgmma m64nNk8, added to `value` if there is one."""
    i32, t = ir.IntegerType.get_signless(32), struct_type(ir.F32Type.get(), columns // 2)
    adds = em.constant(ir.IntegerAttr.get(i32, int(value is not None)))
    start = llvm.UndefOp(t).result if value is None else value
    return wgmma.with_registers(words, right, start, columns, f"m64n{columns}k{STEP_K}.f32.tf32.tf32", (1, 1), adds)
