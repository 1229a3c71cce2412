"""Maps from numbers on some axes (a register's, a lane's, a warp's) to numbers on others (a row, a column, a byte).

A number is a sum of digits, each a multiple of its weight. A digit of the result is one digit of an input, or the XOR
of several of the same size. Where all sizes are powers of two that is a matrix over GF(2), a row for each bit of the
result: Triton's linear layouts (arXiv 2505.23819). Extents here may be 7 warps or 3 registers, too: such a digit is
one of an input, as in CuTe's layouts, never a XOR. Digits are cut where another map needs it: 12 is 3 x 4 or 4 x 3."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

Source: TypeAlias = tuple[str, int]  # an input axis and the stride of a digit there: (number / stride) mod size


class NotAligned(ValueError):
    """Digits of two maps that neither contain each other nor lie apart; or a map that has no inverse."""


@dataclass(frozen=True)
class Row:
    """One digit of a result: `size` multiples of `weight` on an axis, the XOR of the sources' digits of that size."""

    axis: str
    weight: int
    size: int
    sources: frozenset[Source]

    def cut(self, at: int) -> tuple[Row, Row]:
        """The digit as two, minor and major: of size `at`, and of what is left."""
        if at < 1 or self.size % at or len(self.sources) > 1 and (at & (at - 1) or self.size & (self.size - 1)):
            raise NotAligned(f"a digit of {self.size} is not cut at {at}")
        return replace(self, size=at), Row(
            self.axis, self.weight * at, self.size // at, frozenset((a, s * at) for a, s in self.sources)
        )


@dataclass(frozen=True)
class Map:
    """Rows in the order of axes and weights; no two overlap."""

    rows: tuple[Row, ...]

    @staticmethod
    def of(rows: Iterable[Row]) -> Map:
        """Orders rows and joins those that continue each other, so that equal maps compare equal."""
        out: list[Row] = []
        for row in sorted((r for r in rows if r.size > 1 and r.sources), key=lambda r: (r.axis, r.weight)):
            last = out[-1] if out else None
            if last is not None and last.axis == row.axis and row.weight < last.weight * last.size:
                raise NotAligned(f"two digits on {row.axis} overlap at {row.weight}")
            if last is not None and _continues(last, row):
                out[-1] = replace(last, size=last.size * row.size)
            else:
                out.append(row)
        return Map(tuple(out))

    @cached_property
    def extents(self) -> dict[str, int]:
        """Of each axis of the result, one more than the largest number."""
        out: dict[str, int] = {}
        for r in self.rows:
            out[r.axis] = out.get(r.axis, 1) + (r.size - 1) * r.weight
        return out

    def __call__(self, **numbers: int | np.ndarray) -> dict[str, np.ndarray]:
        """The result's numbers, by axis; inputs broadcast, and those that are not given are 0."""
        shape = np.broadcast_shapes(*(np.shape(n) for n in numbers.values()))
        out = {axis: np.zeros(shape, np.int64) for axis in self.extents}
        for row in self.rows:
            digit = np.zeros(shape, np.int64)
            for axis, stride in row.sources:
                digit = digit ^ (np.asarray(numbers.get(axis, 0)) // stride % row.size)
            out[row.axis] = out[row.axis] + digit * row.weight
        return out

    def with_xor(self, axis: str, weight: int, size: int, source: Source) -> Map:
        """This map with the digit at a weight of the result XORed with one of an input; size is a power of two."""
        if size & (size - 1):
            raise NotAligned(f"a XOR takes digits of powers of two, not {size}")
        rows = _cut(list(self.rows), [(axis, weight), (axis, weight * size)])
        out, met = [], 1
        for row in rows:
            inside = row.axis == axis and weight <= row.weight < weight * size
            if inside:
                step = row.weight // weight
                row = replace(row, sources=row.sources ^ {(source[0], source[1] * step)})
                met *= row.size
                if not row.sources:
                    raise NotAligned(f"a digit of {axis} that is XORed with itself")
            out.append(row)
        if met != size:
            raise NotAligned(f"no digits of {size} at {weight} on {axis} to be XORed")
        return Map.of(_bits_of_xors(out))

    def then(self, after: Map) -> Map:
        """The composition: first this map, then the other one, on the axes that have the same names. Digits that this
        map never sets are 0 for the other one. Raises NotAligned where this map's numbers exceed the other's, or its
        digits are other ones."""
        before, later, cuts = list(self.rows), list(after.rows), -1
        while len(before) + len(later) != cuts:  # a cut on one axis may need others elsewhere
            cuts = len(before) + len(later)
            places = [(a, x) for r in later for a, s in r.sources for x in (s, s * r.size)]
            ends = {a: max(x for axis, x in places if axis == a) for a, _ in places}
            before = _cut(before, [(a, x) for a, x in places if x < ends[a]])
            later = _cut_sources(later, before)
        at = {(r.axis, r.weight): r for r in before}
        out = []
        for row in later:
            found = [at[s] for s in row.sources if s in at]
            if not found:
                continue
            sizes = {r.size for r in found}
            if len(sizes) > 1 or max(sizes) > row.size:
                raise NotAligned(f"digits of {sorted(sizes)} for one of {row.size} on {row.axis}")
            sources: frozenset[Source] = frozenset()
            for r in found:
                sources = sources ^ r.sources
            out.append(Row(row.axis, row.weight, sizes.pop(), sources))
        return Map.of(out)

    def inverse(self) -> Map:
        """A map that undoes this one: `inverse().then(self)` is the identity on this map's results. Where several
        inputs have one result, it gives the one whose free digits (`free`) are 0: of warps and lanes rather than of
        registers. Raises NotAligned where the results do not take all values of their digits."""
        solved, _ = self._solved
        return Map.of(solved)

    @cached_property
    def free(self) -> frozenset[Source]:
        """Bits of inputs on which results depend, but whose value may be chosen, since others make up for it."""
        return self._solved[1]

    @cached_property
    def _solved(self) -> tuple[list[Row], frozenset[Source]]:
        rows = _bits_of_xors(_apart(list(self.rows)))
        used: dict[Source, int] = {}
        for row in rows:
            for source in row.sources:
                used[source] = used.get(source, 0) + 1
        plain = [r for r in rows if len(r.sources) == 1 and used[next(iter(r.sources))] == 1]
        out = []
        for r in plain:
            ((axis, stride),) = r.sources
            out.append(Row(axis, stride, r.size, frozenset({(r.axis, r.weight)})))
        linear = [r for r in rows if r not in plain]
        if any(r.size != 2 for r in linear):
            raise NotAligned("two results depend on one digit that is no bit")
        system = [(set(r.sources), {(r.axis, r.weight)}) for r in linear]
        free = {s for sources, _ in system for s in sources}
        pivots: list[tuple[Source, set[Source], set[Source]]] = []
        for left, right in system:
            for pivot, sources, results in pivots:
                if pivot in left:
                    left, right = left ^ sources, right ^ results
            if not left:
                raise NotAligned("results that are not independent of each other")
            pivot = min(left, key=lambda s: ("rlw".find(s[0]), s))  # threads have copies rather than registers
            pivots = [(p, s ^ left, r ^ right) if pivot in s else (p, s, r) for p, s, r in pivots]
            pivots.append((pivot, left, right))
            free.discard(pivot)
        out += [Row(p[0], p[1], 2, frozenset(results)) for p, _, results in pivots]
        return out, frozenset(free)


def identity(extents: Mapping[str, int]) -> Map:
    """The map that gives back the numbers of some axes."""
    return Map.of(Row(axis, 1, n, frozenset({(axis, 1)})) for axis, n in extents.items())


def _continues(minor: Row, major: Row) -> bool:
    """Whether two digits of an axis are one."""
    if minor.axis != major.axis or minor.weight * minor.size != major.weight:
        return False
    if len(minor.sources) > 1 and (minor.size & (minor.size - 1) or major.size & (major.size - 1)):
        return False
    return frozenset((a, s * minor.size) for a, s in minor.sources) == major.sources


def _cut(rows: list[Row], starts: Iterable[Source]) -> list[Row]:
    """Rows whose results are cut where digits start."""
    cuts: dict[str, set[int]] = {}
    for axis, start in starts:
        cuts.setdefault(axis, set()).add(start)
    out: list[Row] = []
    for row in rows:
        for start in sorted(cuts.get(row.axis, ())):
            if row.weight < start < row.weight * row.size:
                if start % row.weight:
                    raise NotAligned(f"a digit starts at {start} on {row.axis}, inside of one at {row.weight}")
                minor, row = row.cut(start // row.weight)
                out.append(minor)
        out.append(row)
    return out


def _cut_sources(rows: list[Row], known: list[Row]) -> list[Row]:
    """Rows that are cut so that each of their sources is one of the known digits, or covers the axis' last one, or
    nothing."""
    starts: dict[str, set[int]] = {}
    ends: dict[str, int] = {}
    for k in known:
        starts.setdefault(k.axis, set()).update((k.weight, k.weight * k.size))
        ends[k.axis] = max(ends.get(k.axis, 0), k.weight * k.size)
    out, todo = [], list(rows)
    while todo:
        row = todo.pop()
        inside = [
            (start, stride)
            for axis, stride in sorted(row.sources)
            for start in sorted(starts.get(axis, ()))
            # A last digit may be shorter than what it is taken for, unless it is XORed with others.
            if stride < start < stride * row.size and (start < ends[axis] or len(row.sources) > 1)
        ]
        if not inside:
            out.append(row)
            continue
        start, stride = inside[0]
        if start % stride:
            raise NotAligned(f"a digit starts at {start}, inside of one at {stride}")
        todo += row.cut(start // stride)
    return out


def _apart(rows: list[Row]) -> list[Row]:
    """Rows that are cut so that sources are the same digit or have nothing in common."""
    while True:
        digits = {(a, s, r.size) for r in rows for a, s in r.sources}
        cuts = {(a, x) for a, s, n in digits for x in (s, s * n)}
        out: list[Row] = []
        for row in rows:
            inside = sorted(
                x // s for a, s in row.sources for axis, x in cuts if axis == a and s < x < s * row.size and x % s == 0
            )
            wrong = any(axis == a and s < x < s * row.size and x % s for a, s in row.sources for axis, x in cuts)
            if wrong:
                raise NotAligned("two results depend on parts of one digit")
            out += row.cut(inside[0]) if inside else [row]
        if len(out) == len(rows):
            return out
        rows = out


def _bits_of_xors(rows: list[Row]) -> list[Row]:
    """Rows of which those that have several sources, or share one, are bits."""
    shared = [s for r in rows if len(r.sources) > 1 for s in r.sources]
    out: list[Row] = []
    for row in rows:
        ones = [x for x in shared if len(row.sources) > 1 or _overlaps(row, x)]
        while ones and row.size > 2 and row.size % 2 == 0:
            minor, row = row.cut(2)
            out.append(minor)
        out.append(row)
    return out


def _overlaps(row: Row, source: Source) -> bool:
    ((axis, stride),) = row.sources
    return axis == source[0] and stride <= source[1] < stride * row.size
