"""Depthwise convolutions by mma.sync (`mlirc.band`): along a row, a window's sum of one channel is a product with a
banded matrix.

    y[p, 8 b + j] = sum over r, k of x[p*stride + r - low, 8 b*stride + k - low] * B_r[k, j],  B_r[k, j] = w[r, k - j]

M are blocks of 8 pixels along a row, 16 of them: of several rows, strips of rows, and images. N are the pixels of a
block, K the columns that their windows cover. Of windows that are two apart even and odd columns are two such
products, and so on (`phases`). A warp has two channels, whose pixels are words in shared memory, [pair of channels]
[image, row, phase, column]: four neighbours in one load are the k of a lane. An element is loaded from there once for
all rows of the window, each of which adds it to the sums of another row of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlirc.ir.tensors import element_bytes
from mlirc.ir.window_sums import Linear, WindowSum
from mlirc.mlir import arith, ir, nvgpu, scf, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.bands import BLOCK, BLOCKS, DEPTH, PAIR, Band
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles import reduction
from mlirc.passes.distribute.tiles.band_pixels import Pixels, within
from mlirc.passes.distribute.tiles.elementwise import Body, Elementwise
from mlirc.passes.distribute.tiles.values import Fragment

Sums = list[list[ir.Value]]  # [row of a lane][channel] of 2x2: of the blocks' halves, and of two columns


class Banded(Elementwise):
    """A map whose sum over a window is made by mma.sync, and what else it computes of it in the layout of that."""

    def __init__(self, em: Emitter, *given, found: WindowSum, rows: int):
        scalars = given[-2]
        place = [_begin(em, form, scalars) for form in found.place]  # in front of where the sums are made
        super().__init__(em, *given)
        self.found, self.begin = found, place
        self.image = access.View(scalars(found.image), [], [])
        images, high, columns, channels = [1] * (4 - len(self.shape)) + list(self.shape)
        height, stride, low = self.image.shape[-3], found.strides[0], found.low[0]
        all_rows = high <= rows and place[-3] == -low
        covers = all_rows and (high - 1) * stride + found.kernel[0] - low >= height
        tall = height if covers else 0
        pairs = max(channels // (PAIR * em.team.warps), 1)
        self.band = Band(images, high, columns, channels, rows, found.kernel, stride, tall, low, pairs)
        self.pair: IndexValue = 0  # of those of the block, that the warp multiplies
        self._check()
        self._pixels: Pixels | None = None

    def _check(self) -> None:
        em, band, strides = self.em, self.band, self.found.strides
        if strides[0] != strides[1]:
            raise Unsupported("windows that are as far apart along rows as along columns take mlirc.band")
        if band.m > BLOCKS:
            raise Unsupported(
                f"mlirc.band = {band.rows}: a tile of {band.images}x{band.height}x{band.width} pixels has {band.m} "
                f"blocks of {band.rows} rows of 8 pixels, which are {BLOCKS} at most: use smaller tiles"
            )
        if band.reach > DEPTH:
            raise Unsupported(f"mlirc.band: windows of {self.found.kernel[1]} columns are too wide for {DEPTH} along k")
        shared = band.channels == PAIR * band.pairs * em.team.warps and band.channels in (8, 16, 32, 64)
        if not shared or self.image.shape[-1] % 8 or self.sizes[-1] != band.channels:
            raise Unsupported(
                f"mlirc.band: {band.channels} channels are no pairs for {em.team.warps} warps each, or not 8, "
                f"16, 32 or 64 that divide those of the image: set both so"
            )

    @property
    def pixels(self) -> Pixels:
        """The pixels in shared memory, once the sums are being made."""
        assert self._pixels is not None
        return self._pixels

    # -- as an elementwise op

    def natural(self) -> Layout:
        return self._lifted().project(self.out_dims)

    def _lifted(self) -> Layout:
        rank = len(self.space_shape)
        return self.band.layout.project(list(range(4 - rank, 4)))

    def body(self, space: Layout) -> Body:
        """The evaluation over the layout of the sums, which finds these made."""
        read = self._read_beside_windows()
        bound = [
            None if o is None or i not in read else (o[0].get(space.project(o[1])), o[1])
            for i, o in enumerate(self.operands)
        ]
        em = self.em
        body = _InTurns(em, self.op, space, self.space_sizes, bound, self.scalars)
        self._pixels = Pixels(em, self.band, self.image, self.begin)
        self.pair = em.team.warp
        weights = self.pixels.fill(meanwhile=self._weights)
        em.team.meet()
        first = [weights, *[None] * (self.band.pairs - 1)]
        body.turns = [partial(self._turn, body, i, w) for i, w in enumerate(first)]
        return body

    def _turn(self, body: Body, number: int, weights: list | None) -> list[int]:
        """Makes the sums of the warp's pair of channels of a number; the pieces that they are."""
        em, layout = self.em, body.layout
        self.pair = em.add(em.team.warp, number * self.band.warps)
        begins = self._begin_sums(body, number)
        sums = self._where_finite(self._products(begins, weights or self._weights()), begins)
        done = []
        for r in range(PAIR * number, layout.num_regs, PAIR * self.band.pairs):
            p, half, column = self._where(layout, r)
            pair = [vector.ExtractOp(sums[p][c], [], [half, column]).result for c in range(PAIR)]
            first = layout.reg_offsets[r]
            body.memo[self.found.value, tuple(int(first[d]) for d in sorted(body.deps[self.found.value]))] = em.pack(
                pair
            )
            done.append(r // PAIR)
        return done

    def _read_beside_windows(self) -> set[int]:
        """The operands that something else than the windows' sum reads."""
        block = self.op.regions[0].blocks[0]
        wanted, seen = [block.operations[len(block.operations) - 1].operands[0]], set()
        if self.found.init is not None:
            wanted.append(self.found.init)
        while wanted:
            value = wanted.pop()
            if value == self.found.value or value in seen:
                continue
            seen.add(value)
            if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block:
                wanted += value.owner.operation.operands
        return {i for i, a in enumerate(block.arguments) if a in seen}

    def computed_in(self, layout: Layout) -> Fragment:
        """The result as whole chunks of pixels, by way of shared memory."""
        frag = self.get(self.natural())
        if element_bytes(frag.element) != 2 or layout.piece % PAIR:
            return frag.get(layout)
        return self.pixels.regrouped(frag, layout)

    # -- the sums

    def _where(self, layout: Layout, register: int) -> tuple[int, int, int]:
        """(row of the strip, half of the blocks, column of two) of a register."""
        *n, p, q, _ = (int(x) for x in layout.reg_offsets[register])
        return p % self.band.rows, int(any(n) or p >= self.band.rows or q >= BLOCK), q % BLOCK

    def _begin_sums(self, body: Body, number: int) -> Sums:
        """What each row's sums begin with, of both channels, as an instruction has it: [rows][channel] of 2x2."""
        em, init = self.em, self.found.init
        zero = em.constant(ir.FloatAttr.get_f32(0.0))
        values = [[[[zero] * PAIR for _ in range(2)] for _ in range(PAIR)] for _ in range(self.band.rows)]
        for r in range(PAIR * number, body.layout.num_regs if init is not None else 0, PAIR * self.band.pairs):
            p, half, column = self._where(body.layout, r)
            piece = body.at(init, r // PAIR)
            for c in range(PAIR):
                values[p][c][half][column] = em.extract(piece, c)
        t = ir.VectorType.get([2, 2], ir.F32Type.get())
        return [[vector.FromElementsOp(t, [x for half in c for x in half]).result for c in row] for row in values]

    def _weights(self) -> list[list[list[ir.Value]]]:
        """The banded matrices' fragments: [row of the window][phase][channel], of a lane's k = 4 t .. 4 t + 3 and its
        column j = lane / 4."""
        em, band = self.em, self.band
        first = em.sub(em.mul(em.rem(em.lane, 4), 4), em.div(em.lane, 4))  # k - j
        i32 = ir.IntegerType.get_signless(32)
        none = em.constant(ir.IntegerAttr.get(i32, 0))
        out = []
        for r in range(band.window[0]):
            phases = []
            for phase in range(band.stride):
                last, words = band.taps(phase) - 1, []
                for i in range(4):
                    tap = em.add(first, i)
                    s = em.add(em.mul(em.max(em.min(tap, last), 0), band.stride), phase)
                    loaded = self._weight(r, s)
                    inside = arith.CmpIOp(arith.CmpIPredicate.ule, em.value(tap), em.c(last)).result
                    word = em.extract(vector.BitCastOp(ir.VectorType.get([1], i32), loaded).result, 0)
                    chosen = arith.SelectOp(inside, word, none).result
                    words.append(vector.BitCastOp(loaded.type, _one(chosen)).result)
                phases.append([_stack(em, [(w, c) for w in words]) for c in range(PAIR)])
            out.append(phases)
        return out

    def _weight(self, r: IndexValue, s: IndexValue) -> ir.Value:
        """The weights of the warp's two channels at a tap."""
        em, band = self.em, self.band
        view = access.View(self.scalars(self.found.weights), [], [])
        channel = em.add(self.begin[-1], em.mul(self.pair, PAIR))
        at = [r, s] if len(view.shape) == 3 else [em.add(em.mul(r, band.window[1]), s)]
        return access.load_elements(em, view, [*at, channel], PAIR)

    def _products(self, sums: Sums, weights: list[list[list[ir.Value]]]) -> Sums:
        """Each row of the image, added to the rows of results whose windows have it."""
        em, band = self.em, self.band
        sums = [list(row) for row in sums]
        halves = [self._lane_word(half) for half in range(2 if band.m > 8 else 1)]
        skipped = band.low if band.whole else 0
        for i in range((band.rows - 1) * band.stride + band.window[0]):
            taps = [(p, i - p * band.stride) for p in range(band.rows) if 0 <= i - p * band.stride < band.window[0]]
            row = i - skipped
            if not taps or band.whole and not 0 <= row < band.whole:
                continue
            for phase in range(band.stride):
                word = row * band.row_words + phase * band.columns
                pixels = [self.pixels.read(self.pair, em.add(at, word), 4) for at in halves]
                pixels = pixels * (2 // len(pixels))
                for c in range(PAIR):
                    order = [(pixels[half], 2 * k) for k in range(2) for half in range(2)]
                    a = _stack(em, [(vec, PAIR * (first + d) + c) for vec, first in order for d in range(2)], 4)
                    for p, r in taps:
                        sums[p][c] = _mma(a, weights[r][phase][c], sums[p][c])
        return sums

    def _where_finite(self, sums: Sums, begins: Sums) -> Sums:
        """The sums, made again by FMA by a warp that has read something that is not finite: times the zeros of a banded
        matrix it is NaN for all pixels of its block, in each row whose window has it."""
        em, band = self.em, self.band
        rows = {*range(0, band.rows, max(band.window[0] // band.stride, 1)), band.rows - 1}
        halves = range(2 if band.m > 8 else 1)
        terms = [vector.ExtractOp(x, [], [half, 0]).result for p in sorted(rows) for x in sums[p] for half in halves]
        flat = [x for row in sums for x in row]
        branch = scf.IfOp(reduction.any_not_finite(em, terms), [x.type for x in flat], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp(self._by_fma([x for row in begins for x in row]))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(flat)
        found = list(branch.results)
        return [found[i : i + PAIR] for i in range(0, len(found), PAIR)]

    def _by_fma(self, begins: list[ir.Value]) -> list[ir.Value]:
        """The sums, tap by tap."""
        em, band = self.em, self.band
        taps = band.window[0] * band.window[1]
        loop = scf.ForOp(em.c(0), em.c(taps), em.c(1), begins)
        with ir.InsertionPoint(loop.body):
            tap, sums = loop.induction_variable, list(loop.inner_iter_args)
            r, s = em.div(tap, band.window[1]), em.rem(tap, band.window[1])
            weight = self._weight(r, s)
            column = em.add(em.mul(em.rem(s, band.stride), band.columns), em.div(s, band.stride))
            halves = [self._block_word(half) for half in range(2)]
            own = em.mul(em.rem(em.lane, 4), 2)
            scf.YieldOp([
                self._one_tap(x, i // PAIR, i % PAIR, r, [em.add(em.add(h, own), column) for h in halves], weight)
                for i, x in enumerate(sums)
            ])  # fmt: skip
        return list(loop.results)

    def _one_tap(
        self, sums: ir.Value, p: int, c: int, r: IndexValue, words: list[IndexValue], weight: ir.Value
    ) -> ir.Value:
        """A row's sums of a channel, 2x2, and the products of a tap."""
        em, band, f32 = self.em, self.band, ir.F32Type.get()
        row = em.add(r, p * band.stride - (band.low if band.whole else 0))
        inside = within(em, row, band.whole) if band.whole else True
        row = em.min(em.max(row, 0), band.whole - 1) if band.whole else row
        factor = arith.ExtFOp(f32, em.extract(weight, c)).result
        out: list[ir.Value] = []
        for word in words:
            at = em.add(word, em.mul(row, band.row_words))
            for column in range(2):
                pixel = self.pixels.read(self.pair, em.add(at, column), 1)
                x = arith.ExtFOp(f32, em.extract(pixel, c)).result
                if inside is not True:
                    x = arith.SelectOp(inside, x, em.constant(ir.FloatAttr.get_f32(0.0))).result
                before = vector.ExtractOp(sums, [], [len(out) // 2, column]).result
                out.append(arith.AddFOp(before, arith.MulFOp(x, factor).result).result)
        return vector.FromElementsOp(sums.type, out).result

    def _lane_word(self, half: int) -> IndexValue:
        """Where the first of the pixels lies that a lane multiplies, of its block of a half."""
        em, band = self.em, self.band
        with em.at_entry():
            t = em.rem(em.lane, 4)
            k = em.mul(em.rem(t, band.reach // 4) if band.reach < DEPTH else t, 4)
            return em.add(self._block_word(half), k)

    def _block_word(self, half: int) -> IndexValue:
        """Where the columns of a lane's block of pixels begin."""
        em, band = self.em, self.band
        with em.at_entry():
            m = em.rem(em.add(em.div(em.lane, 4), 8 * half), band.m)
            block, strip = em.rem(m, band.blocks), em.rem(em.div(m, band.blocks), band.strips)
            image = em.min(em.div(m, band.blocks * band.strips), band.images - 1)
            word = em.add(em.mul(image, band.image_words), em.mul(strip, band.rows * band.stride * band.row_words))
            return em.add(word, em.mul(block, BLOCK))


class _InTurns(Body):
    """A body whose pieces are built in turns: each makes the sums that some of them read, and says which."""

    turns: Sequence[Callable[[], list[int]]] = ()

    def fragment_pieces(self, value: ir.Value) -> list[ir.Value]:
        found = {p: self.em.splat(self.at(value, p), self.piece) for turn in self.turns for p in turn()}
        return [found[p] for p in sorted(found)]


def _begin(em: Emitter, form: Linear, scalars: Callable) -> IndexValue:
    """Where a tile's first window begins along a dimension of the image."""
    total: IndexValue = form.const
    for value, factor in form.outside():
        total = em.add(total, em.mul(scalars(value), factor))
    return total


def _stack(em: Emitter, places: list[tuple[ir.Value, int]], rows: int = 2) -> ir.Value:
    """Elements of vectors as an operand of an instruction, `rows` registers of two."""
    scalars = [em.extract(v, i) for v, i in places]
    return vector.FromElementsOp(ir.VectorType.get([rows, 2], scalars[0].type), scalars).result


def _mma(a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    i64 = ir.IntegerType.get_signless(64)
    shape = ir.ArrayAttr.get([ir.IntegerAttr.get(i64, x) for x in (16, 8, 16)])
    return nvgpu.MmaSyncOp(c.type, a, b, c, shape).result


def _one(x: ir.Value) -> ir.Value:
    """A scalar as a vector of one element."""
    return vector.FromElementsOp(ir.VectorType.get([1], x.type), [x]).result
