"""Tiles in shared memory that tensor copies fill (TMA; PTX ISA, "Data Movement and Conversion Instructions: Tensor
copy"): one instruction of one thread moves a box of a tensor, swizzled as products read it, and tells an mbarrier."""

from __future__ import annotations

import math

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute import memory, slices
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.loop_operands import LoopOperand
from mlirc.passes.distribute.staging import panel_view

ROW_BYTES = 128  # of a row of the widest swizzle; wider tiles lie in panels
MOST_ROWS = 256  # of a box


class TensorTile:
    """The slots of one operand in a ring of `depth`. Raises Unsupported, at the product's attribute `copy`, for a slice
    that no tensor map describes. `split`: into how many parts its rows are cut, each a copy of its own (of another
    block of a cluster)."""

    def __init__(self, em: Emitter, operand: LoopOperand, depth: int, split: int = 1):
        self.em, self.operand, self.split = em, operand, split
        self.element, self.panels = operand.element, operand.panels
        view = operand.first[0]
        *lead, rows, columns = operand.extents
        size = element_bytes(self.element)
        width = ROW_BYTES // size if self.panels else columns
        problem = self._problem(view, lead, rows, width * size)
        if problem:
            raise Unsupported(f'mlirc.copy = "tma": {problem}', operand.product, "copy")
        self.rows, self.width, self.count = rows, width, -(-columns // width)
        self.swizzle = width * size // 16
        shape = [*lead, self.count, rows, width] if self.panels else [*lead, rows, width]
        self.buffer = em.alloc_smem([depth, *shape], self.element, alignment=1024)
        self.slot_bytes = math.prod(shape) * size
        with em.at_entry():
            self.start = memref.ExtractAlignedPointerAsIndexOp(self.buffer).result
        box = [1] * len(view.shape)
        box[view.dims[-2]], box[view.dims[-1]] = rows // split, width
        self.map = em.tensor_map(view.base, box, width * size)

    def _problem(self, view: memory.View, lead: list[int], rows: int, row_bytes: int) -> str:
        """Why tensor copies cannot fill this tile; "" where they can."""
        shape, size = view.shape, element_bytes(self.element)
        if memory.storage_type(self.element) != self.element:
            return f"{self.element} is stored in another form"
        if len(shape) > 5 or len(shape) < 2 or any(n != 1 for n in lead):
            return f"a tensor of {len(shape)} dimensions: 2 to 5, and tiles of two"
        if len(view.dims) < 2 or view.dims[-1] != len(shape) - 1:
            return "rows of the tile are not contiguous in memory"
        if shape[-1] * size % 16:
            return f"rows of {shape[-1] * size} bytes: tensor copies take multiples of 16"
        if row_bytes not in (32, 64, 128):
            return f"slices of {row_bytes} bytes along a row: they must be 32, 64 or 128 (block_k)"
        if rows % self.split or (self.split > 1 and rows // self.split % 8):
            return f"{rows} rows are not cut into {self.split} parts for a cluster"
        if rows > MOST_ROWS * self.split:
            return f"{rows} rows: a copy takes at most {MOST_ROWS}"
        return "" if self._zeros_beyond() else "what lies beyond the slices along k is not zero"

    def _zeros_beyond(self) -> bool:
        """Whether what a copy reads beyond a slice's size along k is outside of the tensor, and so zero."""
        op, (view, shape, sizes) = self.operand.op, self.operand.first
        position = self.operand.info.maps[self.operand.which].index(self.operand.info.k)
        if sizes[position] == shape[position] == self.operand.extents[position]:
            return True
        whole = list(ir.RankedTensorType(op.operands[0].type).shape)
        kept = slices.kept_dims(op, op.results[0])[position]
        return slices.cut_at_edges(op, whole)[kept] and view.shape[view.dims[position]] == whole[kept]

    @property
    def nbytes(self) -> int:
        """What all copies of one slot move."""
        return self.slot_bytes

    def view(self, slot: IndexValue) -> memory.View:
        """A slot as the products see it."""
        return panel_view(self.buffer, slot, self.swizzle, self.panels)

    def copy(self, source: memory.View, slot: IndexValue, barrier: ir.Value, part: IndexValue, mask: int) -> None:
        """Starts the copies of one tile by the calling thread, or of its part number `part`, to the blocks of the
        cluster in `mask` (0: to this block alone)."""
        em = self.em
        row_bytes = self.width * element_bytes(self.element)
        first = em.mul(part, self.rows // self.split)
        base = em.add(em.add(self.start, em.mul(slot, self.slot_bytes)), em.mul(first, row_bytes))
        for panel in range(self.count if self.panels else 1):
            offsets = list(source.offsets)
            row = source.dims[-2]
            offsets[row] = em.add(offsets[row], first)
            offsets[-1] = em.add(offsets[-1], panel * self.width)
            self._one(em.add(base, panel * self.rows * row_bytes), offsets, barrier, mask)

    def _one(self, at: IndexValue, offsets: list[IndexValue], barrier: ir.Value, mask: int) -> None:
        em = self.em
        i32, i16 = (ir.IntegerType.get_signless(n) for n in (32, 16))
        pointer = em.shared_pointer(at)
        cluster = llvm.AddrSpaceCastOp(ir.Type.parse("!llvm.ptr<7>"), pointer).result
        box = [arith.IndexCastOp(i32, em.value(o)).result for o in reversed(offsets)]
        multicast = em.constant(ir.IntegerAttr.get(i16, mask)) if mask else None
        nvvm.CpAsyncBulkTensorGlobalToSharedClusterOp(cluster, self.map, box, barrier, [], multicastMask=multicast)
