"""A conversion of register layouts by shuffles, where every element stays in its warp.

Each round moves one word: a lane reads what another provides. Where lanes want different registers of one lane, the
rounds' order differs from lane to lane, so that no lane is asked for two words in one round: results are then put in
their places behind the shuffles (`after`), and words to provide are chosen in front of them (`before`), by selections
(Triton's warp-local conversion, arXiv 2505.23819, section 5.4). All of it is linear over bits; digits of registers that
are no powers of two stay what they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import combinations, permutations, product
from operator import xor
from typing import TypeAlias

import numpy as np

from mlirc.passes.distribute.layouts.maps import Row
from mlirc.passes.distribute.layouts.registers import WARP, Layout, stays

LANE_BITS = 5
Bits: TypeAlias = frozenset[int]  # strides of bits of a register's number


@dataclass(frozen=True)
class Choice:
    """Register x becomes register `flip(x, bits)` in lanes whose number has an odd number of ones in `mask`."""

    mask: int
    bits: Bits


@dataclass(frozen=True)
class Round:
    """Lanes read register `register` (of those behind `before`) of lane `Shuffles.lane(number) ^ lane`; it becomes
    register `result` (of those in front of `after`)."""

    result: int
    register: int
    lane: int


@dataclass(frozen=True)
class Shuffles:
    """`word` neighbouring registers move together. `lanes`: what each bit of a lane's number adds to the one read."""

    word: int
    before: tuple[Choice, ...]
    rounds: tuple[Round, ...]
    lanes: tuple[int, ...]
    after: tuple[Choice, ...]

    def lane(self, lane: int) -> int:
        """The lane that a lane reads from, less what the round says."""
        return reduce(xor, (s for i, s in enumerate(self.lanes) if lane >> i & 1), 0)

    @property
    def direct(self) -> bool:
        """Whether lanes read from the one whose number differs by what a round says."""
        return self.lanes == tuple(1 << i for i in range(LANE_BITS))

    @property
    def shuffles(self) -> int:
        """How many words are shuffled; others are in their lane."""
        return sum(not self.direct or r.lane != 0 for r in self.rounds)

    @property
    def selections(self) -> int:
        """How many words are selected, at most."""
        return len(self.rounds) * (len(self.before) + len(self.after))


def flip(register: int, bits: Bits) -> int:
    """A register's number with the bits at some strides flipped."""
    for stride in bits:
        register += stride * (1 - 2 * (register // stride % 2))
    return register


def plan(target: Layout, source: Layout, warps: int, size: int) -> Shuffles | None:
    """Shuffles that make `target` of `source`, of elements of `size` bytes; None where elements leave their warp, or
    lanes are cut into other digits than powers of two."""
    places = target.places_in(source, warps)
    if places is None or not stays(places, "w", warps):
        return None
    rows = _bits([r for r in places.rows if r.axis in ("r", "l")])
    if rows is None or any(a == "w" for r in rows for a, _ in r.sources):
        return None
    word = _word(rows, size, target, source)
    registers = _columns(rows, "r", "l")  # what a bit of the lane's number changes
    moves_lane, moves_register = _columns(rows, "l", "r"), _columns(rows, "r", "r")  # and one of the register's
    read = _read(rows, source, registers, moves_lane, moves_register)
    if read is None:
        return None
    lanes, orders = read
    reads = [_lane(lanes.get(1 << i, frozenset()), orders[i], moves_lane) for i in range(LANE_BITS)]
    wants = [_register(registers.get(1 << i, frozenset()), orders[i], moves_register) for i in range(LANE_BITS)]
    provided = _provided(reads, wants)
    zero = np.zeros(target.num_regs, np.int64)
    found = places(r=np.arange(target.num_regs))
    first, lane = zero + found.get("r", 0), zero + found.get("l", 0)
    rounds = tuple(
        Round(r, flip(int(first[r]), _sum(provided, int(lane[r]))), int(lane[r]))
        for r in range(0, target.num_regs, word)
    )
    return Shuffles(word, _choices(provided), rounds, tuple(reads), _choices(orders))


def _bits(rows: list[Row]) -> list[Row] | None:
    """Rows that are bits, or digits of registers alone; None for others."""
    out, todo = [], list(rows)
    while todo:
        row = todo.pop()
        if row.size > 2 and row.size % 2 == 0:
            todo += row.cut(2)
            continue
        if row.size != 2 and (row.axis != "r" or any(a != "r" for a, _ in row.sources)):
            return None
        out.append(row)
    return out


def _word(rows: list[Row], size: int, target: Layout, source: Layout) -> int:
    """How many neighbouring registers, in both layouts the same, make a word of four bytes."""
    word = 1
    while size * word * 2 <= 4 and target.num_regs % (2 * word) == 0 and source.num_regs % (2 * word) == 0:
        using = [r for r in rows if ("r", word) in r.sources]
        if using != [Row("r", word, 2, frozenset({("r", word)}))]:
            break
        word *= 2
    return word


def _columns(rows: list[Row], result: str, of: str) -> dict[int, Bits]:
    """For each bit of an input, by its stride, the bits of a result that it changes."""
    out: dict[int, Bits] = {}
    for row in rows:
        for axis, stride in row.sources:
            if row.axis == result and axis == of and row.size == 2:
                out[stride] = out.get(stride, frozenset()) | {row.weight}
    return out


def _lane(own: Bits, order: Bits, moves: dict[int, Bits]) -> int:
    total = own
    for stride in order:
        total = total ^ moves.get(stride, frozenset())
    return sum(total)


def _register(own: Bits, order: Bits, moves: dict[int, Bits]) -> Bits:
    for stride in order:
        own = own ^ moves.get(stride, frozenset())
    return own


def _orders(
    lanes: dict[int, Bits], registers: dict[int, Bits], moves_lane: dict[int, Bits], moves_register: dict[int, Bits]
) -> list[Bits] | None:
    """For each bit of a lane's number, which bits of the round's number it flips: the fewest so that lanes that read
    from one lane want the same word of it."""
    chosen: list[Bits] = []
    candidates: list[Bits] = [frozenset(), *(frozenset({s}) for s in sorted(moves_lane))]
    for _ in range(LANE_BITS):
        for candidate in candidates:
            trial = [*chosen, candidate]
            reads = [_lane(lanes.get(1 << k, frozenset()), o, moves_lane) for k, o in enumerate(trial)]
            wants = [_register(registers.get(1 << k, frozenset()), o, moves_register) for k, o in enumerate(trial)]
            if _agree(reads, wants):
                chosen = trial
                break
        else:
            return None
    return chosen


def _read(
    rows: list[Row], source: Layout, registers: dict[int, Bits], moves_lane: dict[int, Bits],
    moves_register: dict[int, Bits],
) -> tuple[dict[int, Bits], list[Bits]] | None:  # fmt: skip
    """Which lanes are read from, and the orders of rounds (`_orders`). Of copies that is the lane's own if it is free
    to choose, or else one that keeps apart those that want different words."""
    lanes = _columns(rows, "l", "l")
    copies = [stride << i for stride, size in source.free("l", WARP) for i in range((size - 1).bit_length())]
    copies = [s for s in copies if ("l", s) not in source.map.free]  # which other lanes' numbers make up for
    for count in range(len(copies) + 1):
        for which in combinations(copies, count):
            for instead in permutations([s for s in registers if registers[s]], count):
                chosen = {s: bits - set(which) for s, bits in lanes.items()}
                for copy, lane in zip(which, instead, strict=True):
                    chosen[lane] = chosen.get(lane, frozenset()) | {copy}
                orders = _orders(chosen, registers, moves_lane, moves_register)
                if orders is not None:
                    return chosen, orders
    return None


def _agree(reads: list[int], wants: list[Bits]) -> bool:
    for use in product((0, 1), repeat=len(reads)):
        lane, register = 0, frozenset[int]()
        for used, read, want in zip(use, reads, wants, strict=True):
            if used:
                lane, register = lane ^ read, register ^ want
        if lane == 0 and register:
            return False
    return True


def _provided(reads: list[int], wants: list[Bits]) -> list[Bits]:
    """For each bit of the providing lane's number, the bits of the register's number that it flips."""
    pivots: list[tuple[int, int, Bits]] = []
    for read, want in zip(reads, wants, strict=True):
        for bit, lane, register in pivots:
            if read & bit:
                read, want = read ^ lane, want ^ register
        if read:
            bit = read & -read
            pivots = [(b, v ^ read, w ^ want) if v & bit else (b, v, w) for b, v, w in pivots]
            pivots.append((bit, read, want))
    out: list[Bits] = [frozenset()] * LANE_BITS
    for bit, _, register in pivots:
        out[bit.bit_length() - 1] = register
    return out


def _sum(columns: list[Bits], lane: int) -> Bits:
    out: Bits = frozenset()
    for i, bits in enumerate(columns):
        if lane >> i & 1:
            out = out ^ bits
    return out


def _choices(columns: list[Bits]) -> tuple[Choice, ...]:
    """A choice for each different set of bits, by all bits of the lane's number that flip it."""
    masks: dict[Bits, int] = {}
    for i, bits in enumerate(columns):
        if bits:
            masks[bits] = masks.get(bits, 0) | 1 << i
    return tuple(Choice(mask, bits) for bits, mask in masks.items())
