"""What is said when nobody can go on: which threads wait, for what, and who does not come, and where those are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirc.device.events import Wait
from mlirc.device.machine import WARP, Machine

_RANGES = 3  # named; more are counted


def _ranges(numbers: np.ndarray) -> str:
    """Ascending numbers in words: `0 to 2, 5`; "" for too many ranges."""
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    if len(parts) > _RANGES:
        return ""
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)


def threads_in_words(mine: np.ndarray) -> tuple[str, bool]:
    """Some threads of a block (bool [threads]) by warps and lanes, and whether they are several: `warp 3 (threads 96 to
    127)`, `thread 77 (lane 13 of warp 2)`."""
    numbers = np.flatnonzero(mine)
    if len(numbers) == len(mine):
        return f"all {len(mine)} threads", True
    if len(numbers) == 1:
        return f"thread {numbers[0]} (lane {numbers[0] % WARP} of warp {numbers[0] // WARP})", False
    warps = np.unique(numbers // WARP)
    whole = len(numbers) == sum(min(WARP, len(mine) - w * WARP) for w in warps.tolist())
    threads = _ranges(numbers)
    if whole and (text := _ranges(warps)):
        several = len(warps) > 1
        return f"warp{'s' * several} {text} (threads {threads})", several
    if len(warps) == 1 and (text := _ranges(numbers % WARP)):
        return f"lanes {text} of warp {warps[0]} (threads {threads})", True
    return f"{len(numbers)} threads ({threads or f'{numbers[0]} to {numbers[-1]}'})", True


def never_reach(mine: np.ndarray) -> str:
    """That some threads of a block do not come, in words."""
    text, several = threads_in_words(mine)
    return f"{text} never reach{'' if several else 'es'}"


def report_deadlock(waits: Sequence[tuple[Machine, int, Wait]], shortage: str) -> None:
    """Reports waits that nothing ends, each of a machine and with its number in the order of blocks and threads. Those
    at one operation are one finding; those that spin come first."""
    by_op: dict[int, list[tuple[Machine, int, Wait]]] = {}
    for machine, number, wait in sorted(waits, key=lambda x: (not x[2].spins, x[1])):
        by_op.setdefault(hash(wait.op), []).append((machine, number, wait))
    for found in by_op.values():
        places = sorted(
            (
                (int(m.blocks[k]), number, k, m, w)
                for m, number, w in found
                for k in np.flatnonzero(w.stuck().any(axis=1)).tolist()
            ),
            key=lambda x: x[:3],
        )
        if not places:
            continue
        block, _, k, m, w = places[0]
        mine = np.logical_or.reduce([x[4].stuck()[k] for x in places if x[3] is m and x[2] == k])
        others = len({x[0] for x in places}) - 1
        text, several = threads_in_words(mine)
        what = w.what if isinstance(w.what, str) else w.what(k)
        ending = "" if several else "s"
        does = f"spin{ending}, waiting for" if w.spins else f"wait{ending} for"
        message = f"{text} of block {block} {does} {what}"
        if w.missing is not None:
            message += f", which {never_reach(w.missing(k))}{_elsewhere(waits, m, k, w.missing(k))}"
        if others:
            message += f"; likewise in {others} more block{'s' * (others > 1)}"
        m.report.add("deadlock", message + shortage, w.op, m.kernel)


def _elsewhere(waits: Sequence[tuple[Machine, int, Wait]], m: Machine, k: int, missing: np.ndarray) -> str:
    """Where threads of a block are that do not come, in words; "" where none of them waits."""
    at: dict[int, tuple[Any, np.ndarray]] = {}
    for other, _, wait in waits:
        if other is m and (here := wait.stuck()[k] & missing).any():
            op, before = at.get(hash(wait.op), (wait.op, np.zeros_like(here)))
            at[hash(wait.op)] = op, before | here
    for op, here in at.values():
        some = "" if (here == missing).all() else f"{int(here.sum())} of them "
        return f" ({some}waiting at {op.name} at {m.report.place(op)})"
    return ""
