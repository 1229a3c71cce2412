"""Layouts: how the elements of a tile sit in the registers of a block's threads.

Every dimension of a tile is split into factors, from major to minor; each factor is spread over registers (`r`),
lanes of a warp (`l`) or warps of the block (`w`). A lane factor of size n and stride s takes the value (lane / s) mod
n. This covers row-vectorized tiles, the operands and accumulators of mma.sync (PTX ISA, "Matrix Fragments for
mma.m16n8k16"), the operands of an FMA outer product, and what is left of any of them after a reduction. Lanes and
warps that no factor names hold copies. Registers are numbered with the last dimension, and in it the most minor
factor, running fastest, unless their factors have strides, too. A `Xor` exchanges a dimension's elements by a digit of
the thread's or the register's number.

As a map (`maps.py`) a layout takes a register's, a lane's and a warp's number to coordinates. What one layout needs of
another is the composition with the other's inverse (`places_in`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mlirc.passes.distribute.layouts.maps import Map, NotAligned, Row

WARP = 32  # lanes


@dataclass(frozen=True)
class Factor:
    """`size` consecutive multiples of the factors to the right, spread over `kind`: "r", "l" or "w". `stride`: of the
    lane, warp or register number; of registers 0: as they are numbered where no layout says otherwise."""

    kind: str
    size: int
    stride: int = 0

    def __post_init__(self) -> None:
        if self.kind != "r" and self.stride == 0:
            object.__setattr__(self, "stride", 1)

    def part(self, size: int) -> Factor:
        """The most minor part of this factor."""
        return replace(self, size=size)

    def rest(self, size: int) -> Factor:
        """What is left of this factor in front of its most minor part."""
        return replace(self, size=self.size // size, stride=self.stride * size)


def reg(size: int, stride: int = 0) -> Factor:
    return Factor("r", size, stride)


def lane(size: int, stride: int = 1) -> Factor:
    return Factor("l", size, stride)


def warp(size: int, stride: int = 1) -> Factor:
    return Factor("w", size, stride)


@dataclass(frozen=True)
class Xor:
    """The coordinate along `dim` has its digit at `weight`, of the factor's size (a power of two), XORed with the
    digit that the factor takes of its lane, warp or register number."""

    dim: int
    weight: int
    by: Factor


def _normalized(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Drops factors of size 1 and merges neighbours that continue each other, so that equal layouts compare equal."""
    out: list[Factor] = []
    for f in factors:
        if f.size == 1:
            continue
        if out and out[-1].kind == f.kind and out[-1].stride == f.stride * f.size:
            out[-1] = Factor(f.kind, out[-1].size * f.size, f.stride)
        else:
            out.append(f)
    return tuple(out)


def _numbered(dims: Iterable[tuple[Factor, ...]]) -> tuple[tuple[Factor, ...], ...]:
    """Dimensions whose registers' strides leave no gaps, and are 0 where the numbering is the usual one."""
    dims = tuple(dims)
    registers = [f for d in dims for f in d if f.kind == "r" and f.size > 1]
    if all(f.stride == 0 for f in registers):
        return dims
    if any(f.stride == 0 for f in registers):
        raise NotAligned("either all factors of registers have strides, or none")
    strides, stride = {}, 1
    for f in sorted(registers, key=lambda f: f.stride):
        strides[f], stride = stride, stride * f.size
    usual = list(strides.values()) == [strides[f] for f in reversed(registers)]
    return tuple(tuple(replace(f, stride=0 if usual else strides[f]) if f in strides else f for f in d) for d in dims)


@dataclass(frozen=True)
class Layout:
    """One tuple of factors per tile dimension, and what is XORed."""

    dims: tuple[tuple[Factor, ...], ...]
    xors: tuple[Xor, ...] = ()

    @staticmethod
    def of(*dims, xors: Iterable[Xor] = ()) -> Layout:
        return Layout(tuple(_normalized(d) for d in _numbered(tuple(d) for d in dims)), tuple(xors))

    def __str__(self) -> str:
        """As docs/distribute.md writes it; `l8:4` are eight lanes, of which neighbours are four numbers apart."""
        shown = [" ".join(_shown(f) for f in d) or "1" for d in self.dims]
        xors = [f", {x.weight} of dimension {x.dim} xor {_shown(x.by)}" for x in self.xors]
        return " x ".join(f"({d})" for d in shown) + "".join(xors)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def plain(self) -> Layout:
        """This layout without its XORs."""
        return Layout(self.dims)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The padded tile shape that the layout covers."""
        return tuple(math.prod(f.size for f in d) for d in self.dims)

    @cached_property
    def num_regs(self) -> int:
        return math.prod(f.size for d in self.dims for f in d if f.kind == "r")

    @cached_property
    def run(self) -> int:
        """Number of consecutive registers that hold consecutive elements of the last dimension."""
        if not self.dims or not self.dims[-1]:
            return 1
        last = self.dims[-1][-1]
        if last.kind != "r" or last.stride > 1:
            return 1
        return math.gcd(last.size, *(x.weight for x in self.xors if x.dim == self.rank - 1))

    @property
    def piece(self) -> int:
        """Registers that are kept as one value: at most eight neighbours along the last dimension."""
        return math.gcd(self.run, 8)

    @cached_property
    def map(self) -> Map:
        """From r, l and w to the coordinates d0, d1, ..."""
        rows, stride = [], 1
        for d in reversed(range(self.rank)):
            weight = 1
            for f in reversed(self.dims[d]):
                step = f.stride if f.kind != "r" or f.stride else stride
                rows.append(Row(f"d{d}", weight, f.size, frozenset({(f.kind, step)})))
                weight *= f.size
                stride *= f.size if f.kind == "r" else 1
        out = Map.of(rows)
        for x in self.xors:
            out = out.with_xor(f"d{x.dim}", x.weight, x.by.size, (x.by.kind, x.by.stride))
        return out

    def xors_of(self, dim: int) -> tuple[Xor, ...]:
        """What a dimension's coordinate is XORed with; raises NotAligned where it is then no XOR of the thread's part
        and the register's, because a digit's weight is no power of two."""
        found = tuple(x for x in self.xors if x.dim == dim)
        if found and any(r.weight & (r.weight - 1) for r in self.map.rows if r.axis == f"d{dim}"):
            raise NotAligned(f"{self}: dimension {dim} has XORs and digits that are no bits")
        return found

    def coordinates(self, **numbers: int | np.ndarray) -> np.ndarray:
        """int array [..., rank]: where an element is, of the registers r, the lanes l and the warps w."""
        shape = np.broadcast_shapes(*(np.shape(n) for n in numbers.values()))
        found = self.map(**numbers)
        zero = np.zeros(shape, np.int64)
        return (
            np.stack([found.get(f"d{d}", zero) for d in range(self.rank)], -1)
            if self.rank
            else zero[..., None][..., :0]
        )

    def thread_factors(self, dim: int, kind: str) -> list[tuple[Factor, int]]:
        """The lane or warp factors of one dimension, each with the number of elements one step of it moves by; raises
        NotAligned where these are not all that a coordinate depends on."""
        if self.xors_of(dim):
            raise NotAligned(f"{self}: the coordinates along dimension {dim} are no sums of factors")
        out, weight = [], 1
        for f in reversed(self.dims[dim]):
            if f.kind == kind:
                out.append((f, weight))
            weight *= f.size
        return out[::-1]

    @cached_property
    def reg_offsets(self) -> np.ndarray:
        """int array [num_regs, rank]: each register's coordinates in the first thread. In another one they are moved by
        `thread_offsets`, or, along dimensions with XORs, XORed with them."""
        return self.coordinates(r=np.arange(self.num_regs))

    @cached_property
    def registers(self) -> dict[tuple[int, ...], int]:
        """The register that has an element of the first thread, by its coordinates."""
        return {tuple(int(x) for x in row): i for i, row in enumerate(self.reg_offsets)}

    def thread_offsets(self, warps: int) -> np.ndarray:
        """int array [warps, 32, rank]: the coordinates of each thread's first register."""
        return self.coordinates(w=np.arange(warps)[:, None], l=np.arange(WARP)[None, :])

    def project(self, dims: list[int | None]) -> Layout:
        """The layout of an operand whose dimension i is this layout's dimension dims[i] (None: a dimension of size
        1)."""
        kept = _numbered(() if d is None else self.dims[d] for d in dims)
        return Layout(kept, tuple(replace(x, dim=dims.index(x.dim)) for x in self.xors if x.dim in dims))

    def lift(self, dims: list[int | None], rank: int) -> Layout:
        """Inverse of `project`: the layout of an iteration space with `rank` dimensions from that of an operand."""
        out: list[tuple[Factor, ...]] = [()] * rank
        for i, d in enumerate(dims):
            if d is not None:
                out[d] = self.dims[i]
        xors = [(x, dims[x.dim]) for x in self.xors]
        return Layout(tuple(out), tuple(replace(x, dim=d) for x, d in xors if d is not None))

    def free(self, kind: str, count: int) -> list[tuple[int, int]]:
        """(stride, size) of the digits in which threads differ that hold copies of each other: of `count` lanes ("l")
        or warps ("w")."""
        used = sorted({(s, r.size) for r in self.map.rows for a, s in r.sources if a == kind})
        out, step = [], 1
        for stride, size in [*used, (count, 1)]:
            if stride > step:
                out.append((step, -(-stride // step)))  # 7 warps may be 3 x 2 and one left over
            step = max(step, stride * size)
        return out + [(s, 2) for a, s in sorted(self.map.free) if a == kind]

    def places_in(self, source: Layout, warps: int) -> Map | None:
        """Where `source` has what this layout has: from r, l and w of this one to those of the other. Of copies, it is
        the one in the same lane and warp if there is one. None where the other lacks elements, or is cut otherwise."""
        if any(a > b for a, b in zip(self.shape, source.shape, strict=True)):
            return None
        copies = {k: source.free(k, n) for k, n in (("l", WARP), ("w", warps))}
        own = [Row(f"{k} copy", s, n, frozenset({(k, s)})) for k, digits in copies.items() for s, n in digits]
        try:
            return Map.of([*self.map.rows, *own]).then(Map.of([*source.map.rows, *own]).inverse())
        except NotAligned:
            return None

    def register_map(self, source: Layout, warps: int) -> list[int] | None:
        """For each register of this layout, the register of `source` that holds the same element in the same thread;
        None if some element sits in another thread."""
        places = self.places_in(source, warps)
        if places is None or not stays(places, "l", WARP) or not stays(places, "w", warps):
            return None
        if any(axis != "r" for row in places.rows if row.axis == "r" for axis, _ in row.sources):
            return None
        found = places(r=np.arange(self.num_regs)).get("r", np.zeros(self.num_regs, np.int64))
        return [int(i) for i in found]


def stays(places: Map, axis: str, count: int) -> bool:
    """Whether a map of places leaves `count` lanes or warps where they are."""
    if any(a != axis for row in places.rows if row.axis == axis for a, _ in row.sources):
        return False
    numbers = np.arange(count)
    return bool((places(**{axis: numbers}).get(axis, np.zeros_like(numbers)) == numbers).all())


def _shown(f: Factor) -> str:
    return f"{f.kind}{f.size}" + f":{f.stride}" * (f.stride > 1)


def pow2_ceil(n: int) -> int:
    return 1 << (max(n, 1) - 1).bit_length()


def pow2_divisor(n: int) -> int:
    """The largest power of two that divides n (a large one for 0)."""
    return n & -n if n else 1 << 30


def row_layout(shape: tuple[int, ...], warps: int, vector: int, strip: int = 1) -> Layout:
    """The default layout: `vector` elements of the last dimension per access, lanes along the last dimension first so
    that a warp's access is one contiguous piece, warps along the outermost dimensions first so that a row stays in
    one warp when there are rows enough for all warps, what is left in registers. A thread has `strip` neighbours along
    the last dimension but one."""
    rank = len(shape)
    if rank == 0:
        return Layout(())
    minor = {rank - 2: strip, rank - 1: vector}
    left = [-(-shape[d] // minor.get(d, 1)) for d in range(rank)]
    lanes, lane_stride = 32, 1
    lane_factors: list[tuple[Factor, ...]] = [()] * rank
    for d in reversed(range(rank)):
        n = min(lanes, pow2_ceil(left[d]))
        lane_factors[d] = (lane(n, lane_stride),)
        left[d] = -(-left[d] // n)
        lanes //= n
        lane_stride *= n
    warps_left, warp_stride = warps, 1
    warp_factors: list[tuple[Factor, ...]] = [()] * rank
    for d in range(rank):
        n = min(warps_left, pow2_ceil(left[d]))
        warp_factors[d] = (warp(n, warp_stride),)
        left[d] = -(-left[d] // n)
        warps_left //= n
        warp_stride *= n
    dims = []
    for d in range(rank):
        # The warp factor is the most major one in outer dimensions; in the last one, registers are, so that all warps
        # together read one contiguous piece at a time.
        order = (reg(left[d]), *warp_factors[d], *lane_factors[d], reg(minor.get(d, 1)))
        dims.append(order)
    return Layout.of(*dims)


def mma_accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int) -> Layout:
    """C and D of mma.sync m16n8: dims (m, n); the block is cut into warps_m x warps_n warp tiles."""
    return Layout.of(
        (warp(warps_m, warps_n), reg(block_m // warps_m // 16), reg(2), lane(8, 4)),
        (warp(warps_n, 1), reg(block_n // warps_n // 8), lane(4, 1), reg(2)),
    )


def mma_operand_a(block_m: int, block_k: int, warps_m: int, warps_n: int) -> Layout:
    """A of mma.sync m16n8k16 with 16-bit elements: dims (m, k)."""
    return Layout.of(
        (warp(warps_m, warps_n), reg(block_m // warps_m // 16), reg(2), lane(8, 4)),
        (reg(block_k // 16), reg(2), lane(4, 1), reg(2)),
    )


def mma_operand_b(block_k: int, block_n: int, warps_n: int) -> Layout:
    """B of mma.sync m16n8k16 with 16-bit elements: dims (n, k), the transpose of the product's B."""
    return Layout.of(
        (warp(warps_n, 1), reg(block_n // warps_n // 8), lane(8, 4)),
        (reg(block_k // 16), reg(2), lane(4, 1), reg(2)),
    )


def fma_accumulator(block_m: int, block_n: int, warps_m: int, warps_n: int) -> Layout:
    """The result of an outer product with scalar FMA: a thread holds every fourth row and every eighth column of its
    warp's tile, so that the lanes of a warp read neighbouring rows of a swizzled operand without bank conflicts."""

    def split(extent: int, warps: int, lanes: int, warp_stride: int, lane_stride: int):
        return (warp(warps, warp_stride), reg(-(-extent // (warps * lanes))), lane(lanes, lane_stride))

    return Layout.of(split(block_m, warps_m, 4, warps_n, 8), split(block_n, warps_n, 8, 1, 1))
