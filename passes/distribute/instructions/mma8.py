"""mma.sync m16n8k32 of 8-bit operands (PTX ISA, "Warp Level Matrix Instructions"): bytes with exact 32-bit sums, and
8-bit floats of either type with f32 sums.

Two neighbours along k are a pair of 16 bits, and a pair's place in the fragments is that of a 16-bit element in those
of m16n8k16: operands whose rows run along k come by the ldmatrix of `mma.py`. Others come transposed out of pairs
(`byte_pairs.py`): tiles of 8 columns hold the even or the odd ones of 16 then (`accumulators.py`), and rows 8 to 15 of
a tile's sixteen are those with odd numbers.

Of products of 8-bit floats some tensor cores keep 13 bits behind the point of the largest term, in the accumulator, too
(sm_89; on sm_90 ptxas makes 16-bit products of them, whose sums have more): sums of `CHAIN` along k are made from zero,
and added to the running ones in f32, as `wgmma8` does."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.mlir import arith, ir, llvm, nvvm, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.instructions import BlockProduct, ElementTypes, Instruction, Spread, instruction
from mlirc.passes.distribute.instructions.base import round_up
from mlirc.passes.distribute.instructions.mma import MatrixAddress
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, warp
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.memory.byte_pairs import STEP_K, BytePairs, in_pairs, words_of
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.tiles.accumulators import InterleavedMmaFragment, MmaFragment, struct_type
from mlirc.passes.distribute.tiles.values import Fragment
from mlirc.runtime.tensor_map import FP8
from mlirc.targets import Target

CHAIN = 128  # elements of k in one sum of 8-bit floats
FLOATS = 89  # the least compute capability, times ten, with products of 8-bit floats
WIDENED = ("arith.extf", "arith.extsi", "arith.extui")  # what the tensor cores do themselves
_FLOATS = {"f8E4M3FN": "e4m3", "f8E5M2": "e5m2"}

Step = Callable[[int], list[list[ir.Value]]]  # from a step along k to the words of each tile


@instruction
class Mma8(Instruction):
    """A warp multiplies 16 rows with 8 columns, 32 elements along k."""

    name = "mma8"
    meaning = "mma.sync m16n8k32 of 8-bit operands, floats added in f32 every 128 of k"
    takes = "two 8-bit floats and f32 sums, or two i8 and i32 sums"
    tile = (16, 8)
    step_k = STEP_K

    def takes_types(self, types: ElementTypes) -> bool:
        return _are_floats(types) or tuple(types) == ("i8", "i8", "i32")

    def refuses(self, types: ElementTypes, target: Target | None) -> str:
        if target is not None and target.cc < FLOATS and _are_floats(types):
            return f"{target.name} has no {self.name} of 8-bit floats"
        return super().refuses(types, target)

    def spread(self, p: BlockProduct) -> Spread:
        (warps_m, warps_n), (a_last, b_last) = p.grid, p.k_last
        m, n = round_up(p.m, 16 * warps_m), round_up(p.n, (8 if b_last else 16) * warps_n)
        tiles = m // warps_m // 16, n // warps_n // 8
        rows = (reg(2), lane(8, 4)) if a_last else (lane(8, 4), reg(2))
        columns = (reg(tiles[1]), lane(4, 1), reg(2)) if b_last else (reg(tiles[1] // 2), lane(4, 1), reg(4))
        sums = Layout.of((warp(warps_m, warps_n), reg(tiles[0]), *rows), (warp(warps_n, 1), *columns))
        form = MmaFragment if b_last else InterleavedMmaFragment
        return Spread(sums, round_up(p.k, STEP_K), form=form, tiles=tiles)

    def lower(self, product: Product) -> Fragment:
        types = [_type(product, which) for which in range(2)]
        product.begin()
        acc, form = product.accumulator(), product.spread.form
        em, (mt, nt), steps = product.em, product.spread.tiles, product.spread.k // STEP_K
        assert form is not None
        load_a, load_b = (_operand(product, which) for which in range(2))
        totals = form.pack(em, acc, (mt, nt))
        floats = isinstance(acc.element, ir.FloatType)
        chain = CHAIN // STEP_K if floats else steps
        for first in range(0, steps, chain):
            sums = [_zeros(t.type) for t in totals] if floats else totals
            for step in range(first, min(first + chain, steps)):
                a, b = load_a(step), load_b(step)
                sums = [_multiply(a[i // nt], b[i % nt], c, types) for i, c in enumerate(sums)]
            if floats:
                sums = [arith.AddFOp(x, y).result for x, y in zip(totals, sums, strict=True)]
            totals = sums
        return form(em, acc.element, acc.shape, acc.sizes, product.layout, totals, (mt, nt))


def _are_floats(types: ElementTypes) -> bool:
    return types.a in FP8 and types.b in FP8 and types.sums == "f32"


def _type(product: Product, which: int) -> str:
    """PTX's name of an operand's elements; raises Unsupported for those that are cast otherwise than the tensor cores
    do."""
    casts, element = {c.name for c in product.info.casts[which]}, str(product.operand(which).element)
    if not casts <= set(WIDENED) or (element == "i8" and len(casts) != 1):
        raise Unsupported("mma8 takes bytes and 8-bit floats as they are; use fma")
    return _FLOATS.get(element) or ("u8" if "arith.extui" in casts else "s8")


def _operand(product: Product, which: int) -> Step:
    """Reads operand 0 (A) or 1 (B) from shared memory."""
    em, tiles = product.em, product.spread.tiles[which]
    view, k_last = product.shared(which)
    pairs = in_pairs(em, view)
    if which == 0:
        warps, at = product.warps_m, em.div(em.team.warp, product.warps_n)
    else:
        warps, at = product.warps_n, em.rem(em.team.warp, product.warps_n)
    first = em.mul(at if warps > 1 else 0, tiles * (16 if which == 0 else 8))
    if k_last:
        return (_rows_a if which == 0 else _rows_b)(em, pairs, first, tiles)
    return _transposed(em, pairs, first, tiles, which)


def _rows_a(em: Emitter, view: access.View, first: IndexValue, tiles: int) -> Step:
    address, i16 = MatrixAddress(em, view, True, row_bit=0, k_bit=1), ir.IntegerType.get_signless(16)

    def step(number: int) -> list[list[ir.Value]]:
        return [words_of(address.load(first, 16 * i, STEP_K // 2 * number, 4, i16)) for i in range(tiles)]

    return step


def _rows_b(em: Emitter, view: access.View, first: IndexValue, tiles: int) -> Step:
    address, i16 = MatrixAddress(em, view, True, row_bit=1, k_bit=0), ir.IntegerType.get_signless(16)

    def step(number: int) -> list[list[ir.Value]]:
        out: list[list[ir.Value]] = []
        for j in range(0, tiles, 2):
            words = words_of(address.load(first, 8 * j, STEP_K // 2 * number, 2 * min(tiles - j, 2), i16))
            out += [words[h : h + 2] for h in range(0, len(words), 2)]
        return out

    return step


def _transposed(em: Emitter, view: access.View, first: IndexValue, tiles: int, which: int) -> Step:
    """An operand whose rows run along m or n."""
    pairs = BytePairs(em)
    sixteens = tiles if which == 0 else tiles // 2

    def step(number: int) -> list[list[ir.Value]]:
        out: list[list[ir.Value]] = []
        for q in range(sixteens):
            even0, even1, odd0, odd1 = pairs.fours(pairs.load(view, em.add(first, 16 * q), number))
            out += [[even0, odd0, even1, odd1]] if which == 0 else [[even0, even1], [odd0, odd1]]
        return out

    return step


def _zeros(t: ir.Type) -> ir.Value:
    vector_type = ir.VectorType(t)
    zero = ir.FloatAttr.get(vector_type.element_type, 0.0)
    return arith.ConstantOp(t, ir.DenseElementsAttr.get_splat(t, zero)).result


def _multiply(a: list[ir.Value], b: list[ir.Value], c: ir.Value, types: list[str]) -> ir.Value:
    """One instruction: c + a * b, c as vector<2x2>."""
    parse = ir.Attribute.parse
    element = ir.VectorType(c.type).element_type
    sums = [vector.ExtractOp(c, [], [h, d]).result for h in range(2) for d in range(2)]
    whole = isinstance(element, ir.IntegerType)
    found = nvvm.MmaOp(
        struct_type(element, 4), parse("#nvvm.shape<m = 16, n = 8, k = 32>"), parse("#nvvm.mma_layout<row>"),
        parse("#nvvm.mma_layout<col>"), a, b, sums,
        intOverflowBehavior=parse("#nvvm.mma_int_overflow<wrapped>") if whole else None,
        multiplicandAPtxType=parse(f"#nvvm.mma_type<{types[0]}>"),
        multiplicandBPtxType=parse(f"#nvvm.mma_type<{types[1]}>"),
    ).res  # fmt: skip
    out = [llvm.ExtractValueOp(element, found, ir.DenseI64ArrayAttr.get([i])).result for i in range(4)]
    return vector.FromElementsOp(c.type, out).result
