"""How a recurrence's matrix is divided: blocks have all gates of some units, warps some of these rows and a part of k,
lanes four neighbours of every 128 of that part."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mlirc.targets import Target

LANE = 4  # neighbours along k that a lane has
WARP = 32 * LANE  # k of a warp
REGISTERS = 1 << 16  # of a multiprocessor
WORDS, OTHERS = 144, 72  # registers of a thread: for its part of the matrix, at most, and for all else
MMA = 6.5  # cycles of an mma.sync of 512 products of TF32, or twice as many of 16-bit floats
ALONE = 1.3  # times as long as with others takes a warp that is a scheduler's only one
MEETING = 1800  # cycles in which blocks wait for each other
PIECE_BYTES = 16  # of a row, that a lane has of it where tensor cores multiply
L2_BYTES = 48  # that a multiprocessor loads of L2 in a cycle
COLUMNS = 8  # rows of the state that they multiply at once
ROWS = 32  # of a warp: each of its lanes ends up with one of the sums


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is not less than n."""
    return 1 << (n - 1).bit_length()


@dataclass(frozen=True)
class Geometry:
    """Of a recurrence [batch, units] with so many gates and a matrix of elements of so many `bytes`: `own` units of a
    block, of `warps` warps, and the `instruction` that multiplies: `fma`, `mma` (16 bits) or `tf32x3` (f32)."""

    batch: int
    units: int
    gates: int
    bytes: int
    own: int
    warps: int
    instruction: str = "fma"

    @property
    def blocks(self) -> int:
        return ceil_div(self.units, self.own)

    @property
    def rows(self) -> int:
        """Of the matrix, that a block has: row g * own + u is gate g of its unit u."""
        return self.own * self.gates

    @property
    def on_tensor_cores(self) -> bool:
        return self.instruction != "fma"

    @property
    def warps_k(self) -> int:
        """Warps that have different parts of k."""
        if self.on_tensor_cores:
            return self.warps
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
        """Pieces of k of a lane: of four, or of 16 bytes."""
        width = 4 * PIECE_BYTES // self.bytes if self.on_tensor_cores else WARP
        return ceil_div(self.units, width * self.warps_k)

    @property
    def row_tiles(self) -> int:
        return ceil_div(self.rows, 16)

    @property
    def column_tiles(self) -> int:
        return ceil_div(self.batch, COLUMNS)

    @property
    def words(self) -> int:
        """Registers of a thread for the matrix."""
        if self.on_tensor_cores:
            return 2 * self.row_tiles * self.pieces * PIECE_BYTES // 4
        return self.warp_rows * self.pieces * LANE

    @property
    def in_shared(self) -> bool:
        """Whether the matrix is in shared memory: where registers that hold it leave too few for the state."""
        few = self.words + self.column_tiles * self.pieces * PIECE_BYTES // 4 > WORDS
        return self.instruction == "tf32x3" and few

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        return prod(self.sums_shape) * 4 + (self.words * 128 * self.warps if self.in_shared else 0)

    @property
    def sums_shape(self) -> list[int]:
        """[row of the batch, warp, row of the matrix], or [warp, row of the matrix, row of the batch]."""
        if self.on_tensor_cores:  # rows that are 8 banks apart: neither stores nor loads meet in one
            batch = self.column_tiles * COLUMNS
            return [self.warps, 16 * self.row_tiles, batch + (COLUMNS - batch) % 32]
        return [self.batch, self.warps_k, self.warps_rows * power_of_two(self.warp_rows)]

    @property
    def pairs(self) -> int:
        """Pairs of a row of the batch and a unit of which a thread computes the gates."""
        return ceil_div(self.batch * self.own, 32 * self.warps)

    @property
    def cycles(self) -> float:
        """Of a step, about: each of a multiprocessor's four schedulers issues one instruction of a warp in a cycle, and
        has a tensor core."""
        warps = ceil_div(self.warps, 4)
        if self.on_tensor_cores:
            issues = {"mma": 2 * MMA, "tf32x3": 6 * MMA + 12}[self.instruction]
            alone = ALONE if self.warps == 4 else 1
            products = alone * warps * self.pieces * self.row_tiles * self.column_tiles * issues
        else:
            products = warps * self.batch * (self.words + 4 * power_of_two(self.warp_rows) + 20)
        products = max(products, self.batch * self.units * self.bytes / L2_BYTES)
        gates = warps * self.pairs * (80 + self.gates * self.warps_k * 2)
        return products + gates + (MEETING if self.blocks > 1 else 0)

    def problem(self, target: Target) -> str:
        """Why a GPU cannot do it; "" if it can."""
        if self.blocks > target.sms:
            return f"{self.blocks} blocks wait for each other, and {target.name} has {target.sms} multiprocessors"
        most = min(WORDS, REGISTERS // (32 * self.warps) - OTHERS)
        if self.words > most and not self.in_shared or not self.on_tensor_cores and self.warp_rows > ROWS:
            return f"a thread would hold {self.words} words of the matrix, of {self.warp_rows} rows"
        if self.shared_bytes > target.max_smem:
            return f"{self.shared_bytes} bytes of shared memory, and {target.name} has {target.max_smem}"
        if self.on_tensor_cores and (self.bytes == 4) != (self.instruction == "tf32x3"):
            return f"{self.instruction} multiplies no elements of {self.bytes} bytes"
        if self.on_tensor_cores and self.units * self.bytes % PIECE_BYTES:
            return f"{self.instruction} loads 16 bytes, and rows have {self.units * self.bytes}"
        return ""


INSTRUCTIONS = ("fma", "mma", "tf32x3")


def chosen(
    batch: int, units: int, gates: int, bytes: int, k_last: bool, target: Target, instruction: str | None = None
) -> Geometry | None:
    """The division whose steps take the least, as far as that can be told; None where none fits. `k_last`: whether
    rows of the matrix run along k, as tensor cores need it."""
    owns = sorted({ceil_div(units, blocks) for blocks in range(1, target.sms + 1)})
    kinds = [instruction] if instruction else INSTRUCTIONS if k_last else ("fma",)
    every = [
        Geometry(batch, units, gates, bytes, own, warps, kind) for kind in kinds for own in owns for warps in (8, 4, 16)
    ]
    return min((g for g in every if not g.problem(target)), key=lambda g: g.cycles, default=None)
