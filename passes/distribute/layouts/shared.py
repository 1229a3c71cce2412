"""Tiles in shared memory: a map from coordinates to bytes, of which all that reads and writes them is derived.

Rows are the tile's last dimension. Chunks of 16 bytes are permuted within each row, over `swizzle` bytes of it, by the
row's number: the swizzling modes of tensor copies and of wgmma (PTX ISA, "Swizzling Modes"), which CUTLASS writes
Swizzle<B, 4, 3> of bytes. The atom is eight rows of so many bytes. A row that is wider than an atom lies in panels, one
after the other, each with all rows, where products ask for that. Slots, the stages of the copies, follow each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from mlirc.passes.distribute.layouts.maps import Map, Row
from mlirc.passes.distribute.layouts.registers import pow2_ceil, pow2_divisor

CHUNK = 16  # bytes of the widest access, which swizzling leaves whole
LINE = 128  # bytes of all banks, and of the widest swizzle
ATOM_ROWS = 8
MODES = {0: 0, 128: 1, 64: 2, 32: 3}  # of a matrix descriptor, by the bytes of a row that are swizzled


@dataclass(frozen=True)
class Descriptor:
    """What wgmma is told of an operand, but for its address (PTX ISA, "Matrix Descriptor"): bytes from one panel to the
    next, where rows run along m or n (`leading`), bytes from one group of eight rows to the next (`stride`), and the
    swizzling mode. An atom begins at a multiple of its size: the base offset is 0."""

    leading: int
    stride: int
    mode: int

    @property
    def bits(self) -> int:
        """The descriptor, less its address."""
        return self.mode << 62 | self.stride >> 4 << 32 | self.leading >> 4 << 16


@dataclass(frozen=True)
class SharedLayout:
    """`extents` of the tile, as memory covers it; `size`: bytes of an element; `swizzle`: bytes of a row; `panel`:
    elements of a panel's row (0: rows are whole); `stages`: slots; `alike`: how many times more rows that follow each
    other are permuted alike than in those modes, so that columns are read without bank conflicts by threads that have
    so many of their elements each."""

    extents: tuple[int, ...]
    size: int
    swizzle: int = 0
    panel: int = 0
    stages: int = 1
    alike: int = 1

    @staticmethod
    def of_tile(extents: list[int], size: int, panels: bool, stages: int = 1) -> SharedLayout:
        """A tile that threads write: in panels of 128 bytes, or in rows, swizzled over as many chunks as they are
        multiples of."""
        if panels:
            return SharedLayout(tuple(extents), size, LINE, LINE // size, stages)
        row, swizzle = extents[-1] * size if extents else 0, 0
        # Rows are permuted only where the last two dimensions are the tile's real ones.
        if len(extents) >= 2 and all(n == 1 for n in extents[:-2]) and row % CHUNK == 0:
            swizzle = min(LINE, CHUNK * pow2_divisor(row // CHUNK))
        return SharedLayout(tuple(extents), size, swizzle if swizzle > CHUNK else 0, 0, stages)

    # -- extents

    @property
    def width(self) -> int:
        """Elements of a row, or of a panel's."""
        return self.panel or self.extents[-1]

    @property
    def rows(self) -> int:
        return self.extents[-2]

    @property
    def panels(self) -> int:
        """How many panels a row lies in."""
        return -(-self.extents[-1] // self.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, or of a panel's."""
        return self.width * self.size

    @property
    def panel_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def slot_bytes(self) -> int:
        return math.prod(self.memory_shape[1:]) * self.size

    @property
    def memory_shape(self) -> list[int]:
        """The extents of the buffer as a memref: slots, leading dimensions, panels if there are, rows, columns."""
        if not self.panel:
            return [self.stages, *self.extents]
        return [self.stages, *self.extents[:-2], self.panels, self.rows, self.width]

    def with_stages(self, stages: int) -> SharedLayout:
        return replace(self, stages=stages)

    # -- the permutation of chunks

    @property
    def memory_dims(self) -> list[int]:
        """The memref's dimension of each of the tile's: columns are within their panel."""
        rank = len(self.memory_shape)
        return [d for d in range(1, rank) if not (self.panel and d == rank - 3)]

    @property
    def chunks(self) -> int:
        """Over how many chunks a row is permuted (1: none)."""
        return max(self.swizzle // CHUNK, 1)

    @property
    def rows_per_line(self) -> int:
        """Rows that have all banks together, and are permuted alike (with `alike`, so many times those)."""
        return max(LINE // CHUNK // self.chunks, 1) * self.alike

    @property
    def per_chunk(self) -> int:
        """Elements of a chunk."""
        return CHUNK // self.size

    @property
    def atom(self) -> tuple[int, int]:
        """Rows and bytes after which the permutation repeats."""
        return (ATOM_ROWS, self.swizzle) if self.swizzle else (1, CHUNK)

    # -- the map

    @cached_property
    def plain(self) -> Map:
        """From the coordinates d0, d1, ... and the slot to bytes, before chunks are permuted: what descriptors and
        tensor copies count in."""
        last, out = len(self.extents) - 1, []
        weight = self.size

        def add(axis: str, stride: int, extent: int) -> None:
            nonlocal weight
            out.append(Row("byte", weight, extent, frozenset({(axis, stride)})))
            weight *= extent

        add(f"d{last}", 1, self.width)
        if last:
            add(f"d{last - 1}", 1, self.rows)
        add(f"d{last}", self.width, self.panels)
        for d in reversed(range(last - 1)):
            add(f"d{d}", 1, self.extents[d])
        add("slot", 1, self.stages)
        return Map.of(out)

    @cached_property
    def map(self) -> Map:
        """From the coordinates d0, d1, ... and the slot to bytes."""
        phases = min(self.chunks, pow2_ceil(self.rows) // self.rows_per_line) if self.swizzle else 1
        if phases <= 1:
            return self.plain
        return self.plain.with_xor("byte", CHUNK, phases, (f"d{len(self.extents) - 2}", self.rows_per_line))

    def offset(self, row: int, column: int) -> int:
        """Bytes from the slot's beginning to an element, as descriptors count them: `plain`, and on beyond the tile,
        where a warpgroup's last rows may lie."""
        panel, inside = divmod(column, self.width)
        return panel * self.panel_bytes + row * self.row_bytes + inside * self.size

    # -- what instructions are told

    def descriptor(self, k_last: bool) -> Descriptor:
        """Of an operand whose rows run along k (`k_last`), or along m or n, in panels."""
        mode = MODES[self.swizzle]
        leading = CHUNK if k_last else self.offset(0, self.width)  # along k it is not used
        return Descriptor(leading, self.offset(ATOM_ROWS, 0), mode)

    def box(self, parts: int = 1) -> tuple[int, int]:
        """Rows and columns of one tensor copy, where a tile's rows are cut into parts."""
        return self.rows // parts, self.width

    def __str__(self) -> str:
        """As `mlirc -vv` prints it: slots, panels, extents, and how rows are permuted."""
        return self.slots + f", rows swizzled over {self.swizzle} bytes" * bool(self.swizzle)

    @property
    def slots(self) -> str:
        """Slots, panels and extents, in words."""
        panels, shape = self.panels if self.panel else 1, f"{self.rows}x{self.width}"
        if panels > 1:
            shape = f"{panels} panels of {shape}"
        return f"{self.stages} slot{'s' * (self.stages > 1)} of {shape}"
