"""Results that leave by tensor copies (TMA): each warp puts its rows of a tile into shared memory, a panel of columns
at a time, and one of its lanes starts their copy; two panels of a warp are under way at a time. What lies outside of
the tensor is not written: nothing is predicated."""

from __future__ import annotations

import math

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, memref, nvvm
from mlirc.passes.distribute.copies import column_stores
from mlirc.passes.distribute.emit import asynchronous, sinking
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.layouts.registers import Factor, Layout
from mlirc.passes.distribute.layouts.shared import CHUNK, LINE, SharedLayout
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.tiles.values import Fragment

SLOTS = 2  # panels of a warp that are on their way


class TensorStores:
    """The tensor copies of one block program."""

    def __init__(self, em: Emitter, forall):
        self.em, self.forall = em, forall
        self.issued = False
        self._buffers: dict[tuple, tuple[ir.Value, ir.Value]] = {}  # the buffer, and where it begins

    def store(self, op, frag: Fragment, view: access.View) -> bool:
        """Writes a tile that a tensor.parallel_insert_slice inserts; False, with the reason noted, where this tile
        cannot leave so."""
        columns = column_stores.panels(self.em, frag)
        problem = self._outside(op, frag, view) or ("" if columns else self._problem(frag))
        if problem:
            self.em.taken.refuse(self.forall, "store", f"{problem}: leave it out")
            return False
        layout = frag.layout
        panels: list = list(columns)
        if not columns:
            rows = _until_warps(layout.dims[-2])
            panels = [
                (row, rows, *part)
                for row in sorted({int(o) // rows * rows for o in layout.reg_offsets[:, -2]})
                for part in _panels(layout.shape[-1], LINE // element_bytes(frag.element))
            ]
        marks = []
        block = ir.InsertionPoint.current.block
        for number, panel in enumerate(panels):
            marks.append(arith.ConstantOp(ir.IndexType.get(), number).operation)
            # Of the tile before, the last copy may still read its slot: which one depends on how many there were.
            pending = SLOTS - 1 if number or len(panels) % SLOTS == 0 else 0
            if columns:
                self._columns(frag, view, number % SLOTS, pending, panel)
            else:
                self._panel(frag, view, number % SLOTS, pending, *panel)
        sinking.sink_to_parts(block, next(iter(block.operations)).operation, marks)
        self.issued = True
        return True

    def finish(self) -> None:
        """All copies have read what they were given."""
        if self.issued:
            with access.predicated(self.em.equal(self.em.lane, 0)):
                nvvm.CpAsyncBulkWaitGroupOp(0)

    def _outside(self, op, frag: Fragment, view: access.View) -> str:
        """Why tensor copies cannot write there; "" where they can."""
        size, shape, layout = element_bytes(frag.element), view.shape, frag.layout
        if access.storage_type(frag.element) != frag.element or size > 4:
            return f"elements of type {frag.element}"
        if not 2 <= len(shape) <= 5 or layout.rank < 2 or view.dims[-1] != len(shape) - 1:
            return f"a result of {len(shape)} dimensions: 2 to 5, whose tiles have rows in memory"
        if shape[-1] * size % 16:
            return f"rows of {shape[-1] * size} bytes: tensor copies take multiples of 16"
        if any(n != 1 for n in layout.shape[:-2]) or list(layout.shape) != list(frag.shape):
            return "a tile of other extents than its registers hold"
        if not all(slices.cut_at_edges(op, list(ir.RankedTensorType(op.operands[1].type).shape))):
            return "a tile that ends inside of the tensor"
        return ""

    def _problem(self, frag: Fragment) -> str:
        """Why a warp's rows cannot leave one panel of columns after the other; "" where they can."""
        layout, size = frag.layout, element_bytes(frag.element)
        if layout.xors:
            return "rows whose elements are exchanged among lanes"
        rows, columns = layout.dims[-2:]
        lanes = sum((f.size - 1) * w for f, w in layout.thread_factors(layout.rank - 1, "l"))
        if any(f.kind == "w" for f in columns) or lanes >= 8 or columns[-1].kind != "r" or layout.shape[-1] * size % 16:
            return "the lanes of a warp do not hold whole rows"
        if any(f.kind == "l" for f in _before_warps(rows)) or _until_warps(rows) > 256:
            return "a warp's rows do not follow each other"
        held = math.prod(f.size for d in layout.dims for f in d if f.kind == "l")
        many = math.prod(f.size for d in layout.dims for f in d if f.kind == "w")
        return "" if held == 32 and many == self.em.team.warps else "several threads hold one element"

    def _buffer(self, rows: int, width: int, element: ir.Type) -> tuple[ir.Value, ir.Value]:
        """Panels of every warp as a memref [warps, SLOTS, rows, width], and its address."""
        em, key = self.em, (rows, width, element)
        if key not in self._buffers:
            widest = LINE // element_bytes(element)
            shape = [em.team.warps, SLOTS, rows, width]
            if width == widest:
                buffer = em.alloc_smem(shape, element, alignment=1024)
            else:
                wide, _ = self._buffer(rows, widest, element)
                buffer = em.seen_as(wide, [em.team.warps, SLOTS * widest // width, rows, width], element)
            with em.at_entry():
                start = memref.ExtractAlignedPointerAsIndexOp(buffer).result
            self._buffers[key] = buffer, start
        return self._buffers[key]

    def _panel(
        self, frag: Fragment, view: access.View, slot: int, pending: int, first_row: int, rows: int, column: int,
        width: int,
    ) -> None:  # fmt: skip
        """Writes some rows and columns of each warp; `pending` copies before it may still be reading."""
        em, layout, size = self.em, frag.layout, element_bytes(frag.element)
        widest = LINE // size
        buffer, start = self._buffer(rows, width, frag.element)
        self._wait(pending)
        inner = Layout.of(
            *[()] * (layout.rank - 2), _last(layout.dims[-2], rows), _last(layout.dims[-1], width)
        )  # fmt: skip
        part = _registers(frag, inner, first_row, column)
        at: list[IndexValue] = [em.team.warp, slot * (widest // width), 0, 0]
        shared = SharedLayout((rows, width), size, width * size if width * size > CHUNK else 0)
        panel = access.View(buffer, at, [*[0] * (layout.rank - 2), 2, 3], shared)
        for r, count, indices, _ in access.accesses(em, panel, inner.shape, list(inner.shape), inner, True):
            access.store_elements(em, panel, indices, part.read(list(range(r, r + count))), count)
        bytes_of_warp = SLOTS * rows * LINE
        address = em.add(em.add(start, em.mul(em.team.warp, bytes_of_warp)), slot * rows * LINE)
        place = em.add(self._warp_row(layout), first_row), column
        self._leave(view, shared, address, place)

    def _columns(
        self, frag: Fragment, view: access.View, slot: int, pending: int, panel: column_stores.Panel
    ) -> None:  # fmt: skip
        """The same of columns of each warp."""
        em, rows = self.em, column_stores.panel_rows(frag.layout.shape[-2])
        key = rows, column_stores.COLUMNS, frag.element
        if key not in self._buffers:
            buffer = em.alloc_smem([em.team.warps, SLOTS, *key[:2]], frag.element, alignment=1024)
            with em.at_entry():
                self._buffers[key] = buffer, memref.ExtractAlignedPointerAsIndexOp(buffer).result
        (buffer, start), whole = self._buffers[key], column_stores.shared_of(rows)
        self._wait(pending)
        column_stores.write(em, frag, panel, access.View(buffer, [em.team.warp, slot, 0, 0], [2, 3], whole))
        bytes_of_slot = rows * whole.row_bytes
        address = em.add(em.add(start, em.mul(em.team.warp, SLOTS * bytes_of_slot)), slot * bytes_of_slot)
        place = panel.row, em.add(column_stores.warp_column(em, frag.layout), panel.column)
        self._leave(view, column_stores.shared_of(panel.rows), address, place)

    def _wait(self, pending: int) -> None:
        """All but so many of this warp's copies have read what they were given."""
        with access.predicated(self.em.equal(self.em.lane, 0)):
            nvvm.CpAsyncBulkWaitGroupOp(pending, read=True)
        self.em.warp_barrier()

    def _leave(
        self, view: access.View, shared: SharedLayout, address: IndexValue, place: tuple[IndexValue, IndexValue]
    ) -> None:
        """Starts the copy of what this warp's lanes have written, to a row and a column of the result's tile."""
        em = self.em
        asynchronous.proxy_fence()
        em.warp_barrier()
        with access.predicated(em.equal(em.lane, 0)):
            offsets, box = list(view.offsets), [1] * len(view.shape)
            for d, moved, extent in zip(view.dims[-2:], place, shared.box(), strict=True):
                offsets[d], box[d] = em.add(offsets[d], moved), extent
            target = em.tensor_map(view.base, box, shared.swizzle)
            i32 = ir.IntegerType.get_signless(32)
            at = [arith.IndexCastOp(i32, em.value(o)).result for o in reversed(offsets)]
            nvvm.CpAsyncBulkTensorSharedCTAToGlobalOp(target, em.shared_pointer(address), at)
            nvvm.CpAsyncBulkCommitGroupOp()

    def _warp_row(self, layout: Layout) -> IndexValue:
        """The first row that this warp holds."""
        only = tuple(Factor("r", f.size) if f.kind == "l" else f for f in layout.dims[-2])
        return self.em.team.thread_part(Layout((only,)), 0)


def _before_warps(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """The factors of a dimension down to the last one of warps."""
    last = max((i for i, f in enumerate(factors) if f.kind == "w"), default=-1)
    return factors[: last + 1]


def _until_warps(factors: tuple[Factor, ...]) -> int:
    """How many neighbours along a dimension one warp holds."""
    return math.prod(f.size for f in factors[len(_before_warps(factors)) :])


def _panels(columns: int, widest: int) -> list[tuple[int, int]]:
    """(first column, width) of panels that cover a row: as wide as possible, each a power of two."""
    out, at, width = [], 0, widest
    while at < columns:
        while width > columns - at:
            width //= 2
        out.append((at, width))
        at += width
    return out


def _last(factors: tuple[Factor, ...], extent: int) -> tuple[Factor, ...]:
    """The most minor factors, with this product; the most major of them, of registers, is cut."""
    taken: list[Factor] = []
    for f in reversed(factors):
        if extent == 1:
            break
        size = min(f.size, extent) if f.kind == "r" else f.size
        taken.append(f.part(size))
        extent //= size
    return tuple(reversed(taken))


def _registers(frag: Fragment, inner: Layout, first_row: int, column: int) -> Fragment:
    """The part of a fragment that begins at a row and a column, in the layout of the part."""
    by_place = frag.layout.registers
    lead = (0,) * (inner.rank - 2)
    wanted = [by_place[(*lead, int(o[-2]) + first_row, int(o[-1]) + column)] for o in inner.reg_offsets]
    piece = math.gcd(frag.piece, inner.run)
    pieces = [frag.read(wanted[i : i + piece]) for i in range(0, len(wanted), piece)]
    return Fragment(frag.em, frag.element, list(inner.shape), list(inner.shape), inner, pieces, piece)
