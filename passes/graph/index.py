"""Index expressions: linear forms over loop dimensions, with floor division and remainder, simplified by ranges.

An `Index` is `const + sum(coefficient * atom)`. Atoms are tuples:
    ("d", number, size)     a loop dimension, in [0, size)
    ("div", index, n)       floor(index / n), n > 0
    ("mod", index, n)       index - n * floor(index / n), n > 0
    ("clamp", index, n)     min(max(index, 0), n - 1)
    ("bound", index, n)     the same of an index that the model gives: a wrong model or input if it changes the index
    ("s", scalar)           a value computed in the kernel (data dependent), of unknown range
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

INFINITY = 1 << 62
Atom = tuple


class Index:
    """An immutable, hashable linear form. `terms` maps atoms to non-zero coefficients."""

    __slots__ = ("const", "terms", "_hash")

    def __init__(self, const: int = 0, terms: dict[Atom, int] | None = None) -> None:
        self.const = const
        self.terms = terms or {}
        self._hash = hash((const, frozenset(self.terms.items())))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Index) and self.const == other.const and self.terms == other.terms

    def __repr__(self) -> str:
        parts = [f"{c}*{_show(a)}" if c != 1 else _show(a) for a, c in self.terms.items()]
        return " + ".join(parts + ([str(self.const)] if self.const or not parts else []))

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.const + other, self.terms) if other else self
        terms = dict(self.terms)
        for atom, c in other.terms.items():
            total = terms.get(atom, 0) + c
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return _rejoin(Index(self.const + other.const, terms))

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        return Index(self.const * factor, {a: c * factor for a, c in self.terms.items()} if factor else {})

    def __sub__(self, other: Index | int) -> Index:
        return self + (other * -1)

    def range(self) -> tuple[int, int]:
        """Smallest and largest value; beyond +-INFINITY where unknown."""
        low = high = self.const
        for atom, c in self.terms.items():
            a, b = _atom_range(atom)
            low, high = (low + c * a, high + c * b) if c > 0 else (low + c * b, high + c * a)
        return low, high

    def within(self, size: int) -> bool:
        """Whether the value is known to lie in [0, size)."""
        low, high = self.range()
        return 0 <= low and high < size

    def floordiv(self, n: int) -> Index:
        """floor(self / n)."""
        if n == 1:
            return self
        whole, rest = self._split(n)
        low, high = rest.range()
        if low >= -INFINITY and high <= INFINITY and low // n == high // n:
            return whole + low // n
        if not rest.const and len(rest.terms) == 1:
            ((atom, c),) = rest.terms.items()
            if atom[0] == "div" and c == 1:  # floor(floor(x / a) / n) = floor(x / (a n))
                return whole + atom[1].floordiv(atom[2] * n)
        return whole + Index(0, {("div", rest, n): 1})

    def mod(self, n: int) -> Index:
        """self - n * floor(self / n)."""
        if n == 1:
            return Index()
        rest = self._split(n)[1]
        low, high = rest.range()
        if low >= -INFINITY and high <= INFINITY and low // n == high // n:
            return rest - (low // n) * n
        return Index(0, {("mod", rest, n): 1})

    def clamp(self, size: int) -> Index:
        """The nearest value in [0, size)."""
        return self if self.within(size) or size <= 0 else Index(0, {("clamp", self, size): 1})

    def bound(self, size: int) -> Index:
        """The nearest value in [0, size), of an index that has to be there."""
        return self if self.within(size) or size <= 0 else Index(0, {("bound", self, size): 1})

    def _split(self, n: int) -> tuple[Index, Index]:
        """(w, r) with self = n * w + r, r holding what n does not divide."""
        whole = {a: c // n for a, c in self.terms.items() if c % n == 0}
        rest = {a: c for a, c in self.terms.items() if c % n}
        return Index(self.const // n, whole), Index(self.const % n, rest)

    def atoms(self) -> Iterable[Atom]:
        """All atoms, those inside divisions and remainders included."""
        for atom in self.terms:
            yield atom
            if atom[0] in ("div", "mod", "clamp", "bound"):
                yield from atom[1].atoms()

    def substitute(self, values: dict[Atom, Index]) -> Index:
        """Replaces dimension atoms by indices."""
        total = Index(self.const)
        for atom, c in self.terms.items():
            if atom in values:
                part = values[atom]
            elif atom[0] == "div":
                part = atom[1].substitute(values).floordiv(atom[2])
            elif atom[0] == "mod":
                part = atom[1].substitute(values).mod(atom[2])
            elif atom[0] == "clamp":
                part = atom[1].substitute(values).clamp(atom[2])
            elif atom[0] == "bound":
                part = atom[1].substitute(values).bound(atom[2])
            else:
                part = Index(0, {atom: 1})
            total = total + part * c
        return total

    @property
    def given(self) -> bool:
        """Whether a bound is part of it, which must not be simplified away: a run on the CPU checks it."""
        return any(atom[0] == "bound" for atom in self.atoms())

    def is_linear(self) -> bool:
        """Whether only loop dimensions occur: no division, remainder or data-dependent part."""
        return all(a[0] == "d" for a in self.terms)


def _show(atom: Atom) -> str:
    if atom[0] == "d":
        return f"d{atom[1]}"
    return f"({atom[1]} {atom[0]} {atom[2]})" if len(atom) == 3 else f"s{id(atom[1]) % 1000}"


def _atom_range(atom: Atom) -> tuple[int, int]:
    kind = atom[0]
    if kind == "d":
        return 0, max(atom[2] - 1, 0)
    if kind in ("mod", "clamp", "bound"):
        return 0, atom[2] - 1
    if kind == "div":
        low, high = atom[1].range()
        return low // atom[2], high // atom[2]
    return -INFINITY * 2, INFINITY * 2


def _rejoin(index: Index) -> Index:
    """Puts n * floor(x / n) + (x mod n) together again, as x."""
    for atom, c in index.terms.items():
        if atom[0] == "mod":
            partner = ("div", atom[1], atom[2])
            if index.terms.get(partner) == c * atom[2]:
                rest = {a: k for a, k in index.terms.items() if a not in (atom, partner)}
                return Index(index.const, rest) + atom[1] * c
            # The remainder's quotient may have been simplified: 1 * (x mod n) + n * q with q = floor(x / n)
            quotient = atom[1].floordiv(atom[2])
            if quotient.terms and all(index.terms.get(a) == k * c * atom[2] for a, k in quotient.terms.items()):
                rest = {a: k for a, k in index.terms.items() if a != atom and a not in quotient.terms}
                return Index(index.const - quotient.const * c * atom[2], rest) + atom[1] * c
    return index


def dim(number: int, size: int) -> Index:
    """The loop dimension `number`; a dimension of size 1 is the constant 0."""
    return Index(0, {("d", number, size): 1}) if size != 1 else Index()


def linearize(indices: Sequence[Index], shape: Sequence[int]) -> Index:
    """The row-major offset of an element."""
    offset = Index()
    for index, size in zip(indices, shape, strict=True):
        offset = offset * size + index
    return offset


def delinearize(offset: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The indices of the element at a row-major offset of a tensor of this shape."""
    found: list[Index] = []
    for i, size in reversed([(i, max(n, 1)) for i, n in enumerate(shape)]):  # an empty tensor has no elements to find
        found.append(offset.mod(size) if i else offset)
        offset = offset.floordiv(size)
    return tuple(reversed(found))


def mirrored(index: Index) -> Index | None:
    """The loop of which an index counts down from the last iteration to 0; None for another index."""
    if len(index.terms) != 1:
        return None
    ((atom, factor),) = index.terms.items()
    return Index(0, {atom: 1}) if atom[0] == "d" and factor == -1 and index.const == atom[2] - 1 else None


def loop_pairs(indices: Sequence[Index]) -> list[tuple[int, int]]:
    """(number, size) of the loop dimensions in these indices, each once, in order."""
    return list(dict.fromkeys((a[1], a[2]) for i in indices for a in i.atoms() if a[0] == "d"))
