"""Products by wgmma (sm_90a): a warpgroup of four warps multiplies 64 rows at a time. B is read from shared memory
through descriptors, and so is A, or it lies in registers (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions").

The staged tiles are what it wants as they are: rows of 128 bytes whose 16-byte chunks are permuted by the row's number
are the 128-byte swizzling mode. Rows run along k, or along m or n: those are cut into panels of 128 bytes, each with
the tile's whole k (PTX ISA, "Strides": K-major and MN-major)."""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.asynchronous import WORD, pinned
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pending import Group
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Spread, instruction
from mlirc.passes.distribute.instructions.base import WarpgroupInstruction, round_up
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, warp
from mlirc.passes.distribute.layouts.shared import LINE
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.accumulators import AccumulatorFragment, WgmmaFragment, struct_type
from mlirc.passes.distribute.tiles.elementwise import Elementwise
from mlirc.passes.distribute.tiles.reduction import mask
from mlirc.passes.distribute.tiles.values import Fragment, Marked, Splat, Tile

STEP_K = 16
PANEL = LINE // 2  # elements of a panel's row
AHEAD = 2  # steps whose packed words are loaded before they are unpacked
COLUMNS_TOGETHER, MOST_TOGETHER = 64, 4  # of instructions that are waited for together
BEHIND = 2  # groups that may be under way while the next one's weights are unpacked
STEP_BYTES = 32  # along k, of one instruction, whatever the type
_NAMES = {"bf16": "bf16", "f16": "f16", "f32": "f32", "f8E4M3FN": "e4m3", "f8E5M2": "e5m2", "i8": "s8", "i32": "s32"}
NOT_AHEAD = "wgmma reads operands that a loop with mlirc.stages >= 3 copies asynchronously; use mma"


def accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int) -> Layout:
    """D of wgmma m64nNk16: dims (m, n); warpgroups are warps_m / 4 along m and warps_n along n."""
    groups_m = warps_m // 4
    return Layout.of(
        (warp(groups_m, 4 * warps_n), reg(block_m // groups_m // 64), warp(4, 1), reg(2), lane(8, 4)),
        (warp(warps_n, 4), reg(block_n // warps_n // 8), lane(4, 1), reg(2)),
    )


def padded(m: int, n: int, warps_m: int, warps_n: int) -> tuple[int, int]:
    """The tile extents that whole instructions cover; raises Unsupported for warps that form no warpgroups."""
    if warps_m % 4:
        raise Unsupported(f"wgmma takes warps_m in multiples of 4, not {warps_m}: a warpgroup is four warps along m")
    m, n = round_up(m, 16 * warps_m), round_up(n, 8 * warps_n)
    if n // warps_n > 256:
        raise Unsupported(f"wgmma computes at most 256 columns per warpgroup, not {n // warps_n}: raise warps_n")
    return m, n


@instruction
class Wgmma(WarpgroupInstruction):
    """A warpgroup multiplies 64 rows with up to 256 columns, 16 elements along k."""

    name = "wgmma"
    meaning = "Hopper's warpgroup products"
    takes = "two 16-bit floats of one type and f32 sums"
    tile = (64, 8)
    step_k = STEP_K
    slice_bytes = LINE
    reads_narrow = True
    unpacks = True

    def takes_types(self, types: ElementTypes) -> bool:
        return types.half

    def spread(self, p: BlockProduct) -> Spread:
        m, n = padded(p.m, p.n, *p.grid)
        k = round_up(p.k, STEP_K)
        tiles = m // (p.grid[0] // 4) // 64, n // p.grid[1] // 8
        return Spread(accumulator(m, n, *p.grid), k, form=WgmmaFragment, tiles=tiles)

    def in_panels(self, k_last: bool, k: int) -> bool:
        return not k_last or k != PANEL

    def finishes(self, types: ElementTypes) -> str:
        return "later"

    def lower(self, product: Product) -> Fragment:
        """Issues one product, whose first reader waits for it."""
        em, tiles = product.em, product.spread.tiles
        if not isinstance(em.pipeline_depth, int):
            raise Unsupported(NOT_AHEAD)
        if isinstance(product.a, Elementwise) and product.a.unpacks_staged():
            return unpacked(product, product.a)
        starts = isinstance(product.c, Splat) and is_zero(product.c)
        left = _registers(product)
        # What is added to: of no interest where the first instruction writes zeros and its product.
        sums = in_place(em, product.accumulator()) if not starts or left else None
        values = WgmmaFragment.pack(em, sums, tiles) if sums is not None else nothing(product)
        product.begin()
        first = first_places(product)
        a = left or shared_operand(product, 0, first[0])
        b = shared_operand(product, 1, first[1])
        adds = not starts or left is not None
        values = multiply(em, a, b, product.c.element, values, tiles[1] * 8, product.spread.k, adds)
        c, pending = product.c, product.under_way()
        return WgmmaFragment(em, c.element, c.shape, c.sizes, product.layout, values, tiles, pending)


def unpacked(product: Product, weight: Elementwise) -> Fragment:
    """A product of a packed weight whose words lie in shared memory: what an instruction takes is unpacked while the
    one before it runs, of which few wait in the tensor cores' queue. Past the end of k it is finite, and the other
    operand zero. No register is written that an instruction may still read: each is waited for behind the next one,
    also from an iteration to the next."""
    em, (rows, _), k, c = product.em, product.spread.sums.shape, product.spread.k, product.c
    if product.warps_n > 1 or [rows, k] != weight.shape or k % (2 * STEP_K):
        what = f"{product.warps_m}x{product.warps_n} warps, {weight.shape[0]} rows and {weight.shape[1]} of k"
        rule = f"rows are a multiple of {16 * product.warps_m}, k of {2 * STEP_K}, and warps share out the rows alone"
        raise Unsupported(f"wgmma of packed weights: {what}: {rule}", product.op, "mma")
    product.begin()
    values = WgmmaFragment.pack(em, in_place(em, product.accumulator()), product.spread.tiles)
    layout = product.placed(0, accumulator(rows, k, product.warps_m, 1))
    body, columns = weight.body(layout), product.spread.tiles[1] * 8
    right, table, number = shared_operand(product, 1, 0), layout.registers, body.yields()[0]
    reads = [o.result for o in body.block.operations if o.operation.name == "tensor.extract"]
    i32 = ir.IntegerType.get_signless(32)
    # Words hold numbers of several 64 of k: steps that read the same ones follow each other.
    steps = sorted(range(0, k, STEP_K), key=lambda step: (step % PANEL, step))

    def pieces(step: int) -> list[list[int]]:
        places = [(half, step + part) for part in (0, 8) for half in (0, 8)]
        tiles = [[product.place(0, 64 * i + row, at) for row, at in places] for i in range(len(values))]
        return [[table[place] // body.piece for place in tile] for tile in tiles]

    def load(at: int) -> None:
        for piece in sum(pieces(steps[at]), []) if at < len(steps) else []:
            for value in reads:
                body.at(value, piece)

    issued: list[Group] = []
    together = min(steps_together(columns * len(values)), len(steps) // 2)
    behind = min(BEHIND, -(-len(steps) // together) - 1)  # of an iteration: its first group's registers come next
    for at in range(max(AHEAD, together)):
        load(at)
    for first in range(0, len(steps), together):
        batch = range(first, min(first + together, len(steps)))
        for at in batch:
            load(at + max(AHEAD, together))
        words = [
            [[em.splat(body.at(number, p), body.piece) for p in tile] for tile in pieces(steps[at])] for at in batch
        ]
        held = [[[llvm.BitcastOp(i32, word).result for word in tile] for tile in of_step] for of_step in words]
        fence()
        for at, of_step in zip(batch, held, strict=True):
            for i, tile in enumerate(of_step):
                values[i] = _from_registers(em, tile, right.at(0, steps[at]), right, values[i], columns)
        issued.append(em.team.groups.commit())
        if len(issued) > behind:
            issued[-1 - behind].settle()
        elif len(issued) == behind:
            em.team.groups.ask_for(product.op)
    return WgmmaFragment(
        em, c.element, c.shape, c.sizes, product.layout, values, product.spread.tiles, product.under_way()
    )


def steps_together(columns: int) -> int:
    """Steps of 16 of k that are unpacked, issued and waited for together: more where an instruction's few columns take
    less time than the wait for it."""
    return max(min(MOST_TOGETHER, COLUMNS_TOGETHER // columns), 1)


def is_zero(tile: Splat) -> bool:
    """Whether a fill is known to be one with zeros."""
    owner = tile.scalar.owner
    return not isinstance(owner, ir.Block) and owner.name == "arith.constant" and owner.attributes["value"].value == 0


def nothing(product: Product) -> list[ir.Value]:
    """Accumulators that no instruction reads."""
    return [llvm.UndefOp(t).result for t in WgmmaFragment.types(product.c.element, product.spread.tiles)]


def in_place(em: Emitter, found: Fragment) -> Fragment:
    """What a product is added to. While others run it stays where it was computed, in front of them: ptxas runs
    products one by one where their registers are written between them (its advisory C7513), and LLVM would compute it
    where it is read."""
    if not em.team.groups.under_way() or isinstance(found, AccumulatorFragment):
        return found
    pieces = []
    for piece in found.pieces:
        owner, whole = piece.owner, element_bytes(found.element) * found.piece == WORD
        with ir.InsertionPoint.current if isinstance(owner, ir.Block) else ir.InsertionPoint.after(owner):
            parts = [piece] if whole else [em.extract(piece, k) for k in range(found.piece)]
            kept = [pinned(v) for v in parts]
            pieces.append(kept[0] if whole else em.pack(kept))
    return Fragment(em, found.element, found.shape, found.sizes, found.layout, pieces, found.piece)


def first_places(product: Product) -> tuple[IndexValue, IndexValue]:
    """The first row and the first column of the warp's warpgroup."""
    em, (tiles_m, tiles_n) = product.em, product.spread.tiles
    group = em.div(em.team.warp, 4)
    group_m = em.div(group, product.warps_n) if product.warps_m > 4 else 0
    group_n = em.rem(group, product.warps_n) if product.warps_n > 1 else 0
    return em.mul(group_m, tiles_m * 64), em.mul(group_n, tiles_n * 8)


def shared_operand(product: Product, which: int, first_row: IndexValue) -> Operand:
    """An operand in shared memory: copied there by a loop, or stored there once in front of it."""
    tile: Tile = product.operand(which)
    if staging.staged(tile) is None and not (isinstance(tile, Marked) and tile.outside_loop()):
        raise Unsupported(NOT_AHEAD)
    view, k_last = product.shared(which)
    return Operand(product.em, view, k_last, first_row)


def _registers(product: Product) -> Registers | None:
    """The first operand as the instructions take it in registers, if that is where its elements are."""
    em, tile = product.em, product.a
    natural = None if staging.staged(tile) is not None else tile.natural()
    if natural is None:
        return None
    rows, k = product.spread.sums.shape[0], product.spread.k
    target = product.placed(0, accumulator(rows, k, product.warps_m, 1)) if product.warps_n == 1 else None
    frag = tile.get(natural)
    if target is None or target.register_map(frag.layout, em.team.warps) is None:
        return None
    frag = mask(em, frag.get(target), product.k_dims(0), ir.FloatAttr.get(frag.element, 0.0))
    return Registers(_words(product, frag, target))


def _words(product: Product, frag: Fragment, layout: Layout) -> list[list[list[ir.Value]]]:
    i32 = ir.IntegerType.get_signless(32)
    table = layout.registers

    def word(row: int, k: int) -> ir.Value:
        return llvm.BitcastOp(i32, frag.read([table[product.place(0, row, k + e)] for e in range(2)])).result

    tiles, steps = product.spread.tiles[0], product.spread.k // STEP_K
    places = [(half, part) for part in (0, 8) for half in (0, 8)]
    return [
        [[word(64 * i + half, 16 * step + part) for half, part in places] for step in range(steps)]
        for i in range(tiles)
    ]


class Operand:
    """Descriptors of one operand's tile in shared memory."""

    def __init__(self, em: Emitter, view: access.View, k_last: bool, first_row: IndexValue):
        shared = view.shared
        self.em, self.k_last, self.element, self.size = em, k_last, view.element, element_bytes(view.element)
        narrow = (32, 64) if k_last and view.panels else ()  # panels of a row each
        if (
            shared is None
            or shared.swizzle != shared.row_bytes
            or shared.row_bytes not in (*narrow, LINE)
            or not (k_last or view.panels)
        ):
            depth, other = LINE // self.size, "mma" if self.size == 2 else "fma"
            raise Unsupported(f"wgmma reads operands in slices of {depth} along k (block_k = {depth}); use {other}")
        panel = em.divisor(first_row) if isinstance(first_row, ir.Value) else first_row or shared.width
        if not k_last and panel % shared.width:
            raise Unsupported(f"wgmma's warpgroups begin at multiples of {shared.width} in rows along m or n; use mma")
        with em.at_entry():
            start = memref.ExtractAlignedPointerAsIndexOp(view.base).result
        self.shared = shared
        em.shared_accesses.by_matrices(str(view.element), shared, "wgmma")
        stage = em.mul(view.offsets[0], shared.slot_bytes)
        # Of whole panels, bytes of a row: as many as a row has where it runs along k, else the panel's for each.
        row = shared.row_bytes if k_last else shared.panel_bytes // shared.width
        address = em.add(em.add(start, stage), em.mul(first_row, row))
        i64 = ir.IntegerType.get_signless(64)
        shifted = arith.AndIOp(arith.ShRUIOp(em.value(address), em.c(4)).result, em.c(0x3FFF)).result
        low = arith.IndexCastUIOp(i64, shifted).result
        bits = shared.descriptor(k_last).bits
        signed = bits - (1 << 64) if bits >> 63 else bits  # as MLIR's bindings take numbers of 64 bits
        self.base = arith.AddIOp(low, em.constant(ir.IntegerAttr.get(i64, signed))).result

    def at(self, row: int, k: int) -> ir.Value:
        """The descriptor of the slice that starts `row` rows and `k` elements into the operand."""
        offset = self.shared.offset(*((row, k) if self.k_last else (k, row))) >> 4
        if offset == 0:
            return self.base
        i64 = ir.IntegerType.get_signless(64)
        return arith.AddIOp(self.base, self.em.constant(ir.IntegerAttr.get(i64, offset))).result


class Registers:
    """A as it lies in registers: `words` by 64 rows, by steps of 16 along k, four of two elements each (PTX ISA,
    "Register Fragments for wgmma.mma_async.m64nNk16")."""

    def __init__(self, words: list[list[list[ir.Value]]]):
        self.words = words


def fence() -> None:
    """Orders this warp's accesses of registers before the wgmma that follow."""
    nvvm.WgmmaFenceAlignedOp()


def multiply(
    em: Emitter, a: Operand | Registers, b: Operand, sums: ir.Type, values: list[ir.Value], columns: int, k: int,
    adds: bool = True, at: tuple[int, int] = (0, 0),
) -> list[ir.Value]:  # fmt: skip
    """Issues the products of one tile, which begins `at` a row and a column of the operands, and commits them as a
    group; returns the new accumulators, of elements `sums`, which nothing may read before the group is done. `adds`: to
    `values`, which are not looked at otherwise."""
    fence()
    out = []
    for i, value in enumerate(values):
        for number, step in enumerate(range(0, k, STEP_BYTES // b.size)):
            right = b.at(at[1], step)
            if isinstance(a, Registers):
                value = _from_registers(em, a.words[i][number], right, b, value, columns)
            else:
                left = a.at(at[0] + 64 * i, step)
                value = _from_shared(a, b, (left, right), sums, value, columns, adds or step > 0)
        out.append(value)
    em.team.groups.commit()
    return out


def _from_shared(
    a: Operand, b: Operand, places: tuple[ir.Value, ir.Value], sums: ir.Type, value: ir.Value, columns: int, adds: bool
) -> ir.Value:
    """One instruction, with both operands' descriptors."""
    parse = ir.Attribute.parse
    return nvvm.WgmmaMmaAsyncOp(
        struct_type(sums, columns // 2),
        value,
        *places,
        parse(f"#nvvm.shape<m = 64, n = {columns}, k = {STEP_BYTES // a.size}>"),
        *(parse(f"#nvvm.wgmma_type<{_NAMES[str(t)]}>") for t in (a.element, b.element, sums)),
        parse(f"#nvvm.wgmma_scale_out<{'one' if adds else 'zero'}>"),
        parse("#nvvm.wgmma_scale_in<one>"),
        parse("#nvvm.wgmma_scale_in<one>"),
        parse(f"#nvvm.mma_layout<{'row' if a.k_last else 'col'}>"),
        parse(f"#nvvm.mma_layout<{'col' if b.k_last else 'row'}>"),
    ).results_


def _from_registers(
    em: Emitter, words: list[ir.Value], right: ir.Value, b: Operand, value: ir.Value, columns: int
) -> ir.Value:
    """One instruction of 16-bit elements with A in registers, added to `value`."""
    name = _NAMES[str(b.element)]
    one = em.constant(ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1))
    form, flags = f"m64n{columns}k{STEP_K}.f32.{name}.{name}", (1, 1, int(not b.k_last))
    return with_registers(words, right, value, columns, form, flags, one)


def with_registers(
    words: list[ir.Value], right: ir.Value, value: ir.Value, columns: int, form: str, flags: tuple[int, ...],
    adds: ir.Value,
) -> ir.Value:  # fmt: skip
    """One instruction with A in registers, which the nvvm dialect has no operation for: inline assembly, whose results
    are in the accumulator's registers. `form`: its shape and types; `flags`: what follows the scale of D, which is
    `adds`, an i32."""
    f32, count = ir.F32Type.get(), columns // 2
    results = ", ".join(f"${i}" for i in range(count))
    left = ", ".join(f"${2 * count + i}" for i in range(4))
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, ${2 * count + 5}, 0; wgmma.mma_async.sync.aligned.{form} "
        f"{{{results}}}, {{{left}}}, ${2 * count + 4}, p, {', '.join(map(str, flags))}; }}"
    )
    constraints = ["=f"] * count + [str(i) for i in range(count)] + ["r"] * 4 + ["l", "r"]
    fields = [llvm.ExtractValueOp(f32, value, ir.DenseI64ArrayAttr.get([i])).result for i in range(count)]
    return llvm.InlineAsmOp(
        struct_type(f32, count), [*fields, *words, right, adds], text, ",".join(constraints), has_side_effects=True
    ).res
