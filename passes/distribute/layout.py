"""Layouts: how the elements of a tile sit in the registers of a block's threads.

Every dimension of a tile is split into factors, from major to minor; each factor is spread over registers (`r`),
lanes of a warp (`l`) or warps of the block (`w`). A lane factor of size n and stride s takes the value (lane / s) mod
n. This covers row-vectorized tiles, the operands and accumulators of mma.sync (PTX ISA, "Matrix Fragments for
mma.m16n8k16"), the operands of an FMA outer product, and what is left of any of them after a reduction. Lanes and
warps that no factor names hold copies. Registers are numbered with the last dimension, and in it the most minor
factor, running fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Factor:
    """`size` consecutive multiples of the factors to the right, spread over `kind`: "r", "l" or "w"."""

    kind: str
    size: int
    stride: int = 1  # of the lane or warp number; meaningless for registers


def reg(size: int) -> Factor:
    return Factor("r", size)


def lane(size: int, stride: int = 1) -> Factor:
    return Factor("l", size, stride)


def warp(size: int, stride: int = 1) -> Factor:
    return Factor("w", size, stride)


def _normalized(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Drops factors of size 1 and merges neighbours that continue each other, so that equal layouts compare equal."""
    out: list[Factor] = []
    for f in factors:
        if f.size == 1:
            continue
        if out and out[-1].kind == f.kind and (f.kind == "r" or out[-1].stride == f.stride * f.size):
            out[-1] = Factor(f.kind, out[-1].size * f.size, f.stride if f.kind != "r" else 1)
        else:
            out.append(f)
    return tuple(out)


@dataclass(frozen=True)
class Layout:
    """One tuple of factors per tile dimension."""

    dims: tuple[tuple[Factor, ...], ...]

    @staticmethod
    def of(*dims) -> Layout:
        return Layout(tuple(_normalized(tuple(d)) for d in dims))

    @property
    def rank(self) -> int:
        return len(self.dims)

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
        if self.dims and self.dims[-1] and self.dims[-1][-1].kind == "r":
            return self.dims[-1][-1].size
        return 1

    def thread_factors(self, dim: int, kind: str) -> list[tuple[Factor, int]]:
        """The lane or warp factors of one dimension, each with the number of elements one step of it moves by."""
        out, weight = [], 1
        for f in reversed(self.dims[dim]):
            if f.kind == kind:
                out.append((f, weight))
            weight *= f.size
        return out[::-1]

    @cached_property
    def reg_offsets(self) -> np.ndarray:
        """int array [num_regs, rank]: each register's coordinates, less the part that depends on the thread."""
        axes, weights = [], []
        for d, factors in enumerate(self.dims):
            weight = math.prod(f.size for f in factors)
            for f in factors:
                weight //= f.size
                if f.kind == "r":
                    axes.append(f.size)
                    weights.append((d, weight))
        out = np.zeros((self.num_regs, self.rank), dtype=np.int64)
        if axes:
            for i, index in enumerate(np.indices(axes).reshape(len(axes), -1)):
                d, weight = weights[i]
                out[:, d] += index * weight
        return out

    def thread_offsets(self, warps: int) -> np.ndarray:
        """int array [warps, 32, rank]: each thread's part of the coordinates."""
        w, l = np.meshgrid(np.arange(warps), np.arange(32), indexing="ij")
        out = np.zeros((warps, 32, self.rank), dtype=np.int64)
        for d in range(self.rank):
            for kind, number in (("l", l), ("w", w)):
                for f, weight in self.thread_factors(d, kind):
                    out[:, :, d] += (number // f.stride) % f.size * weight
        return out

    def project(self, dims: list[int | None]) -> Layout:
        """The layout of an operand whose dimension i is this layout's dimension dims[i] (None: a dimension of size
        1)."""
        return Layout(tuple(() if d is None else self.dims[d] for d in dims))

    def lift(self, dims: list[int | None], rank: int) -> Layout:
        """Inverse of `project`: the layout of an iteration space with `rank` dimensions from that of an operand."""
        out: list[tuple[Factor, ...]] = [()] * rank
        for i, d in enumerate(dims):
            if d is not None:
                out[d] = self.dims[i]
        return Layout(tuple(out))

    def register_map(self, source: Layout, warps: int) -> list[int] | None:
        """For each register of this layout, the register of `source` that holds the same element in the same thread;
        None if some element sits in another thread."""
        shape = tuple(max(a, b) for a, b in zip(self.shape, source.shape, strict=True))
        strides = np.array([math.prod(shape[i + 1 :]) for i in range(len(shape))], dtype=np.int64)

        def elements(layout: Layout) -> np.ndarray:
            threads = layout.thread_offsets(warps).reshape(warps * 32, -1)
            return (layout.reg_offsets[:, None, :] + threads[None]) @ strides

        mine, theirs = elements(self), elements(source)
        by_element = {tuple(row): i for i, row in enumerate(theirs)}
        out = [by_element.get(tuple(row)) for row in mine]
        return None if any(i is None for i in out) else out  # type: ignore[return-value]


def pow2_ceil(n: int) -> int:
    return 1 << (max(n, 1) - 1).bit_length()


def pow2_divisor(n: int) -> int:
    """The largest power of two that divides n (a large one for 0)."""
    return n & -n if n else 1 << 30


def row_layout(shape: tuple[int, ...], warps: int, vector: int) -> Layout:
    """The default layout: `vector` elements of the last dimension per access, lanes along the last dimension first so
    that a warp's access is one contiguous piece, warps along the outermost dimensions first so that a row stays in
    one warp when there are rows enough for all warps, what is left in registers."""
    rank = len(shape)
    if rank == 0:
        return Layout(())
    left = [-(-shape[-1] // vector) if d == rank - 1 else shape[d] for d in range(rank)]
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
        minor = (reg(vector),) if d == rank - 1 else ()
        # The warp factor is the most major one in outer dimensions; in the last one, registers are, so that all warps
        # together read one contiguous piece at a time.
        order = (reg(left[d]), *warp_factors[d], *lane_factors[d], *minor)
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
