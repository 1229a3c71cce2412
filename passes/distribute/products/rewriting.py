"""Tiles in shared memory that are written anew between their copies and the products that read them. In a ring the
warps beside the producer's do so, slot by slot, ahead of the warps that compute; elsewhere these do, where they can.
`Spread.rewrites` and the slots of rings name the ways: `rests` of what TF32 leaves of FP32 numbers, `rounded` to TF32,
or `transposed` bytes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from mlirc.mlir import arith, ir, memref, nvvm, scf
from mlirc.passes.distribute.emit import asynchronous
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.shared import ATOM_ROWS, LINE, SharedLayout
from mlirc.passes.distribute.layouts.shared import CHUNK as CHUNK_BYTES
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.memory.byte_pairs import STEP_K, BytePairs, in_pairs
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.product import Product
from mlirc.passes.distribute.products.staging import Place
from mlirc.passes.distribute.products.tf32_operands import HALF_BIT, KEPT_BITS, rounded

CHUNK = 4  # elements of a 16-byte access
SLOTS = 2  # of what does not take a tile's own place: one is read while the next one is written
AHEAD = 4  # reads under way


class Rewriting(ABC):
    """A way to write tiles anew. `in_place`: where they lie; else in a buffer of their own."""

    in_place: ClassVar[bool] = False

    def made_of(self, shared: SharedLayout) -> SharedLayout:
        """How a tile lies then that lay so."""
        return shared

    def buffer(self, em: Emitter, source: ir.Value, shared: SharedLayout, slots: int = SLOTS) -> ir.Value:
        """A buffer for so many slots of what is made of another one's tiles; that one itself where they stay."""
        if self.in_place:
            return source
        shape = self.made_of(shared).with_stages(slots).memory_shape
        return em.alloc_smem(shape, ir.MemRefType(source.type).element_type, alignment=1024)

    def slot(self, em: Emitter, slot: IndexValue, number: IndexValue) -> IndexValue:
        """Where a ring's slot, and its number among all of them, have it."""
        return slot if self.in_place else em.rem(number, SLOTS)

    @abstractmethod
    def write(self, em: Emitter, source: Place, target: Place, shared: SharedLayout) -> None:
        """Writes one slot, by the team that works; the source lies as `shared` says."""

    def view(self, buffer: ir.Value, slot: IndexValue, source: access.View) -> access.View:
        """A slot as products read it; `source`: the tile as it was."""
        return replace(source, base=buffer, offsets=[slot, *source.offsets[1:]])

    def by_readers(self, product: Product) -> str:
        """Why warps that compute cannot do it; "" where they can."""
        return ""


def rewritten(product: Product, which: int) -> access.View:
    """Operand 0 or 1 as a product that has it rewritten reads it: as its ring has it, or written now, by the warps that
    compute."""
    em, kind = product.em, KINDS[product.spread.rewrites[which]]
    view = product.shared(which)[0]
    tile = staging.staged(product.operand(which))
    if tile is not None and tile.rewritten is not None:
        return kind.view(tile.rewritten[0], tile.rewritten[1], view)
    why = kind.by_readers(product)
    if why:
        raise Unsupported(why, product.op, "mma")
    source = view.base, view.offsets[0]
    assert view.shared is not None
    target = kind.buffer(em, view.base, view.shared, 1), source[1] if kind.in_place else 0
    em.team.meet()  # nobody reads what it had
    kind.write(em, source, target, view.shared)
    asynchronous.proxy_fence()
    em.team.meet()
    return kind.view(*target, view)


class _Elements(Rewriting):
    """Of every f32 another one, whose place does not matter."""

    @abstractmethod
    def made(self, em: Emitter, x: ir.Value) -> ir.Value:
        """What becomes of `CHUNK` elements."""

    def write(self, em: Emitter, source: Place, target: Place, shared: SharedLayout) -> None:
        thread, threads = em.team.thread, em.team.threads
        chunks = math.prod(ir.MemRefType(source[0].type).shape[1:]) // CHUNK

        def flat(buffer: ir.Value, slot: IndexValue) -> access.View:
            slots = ir.MemRefType(buffer.type).shape[0]
            return access.View(em.seen_as(buffer, [slots, chunks, CHUNK], ir.F32Type.get()), [slot, 0, 0], [1, 2])

        views = flat(*source), flat(*target)
        whole = chunks // threads
        for batch in range(0, whole, AHEAD):
            self._move(em, *views, [em.add(thread, threads * i) for i in range(batch, min(batch + AHEAD, whole))])
        if chunks % threads:
            with predicated(em.less(thread, chunks % threads)):
                self._move(em, *views, [em.add(thread, threads * whole)])

    def _move(self, em: Emitter, source: access.View, target: access.View, chunks: list[IndexValue]) -> None:
        found = [access.load_elements(em, source, [source.offsets[0], c, 0], CHUNK) for c in chunks]
        for c, x in zip(chunks, found, strict=True):
            access.store_elements(em, target, [target.offsets[0], c, 0], self.made(em, x), CHUNK)


class Rests(_Elements):
    """What is left of FP32 numbers that tensor cores read as TF32, in a second tile of the same form, for products that
    need both parts (`wgmma_tf32x3.py`)."""

    def made(self, em: Emitter, x: ir.Value) -> ir.Value:
        """x less what tensor cores read of it, rounded to what they read of that."""
        i32 = ir.VectorType.get([CHUNK], ir.IntegerType.get_signless(32))

        def word(n: int) -> ir.Value:
            return em.constant(ir.IntegerAttr.get(i32.element_type, n), CHUNK)

        kept = arith.AndIOp(arith.BitcastOp(i32, x).result, word(KEPT_BITS)).result
        less = arith.SubFOp(x, arith.BitcastOp(x.type, kept).result).result
        return arith.BitcastOp(x.type, arith.AddIOp(arith.BitcastOp(i32, less).result, word(HALF_BIT)).result).result


class Rounded(_Elements):
    """FP32 numbers rounded to TF32: tensor cores cut what they read of others (`wgmma_tf32.py`)."""

    in_place = True

    def made(self, em: Emitter, x: ir.Value) -> ir.Value:
        return rounded(em, x, CHUNK)[0]


class Transposed(Rewriting):
    """Bytes whose rows run along m or n, as rows of 128 along k, swizzled, for products that read no others
    (`wgmma8.py`). Of every 16 rows the even ones come first: what `prmt` makes of pairs of bytes (`byte_pairs.py`)
    is stored as it is then, without conflicts in banks."""

    def made_of(self, shared: SharedLayout) -> SharedLayout:
        return SharedLayout((shared.panels * shared.width, LINE), shared.size, LINE, 0, shared.stages)

    def view(self, buffer: ir.Value, slot: IndexValue, source: access.View) -> access.View:
        assert source.shared is not None
        return staging.slot_view(buffer, slot, self.made_of(source.shared))

    def by_readers(self, product: Product) -> str:
        name = product.geometry.instruction.name
        what = f"{name} has rows along m or n transposed beside a producer: specialize(loop, producers=4)"
        return f"{what}, or use mma8"

    def write(self, em: Emitter, source: Place, target: Place, shared: SharedLayout) -> None:
        """A warp takes sixteen rows after the other, all of their k."""
        made, pairs = self.made_of(shared), BytePairs(em)
        view = in_pairs(em, staging.slot_view(source[0], source[1], shared))
        view = replace(view, dims=view.dims[-2:][::-1])
        with em.at_entry():
            start = memref.ExtractAlignedPointerAsIndexOp(target[0]).result
            matrix, line = em.div(em.lane, ATOM_ROWS), em.rem(em.lane, ATOM_ROWS)
            first = em.mul(em.add(em.mul(em.div(matrix, 2), ATOM_ROWS), line), LINE)  # rows: even ones, then odd ones
        base = em.add(em.add(start, em.mul(target[1], made.slot_bytes)), first)
        loop = scf.ForOp(em.value(em.team.warp), em.c(made.rows // 16), em.c(em.team.warps), [])
        with ir.InsertionPoint(loop.body):
            sixteen = loop.induction_variable
            panel, inside = em.div(sixteen, shared.width // 16), em.rem(sixteen, shared.width // 16)
            found = [pairs.load(view, em.mul(inside, 16), step, panel) for step in range(shared.rows // STEP_K)]
            rows = em.add(base, em.mul(sixteen, 16 * LINE))
            for step, words in enumerate(found):
                chunk = em.add(em.rem(matrix, 2), 2 * step)
                moved = arith.XOrIOp(em.value(em.mul(chunk, CHUNK_BYTES)), em.value(em.mul(line, CHUNK_BYTES))).result
                _store_matrices(em, em.add(rows, moved), pairs.fours(words))
            scf.YieldOp([])


def _store_matrices(em: Emitter, address: IndexValue, words: list[ir.Value]) -> None:
    """stmatrix of four matrices: lanes of eight give the addresses of each one's rows, of 16 bytes."""
    parse = ir.Attribute.parse
    shape = parse("#nvvm.ld_st_matrix_shape<m = 8, n = 8>")
    row, b16 = parse("#nvvm.mma_layout<row>"), parse("#nvvm.ld_st_matrix_elt_type<b16>")
    nvvm.StMatrixOp(em.shared_pointer(address), words, row, shape, b16)


KINDS: dict[str, Rewriting] = {"rests": Rests(), "rounded": Rounded(), "transposed": Transposed()}
