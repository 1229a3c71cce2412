"""What products by TF32 (`tf32.py`, `tf32x3.py`) read, from shared memory or from registers: factors in parts, one that
is rounded to TF32 (`rounded`), or two, hi and lo, whose sum they are (`split`).

Of eight elements along k, lane t of four reads 2t and 2t + 1, and of rows and columns, neighbours: any order of k is as
good as another, and the reads are wide and, of rows of 128 swizzled bytes, without bank conflicts. Attention's weights
are in registers, where the scores' product left them: the values' rows are read in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from mlirc.mlir import arith, ir, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, vec
from mlirc.passes.distribute.layouts.registers import Factor, Layout, lane, reg, warp
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.reduction import mask
from mlirc.passes.distribute.tiles.values import Fragment, load

STEP_K = 8
# Elements of K in one accumulator: on random numbers the error is that of a plain FP32 sum at K = 64, and below it from
# there on. With 32 it would be larger at K = 64.
CHAIN = 16
KEPT_BITS = 0xFFFFE000 - (1 << 32)  # of an f32, those of a TF32 number
HALF_BIT = 0x1000  # half of the last bit that is kept


def rows_of(block_m: int, warps_m: int, warps_n: int) -> tuple[Factor, ...]:
    """The rows of A and of the sums."""
    return warp(warps_m, warps_n), reg(block_m // warps_m // 16), lane(8, 4), reg(2)


Parts: TypeAlias = tuple[ir.Value, ...]
Pair: TypeAlias = tuple[ir.Value, ir.Value]  # (hi, lo)
Split: TypeAlias = Callable[[Emitter, ir.Value, int], Parts]  # of so many f32 in one value
Step: TypeAlias = list[list[Parts]]  # of eight elements along k: [row][the thread's first and second one]


class Operand:
    """Reads one operand's fragments from shared memory; rows (or columns) of a thread in order. Of `8 * spread`
    elements along k, each of the four lanes that share a row has `2 * spread` neighbours."""

    def __init__(
        self, em: Emitter, split: Split, view: access.View, k_last: bool, outer: tuple[Factor, ...], spread: int = 1
    ):
        self.em, self.split, self.view, self.k_last, self.spread = em, split, view, k_last, spread
        k = (lane(4, 1), reg(2 * spread))
        self.layout = Layout.of(outer, k) if k_last else Layout.of(k, outer)
        self.count = Layout.of(outer).num_regs

    def steps(self, first: int, last: int) -> list[Step]:
        """The thread's elements of first .. last, a multiple of `8 * spread`."""
        return [step for k in range(first, last, STEP_K * self.spread) for step in self._read(k)]

    def _read(self, k: int) -> list[Step]:
        view = moved(self.em, self.view, k)
        if not self.k_last:
            view = replace(view, dims=view.dims[::-1])
        shape = list(self.layout.shape)
        frag = load(self.em, view, ir.F32Type.get(), shape, shape, self.layout, whole=True)
        parts = [self.split(self.em, p, frag.piece) for p in frag.pieces]

        def parts_of(row: int, element: int) -> Parts:
            at = 2 * self.spread * row + element if self.k_last else element * self.count + row
            return tuple(self.em.extract(part, at % frag.piece) for part in parts[at // frag.piece])

        return [[[parts_of(r, 2 * m + e) for e in range(2)] for r in range(self.count)] for m in range(self.spread)]

    def in_memory(self, extent: int) -> access.View:
        """The operand in shared memory."""
        return self.view


def rounded(em: Emitter, x: ir.Value, n: int) -> Parts:
    """x rounded to TF32, halves away from zero; what is not finite stays so."""
    rna = ir.Attribute.parse("#nvvm.fp_rnd_mode<rna>")
    numbers = [nvvm.ConvertFloatToTF32Op(em.extract(x, i), rnd=rna).result for i in range(n)]
    return (em.pack([arith.BitcastOp(ir.F32Type.get(), b).result for b in numbers]),)


def split(em: Emitter, x: ir.Value, n: int) -> Pair:
    """`hi`, x rounded to TF32, and `lo`, the exact rest (of which the tensor cores read TF32's bits)."""
    i32 = ir.IntegerType.get_signless(32)
    bits = arith.BitcastOp(vec(i32, n), x).result
    rounded = arith.AddIOp(bits, em.constant(ir.IntegerAttr.get(i32, HALF_BIT), n)).result
    kept = arith.AndIOp(rounded, em.constant(ir.IntegerAttr.get(i32, KEPT_BITS), n)).result
    hi = arith.BitcastOp(x.type, kept).result
    return hi, arith.SubFOp(x, hi).result


def moved(em: Emitter, view: access.View, by: IndexValue, along: int = 1) -> access.View:
    """An operand from its element `by` of k on; `along` 0: of its rows (or columns)."""
    offsets = list(view.offsets)
    offsets[view.dims[along]] = em.add(offsets[view.dims[along]], by)
    return replace(view, offsets=offsets)


class Registers:
    """Reads the left operand's fragments from registers, as `Operand` does from shared memory."""

    def __init__(self, frag: Fragment, split: Split, rows: tuple, spread: int):
        self.em, self.split, self.rows, self.spread = frag.em, split, rows, spread
        self.count = Layout.of(rows).num_regs
        self.frag = frag
        self._parts: dict[int, Parts] = {}
        self._buffer: ir.Value | None = None

    def steps(self, first: int, last: int) -> list[Step]:
        """The thread's elements of first .. last."""
        quarter = range(first // 4, last // 4, 2)  # two of every eight elements of a row are the thread's
        return [[[self._parts_of(r, e) for e in (at, at + 1)] for r in range(self.count)] for at in quarter]

    def _parts_of(self, row: int, element: int) -> Parts:
        frag = self.frag
        number, at = divmod(row * (frag.layout.num_regs // self.count) + element, frag.piece)
        if number not in self._parts:
            self._parts[number] = self.split(self.em, frag.pieces[number], frag.piece)
        return tuple(self.em.extract(part, at) for part in self._parts[number])

    def in_memory(self, extent: int) -> access.View:
        """The operand in shared memory, where each warp writes its own rows."""
        em, frag = self.em, self.frag
        layout = Layout.of(self.rows, _columns(extent, self.spread))
        shape = list(layout.shape)
        if self._buffer is None:
            self._buffer = em.alloc_smem(shape, frag.element)
        view = access.View(self._buffer, [0, 0], [0, 1])
        em.warp_barrier()
        access.store(em, Fragment(em, frag.element, shape, shape, layout, frag.pieces, frag.piece), view, whole=True)
        em.warp_barrier()
        return view


def _columns(k: int, spread: int) -> tuple:
    return reg(k // (STEP_K * spread)), lane(4, 1), reg(2 * spread)


def in_registers(product: Product, split: Split) -> Registers | None:
    """The left operand in registers; None where it lies elsewhere, or not as these products read it."""
    tile, dims, s = product.a, product.info.maps[0], product.spread
    natural = None if staging.staged(tile) is not None else tile.natural()
    at = dims.index(product.info.k)
    if natural is None or product.warps_n > 1 or s.warps_k > 1 or dims.index(product.info.m) > at:
        return None
    rows, frag = rows_of(s.sums.shape[0], product.warps_m, 1), tile.get(natural)
    for spread in (1, 2):
        if s.k % (STEP_K * spread):
            continue
        target = product.placed(0, Layout.of(rows, _columns(s.k, spread)))
        if target.register_map(frag.layout, product.em.team.warps) is not None:
            frag = mask(product.em, frag.get(target), [at], ir.FloatAttr.get(frag.element, 0.0))
            return Registers(frag, split, rows, spread)
    return None
