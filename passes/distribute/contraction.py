"""Products of tiles: mma.sync on tensor cores for 16-bit operands, FMA outer products for everything else.

Operands come from shared memory (staged there by the K loop's asynchronous copies, or stored just before) or, when a
fragment already has its elements in the right threads, straight from registers (the softmax weights of attention).
"""

from __future__ import annotations

from dataclasses import replace

from mlirc.mlir import arith, ir, math, nvgpu, scf, vector
from mlirc.passes.distribute import memory, staging, tf32x3, warpgroup_product, wgmma
from mlirc.passes.distribute.accumulators import AccumulatorFragment, MmaFragment, PartialSums, WgmmaFragment
from mlirc.passes.distribute.elementwise import Elementwise
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layout import (
    Layout,
    fma_accumulator,
    mma_accumulator,
    mma_operand_a,
    mma_operand_b,
    reg,
)
from mlirc.passes.distribute.loop_argument import LoopArgument
from mlirc.passes.distribute.products import Contraction
from mlirc.passes.distribute.reduction import mask
from mlirc.passes.distribute.values import Fragment, Marked, Tile, elementwise_op

# An operand that no iteration of a loop changes stays in registers if it takes at most this many.
HOISTED_REGISTERS = 64
# So many mma.sync are under way at once: where a warp has fewer tiles, the steps of k take turns at several sums, since
# a product waits for the one whose sums it adds to.
INDEPENDENT_PRODUCTS = 4
# Operands of a whole slice that are read before its first product, so that these do not wait for one ldmatrix each.
OPERAND_REGISTERS = 64
# Products that scalar FMA sums one after the other before it adds them to the total.
SUM_LENGTH = 32


def _place(dims: list[int | None], major: int | None, minor: int | None, layout: Layout) -> Layout:
    """Spreads a two-dimensional layout over an operand's dimensions (all others have size 1)."""
    out: list[tuple] = [()] * len(dims)
    for i, d in enumerate(dims):
        if d is not None and d == major:
            out[i] = layout.dims[0]
        elif d is not None and d == minor:
            out[i] = layout.dims[1]
    return Layout(tuple(out))


def _round(extent: int, step: int) -> int:
    return -(-extent // step) * step


class Geometry:
    """How one product is spread over the block: decided by types, extents and the schedule's attributes alone.
    `elements` and `shapes` are those of A, B and C."""

    def __init__(self, em: Emitter, op, info: Contraction, elements: list[ir.Type], shapes: list[list[int]]):
        self.em, self.op, self.info = em, op, info
        self.m, self.n = (shapes[2][info.maps[2].index(d)] for d in (info.m, info.n))
        self.k = shapes[0][info.maps[0].index(info.k)]
        self.kind = self._kind(elements)
        self.warps_k = 1  # that share out a slice's k
        self.warps_m, self.warps_n = self._warp_grid(em.warps)
        if self.kind == "wgmma":
            m, n = wgmma.padded(self.m, self.n, self.warps_m, self.warps_n)
            self.layout2d = wgmma.accumulator(m, n, self.warps_m, self.warps_n)
            self.k_padded = _round(self.k, 16)
        elif self.kind == "mma":
            m, n = _round(self.m, 16 * self.warps_m), _round(self.n, 8 * self.warps_n)
            self.layout2d = mma_accumulator(m, n, self.warps_m, self.warps_n)
            self.k_padded = _round(self.k, 16)
        elif self.kind == "tf32x3":
            m, n = _round(self.m, 16 * self.warps_m), _round(self.n, 8 * self.warps_n)
            self.layout2d = tf32x3.accumulator(m, n, self.warps_m, self.warps_n, self.k_last(1))
            self.warps_k = em.warps // (self.warps_m * self.warps_n)
            self.k_padded = _round(self.k, tf32x3.STEP_K * self.warps_k)
        else:
            self.layout2d = fma_accumulator(self.m, self.n, self.warps_m, self.warps_n)
            self.k_padded = self.k
        self.layout = _place(info.maps[2], info.m, info.n, self.layout2d)

    def _kind(self, elements: list[ir.Type]) -> str:
        kind = self.em.taken.take(self.op, "mma", "auto")
        target = self.em.target
        if kind == "wgmma" and target is not None and not target.has_wgmma:
            raise Unsupported(f"mlirc.mma = wgmma: {target.name} has no wgmma: use mma", self.op, "mma")
        a, b, c = elements
        fits = isinstance(a, ir.BF16Type | ir.F16Type) and a == b and isinstance(c, ir.F32Type)
        if kind == "tf32x3" and not all(isinstance(t, ir.F32Type) for t in elements):
            raise Unsupported(f"mlirc.mma = tf32x3: it takes f32 operands, not {a}; use mma or fma", self.op, "mma")
        if kind in ("mma", "wgmma") and not fits:
            raise Unsupported(
                f"tensor cores take two equal 16-bit float operands and f32 sums, not {a}; use fma", self.op, "mma"
            )
        if kind == "auto":
            return "mma" if fits else "fma"
        return kind

    def _warp_grid(self, warps: int) -> tuple[int, int]:
        grid = self.em.taken.take(self.op, "warp_grid")
        if grid is not None:
            m, n = reversed(grid) if self.info.swapped else grid
            if m * n != warps and (self.kind != "tf32x3" or warps % (m * n)):
                what = f"mlirc.warp_grid {m}x{n} does not have the block's {warps} warps"
                raise Unsupported(what, self.op, "warp_grid")
            return m, n
        m, n = 1, 1
        while m * n < warps:
            if self.m // m >= self.n // n:
                m *= 2
            else:
                n *= 2
        return m, n

    def operand_extents(self, which: int, shape: list[int]) -> list[int]:
        """What a shared memory buffer of operand 0 (A) or 1 (B) must cover."""
        outer = self.info.m if which == 0 else self.info.n
        padded = {outer: self.layout2d.shape[which], self.info.k: self.k_padded}
        return [padded.get(d, n) if d is not None else n for d, n in zip(self.info.maps[which], shape, strict=True)]

    def k_last(self, which: int) -> bool:
        """Whether rows of operand 0 (A) or 1 (B) run along k."""
        return [d for d in self.info.maps[which] if d is not None][-1] == self.info.k

    def takes_panels(self, which: int) -> bool:
        """Whether operand 0 (A) or 1 (B) lies in shared memory in panels: one of wgmma whose rows run along m or n, or
        are longer than a panel's, and any of three TF32 products, whose rows are longer than 128 bytes."""
        return self.kind == "tf32x3" or self.kind == "wgmma" and (not self.k_last(which) or self.k_padded > 64)


class Product:
    """Lowering of one contraction."""

    def __init__(self, em: Emitter, op, info: Contraction, operands: list[Tile]):
        self.em, self.op, self.info = em, op, info
        self.a, self.b, self.c = operands
        self.geometry = Geometry(em, op, info, [t.element for t in operands], [t.shape for t in operands])
        self.layout, self.layout2d = self.geometry.layout, self.geometry.layout2d
        self.warps_m, self.warps_n = self.geometry.warps_m, self.geometry.warps_n

    # -- shared memory operands

    def shared(self, which: int) -> tuple[memory.View, bool]:
        """Operand 0 or 1 in shared memory as a view with tile dimensions (outer, k), and whether k runs along rows."""
        tile, dims = (self.a, self.b)[which], self.info.maps[which]
        outer = self.info.m if which == 0 else self.info.n
        staged = staging.staged(tile)
        if staged is None:
            # Three TF32 products look at sums that nobody stores, too, and wgmma at rows that no thread has: what they
            # read must be something.
            every = self.geometry.kind in ("tf32x3", "wgmma")
            zero = list(range(len(dims))) if every else self._k_dims(dims)
            fence = self.geometry.kind == "wgmma"
            form = fence and self.geometry.takes_panels(which), fence
            staged = self._store(tile, zero, self.geometry.operand_extents(which, tile.shape), form)
        positions = [i for i, d in enumerate(dims) if d in (outer, self.info.k) and d is not None]
        if len(positions) < 2:
            raise Unsupported("an operand of a product without an own dimension")
        k_last = dims[positions[-1]] == self.info.k
        view = staged.view
        ordered = [view.dims[positions[0]], view.dims[positions[1]]]
        return replace(view, dims=ordered if k_last else ordered[::-1]), k_last

    def _store(self, tile: Tile, zero_dims: list[int], extents: list[int], form: tuple[bool, bool]) -> staging.Staged:
        """Copies a tile to shared memory; a lazy one where it is defined, so once if that is outside of a loop.
        `form`: whether in panels, and for wgmma."""
        if not isinstance(tile, Marked):
            return staging.store_to_shared(self.em, tile, zero_dims, extents, *form)
        key = ("shared", *zero_dims, *extents, *form)
        if key not in tile.cache:
            with ir.InsertionPoint(tile.marker):
                tile.cache[key] = staging.store_to_shared(self.em, tile, zero_dims, extents, *form)
        return tile.cache[key]

    def _k_dims(self, dims: list[int | None]) -> list[int]:
        return [i for i, d in enumerate(dims) if d == self.info.k]

    def run(self) -> Fragment:
        kind = self.geometry.kind
        if kind == "wgmma":
            return warpgroup_product.lower(self)
        self.em.pipeline.before(self.op)
        acc = self.accumulator()
        if kind == "tf32x3":
            return tf32x3.multiply(self, acc)
        return self._mma(acc) if kind == "mma" else self._fma(acc)

    def operand_views(self) -> tuple[tuple[memory.View, bool], tuple[memory.View, bool]]:
        """A and B in shared memory, as `shared` gives them."""
        return self.shared(0), self.shared(1)

    def accumulator(self) -> Fragment:
        """What the product is added to. A loop carries it as the instruction takes it, also where it is rescaled."""
        form: type[AccumulatorFragment] | None
        form = {"mma": MmaFragment, "wgmma": WgmmaFragment}.get(self.geometry.kind)
        if self.geometry.warps_k > 1:
            form = PartialSums
        source: Tile | None = self.c
        while form is WgmmaFragment and isinstance(source, Elementwise):
            source = source.scaled()
        if form is not None and isinstance(source, LoopArgument):
            found = source.get_accumulator(self.layout, form, self.tile_grid())
            return found if source is self.c else self.c.get(self.layout)
        return self.c.get(self.layout)

    def placed(self, dims: list[int | None], layout: Layout) -> Layout:
        """A layout of (m, k) over the first operand's dimensions."""
        return _place(dims, self.info.m, self.info.k, layout)

    def tile_grid(self) -> tuple[int, int]:
        """Accumulator tiles along m and n: 16x8 per warp, for wgmma 64x8 per warpgroup."""
        if self.geometry.kind == "wgmma":
            return self.layout2d.shape[0] // (self.warps_m // 4) // 64, self.layout2d.shape[1] // self.warps_n // 8
        if self.geometry.kind == "tf32x3":  # rows and columns of a thread
            return self.layout2d.shape[0] // self.warps_m // 8, self.layout2d.shape[1] // self.warps_n // 4
        return self.layout2d.shape[0] // self.warps_m // 16, self.layout2d.shape[1] // self.warps_n // 8

    # -- tensor cores

    def _mma(self, acc: Fragment) -> Fragment:
        em = self.em
        mt, nt = self.tile_grid()
        kt = self.geometry.k_padded // 16
        load_a = self._operand(0, mt, kt)
        load_b = self._operand(1, nt, kt)
        tiles = MmaFragment.pack(em, acc, (mt, nt))
        chains = max(min(INDEPENDENT_PRODUCTS // (mt * nt), kt), 1)
        sums = [tiles, *([self._zero_sums(t.type) for t in tiles] for _ in range(chains - 1))]
        ahead = kt if kt * (4 * mt + 2 * nt) <= OPERAND_REGISTERS else 1
        loaded: list[tuple[list[ir.Value], list[ir.Value]]] = []
        for k in range(kt):
            if k % ahead == 0:
                loaded = [(load_a(k + d), load_b(k + d)) for d in range(ahead)]
            (a, b), part = loaded[k % ahead], sums[k % chains]
            for i in range(mt):
                for j in range(nt):
                    part[i * nt + j] = self._one_mma(a[i], b[j], part[i * nt + j])
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=False)
            sums = [[self._sum(x, y) for x, y in zip(p, q, strict=True)] for p, q in pairs] + sums[len(sums) & ~1 :]
        tiles = sums[0]
        return MmaFragment(em, acc.element, acc.shape, acc.sizes, self.layout, tiles, (mt, nt))

    def _zero_sums(self, t: ir.VectorType) -> ir.Value:
        zero = ir.FloatAttr.get(t.element_type, 0.0)
        return arith.ConstantOp(t, ir.DenseElementsAttr.get_splat(t, zero)).result

    def _one_mma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        shape = ir.ArrayAttr.get([ir.IntegerAttr.get(ir.IntegerType.get_signless(64), x) for x in (16, 8, 16)])
        return nvgpu.MmaSyncOp(c.type, a, b, c, shape).result

    def _operand(self, which: int, tiles: int, kt: int):
        """A function from k step to the list of operand registers (vector<4x2> for A, vector<2x2> for B)."""
        tile, dims = ((self.a, self.info.maps[0]), (self.b, self.info.maps[1]))[which]
        outer = self.info.m if which == 0 else self.info.n
        if isinstance(tile, Fragment) or (staging.staged(tile) is None and tile.natural() is not None):
            direct = self._from_registers(which, tile, dims, outer)
            if direct is not None:
                return direct
        load = self._ldmatrix_a if which == 0 else self._ldmatrix_b
        registers = tiles * kt * (4 if which == 0 else 2)
        if not isinstance(tile, Marked) or not tile.outside_loop() or registers > HOISTED_REGISTERS:
            return load(*self.shared(which), tiles)
        key = ("operand", which, self.warps_m, self.warps_n, tiles, kt)
        if key not in tile.cache:
            with ir.InsertionPoint(tile.marker):
                tiles_of = load(*self.shared(which), tiles)
                tile.cache[key] = [tiles_of(k) for k in range(kt)]
        return tile.cache[key].__getitem__

    def _from_registers(self, which: int, tile: Tile, dims, outer):
        em, k = self.em, self.geometry.k_padded
        if which == 0:
            layout2d = mma_operand_a(self.layout2d.shape[0], k, self.warps_m, self.warps_n)
        else:
            layout2d = mma_operand_b(k, self.layout2d.shape[1], self.warps_n)
        natural = tile.natural()
        frag = tile.get(natural) if natural is not None else None
        target = _place(dims, outer, self.info.k, layout2d)
        if frag is None or target.register_map(frag.layout, em.warps) is None:
            return None
        frag = frag.get(target)
        zero = ir.FloatAttr.get(frag.element, 0.0)
        frag = mask(em, frag, self._k_dims(dims), zero)
        table = {tuple(row): i for i, row in enumerate(target.reg_offsets)}
        outer_at = dims.index(outer)
        k_at = dims.index(self.info.k)

        def pair(o: int, kk: int) -> ir.Value:
            registers = []
            for d in range(2):
                coords = [0] * len(dims)
                coords[outer_at], coords[k_at] = o, kk + d
                registers.append(table[tuple(coords)])
            return frag.read(registers)

        def tiles_of(step: int) -> list[ir.Value]:
            k0 = step * 16
            if which == 0:
                count = layout2d.shape[0] // self.warps_m // 16
                offsets = [
                    [(16 * i, k0), (16 * i + 8, k0), (16 * i, k0 + 8), (16 * i + 8, k0 + 8)] for i in range(count)
                ]
            else:
                count = layout2d.shape[1] // self.warps_n // 8
                offsets = [[(8 * i, k0), (8 * i, k0 + 8)] for i in range(count)]
            return [self._stack([pair(o, kk) for o, kk in group]) for group in offsets]

        return tiles_of

    def _stack(self, pairs: list[ir.Value]) -> ir.Value:
        t = ir.VectorType.get([len(pairs), 2], self.a.element)
        scalars = [self.em.extract(p, i) for p in pairs for i in range(2)]
        return vector.FromElementsOp(t, scalars).result

    def _ldmatrix_a(self, view: memory.View, k_last: bool, mt: int):
        em = self.em
        address = _MatrixAddress(em, view, k_last, row_bit=0, k_bit=1)
        warp_m = em.mul(em.div(em.warp, self.warps_n) if self.warps_m > 1 else 0, mt * 16)

        def tiles_of(step: int) -> list[ir.Value]:
            return [address.load(warp_m, 16 * i, step * 16, 4, self.a.element) for i in range(mt)]

        return tiles_of

    def _ldmatrix_b(self, view: memory.View, k_last: bool, nt: int):
        em = self.em
        address = _MatrixAddress(em, view, k_last, row_bit=1, k_bit=0)
        warp_n = em.mul(em.rem(em.warp, self.warps_n) if self.warps_n > 1 else 0, nt * 8)

        def tiles_of(step: int) -> list[ir.Value]:
            out: list[ir.Value] = []
            for j in range(0, nt - 1, 2):
                both = address.load(warp_n, 8 * j, step * 16, 4, self.b.element)
                out += [
                    vector.ExtractStridedSliceOp(ir.VectorType.get([2, 2], self.b.element), both, [h], [2], [1]).result
                    for h in (0, 2)
                ]
            if nt % 2:
                out.append(address.load(warp_n, 8 * (nt - 1), step * 16, 2, self.b.element))
            return out

        return tiles_of

    # -- scalar FMA

    def _fma(self, acc: Fragment) -> Fragment:
        em = self.em
        view_a, _ = self.shared(0)
        view_b, _ = self.shared(1)
        rows, columns = self._own_registers(0), self._own_registers(1)
        sums = acc.with_piece(columns)
        k_extent = self.geometry.k_padded
        chunk = 4 if k_extent % 4 == 0 else 1
        # Short pieces of K are summed from zero and then added: the error grows with their number, not with K.
        total = list(sums.pieces)
        for first in range(0, k_extent, SUM_LENGTH):
            last = min(first + SUM_LENGTH, k_extent)
            part = self.fma_range(view_a, view_b, first, last, chunk, rows, columns)
            total = [self._sum(a, b) for a, b in zip(total, part, strict=True)]
        return Fragment(em, acc.element, acc.shape, acc.sizes, acc.layout, total, columns)

    def fma_range(self, view_a, view_b, first: int, last: int, chunk: int, rows: int, columns: int) -> list[ir.Value]:
        """The products of elements first .. last of K, summed in order."""
        em = self.em
        start = [self._zeros(columns)] * rows
        if last - first == chunk:
            return self._fma_chunk(view_a, view_b, first, chunk, start, rows, columns)
        loop = scf.ForOp(em.c(first), em.c(last), em.c(chunk), start)
        with ir.InsertionPoint(loop.body):
            k0 = em.known_multiple(loop.induction_variable, chunk)
            inner = self._fma_chunk(view_a, view_b, k0, chunk, list(loop.inner_iter_args), rows, columns)
            scf.YieldOp(inner)
        return list(loop.results)

    def _sum(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return elementwise_op(self.info.add, [a.type], [a, b], {})[0]

    def _zeros(self, n: int) -> ir.Value:
        t = self.c.element
        zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType) else ir.FloatAttr.get(t, 0.0)
        return self.em.constant(zero, n)

    def _own_registers(self, dim: int) -> int:
        return Layout((self.layout2d.dims[dim],)).num_regs

    def _fma_chunk(self, view_a, view_b, k0: IndexValue, chunk: int, sums: list[ir.Value], rows: int, columns: int):
        a = self._slice(view_a, 0, k0, chunk, self.a.element)
        b = self._slice(view_b, 1, k0, chunk, self.b.element)
        sums = list(sums)
        for k in range(chunk):
            line = b.read([j * chunk + k for j in range(columns)])
            line = self._cast(line, 1)
            for i in range(rows):
                x = self._cast(a.scalar(i * chunk + k), 0)
                sums[i] = self._multiply_add(self.em.splat(x, columns), line, sums[i])
        return sums

    def _slice(self, view: memory.View, dim: int, k0: IndexValue, chunk: int, element: ir.Type) -> Fragment:
        layout = Layout((self.layout2d.dims[dim], (reg(chunk),) if chunk > 1 else ()))
        offsets = list(view.offsets)
        offsets[view.dims[1]] = self.em.add(offsets[view.dims[1]], k0)
        moved = replace(view, offsets=offsets)
        shape = list(layout.shape)
        return memory.load(self.em, moved, element, shape, shape, layout, whole=True)

    def _cast(self, value: ir.Value, which: int) -> ir.Value:
        for cast in self.info.casts[which]:
            t = cast.results[0].type
            if isinstance(value.type, ir.VectorType):
                t = ir.VectorType.get(ir.VectorType(value.type).shape, t)
            attributes = {name: cast.attributes[name] for name in cast.attributes}
            value = elementwise_op(cast.name, [t], [value], attributes)[0]
        return value

    def _multiply_add(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        if self.info.add == "arith.addf":
            return math.FmaOp(x, y, z).result
        return arith.AddIOp(arith.MulIOp(x, y).result, z).result


class _MatrixAddress:
    """Addresses of ldmatrix (PTX ISA, "ldmatrix"): lane l supplies row l mod 8 of matrix l / 8. Of the matrix's
    number, bit `row_bit` moves by eight rows (m or n) and bit `k_bit` by eight along k. Rows of memory that hold k go
    untransposed."""

    def __init__(self, em: Emitter, view: memory.View, k_last: bool, row_bit: int, k_bit: int):
        self.em, self.view, self.k_last = em, view, k_last
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
        if view.swizzle > 1:
            # All terms of the row but the lane's are multiples of eight: the phase is the lane's alone.
            phase = em.rem(em.div(self.row, max(8 // view.swizzle, 1)), view.swizzle)
            column = arith.XOrIOp(em.value(column), em.value(em.mul(phase, 8))).result
        indices[row_dim] = em.add(indices[row_dim], row)
        indices[column_dim] = em.add(indices[column_dim], column)
        t = ir.VectorType.get([count, 2], element)
        values = [em.value(i) for i in indices]
        return nvgpu.LdMatrixOp(t, view.base, values, not self.k_last, count).result
