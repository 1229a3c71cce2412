"""Ways from one register layout to another, of which the one of the least cost is taken: registers alone, shuffles
(`shuffles.py`), or shared memory, written by stmatrix or by plain stores.

Costs are what a warp takes of its multiprocessor, in half wavefronts: an instruction 1, a shuffle and a pass over the
banks of shared memory 2 each. Warps that meet wait for the slowest of them, which a few dozen instructions make up for;
where every element stays in its warp, lanes alone meet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from mlirc.passes.distribute.layouts import banks, shuffles
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, stays
from mlirc.passes.distribute.layouts.shared import ATOM_ROWS, CHUNK, LINE, SharedLayout
from mlirc.passes.distribute.layouts.shuffles import Shuffles

ISSUE, PASS, MEET_WARP, MEET = 1, 2, 2, 40
WORD = 4  # bytes of a register
MATRICES = 4  # that one stmatrix stores


@dataclass(frozen=True)
class Moves:
    """Each register of the target is one of the source's."""

    registers: tuple[int, ...]
    cost: int = 0

    def __str__(self) -> str:
        return "registers as they are"


@dataclass(frozen=True)
class Exchange:
    """Shuffles within each warp."""

    shuffles: Shuffles
    cost: int

    def __str__(self) -> str:
        s = self.shuffles
        return f"{s.shuffles} shuffles, {s.selections} selections"


@dataclass(frozen=True)
class Matrices:
    """8x8 matrices of 16-bit elements as a warp holds them, a word of each thread for one: `each` of them are stored
    by one stmatrix, to rows of 16 bytes whose addresses the lanes give. `rows`: where they are, with the last dimension
    counted in chunks of 16 bytes; its registers are those of an instruction's first word, one after the other."""

    rows: Layout
    each: int


@dataclass(frozen=True)
class Scratch:
    """Shared memory: `matrices` by which stmatrix writes it, if it does; whether each warp reads what it wrote alone;
    wavefronts beyond those that are needed, of one warp's writes and reads."""

    shared: SharedLayout
    matrices: Matrices | None
    within_warp: bool
    conflicts: float
    cost: int

    def __str__(self) -> str:
        s = self.shared
        shape = "x".join(map(str, s.extents))
        parts = [
            f"through {shape} of shared memory" + f", rows swizzled over {s.swizzle} bytes" * bool(s.swizzle),
            f"{self.conflicts:g} bank conflicts a warp",
            *(["stmatrix"] if self.matrices else []),
            *(["within warps"] if self.within_warp else []),
        ]
        return ", ".join(parts)


Conversion = Moves | Exchange | Scratch


@lru_cache(maxsize=1024)
def cheapest(target: Layout, source: Layout, warps: int, size: int, stmatrix: bool) -> Conversion:
    """The conversion of the least cost from `source` to `target`, of elements of `size` bytes in memory. `stmatrix`:
    whether there is one for these elements."""
    registers = target.register_map(source, warps)
    if registers is not None:
        return Moves(tuple(registers))
    found: list[Conversion] = list(_scratches(target, source, warps, size, stmatrix))
    plan = shuffles.plan(target, source, warps, size)
    if plan is not None:
        words = max(size * plan.word // WORD, 1)  # of 8 bytes there are two
        cost = words * (plan.shuffles * (ISSUE + PASS) + plan.selections * ISSUE)
        found.insert(0, Exchange(plan, cost))
    return min(found, key=lambda c: c.cost)


def access_width(shared: SharedLayout, layout: Layout) -> int:
    """Elements of an access of scratch memory by a layout."""
    width = math.gcd(layout.piece, CHUNK // shared.size)
    return math.gcd(width, shared.width) if len(shared.extents) > 1 else width


def _scratches(target: Layout, source: Layout, warps: int, size: int, stmatrix: bool) -> list[Scratch]:
    """Through shared memory: with a pad of one access, which keeps columns off a single bank, or swizzled."""
    extents = [max(a, b) for a, b in zip(target.shape, source.shape, strict=True)]
    padded = list(extents)
    if extents and extents[-1] * size >= LINE:
        padded[-1] += CHUNK // size
    swizzled = SharedLayout.of_tile(extents, size, panels=False)
    candidates = [SharedLayout(tuple(padded), size), swizzled]
    if swizzled.swizzle and target.piece == 1:  # columns
        candidates += [replace(swizzled, alike=n) for n in (2, 4, 8)]
    places = target.places_in(source, warps)
    alone = places is not None and stays(places, "w", warps) and not source.free("w", warps)
    meet = MEET_WARP if alone or warps == 1 else MEET
    matrices = _matrices(source) if stmatrix else None
    out = []
    for shared in dict.fromkeys(candidates):
        into, out_of = access_width(shared, source), access_width(shared, target)
        wrote, fewest = banks.of_registers(shared, source, into, warps, writes=True)
        read, fewest_read = banks.of_registers(shared, target, out_of, warps)
        both: list[tuple[Matrices | None, int, int, int]] = [(None, source.num_regs // into, wrote, fewest)]
        if matrices is not None and not shared.row_bytes % CHUNK:
            taken, least = banks.of_matrix(shared)
            words, each = source.num_regs // 2, warps
            both.append((matrices, words // matrices.each, taken * words * each, least * words * each))
        for by, stores, passes, needed in both:
            issued = stores + target.num_regs // out_of
            cost = issued * ISSUE + (passes + read) * PASS // warps + 2 * meet
            conflicts = (passes - needed + read - fewest_read) / warps
            out.append(Scratch(shared, by, alone, conflicts, cost))
    return out


def _matrices(source: Layout) -> Matrices | None:
    """The rows that a layout's words are of 8x8 matrices; None for other layouts."""
    if (
        source.rank < 2
        or source.xors
        or source.num_regs < 2
        or any(f.stride for d in source.dims for f in d if f.kind == "r")
    ):
        return None
    *lead, down, across = source.dims
    if across[-2:] != (lane(4, 1), reg(2)) or down[-1:] != (lane(8, 4),):
        return None
    dims = [*lead, down[:-1], across[:-2]]
    # The words of an instruction are neighbours: their digit is the most minor one of registers.
    at = next((d for d in reversed(range(len(dims))) if any(f.kind == "r" for f in dims[d])), None)
    each = 1
    if at is not None:
        last = max(i for i, f in enumerate(dims[at]) if f.kind == "r")
        each = math.gcd(MATRICES, dims[at][last].size)
        dims[at] = (*dims[at][:last], dims[at][last].rest(each), lane(each, ATOM_ROWS), *dims[at][last + 1 :])
    dims[-2] = (*dims[-2], lane(ATOM_ROWS, 1))
    return Matrices(Layout.of(*dims), each)
