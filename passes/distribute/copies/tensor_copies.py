"""Tiles in shared memory that tensor copies fill (TMA; PTX ISA, "Data Movement and Conversion Instructions: Tensor
copy"): one instruction of one thread moves a box of a tensor, swizzled as products read it, and tells an mbarrier."""

from __future__ import annotations

from math import prod

from mlirc.dialects.rings import Slot
from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.shared import LINE, SharedLayout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import rewriting
from mlirc.passes.distribute.products.staging import Place, slot_view

MOST_ROWS = 256  # of a box


class TensorTile:
    """One tile of each slot of a ring of `depth`. `split`: into how many parts its rows are cut, each a copy of its own
    (of another block of a cluster)."""

    def __init__(self, em: Emitter, slot: Slot, depth: int, split: int = 1):
        self.em, self.slot, self.split = em, slot, split
        self.element = slot.tile.element_type
        size = element_bytes(self.element)
        panel = (slot.swizzle or LINE) // size if slot.panels else 0
        self.shared = SharedLayout(tuple(slot.tile.shape), size, slot.swizzle, panel, depth)
        self.buffer = em.alloc_smem(self.shared.memory_shape, self.element, alignment=1024)
        self.rewriting = rewriting.KINDS.get(slot.rewrite)
        if self.rewriting is not None:
            self.rewritten = self.rewriting.buffer(em, self.buffer, self.shared)
        with em.at_entry():
            self.start = memref.ExtractAlignedPointerAsIndexOp(self.buffer).result

    def describe(self, view: access.View, put: ir.Operation) -> None:
        """Makes the tensor map by which slices like this one are copied; raises Unsupported, at the attribute `copy`
        of the op, for those that none describes."""
        problem = self._problem(view)
        if problem:
            raise Unsupported(f'mlirc.copy = "tma": {problem}', put, "copy")
        self._map(view)

    def _map(self, view: access.View) -> ir.Value:
        if view.windows is not None:
            corners = view.windows.corners(view.shape[1:-1])
            return self.em.tensor_map(view.base, list(self.shared.box(self.split)), self.shared.swizzle, corners)
        box = [1] * len(view.shape)
        for d, extent in zip(view.dims, self.shared.extents, strict=True):
            box[d] = extent
        box[view.dims[-2]], box[view.dims[-1]] = self.shared.box(self.split)
        return self.em.tensor_map(view.base, box, self.shared.swizzle)

    def _problem(self, view: access.View) -> str:
        """Why tensor copies cannot fill this tile; "" where they can."""
        shape, size, rows = view.shape, self.shared.size, self.shared.rows
        row_bytes, width = self.shared.row_bytes, self.shared.width
        if access.storage_type(self.element) != self.element:
            return f"{self.element} is stored in another form"
        if view.windows is not None:
            problem = view.windows.copied(shape, size)
            if problem or view.windows.channels % width:
                return problem or f"rows of {width} elements in windows with {view.windows.channels} of each tap"
        lead = self.shared.extents[:-2]
        cut = self.shared.panel or self.split > 1 or view.windows is not None  # into several copies
        if len(shape) > 5 or len(shape) < 2 or any(n != 1 for n in lead) and cut or max(lead, default=1) > MOST_ROWS:
            return f"a tensor of {len(shape)} dimensions: 2 to 5, and tiles of two"
        if view.windows is None and (len(view.dims) < 2 or view.dims[-1] != len(shape) - 1):
            return "rows of the tile are not contiguous in memory"
        if shape[-1] * size % 16:
            return f"rows of {shape[-1] * size} bytes: tensor copies take multiples of 16"
        if self.shared.swizzle not in (0, row_bytes) or row_bytes % 16:
            return f"rows of {row_bytes} bytes in a slot that swizzles over {self.shared.swizzle}"
        if rows % self.split or (self.split > 1 and rows // self.split % 8):
            return f"{rows} rows are not cut into {self.split} parts for a cluster"
        if rows > MOST_ROWS * self.split or width > MOST_ROWS:
            return f"{rows} rows of {width}: a copy takes at most {MOST_ROWS} of each"
        return ""

    @property
    def nbytes(self) -> int:
        """What all copies of one slot move."""
        return self.shared.slot_bytes

    def view(self, slot: IndexValue) -> access.View:
        """A slot as the products see it."""
        return slot_view(self.buffer, slot, self.shared)

    def anew(self, slot: IndexValue, number: IndexValue) -> Place:
        """Where a slot's tile is written anew, by the slot's number among all."""
        assert self.rewriting is not None
        return self.rewritten, self.rewriting.slot(self.em, slot, number)

    def copy(self, source: access.View, slot: IndexValue, barrier: ir.Value, part: IndexValue, mask: int) -> None:
        """Starts the copies of one tile by the calling thread, or of its part number `part`, to the blocks of the
        cluster in `mask` (0: to this block alone)."""
        em, tensor, shared = self.em, self._map(source), self.shared
        first = em.mul(part, shared.rows // self.split)
        base = em.add(em.add(self.start, em.mul(slot, shared.slot_bytes)), em.mul(first, shared.row_bytes))
        for panel in range(shared.panels):
            at = em.add(base, panel * shared.panel_bytes)
            if source.windows is not None:
                *images, row, column = source.offsets
                of_image = em.mul(images[0], prod(source.windows.out)) if images else 0
                row, column = em.add(em.add(row, first), of_image), em.add(column, panel * shared.width)
                self._one(tensor, at, *self._window(source.windows, row, column), barrier, mask)
                continue
            offsets = list(source.offsets)
            row = source.dims[-2]
            offsets[row] = em.add(offsets[row], first)
            offsets[-1] = em.add(offsets[-1], panel * shared.width)
            self._one(tensor, at, offsets, [], barrier, mask)

    def _window(
        self, w: Windows, row: IndexValue, column: IndexValue
    ) -> tuple[list[IndexValue], list[IndexValue]]:  # fmt: skip
        """Of a row and a column of an image's windows: the place of the first pixel's first tap and the channel, and
        how far the tap is from that one."""
        em = self.em
        tap, channel = em.div(column, w.channels), em.rem(column, w.channels)
        if w.taps * w.channels % self.shared.extents[-1]:  # what is beyond the last tap lies beyond all channels
            channel = em.add(channel, em.mul(em.div(tap, w.taps), 2 * w.channels))
        place, taps = [channel], []
        for out, kernel, stride, dilation, low in reversed(
            list(zip(w.out, w.kernel, w.strides, w.dilations, w.low, strict=True))
        ):
            place.append(em.add(em.mul(em.rem(row, out), stride), -low))
            taps.append(em.mul(em.rem(tap, kernel), dilation))
            row, tap = em.div(row, out), em.div(tap, kernel)
        return [row, *reversed(place)], taps[::-1]

    def _one(
        self, tensor: ir.Value, at: IndexValue, offsets: list[IndexValue], taps: list[IndexValue], barrier: ir.Value,
        mask: int,
    ) -> None:  # fmt: skip
        em = self.em
        i32, i16 = (ir.IntegerType.get_signless(n) for n in (32, 16))
        pointer = em.shared_pointer(at)
        cluster = llvm.AddrSpaceCastOp(ir.Type.parse("!llvm.ptr<7>"), pointer).result
        box = [arith.IndexCastOp(i32, em.value(o)).result for o in reversed(offsets)]
        multicast = em.constant(ir.IntegerAttr.get(i16, mask)) if mask else None
        shifts = [arith.IndexCastOp(i16, em.value(o)).result for o in reversed(taps)]
        mode = ir.Attribute.parse("#nvvm.tma_load_mode<im2col>") if taps else None
        nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(
            cluster, tensor, box, barrier, shifts, multicastMask=multicast, mode=mode
        )
