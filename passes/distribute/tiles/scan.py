"""Scans of a tile: in registers, then across lanes by shuffles (Hillis and Steele, 1986), then across warps through
shared memory. The order is fixed by the layout, so results are the same from run to run.

A thread scans its neighbours one after the other. Then each group of neighbours has what is before it: of the lanes
below by shuffles, of the thread's groups before it by one combination each, of the warps before it from shared memory,
and of what the block walked along before from the carry. So an element takes two combinations, whatever the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlirc.ir.scans import Scan, combine, neutral_of
from mlirc.mlir import arith, ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layouts.registers import Factor, Layout, reg
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.tiles.values import Fragment, Tile, load

Values = list[ir.Value]  # one of each tensor that is scanned
Operand = tuple[Tile, list[int | None]]


def walked(dims: tuple[tuple[Factor, ...], ...], dim: int) -> Layout:
    """A layout in which every warp has one piece of the dimension along which a scan walks."""
    factors = dims[dim]
    own = tuple(f for f in factors if f.kind == "w") + tuple(f for f in factors if f.kind != "w")
    return Layout.of(*(own if d == dim else factors for d, factors in enumerate(dims)))


def in_registers(dims: tuple[tuple[Factor, ...], ...], dim: int, extent: int) -> Layout:
    """A layout of the other dimensions with one more, of which each thread has all."""
    return Layout.of(*dims[:dim], (reg(extent),), *dims[dim:])


class Chained(Protocol):
    """Blocks that take a tile each of one row (`program/chain.py`)."""

    def prefix(self, total: Values, start: Values, combine: Callable[[Values, Values], Values]) -> Values:
        """What is before the block's tile, from what that has in all and what the row starts from."""


@dataclass
class _Line:
    """Registers of a thread along the scan's dimension, with the same place along the others: groups of neighbours."""

    groups: list[list[int]]
    start: Values  # what the block's first element follows
    local: list[list[Values]] = field(default_factory=list)  # of each group's elements, scanned by the thread
    below: list[Values] = field(default_factory=list)  # of each group, what the lanes below have; not of the first lane
    before: list[Values] = field(default_factory=list)  # of each group and of the end, what the warp has before it

    @property
    def total(self) -> Values:
        return self.before[-1]


class TileScan:
    """One scan of a tile in a layout. `outer` gives what its body captures; `chain` what is before the tile, where
    another block has that."""

    def __init__(
        self, em: Emitter, op: ir.Operation, layout: Layout, outer: Callable[[ir.Value], ir.Value],
        chain: Chained | None = None,
    ) -> None:  # fmt: skip
        self.chain = chain
        self.em, self.op, self.layout, self.outer = em, op, layout, outer
        self.about = Scan.of(op)
        self.dim, self.reverse = self.about.dim, self.about.reverse
        factors = list(layout.dims[self.dim])
        self.inner = 1
        while factors and factors[-1].kind == "r":
            self.inner *= factors.pop().size
        self.lanes = factors.pop() if factors and factors[-1].kind == "l" else None
        while factors and factors[-1].kind == "r":
            factors.pop()
        self.warps = factors.pop() if factors and factors[-1].kind == "w" else None
        if factors or layout.xors:
            raise Unsupported(f"a scan along dimension {self.dim} of the layout {layout}")

    def run(
        self, inputs: Sequence[Operand], starts: Sequence[Operand], shape: list[int], sizes: list[IndexValue]
    ) -> tuple[list[Fragment], list[Fragment]]:
        """The results, in the layout, and the carries of the end, in its projection. These count only where the tile
        ends with the layout, or where each thread has the whole dimension."""
        self.sizes = sizes
        carried = [self.layout.project(dims) for _, dims in starts]
        begin = [tile.get(layout) for (tile, _), layout in zip(starts, carried, strict=True)]
        lines = self._lines(begin, [dims for _, dims in starts])
        values = [tile.get(self.layout.project(dims)) for tile, dims in inputs]
        read = self._reader(list(zip(values, [dims for _, dims in inputs], strict=True)))
        if self.chain is not None:
            self._check_chain(len(lines), shape)
        if self.lanes is None and self.warps is None:
            serial = self._recur if self.about.linear else self._serial
            ends = [serial(line, read) for line in lines]
            scanned = {r: v for line in lines for r, v in zip(line.groups[0], line.local[0], strict=True)}
        else:
            for line in lines:
                self._scan_warp(line, read)
            ends = self._across_warps(lines, begin)
            scanned = {}
            for line in lines:
                self._finish(line, scanned)
        results = [self._fragment(i, b.element, shape, scanned) for i, b in enumerate(begin)]
        return results, [_carry(b, layout, i, ends) for i, (b, layout) in enumerate(zip(begin, carried, strict=True))]

    def _check_chain(self, lines: int, shape: list[int]) -> None:
        """Whether blocks may hand on what they have of one row each, which ends with the layout."""
        if lines != 1 or self.lanes is None or self.lanes.size != 32 or self.layout.shape[self.dim] != shape[self.dim]:
            raise Unsupported(
                f"mlirc.chain: steps of {shape[self.dim]} elements are no whole warps of one row", self.op
            )

    def _combine(self, left: Values, right: Values) -> Values:
        return combine(self.op, left, right, self.outer)

    def _select(self, condition: bool | ir.Value, a: Values, b: Values) -> Values:
        if isinstance(condition, bool):
            return a if condition else b
        return [arith.SelectOp(condition, x, y).result for x, y in zip(a, b, strict=True)]

    def _digit(self, number: IndexValue, factor: Factor) -> IndexValue:
        """Which one in the scan's order a lane or warp is."""
        digit = self.em.rem(self.em.div(number, factor.stride), factor.size)
        return self.em.sub(factor.size - 1, digit) if self.reverse else digit

    def _reader(self, operands: Sequence[tuple[Fragment, list[int | None]]]) -> Callable[[int], Values]:
        """What gives the inputs' elements at a register: in reverse, outside of the tile, what changes nothing."""
        em, layout, size = self.em, self.layout, self.sizes[self.dim]
        read = _reader(layout, operands)
        if not self.reverse or isinstance(size, int) and size >= layout.shape[self.dim]:
            return read
        nothing = neutral_of(self.op)
        assert nothing is not None

        def masked(register: int) -> Values:
            inside = em.less(em.team.coordinate(layout, self.dim, register), size)
            return self._select(inside, read(register), [em.constant(nothing)])

        return masked

    def _lines(self, begin: Sequence[Fragment], dims: Sequence[list[int | None]]) -> list[_Line]:
        """The lines in the order of the registers of what they start from."""
        of: dict[tuple[int, ...], list[int]] = {}
        for r, row in enumerate(self.layout.reg_offsets):
            of.setdefault(tuple(int(x) for d, x in enumerate(row) if d != self.dim), []).append(r)
        read = _reader(self.layout, list(zip(begin, dims, strict=True)))
        lines = []
        for registers in of.values():
            registers.sort(key=lambda r: int(self.layout.reg_offsets[r, self.dim]), reverse=self.reverse)
            groups = [registers[i : i + self.inner] for i in range(0, len(registers), self.inner)]
            lines.append(_Line(groups, read(registers[0])))
        return lines

    def _serial(self, line: _Line, read: Callable[[int], Values]) -> Values:
        """All of a dimension that one thread has, scanned from its own first element, and then what the carry makes of
        that: sums of parts are more exact. What is outside of the tile leaves the carry as it is."""
        size, end = self.sizes[self.dim], line.start
        scanned: list[Values] = []
        for r in line.groups[0]:
            scanned.append(self._combine(scanned[-1], read(r)) if scanned else read(r))
        line.local = [[self._combine(line.start, local) for local in scanned]]
        if self.reverse:  # which begins with what is outside
            return line.local[0][-1]
        for r, new in zip(line.groups[0], line.local[0], strict=True):
            end = self._select(self.em.less(int(self.layout.reg_offsets[r, self.dim]), size), new, end)
        return end

    def _recur(self, line: _Line, read: Callable[[int], Values]) -> Values:
        """All of a dimension that one thread has of a linear recurrence, step by step: one product and one sum each."""
        carry, size, scanned = line.start, self.sizes[self.dim], []
        for r in line.groups[0]:
            new = combine(self.op, carry, read(r), self.outer)
            scanned.append(new)
            carry = self._select(self.em.less(int(self.layout.reg_offsets[r, self.dim]), size), new, carry)
        line.local = [scanned]
        return carry

    def _scan_warp(self, line: _Line, read: Callable[[int], Values]) -> None:
        em = self.em
        before: Values | None = None
        for group in line.groups:
            scanned: list[Values] = []
            for r in group:
                scanned.append(self._combine(scanned[-1], read(r)) if scanned else read(r))
            line.local.append(scanned)
            total = scanned[-1]
            if self.lanes is not None:
                digit, stride, size = self._digit(em.lane, self.lanes), self.lanes.stride, self.lanes.size
                shuffle = em.shuffle_down if self.reverse else em.shuffle_up
                step = 1
                while step < size:
                    up = [shuffle(x, step * stride) for x in total]
                    total = self._select(em.less(digit, step), total, self._combine(up, total))
                    step *= 2
                line.below.append([shuffle(x, stride) for x in total])
                to_last = em.mul(em.sub(size - 1, digit), stride)
                last = em.sub(em.lane, to_last) if self.reverse else em.add(em.lane, to_last)
                total = [em.shuffle_from(x, last) for x in total]
            before = total if before is None else self._combine(before, total)
            line.before.append(before)

    def _across_warps(self, lines: list[_Line], begin: Sequence[Fragment]) -> list[Values]:
        """Gives every line what it starts from in its warp; returns what all have at the end."""
        if self.chain is not None:
            return [self._chained(lines, begin)]
        if self.warps is None:
            return [self._combine(line.start, line.total) for line in lines]
        em, warps = self.em, self.warps
        buffers = [self._leave(b, i, lines) for i, b in enumerate(begin)]
        em.team.meet()
        mine = self._digit(em.team.warp, warps)
        running = [line.start for line in lines]
        for w in range(warps.size):
            number = warps.size - 1 - w if self.reverse else w
            parts = [self._left(b, buffer, number) for b, buffer in zip(begin, buffers, strict=True)]
            for i, line in enumerate(lines):
                line.start = running[i] if w == 0 else self._select(em.equal(mine, w), running[i], line.start)
                running[i] = self._combine(running[i], [part.scalar(i) for part in parts])
        return running

    def _chained(self, lines: list[_Line], begin: Sequence[Fragment]) -> Values:
        """Gives the line what it starts from: what the warps before it have in all, behind what other blocks do."""
        assert self.chain is not None
        em, (line,) = self.em, lines
        total = before = line.total
        if self.warps is not None:
            buffers = [self._leave(b, i, lines) for i, b in enumerate(begin)]
            em.team.meet()
            mine = self._digit(em.team.warp, self.warps)
            for w in range(self.warps.size):
                number = self.warps.size - 1 - w if self.reverse else w
                part = [self._left(b, buffer, number).scalar(0) for b, buffer in zip(begin, buffers, strict=True)]
                before = self._select(em.equal(mine, w), total, before) if w else part
                total = self._combine(total, part) if w else part
        start = self.chain.prefix(total, line.start, self._combine)
        line.start = start
        if self.warps is not None:
            line.start = self._select(em.equal(mine, 0), start, self._combine(start, before))
        return start

    def _leave(self, begin: Fragment, number: int, lines: list[_Line]) -> ir.Value:
        """Shared memory to which each warp writes what it has in all."""
        assert self.warps is not None
        em, layout = self.em, Layout(((self.warps,), *begin.layout.dims))
        shape = list(layout.shape)
        buffer = em.alloc_smem(shape, access.storage_type(begin.element))
        if number == 0:
            em.meet_before_writing(buffer)
        pieces = [line.total[number] for line in lines]
        each = Fragment(em, begin.element, shape, shape, layout, pieces, 1).with_piece(layout.piece)
        access.store(em, each, access.View(buffer, [0] * len(shape), list(range(len(shape)))), whole=True)
        return buffer

    def _left(self, begin: Fragment, buffer: ir.Value, warp: int) -> Fragment:
        rank = begin.layout.rank
        view = access.View(buffer, [warp, *[0] * rank], list(range(1, rank + 1)))
        return load(self.em, view, begin.element, begin.shape, begin.sizes, begin.layout, whole=True)

    def _finish(self, line: _Line, scanned: dict[int, Values]) -> None:
        em = self.em
        for g, group in enumerate(line.groups):
            start = line.start if g == 0 else self._combine(line.start, line.before[g - 1])
            if self.lanes is not None:
                digit = self._digit(em.lane, self.lanes)
                start = self._select(em.equal(digit, 0), start, self._combine(start, line.below[g]))
            for r, local in zip(group, line.local[g], strict=True):
                scanned[r] = self._combine(start, local)

    def _fragment(self, number: int, element: ir.Type, shape: list[int], scanned: dict[int, Values]) -> Fragment:
        em, p = self.em, self.layout.piece
        values = [scanned[r][number] for r in range(self.layout.num_regs)]
        pieces = [em.pack(values[i : i + p]) for i in range(0, len(values), p)]
        return Fragment(em, element, shape, self.sizes, self.layout, pieces, p)


def _reader(layout: Layout, operands: Sequence[tuple[Fragment, list[int | None]]]) -> Callable[[int], Values]:
    """What gives the operands' elements at a register of a layout of which theirs are projections."""
    tables = [(frag, dims, frag.layout.registers) for frag, dims in operands]

    def read(register: int) -> Values:
        row = layout.reg_offsets[register]
        return [f.scalar(table[tuple(0 if d is None else int(row[d]) for d in dims)]) for f, dims, table in tables]

    return read


def _carry(begin: Fragment, layout: Layout, number: int, ends: list[Values]) -> Fragment:
    em, p = begin.em, layout.piece
    values = [end[number] for end in ends]
    pieces = [em.pack(values[i : i + p]) for i in range(0, len(values), p)]
    return Fragment(em, begin.element, begin.shape, begin.sizes, layout, pieces, p)
