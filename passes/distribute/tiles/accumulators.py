"""Accumulators of tensor-core products, kept in the form that the instruction takes. They are taken apart into pieces
of registers when something other than the next product reads them."""

from __future__ import annotations

import math

from mlirc.mlir import arith, ir, llvm, vector
from mlirc.passes.distribute.emit.emitter import Emitter, vec
from mlirc.passes.distribute.emit.pending import Pending, reaches
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import Fragment

Grid = tuple[int, int]


class AccumulatorFragment(Fragment):
    """A fragment whose registers sit in `values`, the operands of an instruction. `grid` counts its row tiles and its
    tiles of eight columns. `pending`: what computes them may be under way; who reads anything but `values` waits."""

    def __init__(
        self, em: Emitter, element, shape, sizes, layout: Layout, values: list[ir.Value], grid: Grid,
        pending: Pending | None = None,
    ):  # fmt: skip
        self.values, self.grid, self.pending = values, grid, pending
        self._unpacked: list[ir.Value] | None = None
        self._unpacked_in: ir.Block | None = None
        super().__init__(em, element, shape, sizes, layout, [], 2)

    @property
    def pieces(self) -> list[ir.Value]:  # type: ignore[override]
        if self.pending is not None:
            self.pending.settle()
        return self._taken_apart()

    @pieces.setter
    def pieces(self, value) -> None:
        pass

    def _taken_apart(self) -> list[ir.Value]:
        """The pieces, as they are known here: they may have been taken apart behind what is being built, or in a branch
        beside it."""
        here, known = ir.InsertionPoint.current.block, self._unpacked
        if known is None or (self.pending is not None or here != self._unpacked_in) and not reaches(known[0]):
            self._unpacked, self._unpacked_in = self._take_apart(), here
        return self._unpacked  # type: ignore[return-value]

    def _take_apart(self) -> list[ir.Value]:
        rows, columns = self.grid
        return [self.pair(i, h, j) for i in range(rows) for h in range(2) for j in range(columns)]

    def pair(self, row_tile: int, half: int, column_tile: int) -> ir.Value:
        """The two neighbours that a thread holds in rows 8 * half.. of a tile."""
        raise NotImplementedError  # every subclass overrides it

    @staticmethod
    def types(element: ir.Type, grid: Grid) -> list[ir.Type]:
        """The types of `values`."""
        raise NotImplementedError  # every subclass overrides it

    @classmethod
    def pack(cls, em: Emitter, frag: Fragment, grid: Grid) -> list[ir.Value]:
        """The registers of a fragment of the accumulator's layout as `values`."""
        if isinstance(frag, cls):
            return list(frag.values)
        frag = frag.with_piece(2)
        return cls.pack_pairs(em, frag.element, [p for p in frag.pieces], grid)

    @classmethod
    def pack_pairs(cls, em: Emitter, element: ir.Type, pairs: list[ir.Value], grid: Grid) -> list[ir.Value]:
        raise NotImplementedError  # every subclass overrides it


class MmaFragment(AccumulatorFragment):
    """mma.sync: vector<2x2xf32> per 16x8 tile."""

    def pair(self, row_tile: int, half: int, column_tile: int) -> ir.Value:
        return vector.ExtractOp(self.values[row_tile * self.grid[1] + column_tile], [], [half]).result

    @staticmethod
    def types(element: ir.Type, grid: Grid) -> list[ir.Type]:
        return [ir.VectorType.get([2, 2], element)] * (grid[0] * grid[1])

    @classmethod
    def pack_pairs(cls, em: Emitter, element: ir.Type, pairs: list[ir.Value], grid: Grid) -> list[ir.Value]:
        rows, columns = grid
        t = ir.VectorType.get([2, 2], element)
        out = []
        for i in range(rows):
            for j in range(columns):
                halves = [pairs[(i * 2 + h) * columns + j] for h in range(2)]
                out.append(vector.FromElementsOp(t, [em.extract(h, k) for h in halves for k in range(2)]).result)
        return out


class _Interleaved(AccumulatorFragment):
    """Of 16 columns one tile of eight has the even ones, the next one the odd ones: of products whose operand comes
    transposed out of pairs of bytes. A thread holds four neighbours of them."""

    def pair(self, row_tile: int, half: int, column_tile: int) -> ir.Value:
        both = [super(_Interleaved, self).pair(row_tile, half, column_tile // 2 * 2 + odd) for odd in range(2)]
        return self.em.pack([self.em.extract(x, column_tile % 2) for x in both])

    @classmethod
    def pack_pairs(cls, em: Emitter, element: ir.Type, pairs: list[ir.Value], grid: Grid) -> list[ir.Value]:
        fours = [pairs[i : i + 2] for i in range(0, len(pairs), 2)]
        apart = [em.pack([em.extract(x, odd) for x in four]) for four in fours for odd in range(2)]
        return super().pack_pairs(em, element, apart, grid)


class InterleavedMmaFragment(_Interleaved, MmaFragment):
    """mma.sync with such columns."""


class WgmmaFragment(AccumulatorFragment):
    """wgmma: a struct of registers per 64 rows (PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16"): four for
    every eight columns, two in rows 0-7 and two in rows 8-15 of the warp's sixteen."""

    def pair(self, row_tile: int, half: int, column_tile: int) -> ir.Value:
        first = 4 * column_tile + 2 * half
        registers = [
            llvm.ExtractValueOp(self.element, self.values[row_tile], ir.DenseI64ArrayAttr.get([first + k])).result
            for k in range(2)
        ]
        return self.em.pack(registers)

    @staticmethod
    def types(element: ir.Type, grid: Grid) -> list[ir.Type]:
        return [struct_type(element, 4 * grid[1])] * grid[0]

    @classmethod
    def pack_pairs(cls, em: Emitter, element: ir.Type, pairs: list[ir.Value], grid: Grid) -> list[ir.Value]:
        rows, columns = grid
        t = struct_type(element, 4 * columns)
        out = []
        for i in range(rows):
            struct = llvm.UndefOp(t).result
            for j in range(columns):
                for h in range(2):
                    for k in range(2):
                        x = em.extract(pairs[(i * 2 + h) * columns + j], k)
                        at = ir.DenseI64ArrayAttr.get([4 * j + 2 * h + k])
                        struct = llvm.InsertValueOp(struct, x, at).result
            out.append(struct)
        return out


class InterleavedWgmmaFragment(_Interleaved, WgmmaFragment):
    """wgmma with such columns."""


class TransposedWgmmaFragment(WgmmaFragment):
    """wgmma whose rows are the sums' columns: a struct for every 64 of these. Registers in the order of the layout, of
    a row of sums those of all structs."""

    @property
    def pieces(self) -> list[ir.Value]:  # type: ignore[override]
        return self._taken_apart()

    @pieces.setter
    def pieces(self, value) -> None:
        pass

    def _take_apart(self) -> list[ir.Value]:
        tiles, columns = self.grid
        return [self._column(i, c) for c in range(2 * columns) for i in range(tiles)]

    def _column(self, tile: int, column: int) -> ir.Value:
        """The two of a thread in one of the struct's columns."""
        places = [4 * (column // 2) + 2 * half + column % 2 for half in range(2)]
        struct = self.values[tile]
        found = [llvm.ExtractValueOp(self.element, struct, ir.DenseI64ArrayAttr.get([at])).result for at in places]
        return self.em.pack(found)

    @classmethod
    def pack_pairs(cls, em: Emitter, element: ir.Type, pairs: list[ir.Value], grid: Grid) -> list[ir.Value]:
        tiles, columns = grid
        turned = []
        for i in range(tiles):
            for half in range(2):
                for j in range(columns):
                    both = [pairs[(2 * j + d) * tiles + i] for d in range(2)]
                    turned.append(em.pack([em.extract(x, half) for x in both]))
        return super().pack_pairs(em, element, turned, grid)


class PartialSums(AccumulatorFragment):
    """Sums of which each warp has a part: warps that hold copies of each other's elements, by the layout, have summed
    other elements of K. `values` are the thread's rows, `grid` how many there are and how long. Who reads the sums has
    all warps add their parts, through shared memory; every one has them all then."""

    def __init__(
        self, em: Emitter, element, shape, sizes, layout: Layout, values: list[ir.Value], grid: Grid,
        pending: Pending | None = None,
    ):  # fmt: skip
        super().__init__(em, element, shape, sizes, layout, values, grid, pending)
        self.piece = grid[1]

    @property
    def pieces(self) -> list[ir.Value]:  # type: ignore[override]
        return self._taken_apart()

    @pieces.setter
    def pieces(self, value) -> None:
        pass

    def _take_apart(self) -> list[ir.Value]:
        em, (rows, columns) = self.em, self.grid
        width, alike = math.gcd(columns, 4), tile_warps(self.layout)
        pieces = columns // width
        buffer = em.alloc_smem([em.team.warps, rows * pieces, 32, width], self.element)
        view = access.View(buffer, [0] * 4, [0, 1, 2, 3])
        em.team.meet()
        for i, row in enumerate(self.values):
            for j in range(pieces):
                part = em.pack([em.extract(row, j * width + e) for e in range(width)])
                access.store_elements(em, view, [em.team.warp, i * pieces + j, em.lane, 0], part, width)
        em.team.meet()
        first = em.rem(em.team.warp, alike)
        out = []
        for i in range(rows):
            row = []
            for j in range(pieces):
                at = [i * pieces + j, em.lane, 0]
                total = access.load_elements(em, view, [first, *at], width)
                for k in range(alike, em.team.warps, alike):
                    other = access.load_elements(em, view, [em.add(first, k), *at], width)
                    total = arith.AddFOp(total, other).result
                row += [em.extract(total, e) for e in range(width)]
            out.append(em.pack(row))
        return out

    @staticmethod
    def types(element: ir.Type, grid: Grid) -> list[ir.Type]:
        return [vec(element, grid[1])] * grid[0]

    @classmethod
    def pack(cls, em: Emitter, frag: Fragment, grid: Grid) -> list[ir.Value]:
        """The parts of sums: of sums that every warp has, one warp's part is all, and the others' are zero."""
        if isinstance(frag, cls):
            return list(frag.values)
        mine = arith.CmpIOp(arith.CmpIPredicate.ult, em.value(em.team.warp), em.c(tile_warps(frag.layout))).result
        zero = em.constant(ir.FloatAttr.get(frag.element, 0.0), grid[1])
        return [arith.SelectOp(mine, piece, zero).result for piece in frag.with_piece(grid[1]).pieces]


def tile_warps(layout: Layout) -> int:
    """Into how many warps a layout cuts a tile."""
    return math.prod(f.size for d in layout.dims for f in d if f.kind == "w")


def struct_type(element: ir.Type, n: int) -> ir.Type:
    return ir.Type.parse(f"!llvm.struct<({', '.join([str(element)] * n)})>")
