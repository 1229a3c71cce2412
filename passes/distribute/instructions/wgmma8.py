"""Products by wgmma of 8-bit operands: 8-bit floats with f32 sums, and signed bytes with exact 32-bit sums. wgmma reads
rows along k alone, since it transposes 16-bit elements only. Operands whose rows run along m or n are therefore written
anew, transposed, by the warps beside the producer's (`rewriting.py`), the even rows of every sixteen first: so a thread
of the sums has four neighbouring columns, or two neighbouring rows.

Of products of 8-bit floats the tensor cores keep 13 bits behind the point of the largest term, in the accumulator, too,
and cut the rest (measured; `compiler/device/tensor_cores.py`), so that errors grow with K. `wgmma8` sums a slice of 128
along k at a time, from zero, and adds that to the running sums in f32, as cuBLAS does where `use_fast_accum` is not
set. `wgmma8_fast` leaves all sums to the tensor cores."""

from __future__ import annotations

from typing import ClassVar

from mlirc.ir.levels import CUT_SUMS
from mlirc.mlir import arith, ir, llvm
from mlirc.passes.distribute.emit.emitter import IndexValue, Unsupported
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Spread, instruction, wgmma
from mlirc.passes.distribute.instructions.base import WarpgroupInstruction, round_up
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, warp
from mlirc.passes.distribute.layouts.shared import LINE
from mlirc.passes.distribute.products import rewriting
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.accumulators import InterleavedWgmmaFragment, WgmmaFragment, struct_type
from mlirc.passes.distribute.tiles.values import Fragment, Splat
from mlirc.runtime.tensor_map import FP8

STEP_K = 32
REGISTERS = 208  # of a thread, for running sums and those of a slice together


@instruction
class Wgmma8(WarpgroupInstruction):
    """A warpgroup multiplies 64 rows with up to 256 columns, 32 elements along k."""

    name = "wgmma8"
    meaning = "Hopper's warpgroup products of 8-bit operands, added in f32 every 128 of k"
    takes = "two 8-bit floats and f32 sums, or two i8 and i32 sums"
    tile = (64, 16)
    step_k = STEP_K
    slice_bytes = LINE
    reads_narrow = True
    floats_only: ClassVar[bool] = False
    promotes: ClassVar[bool] = True  # sums of 8-bit floats, slice by slice

    def takes_types(self, types: ElementTypes) -> bool:
        floats = types.a in FP8 and types.b in FP8 and types.sums == "f32"
        return floats or not self.floats_only and tuple(types) == ("i8", "i8", "i32")

    def spread(self, p: BlockProduct) -> Spread:
        if not all(p.k_last) and p.k != LINE:
            raise Unsupported(f"{self.name} transposes slices of {LINE} along k (block_k), not {p.k}; use mma8")
        m, n = wgmma.padded(p.m, round_up(p.n, 16 * p.grid[1]), *p.grid)
        k = round_up(p.k, STEP_K)
        tiles = m // (p.grid[0] // 4) // 64, n // p.grid[1] // 8
        form = WgmmaFragment if p.k_last[1] else InterleavedWgmmaFragment
        rewrites = "" if p.k_last[0] else "transposed", "" if p.k_last[1] else "transposed"
        return Spread(_accumulator(m, n, p), k, form=form, tiles=tiles, rewrites=rewrites)

    def in_panels(self, k_last: bool, k: int) -> bool:
        return k > LINE or not k_last

    def finishes(self, types: ElementTypes) -> str:
        return "at once" if self.promotes and types.sums != "i32" else "later"

    def lower(self, product: Product) -> Fragment:
        """Issues one product, whose first reader waits for it, unless it is added in f32 here."""
        em, tiles, sums = product.em, product.spread.tiles, product.c.element
        if not isinstance(em.pipeline_depth, int):
            raise Unsupported(wgmma.NOT_AHEAD)
        self._check_signs(product)
        adds = not (isinstance(product.c, Splat) and wgmma.is_zero(product.c))
        promotes = self.promotes and isinstance(sums, ir.FloatType)
        packed = adds or promotes
        form = product.spread.form
        assert form is not None
        values = form.pack(em, product.accumulator(), tiles) if packed else wgmma.nothing(product)
        product.begin()
        a, b = (_operand(product, i, first) for i, first in enumerate(wgmma.first_places(product)))
        if promotes:
            values = _slice_by_slice(product, a, b, values)
        else:
            values = wgmma.multiply(em, a, b, sums, values, tiles[1] * 8, product.spread.k, adds)
        pending = None if promotes else product.under_way()
        return form(em, sums, product.c.shape, product.c.sizes, product.layout, values, tiles, pending)

    def _check_signs(self, product: Product) -> None:
        casts = {c.name for chain in product.info.casts for c in chain}
        if not casts <= {"arith.extf", "arith.extsi"}:
            raise Unsupported(f"{self.name} takes signed bytes and 8-bit floats as they are; use mma8 or fma")


@instruction
class Wgmma8Fast(Wgmma8):
    """All sums of 8-bit floats in the tensor cores' accumulators, which cut them at every step."""

    name = "wgmma8_fast"
    meaning = "Hopper's warpgroup products of 8-bit floats, with 13 bits behind the point of the largest term"
    takes = "two 8-bit floats and f32 sums"
    floats_only = True
    promotes = False
    rounds = CUT_SUMS


def _accumulator(m: int, n: int, p: BlockProduct) -> Layout:
    """The sums, as `wgmma.accumulator`, but in the order of rows and columns that transposing leaves."""
    (warps_m, warps_n), (a_last, b_last), columns = p.grid, p.k_last, n // p.grid[1]
    rows = (reg(2), lane(8, 4)) if a_last else (lane(8, 4), reg(2))
    across = (reg(columns // 8), lane(4, 1), reg(2)) if b_last else (reg(columns // 16), lane(4, 1), reg(4))
    along = (warp(warps_m // 4, 4 * warps_n), reg(m // (warps_m // 4) // 64), warp(4, 1))
    return Layout.of((*along, *rows), (warp(warps_n, 4), *across))


def _operand(product: Product, which: int, first: IndexValue) -> wgmma.Operand:
    """An operand in shared memory as wgmma reads it, once it is there."""
    if not product.spread.rewrites[which]:
        return wgmma.shared_operand(product, which, first)
    view = rewriting.rewritten(product, which)
    product.rewritten(which)
    return wgmma.Operand(product.em, view, True, first)


def chunk_columns(rows: int, columns: int) -> int:
    """How many columns are summed from zero at a time, so that these sums fit beside the running ones of all 64-row
    tiles."""
    left = REGISTERS - rows * columns // 2
    return next(c for c in range(columns, 0, -8) if columns % c == 0 and (c // 2 <= left or c <= 32))


def _slice_by_slice(product: Product, a: wgmma.Operand, b: wgmma.Operand, totals: list[ir.Value]) -> list[ir.Value]:
    """The running sums and a slice's, which the tensor cores make from zero, a chunk of columns after the other."""
    em, (rows, eights), sums = product.em, product.spread.tiles, product.c.element
    columns = eights * 8
    width = chunk_columns(rows, columns)
    empty = llvm.UndefOp(struct_type(sums, width // 2)).result
    out = list(totals)
    places = [(i, first) for i in range(rows) for first in range(0, columns, width)]
    for i, first in places:
        (part,) = wgmma.multiply(em, a, b, sums, [empty], width, product.spread.k, False, (64 * i, first))
        em.team.groups.latest().settle()
        out[i] = _added(out[i], part, first // 2, width // 2)
    return out


def _added(total: ir.Value, part: ir.Value, first: int, count: int) -> ir.Value:
    """A struct of sums, and those of another added to some of them."""
    f32 = ir.F32Type.get()
    for k in range(count):
        here, there = (ir.DenseI64ArrayAttr.get([n]) for n in (first + k, k))
        old = llvm.ExtractValueOp(f32, total, here).result
        more = llvm.ExtractValueOp(f32, part, there).result
        total = llvm.InsertValueOp(total, arith.AddFOp(old, more).result, here).result
    return total
