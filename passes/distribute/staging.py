"""Tiles in shared memory: what products read. A K loop fills them with asynchronous copies (cp.async, PTX ISA "Data
Movement and Conversion Instructions: Asynchronous copy"), several iterations ahead; anything else is stored there
through registers."""

from __future__ import annotations

import math
from dataclasses import replace

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, nvgpu
from mlirc.passes.distribute import memory, wgmma
from mlirc.passes.distribute.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layout import Layout, pow2_divisor, row_layout
from mlirc.passes.distribute.reduction import mask
from mlirc.passes.distribute.values import Fragment, Tile


class Staged(Tile):
    """A tile whose elements lie in shared memory, zero past its sizes along the dimensions that a product sums over."""

    def __init__(self, em: Emitter, element: ir.Type, shape, sizes, view: memory.View):
        super().__init__(em, element, shape, sizes)
        self.view = view

    def get(self, layout: Layout) -> Fragment:
        return memory.load(self.em, self.view, self.element, self.shape, self.sizes, layout)


def staged(tile: Tile) -> Staged | None:
    return tile if isinstance(tile, Staged) else None


def swizzle_chunks(columns: int, element: ir.Type) -> int:
    """Over how many 16-byte chunks to permute the rows of a shared memory tile."""
    chunks = columns * element_bytes(element) // 16
    if chunks < 1 or columns * element_bytes(element) % 16:
        return 0
    return min(8, pow2_divisor(chunks))


def _vector_for(shape: list[int], element: ir.Type) -> int:
    """Elements of a 16-byte access, halved until they divide the rows."""
    v = 16 // element_bytes(memory.storage_type(element))
    return math.gcd(v, pow2_divisor(shape[-1])) if shape else 1


def _swizzle_for(buffer: ir.Value, element: ir.Type) -> int:
    """Rows are permuted only where the last two dimensions are the tile's real ones."""
    shape = list(ir.MemRefType(buffer.type).shape)
    if len(shape) < 3 or any(n != 1 for n in shape[1:-2]):
        return 0
    return swizzle_chunks(shape[-1], element)


def store_to_shared(
    em: Emitter, tile: Tile, zero_dims: list[int], extents: list[int], panels: bool = False, fence: bool = False
) -> Staged:
    """Stores any tile into shared memory through registers, between two barriers; zero past its sizes along
    zero_dims. The buffer covers `extents` at least; its rows lie in panels of 128 bytes if asked. `fence`: wgmma reads
    it."""
    layout = tile.natural()
    if layout is None:
        layout = row_layout(tuple(tile.shape), em.warps, _vector_for(tile.shape, tile.element))
    frag = tile.get(layout)
    element, zero = frag.element, _zero(frag.element)
    dims = [max(a, b) for a, b in zip(layout.shape, extents, strict=True)]
    stored = memory.storage_type(element)
    buffer = em.alloc_smem([1, *_in_panels(dims, element)] if panels else [1, *dims], stored, alignment=1024)
    swizzle = 8 if panels else _swizzle_for(buffer, element)
    view = panel_view(buffer, 0, swizzle, panels)
    frag = mask(em, frag, zero_dims, zero)
    em.barrier()
    memory.store(em, frag, view, whole=True)
    _clear_padding(em, frag, view, zero_dims, dims)
    if fence:
        wgmma.proxy_fence()
    em.barrier()
    return Staged(em, element, frag.shape, frag.sizes, view)


def _in_panels(shape: list[int], element: ir.Type) -> list[int]:
    """The extents of a tile whose rows are cut into panels of 128 bytes."""
    *lead, rows, columns = shape
    width = 128 // element_bytes(element)
    return [*lead, -(-columns // width), rows, width]


def panel_view(buffer: ir.Value, slot: IndexValue, swizzle: int, panels: bool) -> memory.View:
    """One slot of a buffer of tiles."""
    rank = len(ir.MemRefType(buffer.type).shape)
    dims = [d for d in range(1, rank) if not (panels and d == rank - 3)]
    return memory.View(buffer, [slot, *[0] * (rank - 1)], dims, swizzle, panels)


def _zero(t: ir.Type) -> ir.Attribute:
    return ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType | ir.IndexType) else ir.FloatAttr.get(t, 0.0)


def _clear_padding(em: Emitter, frag: Fragment, view: memory.View, zero_dims: list[int], shape: list[int]) -> None:
    """Writes zeros where the rounded extent of a summed dimension exceeds what the fragment's layout covers."""
    zero = _zero(frag.element)
    for d in zero_dims:
        start, end = frag.layout.shape[d], shape[d]
        if start >= end:
            continue
        rest = [n if i != d else end - start for i, n in enumerate(shape)]
        offsets = [o if i != view.dims[d] else start for i, o in enumerate(view.offsets)]
        layout = row_layout(tuple(rest), em.warps, 1)
        n = layout.num_regs
        filler = Fragment(em, frag.element, rest, rest, layout, [em.constant(zero)] * n, 1)
        memory.store(em, filler, replace(view, offsets=offsets))


class AsyncTile:
    """A global tile that a loop copies into a ring of shared memory buffers, in panels of 128 bytes a row if asked."""

    def __init__(
        self, em: Emitter, element: ir.Type, extents: list[int], vector: int, stages: int, panels: bool = False
    ):
        self.em, self.element, self.vector, self.panels = em, element, vector, panels
        self.layout = row_layout(tuple(extents), em.warps, vector)
        covered = list(self.layout.shape)
        shape = _in_panels(covered, element) if panels else covered
        self.buffer = em.alloc_smem([stages, *shape], element, alignment=1024)
        self.swizzle = 8 if panels else _swizzle_for(self.buffer, element)

    def view(self, stage: IndexValue) -> memory.View:
        return panel_view(self.buffer, stage, self.swizzle, self.panels)

    def copy(self, source: memory.View, sizes: list[IndexValue], stage: IndexValue, enabled: bool | ir.Value) -> None:
        """Issues the copies of one tile; elements past the sizes, or all when not enabled, are filled with zeros."""
        em = self.em
        target = self.view(stage)
        into = memory.accesses(em, target, self.layout.shape, sizes, self.layout, True)
        out = memory.accesses(em, source, self.layout.shape, sizes, self.layout, False)
        into_width = memory.access_width(em, target, self.layout.shape, sizes, self.layout, True)
        out_width = memory.access_width(em, source, self.layout.shape, sizes, self.layout, False)
        assert into_width == out_width == self.vector, (into_width, out_width, self.vector)
        once = memory.first_copy(em, self.layout)
        for (_, width, to, _), (_, _, at, inside) in zip(into, out, strict=True):
            condition = em.both(inside, enabled)
            count = None
            if condition is not True:
                count = em.c(0) if condition is False else arith.SelectOp(condition, em.c(width), em.c(0)).result
            with memory.predicated(once):
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


def async_vector(
    em: Emitter, view: memory.View, element: ir.Type, shape: list[int], sizes: list[IndexValue]
) -> int | None:
    """Elements per cp.async (4, 8 or 16 bytes) that alignment allows for a tile, None if not even four bytes."""
    size = element_bytes(memory.storage_type(element))
    if memory.storage_type(element) != element or not view.dims or view.dims[-1] != len(view.shape) - 1:
        return None
    v = min(16 // size, 8)
    while v * size >= 4:
        aligned = em.divisor(view.offsets[-1]) % v == 0 and view.shape[-1] % v == 0 and em.divisor(sizes[-1]) % v == 0
        if aligned and shape[-1] % v == 0:
            return v
        v //= 2
    return None
