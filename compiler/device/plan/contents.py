"""What bytes hold, symbolically: no numbers, but which launch's result (or which tensor of the model's boundary) they
are a part of.

A value is a number that stands for all bytes that one launch made of one buffer, or for one boundary tensor; equal
launches of equal contents make the same value. A content is what a range of bytes holds: parts of values, one behind
the other, in the one form that has the fewest parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable

Part = tuple[int, int, int]  # value, offset in it, size; both in bytes
Content = tuple[Part, ...]
NOTHING = 0  # the value of bytes that nobody wrote: all are alike, wherever they are


class Values:
    """Numbers for values, by what they are."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._names = ["bytes that no step wrote"]

    def number(self, key: Hashable, name: str) -> int:
        """The number of the value that `key` tells from all others; `name` is for people."""
        if key not in self._numbers:
            self._numbers[key] = len(self._names)
            self._names.append(name)
        return self._numbers[key]

    def name(self, content: Content, size: int | None = None) -> str:
        """What a content is, in words; `size` is the whole value's size, where a part of it is to be told as one."""
        if not content:
            return "nothing"
        value, offset, length = max(content, key=lambda part: part[2])
        name = self._names[value]
        if len(content) > 1:
            others = len({v for v, _, _ in content}) - 1
            return f"parts of {name}" + (f" and of {others} other{'s' if others > 1 else ''}" if others else "")
        if value != NOTHING and (offset or size not in (None, length)):
            return f"bytes {offset} to {offset + length} of {name}"
        return name


def joined(parts: Iterable[Part]) -> Content:
    """Parts one behind the other as a content."""
    out: list[Part] = []
    for value, offset, size in parts:
        if not size:
            continue
        if value == NOTHING:
            offset = 0
        if out and out[-1][0] == value and (value == NOTHING or out[-1][1] + out[-1][2] == offset):
            out[-1] = (value, out[-1][1], out[-1][2] + size)
        else:
            out.append((value, offset, size))
    return tuple(out)


def whole(value: int, size: int) -> Content:
    """All bytes of a value."""
    return joined([(value, 0, size)])


def part(content: Content, start: int, size: int) -> Content:
    """The bytes of a content from `start` on."""
    out, at = [], 0
    for value, offset, length in content:
        first, last = max(start, at), min(start + size, at + length)
        if first < last:
            out.append((value, offset + first - at, last - first))
        at += length
    return joined(out)


class Memory:
    """A buffer's contents, which writes change: at first nothing."""

    def __init__(self, size: int):
        self.size = size
        self._starts, self._parts = ([0], [(NOTHING, 0, size)]) if size else ([], [])
        self._ends = [size] if size else []

    def read(self, start: int, size: int) -> Content:
        """What the bytes from `start` on hold; the range must lie in the buffer."""
        return joined(p for _, p in self._cut(start, size))

    def write(self, start: int, content: Content) -> None:
        """Puts a content at `start`."""
        size = sum(p[2] for p in content)
        if not size:
            return
        first, last = self._touched(start, size)
        before = self._cut(self._starts[first], start - self._starts[first])
        end = self._ends[last - 1]
        after = self._cut(start + size, end - start - size)
        new, at = [], start
        for piece in content:
            new.append((at, piece))
            at += piece[2]
        pieces = [*before, *new, *after]
        self._starts[first:last] = [s for s, _ in pieces]
        self._ends[first:last] = [s + p[2] for s, p in pieces]
        self._parts[first:last] = [p for _, p in pieces]

    def _touched(self, start: int, size: int) -> tuple[int, int]:
        return bisect_right(self._ends, start), bisect_left(self._starts, start + size)

    def _cut(self, start: int, size: int) -> list[tuple[int, Part]]:
        """The parts of a range, each with where it starts."""
        out: list[tuple[int, Part]] = []
        if size <= 0:
            return out
        for i in range(*self._touched(start, size)):
            value, offset, length = self._parts[i]
            first, last = max(start, self._starts[i]), min(start + size, self._ends[i])
            out.append((first, (value, offset + first - self._starts[i], last - first)))
        return out
