"""mma.sync m16n8k16 of 16-bit floats whose operands come from global memory straight to the registers: B of which each
element is read by one thread, 16 bytes at a time, and few rows of A. More of these come through shared memory, where
the schedule says so (`mlirc.copy`).

B's columns are the instruction's rows, and A's rows its columns, of which it has as few as eight. The order of k within
64 elements is the lanes': four lanes have 16 each that follow each other, of both operands, so that what a thread loads
is in place already (`packing.py` puts the words of packed weights in this order).

Of packed weights the numbers are multiplied as they are, and the sums of those that share a scale with it, in f32: so
scales cost next to nothing, and weights are not rounded."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from mlirc.mlir import arith, ir, math, nvgpu, vector
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Instruction, Spread, instruction
from mlirc.passes.distribute.instructions.base import round_up
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, warp
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.accumulators import PartialSums
from mlirc.passes.distribute.tiles.factored import Factored
from mlirc.passes.distribute.tiles.reduction import mask
from mlirc.passes.distribute.tiles.values import Fragment

RUN, LANES = 16, 4  # elements of a lane that follow each other, and lanes that share k
HALF_TILE = 8  # columns that are half of an instruction's
STEP = 16  # of one instruction along k
# Sums that take turns where a warp has fewer tiles: a product waits for the one whose sums it adds to.
CHAINS = 2
SCALED = 4  # tiles of a warp at most, so that its registers hold a group's sums beside all sums


@dataclass(frozen=True)
class Run:
    """Steps of 64 k, and what the sums of each eight columns are multiplied with (none: nothing). `inside`: whether
    they lie before the end of k, all of them or none."""

    steps: list[int]
    scales: list[ir.Value]
    inside: bool | ir.Value = True


@instruction
class MmaDirect(Instruction):
    """A warp multiplies 8 rows with 16 columns, 64 (`step_k`) elements along k by four instructions."""

    name = "mma_direct"
    meaning = "mma.sync m16n8k16, rows and columns exchanged"
    takes = "two 16-bit floats of one type and f32 sums"
    tile = (8, 16)
    step_k = RUN * LANES
    shares_k = True
    reads_global = True

    def takes_types(self, types: ElementTypes) -> bool:
        return types.half

    def spread(self, p: BlockProduct) -> Spread:
        if not all(p.k_last):
            raise Unsupported(f"mma = {self.name} takes operands whose rows run along k: use mma")
        m, n = (round_up(extent, t * warps) for extent, t, warps in zip((p.m, p.n), self.tile, p.grid, strict=True))
        if p.n <= HALF_TILE and p.grid == (1, 1):
            n = HALF_TILE  # half an instruction: the other one may be another product's
        tiles = m // p.grid[0] // 8, n // p.grid[1] // 8
        warps_k = p.warps // (p.grid[0] * p.grid[1])
        sums = Layout.of(
            (warp(p.grid[0], p.grid[1]), reg(tiles[0]), lane(LANES, 1), reg(2)),
            (warp(p.grid[1], 1), reg(tiles[1]), lane(8, LANES)),
        )
        form = PartialSums if warps_k > 1 else None
        return Spread(sums, round_up(p.k, self.step_k * warps_k), warps_k, form, (2 * tiles[0], tiles[1]))

    def layout(self, product: Product, which: int) -> Layout:
        """In which operand 0 (A), dims (m, k), or 1 (B), dims (n, k), is multiplied."""
        s, (warps_m, warps_n) = product.spread, (product.warps_m, product.warps_n)
        part = s.k // s.warps_k
        rows = warp((warps_m, warps_n)[which], (warps_n, 1)[which]), reg((s.tiles[0] // 2, s.tiles[1])[which])
        k = warp(s.warps_k, warps_m * warps_n), reg(part // self.step_k), lane(LANES, 1), reg(RUN)
        return Layout.of((*rows, lane(8, LANES)), k)

    def operand(self, product: Product, which: int) -> Fragment:
        """Operand 0 or 1 in the order in which it is multiplied; zeros past the end of k."""
        tile, layout = product.operand(which), self.layout(product, which)
        if staging.staged(tile) is not None:
            return product.load(which, layout)
        return _inside(product, which, tile.get(product.placed(which, layout)))

    def operands(self, product: Product) -> tuple[Fragment, Fragment, list[Run]]:
        """Operands 0 and 1, and what becomes of their products."""
        b, runs = self.weights(product)
        tile = product.operand(0)
        if staging.staged(tile) is None and all(run.inside is not True for run in runs):
            # Whole runs beyond the end are left out: what is read for them does not matter.
            return tile.get(product.placed(0, self.layout(product, 0))), b, runs
        return self.operand(product, 0), b, runs

    def weights(self, product: Product) -> tuple[Fragment, list[Run]]:
        """Operand 1, and steps of 64 k by what their sums are multiplied with: packed weights' scales where all lanes
        that share a step have one."""
        s, tile, em, layout = product.spread, product.operand(1), product.em, product.placed(1, self.layout(product, 1))
        table, count = layout.registers, s.k // s.warps_k // self.step_k
        steps, columns = range(count), [8 * i for i in range(s.tiles[1])]
        few = s.tiles[0] * s.tiles[1] <= 4 * SCALED
        found = Factored.of(tile, layout) if few and staging.staged(tile) is None else None
        (dim,) = product.k_dims(1)
        size = tile.sizes[dim]
        exact = isinstance(size, int) and layout.shape[dim] <= size
        # So many steps of a warp end together before the end of k, or lie behind it; 0 where a step may be cut.
        known = em.divisor(size)
        whole = count if exact else 0 if known % self.step_k else gcd(count, known // self.step_k)

        def registers(column: int, first: int, last: int) -> list[int]:
            ks = [step * self.step_k + e for step in range(first, last + 1) for e in range(RUN)]
            return [table[product.place(1, column, k)] for k in ks]

        def alike(first: int, last: int) -> bool:
            return found is not None and all(found.one_scale(registers(c, first, last), LANES) for c in columns)

        if found is None or not all(alike(step, step) for step in steps):
            return self.operand(product, 1), [Run(list(steps), [])]
        runs: list[Run] = []
        for step in steps:
            if runs and alike(runs[-1].steps[0], step) and (not whole or step % whole):
                runs[-1].steps.append(step)
                continue
            first = [registers(c, step, step)[0] for c in columns]
            inside = em.less(em.team.coordinate(layout, dim, first[0]), size) if whole and not exact else True
            runs.append(Run([step], [found.scale(r) for r in first], inside))
        return found.numbers, runs  # past the end of k, too, they are finite, and the other operand's are zeros

    def lower(self, product: Product) -> Fragment:
        """Where warps share out k, gives sums that are to be added."""
        product.begin()
        waiting, other = product.em.waiting, _other_half(product)
        if product.op.operation in waiting:
            first, sums = waiting.pop(product.op.operation)
            mine = _Half.of(self, product)
            halves = [first, mine]
            if [r.steps for r in first.runs] == [r.steps for r in mine.runs]:
                found = self._multiply(halves)
            else:
                found = [self._multiply([half])[0] for half in halves]
            sums[:] = found[0]
            return _result(product, found[1])
        mine = _Half.of(self, product)
        if other is None:
            return _result(product, self._multiply([mine])[0])
        later: list[ir.Value] = []
        waiting[other] = mine, later
        return _result(product, later)

    def _multiply(self, halves: list[_Half]) -> list[list[ir.Value]]:
        """The rows of sums of a product, or of two that share the rows and an instruction's columns."""
        product = halves[0].product
        rows, columns = product.spread.tiles
        places = [(half, c) for half in halves for c in range(columns)]
        pairs = [places[i : i + 2] for i in range(0, len(places), 2)]
        mt, nt = rows // 2, len(pairs)
        element = product.c.element
        shape, nothing = ir.VectorType.get([2, 2], element), product.em.constant(ir.FloatAttr.get(element, 0.0))

        def tile(i: int, pair: list[tuple[_Half, int]]) -> ir.Value:
            """Sums of 16 columns of B, the instruction's rows, and 8 rows of A."""
            scalars = [product.em.extract(half.start[2 * i + e], c) for half, c in pair for e in range(2)]
            return vector.FromElementsOp(shape, (scalars + [nothing] * 2)[:4]).result

        total = [tile(i, pair) for i in range(mt) for pair in pairs]
        zero = vector.BroadcastOp(shape, nothing).result
        for number, run in enumerate(halves[0].runs):
            sums = self._sums(halves, pairs, number, [zero] * len(total) if run.scales else total, zero)
            if not run.scales:
                total = sums
                continue
            scales = [[half.runs[number].scales[c] for half, c in pair] for pair in pairs]
            scaled = [_scaled(sums[i * nt + j], (scales[j] * 2)[:2], total[i * nt + j])
                      for i in range(mt) for j in range(nt)]  # fmt: skip
            total = [_chosen(run.inside, *both) for both in zip(scaled, total, strict=True)]
        where = {place: (j, h) for j, pair in enumerate(pairs) for h, place in enumerate(pair)}

        def scalar(r: int, place: tuple[_Half, int]) -> ir.Value:
            j, h = where[place]
            return vector.ExtractOp(total[r // 2 * nt + j], [], [h, r % 2]).result

        return [
            [product.em.pack([scalar(r, (half, c)) for c in range(columns)]) for r in range(rows)] for half in halves
        ]

    def _sums(
        self, halves: list[_Half], pairs: list, number: int, start: list[ir.Value], zero: ir.Value
    ) -> list[ir.Value]:
        """What the tiles begin with, and the products of a run's steps."""
        first, mt, nt = halves[0], halves[0].product.spread.tiles[0] // 2, len(pairs)
        run, product = first.runs[number], first.product
        chains = max(CHAINS // len(start), 1)
        sums = [list(start), *([zero] * len(start) for _ in range(chains - 1))]
        # Of a lane's run of 16 an instruction has four neighbours; all lanes' are 16 of k.
        places = [step * self.step_k + LANES * quarter for step in run.steps for quarter in range(RUN // LANES)]
        for at, k in enumerate(places):
            part = sums[at % chains]
            right = [_columns(pair, k) for pair in pairs]
            for i in range(mt):
                left = _registers(product, 0, first.a, [8 * i], k)
                for j in range(nt):
                    part[i * nt + j] = _issue(right[j], left, part[i * nt + j])
        return [product.add(*both) if len(both) > 1 else both[0] for both in zip(*sums, strict=True)]


@dataclass(frozen=True, eq=False)
class _Half:
    """A product that is to be emitted: its operands, what becomes of their products, and its sums' rows before."""

    product: Product
    a: Fragment
    b: Fragment
    runs: list[Run]
    start: list[ir.Value]

    @classmethod
    def of(cls, instruction: MmaDirect, product: Product) -> _Half:
        acc, s = product.accumulator(), product.spread
        start = PartialSums.pack(product.em, acc, s.tiles) if s.warps_k > 1 else acc.with_piece(s.tiles[1]).pieces
        return cls(product, *instruction.operands(product), list(start))


def _other_half(product: Product) -> ir.Operation | None:
    """Another product of this one's rows, of as many columns, that follows it in its block: two of eight columns share
    an instruction, as the two of a gated layer."""
    if product.spread.tiles[1] > 1 or product.geometry.block.grid != (1, 1):
        return None
    op, seen = product.op.operation, False
    for other in op.parent.regions[0].blocks[0].operations:
        other = other.operation
        if seen and other.name == op.name and _alike(op, other):
            return other
        seen = seen or other == op
    return None


def _alike(op: ir.Operation, other: ir.Operation) -> bool:
    """Whether two products have the same left operand, and are of one shape."""
    mine, theirs = list(op.operands), list(other.operands)
    names = "indexing_maps", "mlirc.mma", "mlirc.warp_grid"
    return (
        len(mine) == len(theirs) == 3
        and mine[0] == theirs[0]
        and [v.type for v in mine] == [v.type for v in theirs]
        and all((n in op.attributes) == (n in other.attributes) for n in names)
        and all(op.attributes[n] == other.attributes[n] for n in names if n in op.attributes)
        and not any(use.owner.operation == other for use in op.results[0].uses)
    )


def _result(product: Product, rows: list[ir.Value]) -> Fragment:
    acc, s = product.c, product.spread
    if s.warps_k > 1:
        return PartialSums(product.em, acc.element, acc.shape, acc.sizes, product.layout, rows, s.tiles)
    return Fragment(product.em, acc.element, acc.shape, acc.sizes, product.layout, rows, s.tiles[1])


def _inside(product: Product, which: int, frag: Fragment) -> Fragment:
    """An operand with zeros past the end of k."""
    return mask(product.em, frag, product.k_dims(which), ir.FloatAttr.get(frag.element, 0.0))


def _chosen(condition: bool | ir.Value, value: ir.Value, other: ir.Value) -> ir.Value:
    return value if condition is True else arith.SelectOp(condition, value, other).result


def _scaled(sums: ir.Value, scales: list[ir.Value], start: ir.Value) -> ir.Value:
    """start + sums * scale, of a tile's rows that are 8 apart."""
    element = ir.VectorType(sums.type).element_type
    rows = []
    for h, scale in enumerate(scales):
        part, rest = (vector.ExtractOp(v, [], [h]).result for v in (sums, start))
        wide = scale if scale.type == element else arith.ExtFOp(element, scale).result
        rows.append(math.FmaOp(part, vector.BroadcastOp(part.type, wide).result, rest).result)
    flat = [vector.ExtractOp(row, [], [e]).result for row in rows for e in range(2)]
    return vector.FromElementsOp(sums.type, flat).result


def _registers(product: Product, which: int, frag: Fragment, outer: list[int], k: int) -> ir.Value:
    """Registers of two elements: of rows (or columns) `outer`, then of k and of the two elements behind (PTX ISA,
    "Matrix Fragments for mma.m16n8k16 with floating point type": its k runs by lanes, here too)."""
    table = frag.layout.registers
    places = [(o, k + half + d) for half in (0, 2) for o in outer for d in range(2)]
    scalars = [frag.scalar(table[product.place(which, *place)]) for place in places]
    return vector.FromElementsOp(ir.VectorType.get([len(scalars) // 2, 2], scalars[0].type), scalars).result


def _columns(pair: list[tuple[_Half, int]], k: int) -> ir.Value:
    """The four registers of an instruction's 16 columns; zeros for those that it does not have."""
    parts = [_registers(half.product, 1, half.b, [8 * c], k) for half, c in pair]
    element = ir.VectorType(parts[0].type).element_type
    half_zero = None
    if len(parts) == 1:
        half_zero = pair[0][0].product.em.constant(ir.FloatAttr.get(element, 0.0))
    scalars = []
    for at in range(2):
        for part in parts:
            scalars += [vector.ExtractOp(part, [], [at, e]).result for e in range(2)]
        if half_zero is not None:
            scalars += [half_zero] * 2
    return vector.FromElementsOp(ir.VectorType.get([4, 2], element), scalars).result


def _issue(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    shape = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), x) for x in (16, 8, STEP)])
    return nvgpu.MmaSyncOp(c.type, a, b, c, shape).result
