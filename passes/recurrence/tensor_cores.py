"""A recurrence's products by tensor cores: 16 rows of the matrix are mma.sync's A, eight rows of the state its B.

Every warp has a part of k of all the block's rows. Lane t of the four that share a row has 16 bytes of every 64 of it,
of both operands, which are as many k in the same order: loads of 16 bytes from global memory are the fragments as they
are. Of f32 there are three products of TF32 (`instructions/tf32x3.py` has the paper), whose sums of 16 k are added
in FP32; what is not finite is computed again by FMA."""

from __future__ import annotations

from mlirc.mlir import arith, ir, math, memref, nvgpu, scf, vector
from mlirc.passes.distribute.emit.asynchronous import pinned
from mlirc.passes.distribute.emit.emitter import IndexValue
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.products.tf32_operands import split
from mlirc.passes.distribute.tiles.reduction import any_not_finite
from mlirc.passes.recurrence.geometry import COLUMNS, PIECE_BYTES, Geometry
from mlirc.passes.recurrence.products import LOADED, Products

TERMS = ((1, 0), (0, 1), (0, 0))  # lo * hi, hi * lo, hi * hi


class Mma(Products):
    """Of 16-bit floats: mma.sync m16n8k16."""

    step_k = 16

    def __init__(self, em, r, g: Geometry, buffers, first: IndexValue):
        super().__init__(em, r, g, buffers, first)
        self.element = ir.MemRefType(self.matrix.type).element_type
        self.width = PIECE_BYTES // (self.element.width // 8)  # k of a lane in a piece
        self.type = ir.VectorType.get([self.width], self.element)

    def release(self) -> None:
        super().release()
        if self.g.in_shared:
            self.em.free_smem(self.slots)

    def place(self, row: IndexValue, own: IndexValue, warp: IndexValue) -> list[IndexValue]:
        return [warp, own, row]

    def keep(self) -> None:
        em, g = self.em, self.g
        with em.at_entry():
            self.group, self.own_k = em.div(em.lane, 4), em.rem(em.lane, 4)
        places = [(tile, p, h) for tile in range(g.row_tiles) for p in range(g.pieces) for h in range(2)]
        self.kept: dict[tuple[int, int, int], ir.Value] = {}
        if g.in_shared:
            self.slots = em.alloc_smem([len(places), 32 * g.warps, self.width], self.element)
        for number, (tile, p, h) in enumerate(places):
            found = self._load(self.matrix, [self._row(tile, h)], p)
            if g.in_shared:
                vector.StoreOp(found, self.slots, self._slot(number), alignment=PIECE_BYTES)
            else:
                self.kept[tile, p, h] = found

    def _slot(self, number: int) -> list[ir.Value]:
        return [self.em.c(number), self.em.block_thread, self.em.c(0)]

    def kept_of(self, tile: int, piece: int) -> list[ir.Value]:
        """The lane's part of two rows of the matrix."""
        if not self.g.in_shared:
            return [self.kept[tile, piece, h] for h in range(2)]
        first = (tile * self.g.pieces + piece) * 2
        return [
            vector.LoadOp(self.type, self.slots, self._slot(first + h), alignment=PIECE_BYTES).result for h in range(2)
        ]

    def _row(self, tile: int, half: int) -> IndexValue:
        return self.row_of(self.em.add(self.group, 16 * tile + 8 * half))

    def _load(self, base: ir.Value, before: list[IndexValue], piece: int) -> ir.Value:
        """The lane's 16 bytes of a row in a piece of the warp's k; zeros behind the end."""
        em, g = self.em, self.g
        number = em.add(em.mul(em.block_warp, g.pieces), piece)
        k = em.mul(em.add(em.mul(number, 4), self.own_k), self.width)
        whole = g.units % (4 * self.width * g.pieces * g.warps) == 0
        at = k if whole else em.min(k, g.units - self.width)
        loaded = vector.LoadOp(self.type, base, [em.value(i) for i in (*before, at)], alignment=PIECE_BYTES).result
        if whole:
            return loaded
        zeros = em.constant(ir.FloatAttr.get(self.element, 0.0), self.width)
        return arith.SelectOp(em.condition(em.less(k, g.units)), loaded, zeros).result

    def multiply(self, step: ir.Value) -> None:
        g = self.g
        tiles = g.column_tiles
        most = max((2 if g.in_shared else 1) * LOADED // (4 * g.pieces), 1)
        together = next(n for n in range(min(most, tiles), 0, -1) if tiles % n == 0)
        self.in_turn(tiles, together, lambda columns: self._some_columns(step, columns))

    def _some_columns(self, step: ir.Value, columns: list[IndexValue]) -> None:
        em, g = self.em, self.g
        rows = [em.min(em.add(em.mul(c, COLUMNS), self.group), g.batch - 1) for c in columns]
        values = self.state(
            step,
            [self.type] * (g.pieces * len(columns)),
            lambda base, before: [self._load(base, [*before, row], p) for row in rows for p in range(g.pieces)],
        )
        state = [values[i * g.pieces : (i + 1) * g.pieces] for i in range(len(columns))]
        self._finish(step, columns, self._sums(state))

    def _finish(self, step: ir.Value, columns: list[IndexValue], found: list[list[ir.Value]]) -> None:
        self._store(columns, found)

    def _store(self, columns: list[IndexValue], found: list[list[ir.Value]]) -> None:
        """Sums, [row tile][column tile], to shared memory."""
        em = self.em
        for tile, sums in enumerate(found):
            for column, total in zip(columns, sums, strict=True):
                at = em.add(em.mul(column, COLUMNS), em.mul(self.own_k, 2))
                for half in range(2):
                    own = em.add(self.group, 16 * tile + 8 * half)
                    pair = vector.ExtractOp(total, [], [half]).result
                    indices = [em.value(i) for i in (em.block_warp, own, at)]
                    vector.StoreOp(pair, self.sums, indices, alignment=8)

    def _zeros(self) -> ir.Value:
        t = ir.VectorType.get([2, 2], self.f32)
        zero = self.em.constant(ir.FloatAttr.get(self.f32, 0.0))
        return vector.FromElementsOp(t, [zero] * 4).result

    def _sums(self, state: list[list[ir.Value]]) -> list[list[ir.Value]]:
        """The products, [row tile][column tile], of the state's column tiles, [column tile][piece]."""
        g = self.g
        totals = [[self._zeros()] * len(state) for _ in range(g.row_tiles)]
        for piece in range(g.pieces):
            b = [[self._stack([self._two(h[piece], 4 * j + d) for d in (0, 2)]) for j in range(2)] for h in state]
            for tile in range(g.row_tiles):
                own = self.kept_of(tile, piece)
                for j in range(2):
                    a = self._stack([self._two(own[half], 4 * j + d) for d in (0, 2) for half in range(2)])
                    for column in range(len(state)):
                        totals[tile][column] = self._mma(a, b[column][j], totals[tile][column])
        return totals

    def _two(self, v: ir.Value, at: int) -> ir.Value:
        return vector.ExtractStridedSliceOp(ir.VectorType.get([2], self.element), v, [at], [2], [1]).result

    def _stack(self, rows: list[ir.Value]) -> ir.Value:
        width = ir.VectorType(rows[0].type).shape[0]
        parts = [vector.ExtractOp(row, [], [i]).result for row in rows for i in range(width)]
        return vector.FromElementsOp(ir.VectorType.get([len(rows), width], self.element), parts).result

    def _mma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        i64 = ir.IntegerType.get_signless(64)
        shape = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, x) for x in (16, 8, self.step_k)])
        return nvgpu.MmaSyncOp(c.type, a, b, c, shape, tf32Enabled=self.step_k == 8 or None).result


class ThreeTf32(Mma):
    """Of f32: three mma.sync m16n8k8 of TF32."""

    step_k = 8

    def _sums(self, state: list[list[ir.Value]]) -> list[list[ir.Value]]:
        em, g = self.em, self.g
        totals: list[list[ir.Value]] = [[] for _ in range(g.row_tiles)]
        for piece in range(g.pieces):
            h_parts = [split(em, h[piece], self.width) for h in state]
            for tile in range(g.row_tiles):
                # Else LLVM would split the matrix in front of all steps, and have twice the registers.
                own = self.kept_of(tile, piece)
                own = [em.pack([pinned(em.extract(v, i)) for i in range(self.width)]) for v in own]
                parts = [split(em, v, self.width) for v in own]
                found = [self._zeros()] * len(state)
                for part_a, part_b in TERMS:
                    for j in range(2):
                        a = [em.extract(parts[half][part_a], 2 * j + d) for d in range(2) for half in range(2)]
                        for column, h in enumerate(h_parts):
                            b = [em.extract(h[part_b], 2 * j + d) for d in range(2)]
                            found[column] = self._mma(self._column(a), self._column(b), found[column])
                before = totals[tile]
                totals[tile] = (
                    [arith.AddFOp(x, y).result for x, y in zip(before, found, strict=True)] if before else found
                )
        return totals

    def _column(self, values: list[ir.Value]) -> ir.Value:
        return vector.FromElementsOp(ir.VectorType.get([len(values), 1], self.f32), values).result

    def _finish(self, step: ir.Value, columns: list[IndexValue], found: list[list[ir.Value]]) -> None:
        terms = [
            vector.ExtractOp(total, [], [i, d]).result for sums in found for total in sums for i, d in ((0, 0), (1, 1))
        ]
        branch = scf.IfOp(any_not_finite(self.em, terms), has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self._again(step, columns)
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            self._store(columns, found)
            scf.YieldOp([])

    def _again(self, step: ir.Value, columns: list[IndexValue]) -> None:
        """The same sums by FMA, one row of the state after the other."""
        em, g = self.em, self.g
        first = em.mul(columns[0], COLUMNS)
        loop = scf.ForOp(em.c(0), em.c(COLUMNS * len(columns)), em.c(1), [])
        with ir.InsertionPoint(loop.body):
            place = em.add(first, loop.induction_variable)
            row = em.min(place, g.batch - 1)
            state = self.state(
                step,
                [self.type] * g.pieces,
                lambda base, before: [self._load(base, [*before, row], p) for p in range(g.pieces)],
            )
            for tile in range(g.row_tiles):
                pieces = [self.kept_of(tile, p) for p in range(g.pieces)]
                for half in range(2):
                    total = em.constant(ir.FloatAttr.get(self.f32, 0.0))
                    for own, h in zip(pieces, state, strict=True):
                        for i in range(self.width):
                            total = math.FmaOp(em.extract(own[half], i), em.extract(h, i), total).result
                    for offset in (1, 2):
                        total = arith.AddFOp(total, em.shuffle_xor(total, offset)).result
                    own_row = em.add(self.group, 16 * tile + 8 * half)
                    with predicated(em.condition(em.equal(self.own_k, 0))):
                        memref.StoreOp(total, self.sums, [em.value(i) for i in (em.block_warp, own_row, place)])
            scf.YieldOp([])
