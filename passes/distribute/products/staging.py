"""Tiles in shared memory: what products read. A K loop fills them with asynchronous copies (cp.async, PTX ISA "Data
Movement and Conversion Instructions: Asynchronous copy"), several iterations ahead, or through registers; anything else
is stored there where its product needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mlirc.dialects.rings import Slot
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, nvgpu
from mlirc.passes.distribute.emit import asynchronous
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pending import Pending
from mlirc.passes.distribute.layouts.registers import Layout, pow2_divisor, row_layout
from mlirc.passes.distribute.layouts.shared import LINE, SharedLayout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.reduction import mask
from mlirc.passes.distribute.tiles.values import Fragment, Load, Tile, load

WORD = 4  # bytes that a lane accesses in a bank

Place = tuple[ir.Value, IndexValue]  # a buffer of tiles, and the number of a slot


class Staged(Tile):
    """A tile whose elements lie in shared memory, zero past its sizes along the dimensions that a product sums over.
    `rewritten`: where they are written anew (`rewriting.py`). `pending`, `pending_rewritten`: they may be under way."""

    def __init__(
        self, em: Emitter, element: ir.Type, shape, sizes, view: access.View, rewritten: Place | None = None,
        pending: Pending | None = None, pending_rewritten: Pending | None = None,
    ):  # fmt: skip
        super().__init__(em, element, shape, sizes)
        self.view, self.rewritten, self.pending, self.pending_rewritten = view, rewritten, pending, pending_rewritten

    def get(self, layout: Layout) -> Fragment:
        if self.pending is not None:
            self.pending.settle()
        return load(self.em, self.view, self.element, self.shape, self.sizes, layout)


def staged(tile: Tile) -> Staged | None:
    return tile if isinstance(tile, Staged) else None


def _vector_for(shape: list[int], element: ir.Type) -> int:
    """Elements of a 16-byte access, halved until they divide the rows."""
    v = 16 // element_bytes(access.storage_type(element))
    return math.gcd(v, pow2_divisor(shape[-1])) if shape else 1


def _narrow(tile: Tile, vector: int) -> int:
    """Elements of a thread that follow each other: `vector`; or four bytes of a slice that is loaded an element or two
    at a time, so that neighbouring lanes load what lies in one line."""
    size = element_bytes(access.storage_type(tile.element))
    if not isinstance(tile, Load) or not tile.shape or vector * size <= WORD:
        return vector
    wide = row_layout(tuple(tile.shape), tile.em.team.warps, vector)
    width = access.access_width(tile.em, tile.view, tile.shape, tile.sizes, wide, False)
    return WORD // size if width * size < WORD else vector


def store_to_shared(
    em: Emitter, tile: Tile, zero_dims: list[int], extents: list[int], panels: bool = False, fence: bool = False
) -> Staged:
    """Stores any tile into shared memory through registers, between two barriers; zero past its sizes along
    zero_dims. The buffer covers `extents` at least; its rows lie in panels of 128 bytes if asked. `fence`: wgmma reads
    it."""
    layout = tile.natural()
    if layout is None:
        layout = row_layout(tuple(tile.shape), em.team.warps, _vector_for(tile.shape, tile.element))
    frag = tile.get(layout)
    element, zero = frag.element, _zero(frag.element)
    dims = [max(a, b) for a, b in zip(layout.shape, extents, strict=True)]
    stored = access.storage_type(element)
    shared = SharedLayout.of_tile(dims, element_bytes(stored), panels)
    view = slot_view(em.alloc_smem(shared.memory_shape, stored, alignment=1024), 0, shared)
    frag = mask(em, frag, zero_dims, zero)
    em.team.meet()
    width = access.access_width(em, view, frag.shape, frag.sizes, frag.layout, True)
    access.tell(em, view, frag.layout, width, "stores")
    access.store(em, frag, view, whole=True)
    _clear_padding(em, frag, view, zero_dims, dims)
    if fence:
        asynchronous.proxy_fence()
    em.team.meet()
    return Staged(em, element, frag.shape, frag.sizes, view)


def slot_view(buffer: ir.Value, slot: IndexValue, shared: SharedLayout) -> access.View:
    """One slot of a buffer of tiles."""
    return access.View(buffer, [slot, *[0] * (len(shared.memory_shape) - 1)], shared.memory_dims, shared)


def _zero(t: ir.Type) -> ir.Attribute:
    return ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType | ir.IndexType) else ir.FloatAttr.get(t, 0.0)


def _clear_padding(em: Emitter, frag: Fragment, view: access.View, zero_dims: list[int], shape: list[int]) -> None:
    """Writes zeros where the rounded extent of a summed dimension exceeds what the fragment's layout covers."""
    zero, shape = _zero(frag.element), list(shape)
    for d in zero_dims:
        start, end = frag.layout.shape[d], shape[d]
        if start >= end:
            continue
        rest = [n if i != d else end - start for i, n in enumerate(shape)]
        offsets = [o if i != view.dims[d] else start for i, o in enumerate(view.offsets)]
        layout = row_layout(tuple(rest), em.team.warps, 1)
        n = layout.num_regs
        filler = Fragment(em, frag.element, rest, rest, layout, [em.constant(zero)] * n, 1)
        access.store(em, filler, replace(view, offsets=offsets))
        shape[d] = start  # the next dimension's zeros leave out what these are: no element is written twice


def covered(extents: Sequence[int], element: ir.Type, warps: int, vector: int | None) -> list[int]:
    """What the threads of a team cover that copy a tile, `vector` elements at a time (None: as many as divide it)."""
    layout = row_layout(tuple(extents), warps, vector or _vector_for(list(extents), element))
    return list(layout.shape)


class RingTile:
    """One tile of each slot of a ring of `depth` that the team fills that reads it: a buffer that covers what they
    copy, `vector` elements at a time."""

    def __init__(self, em: Emitter, slot: Slot, vector: int | None, depth: int):
        self.em, self.slot, self.element = em, slot, slot.tile.element_type
        stored = access.storage_type(self.element)
        size = element_bytes(stored)
        extents = covered(slot.tile.shape, self.element, em.team.warps, vector)
        self.shared = SharedLayout(tuple(extents), size, slot.swizzle, LINE // size if slot.panels else 0, depth)
        row = self.shared.row_bytes
        if slot.swizzle and (row % slot.swizzle or slot.panels and slot.swizzle != LINE):
            raise Unsupported(f"mlirc.make_ring: rows of {row} bytes, which are swizzled over {slot.swizzle}")
        self.buffer = em.alloc_smem(self.shared.memory_shape, stored, alignment=1024)

    def view(self, slot: IndexValue) -> access.View:
        """A slot as the products see it."""
        return slot_view(self.buffer, slot, self.shared)


class StoredTile(RingTile):
    """Tiles that come through registers: any that the team can compute. Zero past their sizes along `zero_dims`."""

    def __init__(self, em: Emitter, slot: Slot, zero_dims: list[int], depth: int):
        super().__init__(em, slot, None, depth)
        self.zero_dims = zero_dims

    def store(self, tile: Tile, slot: IndexValue) -> None:
        """Writes a tile into a slot, by all threads."""
        em, layout, extents = self.em, tile.natural(), list(self.shared.extents)
        if layout is None or any(n > m for n, m in zip(layout.shape, extents, strict=True)):
            whole = list(self.slot.tile.shape)
            layout = row_layout(tuple(whole), em.team.warps, _narrow(tile, _vector_for(whole, tile.element)))
        frag = mask(em, tile.get(layout), self.zero_dims, _zero(tile.element))
        view = self.view(slot)
        width = access.access_width(em, view, frag.shape, frag.sizes, frag.layout, True)
        access.tell(em, view, frag.layout, width, "stores")
        access.store(em, frag, view, whole=True)
        _clear_padding(em, frag, view, self.zero_dims, extents)


class AsyncTile(RingTile):
    """Slices of global memory that cp.async copies, `vector` elements at a time."""

    def __init__(self, em: Emitter, slot: Slot, vector: int, depth: int):
        super().__init__(em, slot, vector, depth)
        self.vector = vector
        self.layout = row_layout(tuple(slot.tile.shape), em.team.warps, vector)

    def copy(self, source: access.View, sizes: list[IndexValue], stage: IndexValue, enabled: bool | ir.Value) -> None:
        """Issues the copies of one tile; elements past the sizes, or all when not enabled, are filled with zeros."""
        em = self.em
        target = self.view(stage)
        into = access.accesses(em, target, self.layout.shape, sizes, self.layout, True)
        out = access.accesses(em, source, self.layout.shape, sizes, self.layout, False)
        into_width = access.access_width(em, target, self.layout.shape, sizes, self.layout, True)
        out_width = access.access_width(em, source, self.layout.shape, sizes, self.layout, False)
        assert into_width == out_width == self.vector, (into_width, out_width, self.vector)
        access.tell(em, target, self.layout, self.vector, "cp.async")
        once = access.first_copy(em, self.layout)
        for (_, width, to, _), (_, _, at, inside) in zip(into, out, strict=True):
            condition = em.both(inside, enabled)
            count = None
            if condition is not True:
                count = em.c(0) if condition is False else arith.SelectOp(condition, em.c(width), em.c(0)).result
            with access.predicated(once):
                self._one(target, source, to, at, width, count)

    def _one(self, target, source, to, at, width, count) -> None:
        em = self.em
        size = width * element_bytes(self.element)
        nvgpu.DeviceAsyncCopyOp(
            target.base,
            [em.value(i) for i in to],
            source.base,
            [em.value(i) for i in at],
            width,
            srcElements=count,
            bypassL1=True if size == 16 else None,
            results=[ir.Type.parse("!nvgpu.device.async.token")],
        )
