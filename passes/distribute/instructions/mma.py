"""mma.sync m16n8k16 of 16-bit floats (PTX ISA, "Warp Level Matrix Instructions"). Operands come from shared memory by
ldmatrix or, where a fragment already has its elements in the right threads, straight from registers (the softmax
weights of attention)."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.mlir import arith, ir, nvgpu, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Instruction, Spread, instruction
from mlirc.passes.distribute.instructions.base import round_up
from mlirc.passes.distribute.layouts.registers import Layout, mma_accumulator, mma_operand_a, mma_operand_b
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.accumulators import MmaFragment
from mlirc.passes.distribute.tiles.elementwise import Elementwise
from mlirc.passes.distribute.tiles.reduction import mask
from mlirc.passes.distribute.tiles.values import Fragment, Marked, Tile

# An operand that no iteration of a loop changes stays in registers if it takes at most this many.
HOISTED_REGISTERS = 64
# So many mma.sync are under way at once: where a warp has fewer tiles, the steps of k take turns at several sums, since
# a product waits for the one whose sums it adds to.
INDEPENDENT_PRODUCTS = 4
# Operands of a whole slice that are read before its first product, so that these do not wait for one ldmatrix each.
OPERAND_REGISTERS = 64

Step = Callable[[int], list[ir.Value]]  # from a step along k to the operand's registers, a vector for each tile


@instruction
class Mma(Instruction):
    """A warp multiplies 16 rows with 8 columns, 16 (`step_k`) elements along k."""

    name = "mma"
    meaning = "mma.sync m16n8k16"
    takes = "two 16-bit floats of one type and f32 sums"
    tile = (16, 8)
    step_k = 16
    preference = 2

    def takes_types(self, types: ElementTypes) -> bool:
        return types.half

    def spread(self, p: BlockProduct) -> Spread:
        m, n = (round_up(extent, t * warps) for extent, t, warps in zip((p.m, p.n), self.tile, p.grid, strict=True))
        tiles = m // p.grid[0] // 16, n // p.grid[1] // 8
        return Spread(mma_accumulator(m, n, *p.grid), round_up(p.k, self.step_k), form=MmaFragment, tiles=tiles)

    def lower(self, product: Product) -> Fragment:
        product.begin()
        acc = product.accumulator()
        em, (mt, nt) = product.em, product.spread.tiles
        kt = product.spread.k // self.step_k
        load_a, load_b = (self.operand(product, which) for which in range(2))
        tiles = MmaFragment.pack(em, acc, (mt, nt))
        chains = max(min(INDEPENDENT_PRODUCTS // (mt * nt), kt), 1)
        sums = [tiles, *([_zeros(t.type) for t in tiles] for _ in range(chains - 1))]
        ahead = kt if product.spread.k * (2 * mt + nt) <= 8 * OPERAND_REGISTERS else 1
        loaded: list[tuple[list[ir.Value], list[ir.Value]]] = []
        for k in range(kt):
            if k % ahead == 0:
                loaded = [(load_a(k + d), load_b(k + d)) for d in range(ahead)]
            (a, b), part = loaded[k % ahead], sums[k % chains]
            for i in range(mt):
                for j in range(nt):
                    part[i * nt + j] = self.issue(a[i], b[j], part[i * nt + j])
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=False)
            sums = [[product.add(x, y) for x, y in zip(p, q, strict=True)] for p, q in pairs] + sums[len(sums) & ~1 :]
        return MmaFragment(em, acc.element, acc.shape, acc.sizes, product.layout, sums[0], (mt, nt))

    def issue(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """One instruction: c + a * b, c as vector<2x2>, a and b as vectors of registers of two elements each."""
        i64 = ir.IntegerType.get_signless(64)
        shape = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, x) for x in (*self.tile, self.step_k)])
        return nvgpu.MmaSyncOp(c.type, a, b, c, shape).result

    def operand_layout(self, product: Product, which: int) -> Layout:
        """The fragments of operand 0 (A), dims (m, k), or 1 (B), dims (n, k)."""
        k, sums = product.spread.k, product.spread.sums
        if which == 0:
            return mma_operand_a(sums.shape[0], k, product.warps_m, product.warps_n)
        return mma_operand_b(k, sums.shape[1], product.warps_n)

    def operand(self, product: Product, which: int) -> Step:
        """Reads operand 0 (A) or 1 (B)."""
        tile = product.operand(which)
        if isinstance(tile, Elementwise) and tile.unpacks and (product.warps_m, product.warps_n)[1 - which] == 1:
            # No other warp needs the same elements: unpacked where they are multiplied.
            target, zero = (
                product.placed(which, self.operand_layout(product, which)),
                ir.FloatAttr.get(tile.element, 0.0),
            )
            return self.steps_of(product, which, mask(product.em, tile.get(target), product.k_dims(which), zero))
        if isinstance(tile, Fragment) or (staging.staged(tile) is None and tile.natural() is not None):
            direct = self._from_registers(product, which, tile)
            if direct is not None:
                return direct
        load = (self._ldmatrix_a, self._ldmatrix_b)[which]
        tiles, kt = product.spread.tiles[which], product.spread.k // self.step_k
        registers = tiles * kt * self.step_k // (4 if which == 0 else 8)
        if not isinstance(tile, Marked) or not tile.outside_loop() or registers > HOISTED_REGISTERS:
            return load(product, *product.shared(which))
        key = ("operand", which, product.warps_m, product.warps_n, tiles, kt)

        def steps() -> list[list[ir.Value]]:
            step = load(product, *product.shared(which))
            found = [step(k) for k in range(kt)]
            del product.views[which]  # products find it in registers
            return found

        return tile.keep(key, steps).__getitem__

    def _from_registers(self, product: Product, which: int, tile: Tile) -> Step | None:
        natural = tile.natural()
        frag = tile.get(natural) if natural is not None else None
        target = product.placed(which, self.operand_layout(product, which))
        if frag is None or target.register_map(frag.layout, product.em.team.warps) is None:
            return None
        zero = ir.FloatAttr.get(frag.element, 0.0)
        return self.steps_of(product, which, mask(product.em, frag.get(target), product.k_dims(which), zero))

    def steps_of(self, product: Product, which: int, frag: Fragment) -> Step:
        """Takes operand 0 (A) or 1 (B) from a fragment in its `operand_layout`."""
        em, table = product.em, frag.layout.registers

        def pair(outer: int, k: int) -> ir.Value:
            return frag.read([table[product.place(which, outer, k + d)] for d in range(2)])

        rows = self.tile[which]
        parts = [(outer, k) for k in range(0, self.step_k, 8) for outer in range(0, rows, 8)]

        def step(number: int) -> list[ir.Value]:
            return [
                _stack(em, [pair(rows * i + outer, number * self.step_k + k) for outer, k in parts])
                for i in range(product.spread.tiles[which])
            ]

        return step

    def _ldmatrix_a(self, product: Product, view: access.View, k_last: bool) -> Step:
        em, mt = product.em, product.spread.tiles[0]
        address = MatrixAddress(em, view, k_last, row_bit=0, k_bit=1)
        warp_m = em.mul(em.div(em.team.warp, product.warps_n) if product.warps_m > 1 else 0, mt * 16)
        matrices = self.step_k // 4

        def step(number: int) -> list[ir.Value]:
            k = number * self.step_k
            return [address.load(warp_m, 16 * i, k, matrices, product.a.element) for i in range(mt)]

        return step

    def _ldmatrix_b(self, product: Product, view: access.View, k_last: bool) -> Step:
        em, nt, element = product.em, product.spread.tiles[1], product.b.element
        parts = self.step_k // 8  # matrices of a tile; those of two tiles are read together
        address = MatrixAddress(em, view, k_last, row_bit=parts - 1, k_bit=2 - parts)
        warp_n = em.mul(em.rem(em.team.warp, product.warps_n) if product.warps_n > 1 else 0, nt * 8)
        t = ir.VectorType.get([parts, 2], element)

        def step(number: int) -> list[ir.Value]:
            out: list[ir.Value] = []
            k = number * self.step_k
            for j in range(0, nt - 1, 2):
                both = address.load(warp_n, 8 * j, k, 2 * parts, element)
                out += [vector.ExtractStridedSliceOp(t, both, [h], [parts], [1]).result for h in (0, parts)]
            if nt % 2:
                out.append(address.load(warp_n, 8 * (nt - 1), k, parts, element))
            return out

        return step


def _stack(em: Emitter, pairs: list[ir.Value]) -> ir.Value:
    scalars = [em.extract(p, i) for p in pairs for i in range(2)]
    return vector.FromElementsOp(ir.VectorType.get([len(pairs), 2], scalars[0].type), scalars).result


def _zeros(t: ir.VectorType) -> ir.Value:
    zero = ir.FloatAttr.get(t.element_type, 0.0)
    return arith.ConstantOp(t, ir.DenseElementsAttr.get_splat(t, zero)).result


class MatrixAddress:
    """Addresses of ldmatrix (PTX ISA, "ldmatrix"): lane l supplies row l mod 8 of matrix l / 8. Of the matrix's
    number, bit `row_bit` moves by eight rows (m or n) and bit `k_bit` by eight along k. Rows of memory that hold k go
    untransposed."""

    def __init__(self, em: Emitter, view: access.View, k_last: bool, row_bit: int, k_bit: int):
        self.em, self.view, self.k_last = em, view, k_last
        if view.shared is not None:
            em.shared_accesses.by_matrices(str(view.element), view.shared, "ldmatrix")
        with em.at_entry():
            matrix, self.row = em.div(em.lane, 8), em.rem(em.lane, 8)
            self.outer8 = em.mul(em.rem(em.div(matrix, 1 << row_bit), 2), 8)
            self.k8 = em.mul(em.rem(em.div(matrix, 1 << k_bit), 2), 8)

    def load(self, warp_offset: IndexValue, outer: int, k: int, count: int, element: ir.Type) -> ir.Value:
        em, view = self.em, self.view
        outer8, k8 = self.outer8, self.k8
        if self.k_last:
            row = em.add(em.add(warp_offset, em.add(outer8, self.row)), outer)
            column = em.add(k8, k)
        else:
            row = em.add(em.add(k8, self.row), k)
            column = em.add(em.add(warp_offset, outer8), outer)
        indices: list[IndexValue] = list(view.offsets)
        row_dim = view.dims[0] if self.k_last else view.dims[1]
        column_dim = view.dims[1] if self.k_last else view.dims[0]
        if view.shared is not None:
            # All terms of the row but the lane's are multiples of eight: the phase is the lane's alone.
            column = access.permuted(em, view.shared, self.row, column)
        indices[row_dim] = em.add(indices[row_dim], row)
        indices[column_dim] = em.add(indices[column_dim], column)
        t = ir.VectorType.get([count, 2], element)
        values = [em.value(i) for i in indices]
        return nvgpu.LdMatrixOp(t, view.base, values, not self.k_last, count).result
