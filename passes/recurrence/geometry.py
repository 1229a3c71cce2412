"""How a recurrence's matrix is divided: blocks have all gates of some units, warps some of these rows and a part of k,
lanes four neighbours of every 128 of that part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mlirc.ir.recurrences import Recurrence
from mlirc.targets import Target

LANE = 4  # neighbours along k that a lane has
WARP = 32 * LANE  # k of a warp
REGISTERS = 1 << 16  # of a multiprocessor
WORDS, OTHERS = 144, 72  # registers of a thread: for its part of the matrix, at most, and for all else
SUMS = 160 << 10  # bytes of a block's shared memory for sums, at most
MEETING = 1800  # cycles in which blocks wait for each other
ROWS = 32  # of a warp: each of its lanes ends up with one of the sums


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is not less than n."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Geometry:
    """Of a recurrence [batch, units] with so many gates: `own` units of a block, of `warps` warps."""

    batch: int
    units: int
    gates: int
    own: int
    warps: int

    @property
    def blocks(self) -> int:
        return ceil_div(self.units, self.own)

    @property
    def rows(self) -> int:
        """Of the matrix, that a block has: row g * own + u is gate g of its unit u."""
        return self.own * self.gates

    @property
    def warps_k(self) -> int:
        """Warps that have different parts of k."""
        parts = ceil_div(self.units, WARP)
        return prod(2 for p in range(5) if self.warps % (2 << p) == 0 and (1 << p) < parts)

    @property
    def warps_rows(self) -> int:
        return self.warps // self.warps_k

    @property
    def warp_rows(self) -> int:
        return ceil_div(self.rows, self.warps_rows)

    @property
    def pieces(self) -> int:
        """Pieces of four k of a lane."""
        return ceil_div(self.units, WARP * self.warps_k)

    @property
    def words(self) -> int:
        """Registers of a thread for the matrix."""
        return self.warp_rows * self.pieces * LANE

    @property
    def sums_shape(self) -> list[int]:
        return [self.batch, self.warps_k, self.warps_rows * power_of_two(self.warp_rows)]

    @property
    def pairs(self) -> int:
        """Pairs of a row of the batch and a unit of which a thread computes the gates."""
        return ceil_div(self.batch * self.own, 32 * self.warps)

    @property
    def cycles(self) -> float:
        """Of a step, about: each of a multiprocessor's four schedulers issues one instruction of a warp in a cycle."""
        warps = ceil_div(self.warps, 4)
        products = warps * self.batch * (self.words + 3 * power_of_two(self.warp_rows) + 20)
        gates = warps * self.pairs * (80 + self.gates * self.warps_k * 2)
        return products + gates + (MEETING if self.blocks > 1 else 0)

    def problem(self, target: Target) -> str:
        """Why a GPU cannot do it; "" if it can."""
        if self.blocks > target.sms:
            return f"{self.blocks} blocks wait for each other, and {target.name} has {target.sms} multiprocessors"
        if self.warp_rows > ROWS or self.words > min(WORDS, REGISTERS // (32 * self.warps) - OTHERS):
            return f"a thread would hold {self.words} words of the matrix, of {self.warp_rows} rows"
        if prod(self.sums_shape) * 4 > min(SUMS, target.max_smem):
            return f"{prod(self.sums_shape) * 4} bytes of sums of {self.batch} rows"
        return ""


def chosen(batch: int, units: int, gates: int, target: Target) -> Geometry | None:
    """The division whose steps take the least, as far as that can be told; None where none fits."""
    owns = {ceil_div(units, blocks) for blocks in range(1, target.sms + 1)}
    every = [Geometry(batch, units, gates, own, warps) for own in sorted(owns) for warps in (4, 8, 16)]
    return min((g for g in every if not g.problem(target)), key=lambda g: g.cycles, default=None)


def of(recurrence: Recurrence, own: int, warps: int) -> Geometry:
    return Geometry(recurrence.batch, recurrence.units, recurrence.gates, own, warps)
