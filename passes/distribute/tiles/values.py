"""Tile values while a kernel is being distributed: fragments in registers, and values that wait for a layout.

A `tiles`-level tensor becomes one of these. A `Fragment` has its elements in registers. The others are lazy: they know
where they were defined (a marker op in the `gpu` function) and are built there, in the layout that their first user
asks for. That way loads and cheap elementwise chains take the layout of the anchors (products, reductions) that they
feed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.team import Team
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles import convert


class Tile:
    """A tile value: `shape` bounds each dimension, `sizes` are the exact extents (equal to shape unless at an edge)."""

    def __init__(self, em: Emitter, element: ir.Type, shape: list[int], sizes: list[IndexValue]):
        self.em, self.element, self.shape, self.sizes = em, element, list(shape), list(sizes)

    def natural(self) -> Layout | None:
        """The layout that this value has or prefers, if it has one."""
        return None

    def complete(self) -> None:
        """Somebody reads the value at this point of the program: ends what it waits for."""

    def get(self, layout: Layout) -> Fragment:
        raise NotImplementedError  # every subclass overrides it


# A thread has 255. A tile that takes more is spilled to local memory; one of thousands compiles for minutes.
MAX_TILE_REGISTERS = 1024


def check_registers(em: Emitter, layout: Layout, element: ir.Type) -> None:
    """Raises Unsupported for a tile that takes absurdly many registers of each thread."""
    registers, threads = layout.num_regs * max(element_bytes(element), 1) // 4, em.team.threads
    if registers > MAX_TILE_REGISTERS:
        shape = "x".join(map(str, layout.shape))
        raise Unsupported(
            f"a tile of {shape} {element} takes {registers} registers of each of {threads} threads, which have 255: "
            "use smaller tiles or more warps"
        )


class Fragment(Tile):
    """A tile in registers: `pieces[i]` holds registers [i * piece, (i + 1) * piece) of the layout."""

    def __init__(self, em, element, shape, sizes, layout: Layout, pieces: list[ir.Value], piece: int):
        super().__init__(em, element, shape, sizes)
        check_registers(em, layout, element)
        self.layout, self.pieces, self.piece = layout, pieces, piece

    def natural(self) -> Layout:
        return self.layout

    def scalar(self, i: int) -> ir.Value:
        """Register i."""
        return self.em.extract(self.pieces[i // self.piece], i % self.piece)

    def read(self, registers: list[int]) -> ir.Value:
        """The given registers as one value."""
        first, n = registers[0], len(registers)
        if n == self.piece and first % n == 0 and registers == list(range(first, first + n)):
            return self.pieces[first // n]
        return self.em.pack([self.scalar(i) for i in registers])

    def converted(self, element: ir.Type, convert: Callable[[ir.Type, ir.Value], ir.Value]) -> Fragment:
        """The registers as elements of another type: `convert(type, piece)` makes one piece."""
        t = ir.VectorType.get([self.piece], element) if self.piece > 1 else element
        pieces = [convert(t, p) for p in self.pieces]
        return Fragment(self.em, element, self.shape, self.sizes, self.layout, pieces, self.piece)

    def with_piece(self, piece: int) -> Fragment:
        """The same registers, grouped differently."""
        if piece == self.piece:
            return self
        n = self.layout.num_regs
        pieces = [self.read(list(range(i, i + piece))) for i in range(0, n, piece)]
        return Fragment(self.em, self.element, self.shape, self.sizes, self.layout, pieces, piece)

    def get(self, layout: Layout) -> Fragment:
        if layout == self.layout:
            return self
        pieces = convert.converted(self.em, self, layout)
        return Fragment(self.em, self.element, self.shape, self.sizes, layout, pieces, layout.piece)


def load(
    em: Emitter, view: access.View, element: ir.Type, shape, sizes, layout: Layout, whole: bool = False
) -> Fragment:
    """A tile that is read from memory (`access.load_pieces`)."""
    access.tell(em, view, layout, access.access_width(em, view, shape, sizes, layout, whole), "reads")
    pieces = access.load_pieces(em, view, element, shape, sizes, layout, whole)
    return Fragment(em, element, shape, sizes, layout, pieces, layout.piece)


class Resized(Tile):
    """A tile with other exact extents: the front of a larger one, or one at the front of a larger one."""

    def __init__(self, em, source: Tile, sizes: list[IndexValue]):
        super().__init__(em, source.element, source.shape, sizes)
        self.source = source

    def natural(self) -> Layout | None:
        return self.source.natural()

    def get(self, layout: Layout) -> Fragment:
        found = copy.copy(self.source.get(layout))
        found.sizes = list(self.sizes)
        return found


class Splat(Tile):
    """A tile of one scalar (a fill)."""

    def __init__(self, em, element, shape, sizes, scalar: ir.Value):
        super().__init__(em, element, shape, sizes)
        self.scalar = scalar

    def get(self, layout: Layout) -> Fragment:
        p = layout.piece
        n = layout.num_regs // p
        return Fragment(self.em, self.element, self.shape, self.sizes, layout, [self.em.splat(self.scalar, p)] * n, p)


class Marked(Tile):
    """A lazy value: built at the place of its definition, once per layout."""

    def __init__(self, em, element, shape, sizes):
        super().__init__(em, element, shape, sizes)
        self.marker, self.team = arith.ConstantOp(em.index, 0).operation, em.team
        self._kept: dict = {}
        self._built: dict[tuple[Layout, Team | None], Fragment] = {}

    def get(self, layout: Layout) -> Fragment:
        # In front of the teams all warps read what the first of them asks for; the others read it themselves.
        key = layout, None if self.em.team.first == 0 else self.em.team
        if key not in self._built:
            with ir.InsertionPoint(self.marker) if key[1] is None else self.place():
                self._built[key] = self.build(layout)
        return self._built[key]

    def place(self) -> ir.InsertionPoint:
        """Where the team that works finds the value: where it is defined, or where the team begins."""
        begins = self.em.team.begins
        return ir.InsertionPoint(self.marker if self.em.team is self.team or begins is None else begins)

    def keep(self, key: tuple, build: Callable[[], Any]) -> Any:
        """What a product makes of the tile where that is defined, once for each team: its copy in shared memory, or an
        operand's registers."""
        full = self.em.team, key
        if full not in self._kept:
            with self.place():
                self._kept[full] = build()
        return self._kept[full]

    def outside_loop(self) -> bool:
        """Whether the value is defined outside of the region that is being built."""
        return self.marker.parent != ir.InsertionPoint.current.block.owner

    def build(self, layout: Layout) -> Fragment:
        raise NotImplementedError  # every subclass overrides it


class Load(Marked):
    """A slice of global memory (or of a staged shared memory buffer)."""

    def __init__(self, em, element, shape, sizes, view):
        super().__init__(em, element, shape, sizes)
        self.view = view

    def build(self, layout: Layout) -> Fragment:
        return load(self.em, self.view, self.element, self.shape, self.sizes, layout)


class Reshaped(Marked):
    """A tile with dimensions merged or split: `groups[i]` lists the wide side's dimensions that make up the narrow
    side's dimension i; `expand` tells whether the result is the wide side."""

    def __init__(self, em, source: Tile, shape, sizes, groups: list[list[int]], expand: bool):
        super().__init__(em, source.element, shape, sizes)
        self.source, self.groups, self.expand = source, groups, expand

    def natural(self) -> Layout | None:
        inner = self.source.natural()
        return None if inner is None else self._forward(inner.plain)

    def _forward(self, layout: Layout) -> Layout | None:
        if not self.expand:
            return _collapse(layout, self.groups, self.source.shape)
        return _expand(layout, self.groups, self.shape)

    def _backward(self, layout: Layout) -> Layout | None:
        if self.expand:
            return _collapse(layout, self.groups, self.shape)
        return _expand(layout, self.groups, self.source.shape)

    def build(self, layout: Layout) -> Fragment:
        if layout.xors:
            return self.get(layout.plain).get(layout)
        inner = self._backward(layout)
        if inner is None:
            natural = self.natural()
            if natural is None:
                raise Unsupported(f"reshape of a tile {self.source.shape} to {self.shape} has no register layout")
            frag = self.source.get(self.source.natural().plain)  # type: ignore[union-attr]
            moved = Fragment(self.em, self.element, self.shape, self.sizes, natural, frag.pieces, frag.piece)
            return moved.with_piece(natural.piece).get(layout)
        frag = self.source.get(inner)
        out = Fragment(self.em, self.element, self.shape, self.sizes, layout, frag.pieces, frag.piece)
        return out.with_piece(layout.piece)


def _collapse(layout: Layout, groups: list[list[int]], shape: list[int]) -> Layout | None:
    """Merges dimensions; None where an inner one is padded, so that elements would not be numbered consecutively."""
    dims = []
    for group in groups:
        real = [d for d in group if shape[d] != 1] or group[-1:]
        if any(layout.shape[d] != shape[d] for d in real[1:]):
            return None
        dims.append(tuple(f for d in real for f in layout.dims[d]))
    return Layout.of(*dims)


def _expand(layout: Layout, groups: list[list[int]], shape: list[int]) -> Layout | None:
    """Splits dimensions at factor boundaries (splitting a factor where it divides)."""
    dims: list[tuple] = [()] * sum(len(g) for g in groups)
    for i, group in enumerate(groups):
        factors = list(layout.dims[i])
        real = [d for d in group if shape[d] != 1]
        for d in reversed(real[1:]):
            want, taken = shape[d], []
            while want > 1:
                if not factors:
                    return None
                f = factors.pop()
                if want % f.size == 0:
                    taken.append(f)
                    want //= f.size
                elif f.size % want == 0:
                    taken.append(f.part(want))
                    factors.append(f.rest(want))
                    want = 1
                else:
                    return None
            dims[d] = tuple(reversed(taken))
        if real:
            dims[real[0]] = tuple(factors)
        elif factors:
            dims[group[0]] = tuple(factors)
    return Layout.of(*dims)


def elementwise_op(name: str, results: list[ir.Type], operands: list[ir.Value], attributes: dict) -> list[ir.Value]:
    """Creates an op of the given name; used to replay a linalg body on pieces."""
    return list(ir.Operation.create(name, results=results, operands=operands, attributes=attributes).results)
