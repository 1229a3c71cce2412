"""Products of f32 operands that are rounded to TF32 (10 bits of mantissa), on tensor cores: mma.sync m16n8k8.

The order of k is as the operands' reads are wide (`products/tf32_operands.py`), and that of the sums' columns, too."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.mlir import ir, nvgpu, vector
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Instruction, Spread, instruction
from mlirc.passes.distribute.instructions.base import round_up
from mlirc.passes.distribute.layouts.registers import Factor, Layout, lane, reg, warp
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.products.tf32_operands import (
    STEP_K,
    Operand,
    Parts,
    Registers,
    Step,
    in_registers,
    moved,
    rounded,
    rows_of,
)
from mlirc.passes.distribute.tiles.accumulators import PartialSums
from mlirc.passes.distribute.tiles.values import Fragment

PART = 4  # column tiles whose sums, and the operands that they are made of, are in registers at once


def neighbours(tiles: int, k_last: bool) -> int:
    """How many neighbouring columns of B a thread reads: 16 bytes of a row along n, or two rows along k."""
    return 4 if not k_last and tiles % 4 == 0 else 2 if tiles % 2 == 0 else 1


def accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int, k_last: bool) -> Layout:
    """The sums: dims (m, n). `k_last`: rows of B run along k."""
    tiles = block_n // warps_n // 8
    g = neighbours(tiles, k_last)
    return Layout.of(rows_of(block_m, warps_m, warps_n), accumulator_columns(tiles, warps_n, g))


def accumulator_columns(tiles: int, warps_n: int, group: int) -> tuple[Factor, ...]:
    """The columns of so many column tiles of a warp, where a thread reads `group` neighbours of B's."""
    return warp(warps_n, 1), reg(tiles // group), lane(4, 1), reg(2), reg(group)


@instruction
class Tf32(Instruction):
    """A warp multiplies 16 rows with 8 columns, 8 elements along k."""

    name = "tf32"
    meaning = "TF32 mma.sync m16n8k8"
    takes = "f32 operands and sums"
    tile = (16, 8)
    step_k = STEP_K
    shares_k = True

    def takes_types(self, types: ElementTypes) -> bool:
        return set(types) == {"f32"}

    def spread(self, p: BlockProduct) -> Spread:
        m, n = (round_up(extent, t * warps) for extent, t, warps in zip((p.m, p.n), self.tile, p.grid, strict=True))
        warps_k = p.warps // (p.grid[0] * p.grid[1])
        rows, columns = m // p.grid[0] // 8, n // p.grid[1] // 4  # of a thread
        return Spread(
            accumulator(m, n, *p.grid, p.k_last[1]), round_up(p.k, STEP_K * warps_k), warps_k,
            PartialSums if warps_k > 1 else None, (rows, columns),
        )  # fmt: skip

    def in_panels(self, k_last: bool, k: int) -> bool:
        return True

    def lower(self, product: Product) -> Fragment:
        """Where warps share out the slice's k, gives sums that are to be added."""
        product.begin()
        acc = product.accumulator()
        em, s, k_last = product.em, product.spread, product.geometry.block.k_last
        tiles_n = s.tiles[1] // 2
        group = neighbours(tiles_n, k_last[1])
        extent, first_k = s.k // s.warps_k, None
        if s.warps_k > 1:
            first_k = em.mul(em.div(em.team.warp, product.warps_m * product.warps_n), extent)

        def shared(which: int) -> tuple[access.View, bool]:
            view, k_last = product.shared(which)
            return (view if first_k is None else moved(em, view, first_k)), k_last

        a = in_registers(product, self.parts) or Operand(
            em, self.parts, *shared(0), rows_of(s.sums.shape[0], product.warps_m, product.warps_n)
        )
        view_b, b_last = shared(1)
        whole = product.warps_n > 1 or s.warps_k > 1 or tiles_n % PART
        tiles = tiles_n if whole else PART
        parts, columns = tiles_n // tiles, (warp(product.warps_n, 1), reg(tiles // group), lane(8, 4), reg(group))
        sums = PartialSums.pack(em, acc, s.tiles) if s.warps_k > 1 else list(acc.with_piece(2 * tiles).pieces)
        for part in range(parts):
            view = moved(em, view_b, 8 * tiles * part, along=0)
            own = range(part, len(sums), parts)
            b = Operand(em, self.parts, view, b_last, columns, a.spread)
            for i, total in zip(own, self.added(product, a, b, [sums[i] for i in own], extent), strict=True):
                sums[i] = total
        if s.warps_k > 1:
            return PartialSums(em, acc.element, acc.shape, acc.sizes, product.layout, sums, s.tiles)
        return Fragment(em, acc.element, acc.shape, acc.sizes, acc.layout, sums, 2 * tiles)

    def parts(self, em: Emitter, x: ir.Value, n: int) -> Parts:
        """What `n` elements of an operand are multiplied as."""
        return rounded(em, x, n)

    def added(
        self, product: Product, a: Operand | Registers, b: Operand, sums: list[ir.Value], extent: int
    ) -> list[ir.Value]:
        """The products of all of k, added to `sums`, a value for each row."""
        group = neighbours(b.count, product.geometry.block.k_last[1])
        rows = chain(product.em, a.steps(0, extent), b.steps(0, extent), group, ((0, 0),), sums)
        return [product.em.pack(row) for row in rows]


def chain(
    em: Emitter, left: list[Step], right: list[Step], group: int, terms: Sequence[tuple[int, int]],
    start: list[ir.Value] | None = None,
) -> list[list[ir.Value]]:  # fmt: skip
    """The products of some steps of k, [row][column] of the thread's sums: for each of `terms` those of a part of A and
    a part of B, added to `start` (a value for each row), or from zero."""
    tiles_m, tiles_n = len(left[0]) // 2, len(right[0])
    # Column tile j1 * group + j0 holds, in its columns 2t and 2t + 1, the t-th and its neighbour of every group's.
    order = [(j1 * group + j0, d) for j1 in range(tiles_n // group) for d in range(2) for j0 in range(group)]
    tiles = _tiles(em, start, tiles_m, tiles_n, order)
    for part_a, part_b in terms:
        for rows, columns in zip(left, right, strict=True):
            packed_a = [_pack_a(rows[2 * i : 2 * i + 2], part_a) for i in range(tiles_m)]
            packed_b = [_pack([e[part_b] for e in column]) for column in columns]
            for i in range(tiles_m):
                for j in range(tiles_n):
                    tiles[i][j] = _mma(packed_a[i], packed_b[j], tiles[i][j])
    return [[vector.ExtractOp(tiles[r // 2][j], [], [r % 2, d]).result for j, d in order] for r in range(2 * tiles_m)]


def _tiles(
    em: Emitter, start: list[ir.Value] | None, tiles_m: int, tiles_n: int, order: list[tuple[int, int]]
) -> list[list[ir.Value]]:
    """Accumulators, [row tile][column tile], of sums whose columns come in an order of (column tile, 0 or 1)."""
    f32 = ir.F32Type.get()
    t = ir.VectorType.get([2, 2], f32)
    if start is None:
        zero = vector.FromElementsOp(t, [em.constant(ir.FloatAttr.get(f32, 0.0))] * 4).result
        return [[zero] * tiles_n for _ in range(tiles_m)]
    at = {place: i for i, place in enumerate(order)}
    return [
        [
            vector.FromElementsOp(
                t, [em.extract(start[2 * i + h], at[j, d]) for h in range(2) for d in range(2)]
            ).result
            for j in range(tiles_n)
        ]
        for i in range(tiles_m)
    ]


def _pack_a(rows: list[list[Parts]], part: int) -> ir.Value:
    return _pack([rows[h][e][part] for e in range(2) for h in range(2)])


def _pack(registers: list[ir.Value]) -> ir.Value:
    return vector.FromElementsOp(ir.VectorType.get([len(registers), 1], registers[0].type), registers).result


def _mma(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    shape = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), x) for x in (16, 8, STEP_K)])
    return nvgpu.MmaSyncOp(c.type, a, b, c, shape, tf32Enabled=True).result
