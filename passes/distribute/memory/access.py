"""Reading tiles from memory into registers and writing them back: vector accesses where alignment is known, clamped
addresses instead of branches for reads past an edge, predicated stores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir, memref, scf, vector
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, vec
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.layouts.shared import SharedLayout


@dataclass
class View:
    """A window of a memref: tile dimension i runs along memref dimension dims[i], starting at offsets.

    `shared`: how a tile lies in shared memory, where rows are permuted, or lie in panels: the memref's last three
    dimensions are panels, rows, and the columns of a panel then. `windows`: what an image's windows [M, K], or those
    of each image [N, P, K], are, whose rows and columns `offsets` count then: im2col copies alone read it.
    """

    base: ir.Value
    offsets: list[IndexValue]
    dims: list[int]
    shared: SharedLayout | None = None
    windows: Windows | None = None

    @property
    def panels(self) -> bool:
        """Whether a row's columns lie in one panel after the other."""
        return self.shared is not None and self.shared.panel > 0

    @property
    def shape(self) -> list[int]:
        return list(ir.MemRefType(self.base.type).shape)

    @property
    def element(self) -> ir.Type:
        return ir.MemRefType(self.base.type).element_type


def storage_type(element: ir.Type) -> ir.Type:
    """The element type in memory: i1 is stored as bytes."""
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return ir.IntegerType.get_signless(8)
    return element


def placed(em: Emitter, view: View, indices: list[IndexValue]) -> list[IndexValue]:
    """Where an element of a tile lies: its panel, and its place in a permuted row."""
    if view.panels:
        width, column = view.shape[-1], indices[-1]
        inside = em.rem(column, width)
        if isinstance(inside, ir.Value):
            em.known_multiple(inside, min(em.divisor(column), width))
        indices = [*indices[:-3], em.div(column, width), indices[-2], inside]
    return swizzled(em, view, indices)


def swizzled(em: Emitter, view: View, indices: list[IndexValue]) -> list[IndexValue]:
    """Permutes the 16-byte chunks within a row by the row's number, so that the accesses of mma operands and of copies
    touch all banks (the scheme of CUTLASS's Swizzle<B, 3, 3>)."""
    if view.shared is None or view.shared.chunks == 1:
        return indices
    return [*indices[:-1], permuted(em, view.shared, indices[-2], indices[-1])]


def permuted(em: Emitter, shared: SharedLayout, row: IndexValue, column: IndexValue) -> IndexValue:
    """The column of a row at which the element of another one lies: of its chunk's number, XORed by the row's."""
    if shared.chunks == 1:
        return column
    phase = em.rem(em.div(row, shared.rows_per_line), shared.chunks)
    if isinstance(phase, int) and isinstance(column, int):
        return column ^ (phase * shared.per_chunk)
    moved = arith.XOrIOp(em.value(column), em.value(em.mul(phase, shared.per_chunk))).result
    return em.known_multiple(moved, min(em.divisor(column), shared.per_chunk))


def access_width(
    em: Emitter, view: View, shape: Sequence[int], sizes: list[IndexValue], layout: Layout, whole: bool
) -> int:
    """Elements per access: as many as are consecutive in a thread, aligned, inside or outside as one, and 16 bytes."""
    if not view.dims or view.dims[-1] != len(view.shape) - 1:
        return 1
    width = math.gcd(layout.piece, 16 // element_bytes(view.element))
    width = math.gcd(width, em.divisor(view.offsets[-1]))
    width = math.gcd(width, view.shape[-1]) if len(view.shape) > 1 else width
    if not whole and (not isinstance(sizes[-1], int) or sizes[-1] != layout.shape[-1]):
        width = math.gcd(width, em.divisor(sizes[-1]))
    return max(width, 1)


def coordinate(
    em: Emitter, layout: Layout, dim: int, register: int, size: IndexValue, width: int, whole: bool
) -> tuple[IndexValue, bool | ir.Value]:
    """One coordinate of an access of `width` elements that begins with a register, clamped into the tile, and whether
    it lay inside."""
    c = em.team.coordinate(layout, dim, register)
    if whole or (isinstance(size, int) and layout.shape[dim] <= size):
        return c, True
    return em.min(c, em.sub(size, width)), em.less(c, size)


def accesses(em: Emitter, view: View, shape, sizes, layout: Layout, whole: bool):
    """Yields (first register, width, memref indices, inside) for every access of a tile."""
    width = access_width(em, view, shape, sizes, layout, whole)
    memo: dict = {}
    last = layout.rank - 1
    for r in range(0, layout.num_regs, width):
        indices = list(view.offsets)
        inside: bool | ir.Value = True
        column = int(layout.reg_offsets[r, last]) if layout.rank else 0
        panel = _in_panel(em, view, layout, column, width) if whole and view.panels else None
        for d in range(layout.rank):
            offset = int(layout.reg_offsets[r, d])
            key = (d, offset)
            if key not in memo:
                c, ok = coordinate(em, layout, d, r, sizes[d], width if d == last else 1, whole)
                memo[key] = (em.add(view.offsets[view.dims[d]], c), ok)
            indices[view.dims[d]] = memo[key][0]
            inside = em.both(inside, memo[key][1])
        if panel is not None:
            yield r, width, swizzled(em, view, [*indices[:-3], panel[0], indices[-2], panel[1]]), inside
        else:
            yield r, width, placed(em, view, indices), inside


def _in_panel(em: Emitter, view: View, layout: Layout, column: int, width: int) -> tuple[int, IndexValue] | None:
    """The panel of an access and its column there, where all threads' are in one panel: a number that is known, so that
    addresses differ by constants. `column`: what of it does not depend on the thread."""
    last, start = layout.rank - 1, view.offsets[-1]
    if layout.xors or not isinstance(start, int) or view.dims[last] != len(view.shape) - 1:
        return None
    panel, first = divmod(start + column, view.shape[-1])
    reach = sum((f.size - 1) * weight for kind in "lw" for f, weight in layout.thread_factors(last, kind))
    if first + reach + width > view.shape[-1]:
        return None
    return panel, em.add(em.team.thread_part(layout, last), first)


def load_elements(em: Emitter, view: View, indices: list[IndexValue], width: int, once: bool = False) -> ir.Value:
    """`width` neighbours; `once`: nobody reads them again, so that they need no place in the L1 cache."""
    values = [em.value(i) for i in indices]
    align = width * element_bytes(view.element)
    if width == 1:
        return memref.LoadOp(view.base, values).result
    return vector.LoadOp(vec(view.element, width), view.base, values, alignment=align, nontemporal=once or None).result


def tell(em: Emitter, view: View, layout: Layout, width: int, verb: str) -> None:
    """Notes how a tile in shared memory is accessed, `width` elements of a register layout's at a time."""
    if view.shared is not None:
        dims = tuple(view.shared.memory_dims.index(d) for d in view.dims)
        em.shared_accesses.by_registers(
            str(view.element), view.shared, layout, width, em.team.warps, dims, verb
        )  # fmt: skip


def load_pieces(
    em: Emitter, view: View, element: ir.Type, shape, sizes, layout: Layout, whole: bool = False
) -> list[ir.Value]:
    """Reads a tile into registers, `layout.piece` of them a value. Elements past the tile's sizes hold some element of
    the tile. `whole`: the memory covers the layout's padded shape, so nothing needs clamping."""
    parts: list[tuple[ir.Value, int]] = []
    for _, width, indices, _ in accesses(em, view, shape, sizes, layout, whole):
        parts.append((load_elements(em, view, indices, width), width))
    width = parts[0][1]
    per_piece = layout.piece // width
    groups = [[p for p, _ in parts[i : i + per_piece]] for i in range(0, len(parts), per_piece)]
    return [join(em, group, width, element, layout.piece) for group in groups]


def join(em: Emitter, group: list[ir.Value], width: int, element: ir.Type, piece: int) -> ir.Value:
    """Concatenates accesses into one piece, turning stored bytes back into i1."""
    if len(group) == 1:
        value = group[0]
    elif width == 1:
        value = em.pack(group)
    else:
        value = em.pack([em.extract(g, i) for g in group for i in range(width)])
    stored = storage_type(element)
    if stored != element:
        zero = em.constant(ir.IntegerAttr.get(stored, 0), piece)
        value = arith.CmpIOp(arith.CmpIPredicate.ne, value, zero).result
    return value


class InRegisters(Protocol):
    """A tile whose registers can be read, as `values.Fragment` is."""

    element: ir.Type
    shape: list[int]
    sizes: list[IndexValue]
    layout: Layout

    def read(self, registers: list[int]) -> ir.Value:
        """The given registers as one value."""


def store(em: Emitter, frag: InRegisters, view: View, whole: bool = False) -> None:
    """Writes a tile; elements past its sizes are left alone."""
    stored = storage_type(frag.element)
    single = first_copy(em, frag.layout)
    for r, width, indices, inside in accesses(em, view, frag.shape, frag.sizes, frag.layout, whole):
        condition = em.both(inside, single)
        if condition is False:
            continue
        value = frag.read(list(range(r, r + width)))
        if stored != frag.element:
            value = arith.ExtUIOp(vec(stored, width), value).result
        with predicated(condition):
            store_elements(em, view, indices, value, width)


@contextmanager
def predicated(condition: bool | ir.Value) -> Iterator[None]:
    """What is built inside happens only where the condition holds (a False is for the caller to skip)."""
    if condition is True:
        yield
        return
    branch = scf.IfOp(condition)
    with ir.InsertionPoint(branch.then_block):
        yield
        scf.YieldOp([])


def store_elements(em: Emitter, view: View, indices: list[IndexValue], value: ir.Value, width: int) -> None:
    values = [em.value(i) for i in indices]
    if width == 1:
        memref.StoreOp(value, view.base, values)
    else:
        vector.StoreOp(value, view.base, values, alignment=width * element_bytes(view.element))


def first_copy(em: Emitter, layout: Layout) -> bool | ir.Value:
    """Whether this thread holds the first of several copies of its elements; True where there is just one."""
    condition: bool | ir.Value = True
    for kind, number, count in (("l", em.lane, 32), ("w", em.team.warp, em.team.warps)):
        for stride, size in layout.free(kind, count):
            digit = em.rem(em.div(number, stride), size)
            zero = arith.CmpIOp(arith.CmpIPredicate.eq, em.value(digit), em.c(0)).result
            condition = em.both(condition, zero)
    return condition
