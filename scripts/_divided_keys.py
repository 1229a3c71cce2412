"""How the keys of cached attention are divided where queries are few: among blocks, and among teams of their warps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from mlirc.passes.distribute.instructions.base import HALF
from mlirc.schedule.kernel_info import AttentionShape
from mlirc.schedule.verbs import ceil_div, power_of_two
from mlirc.targets import Target

Combine = Literal["cluster", "last", "launch"]

BLOCKS_PER_SM = 2  # that the keys are divided for, where no teams divide them
LEAST_KEYS = 64  # of a part then
MOST_PARTS = 64
MOST_FOR_ONE = 32  # parts that one block combines
# Bytes of a tile's parts from which a launch combines them: the last block alone reads 115 KB in some 4,000 clocks
# (23.0 us of 32,768 keys of 28 heads of 128, by a launch 22.6; of 33 KB the last one is faster, 29 KB are the same).
MOST_FOR_LAST = 100_000
IN_CLUSTERS = (8, 4, 2)  # parts that the blocks of a cluster take
WARPS = 8  # of the teams of a block: each thread has the registers it wants
WIDEST = 128  # elements of a head that leave a warp registers for more keys
SMEM = 0.9  # of a block's most shared memory


@dataclass(frozen=True)
class Division:
    """`parts` of the keys among blocks, and of each part among `teams`, `block_kv` keys a step; who combines parts;
    the `stages` of the copies. `once`: no team has more than one step."""

    parts: int
    teams: int = 1
    block_kv: int = 64
    combine: Combine | None = None
    stages: int = 2
    once: bool = False


def keys_of(a: AttentionShape) -> int:
    """The most keys that a query sees."""
    return min(a.window + a.q_len, a.kv_len) if a.window else a.kv_len


def default_parts(a: AttentionShape, blocks: int, block_kv: int, target: Target) -> int:
    """How many blocks divide the keys of one that has no teams: so many that every multiprocessor has some. A step is
    a chain of waits, for the page, its keys, the scores, the values: of short sequences one step a part is fastest."""
    keys = keys_of(a)
    wanted = ceil_div(BLOCKS_PER_SM * target.sms, blocks)
    most = max(min(wanted, keys // max(LEAST_KEYS, block_kv), MOST_PARTS), 1)
    steps = ceil_div(keys, block_kv)
    return ceil_div(steps, ceil_div(steps, most))  # no more than have steps


def default_combine(parts: int, blocks: int, target: Target) -> Combine | None:
    """Where blocks all run at once, the last of a tile combines its parts; where parts are many, it takes longer than a
    launch with blocks of its own does (benchmarks/results/decode-attention-h200.md)."""
    if parts == 1:
        return None
    return "last" if parts <= MOST_FOR_ONE and parts * blocks <= BLOCKS_PER_SM * target.sms else "launch"


def default_division(
    a: AttentionShape, target: Target, blocks: int, rows: int, warps: int, block_kv: int | None
) -> Division | None:
    """The division among teams that was measured to be the fastest, of tiles of `rows`; None where these are enough for
    the multiprocessors. Blocks of a cluster combine their parts in half the time that the last block takes, but are 8
    at most: keys of which a team would have several steps then are divided among more, where there is room for more."""
    fill = target.sms // blocks
    found: Division | None = None
    usual = _keys_of_step(a)
    twice = 2 * usual if max(a.head_dim, a.value_dim) <= WIDEST and a.divides_pages(2 * usual) else usual
    for step in (block_kv,) if block_kv else (usual, twice):
        found = _in_cluster(a, target, fill, rows, warps, step)
        if found and found.once:
            return found
    for step in (block_kv,) if block_kv else (usual, _keys_of_loop(a)):
        parts = min(MOST_FOR_ONE, fill, ceil_div(keys_of(a), step))
        if 1 < fill < IN_CLUSTERS[0] and target.has_clusters:
            found = _in_cluster(a, target, fill, rows, warps, step)
        elif parts:
            found = _among_teams(a, target, Division(parts, 1, step, _combine_of_teams(a, rows, parts)), rows, warps)
        if found and found.once:
            break
    return found if found and found.parts * found.teams > 1 else None


def _combine_of_teams(a: AttentionShape, rows: int, parts: int) -> Combine | None:
    """Who combines the parts, of tiles of `rows`, of blocks that have teams and are no cluster."""
    if parts == 1:
        return None
    return "last" if 4 * parts * rows * a.value_dim < MOST_FOR_LAST else "launch"


def _in_cluster(a: AttentionShape, target: Target, fill: int, rows: int, warps: int, step: int) -> Division | None:
    """A division among the blocks of as large a cluster as there is room for."""
    parts = next((p for p in IN_CLUSTERS if p <= min(fill, ceil_div(keys_of(a), step))), 0)
    if not parts or not target.has_clusters:
        return None
    return _among_teams(a, target, Division(parts, 1, step, "cluster"), rows, warps)


def _among_teams(a: AttentionShape, target: Target, d: Division, rows: int, warps: int) -> Division:
    """The same with a team for each step of a block, or as many as have room."""
    for teams in range(min(max(WARPS // warps, 1), ceil_div(ceil_div(keys_of(a), d.block_kv), d.parts)), 0, -1):
        once = not a.window and ceil_div(a.kv_len, d.block_kv) <= d.parts * teams
        d = replace(d, teams=teams, once=once, stages=1 if once else 2)
        if _smem(a, rows, d) <= SMEM * target.max_smem:
            break
    return d


def _keys_of_step(a: AttentionShape) -> int:
    """32 keys, or 16 where these are many bytes, or what divides a page."""
    most = 32 if a.dtype in HALF and max(a.head_dim, a.value_dim) <= WIDEST else 16
    return max(n for n in range(1, most + 1) if a.divides_pages(n))


def _keys_of_loop(a: AttentionShape) -> int:
    """Half of those where teams have several steps, whose copies run ahead: more teams have room then."""
    usual = _keys_of_step(a)
    return usual // 2 if usual == 32 and max(a.head_dim, a.value_dim) > WIDEST // 2 else usual


def _smem(a: AttentionShape, rows: int, found: Division) -> int:
    """Bytes of a block: queries, keys and values, weights where no registers pass them on, and the parts."""
    size, d, e = (2 if a.dtype in HALF else 4), _covered(a.head_dim), _covered(a.value_dim)
    padded, step = 16 * ceil_div(rows, 16), found.block_kv
    copied = size * (padded * d + found.stages * step * (d + e)) + (0 if size == 2 else 4 * padded * (step + e))
    return found.teams * (copied + 4 * rows * (e + 10)) + 4 * padded * (e + 10)


def _covered(extent: int) -> int:
    return power_of_two(2 * extent - 1)
