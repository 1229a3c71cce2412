"""Loops in a launch plan: steps that are repeated, at offsets that move with the iteration.

A plan in memory has all of its steps; its text says those of a loop once. A reference in a loop is then six numbers:
space, index, offset, size, move, wrap. In iteration t it starts at `offset + move * (t % wrap)`: a slice of a stacked
tensor moves on (`wrap` is the number of iterations), a carried value changes between two places (`wrap` is 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlirc.errors import MlircError
from mlirc.runtime.plan import CopyStep, KernelLaunch, Ref

MAX_STEPS = 1 << 20  # of a plan: a GPU would take seconds to launch as many

PlanStep = KernelLaunch | CopyStep


@dataclass(frozen=True)
class Motion:
    """How a reference moves with the iterations of a loop: by `move` bytes, from the start again after `wrap`."""

    move: int = 0
    wrap: int = 1

    def offset(self, iteration: int) -> int:
        """Bytes from where the reference is in the first iteration."""
        return self.move * (iteration % self.wrap)


def references(step: PlanStep) -> tuple[Ref, ...]:
    """The buffers that a step uses: a launch's arguments, and behind them those of its tables of pointers, or a copy's
    source and target."""
    if isinstance(step, CopyStep):
        return step.source, step.target
    return step.args + tuple(ref for _, table in sorted(step.tables.items()) for ref in table)


def with_references(step: PlanStep, refs: Sequence[Ref]) -> PlanStep:
    """The step on other buffers."""
    if isinstance(step, CopyStep):
        return CopyStep(*refs)
    first = len(refs) - sum(map(len, step.tables.values()))
    rest = iter(refs[first:])
    tables = {number: tuple(next(rest) for _ in table) for number, table in sorted(step.tables.items())}
    return replace(step, args=tuple(refs[:first]), tables=tables)


def unroll(body: Sequence[PlanStep], motions: Sequence[Sequence[Motion]], count: int) -> list[PlanStep]:
    """All steps of a loop: `body` is its first iteration, `motions` holds one Motion for each of its references."""
    moved = []
    for iteration in range(count):
        for step, motion in zip(body, motions, strict=True):
            refs = [
                Ref(r.space, r.index, r.offset + m.offset(iteration), r.size)
                for r, m in zip(references(step), motion, strict=True)
            ]
            moved.append(with_references(step, refs))
    return moved


def roll(steps: Sequence[PlanStep], count: int) -> list[list[Motion]]:
    """How each reference of the first of `count` equal iterations moves. Raises MlircError when they are not a loop."""
    length = len(steps) // count
    motions = []
    for number in range(length):
        iterations = [references(s) for s in steps[number::length]]
        motions.append([_motion([refs[k].offset for refs in iterations]) for k in range(len(iterations[0]))])
    if unroll(steps[:length], motions, count) != list(steps):
        raise MlircError("plan: the steps of a loop are not equal but for where they read and write")
    return motions


def _motion(offsets: list[int]) -> Motion:
    move = offsets[1] - offsets[0] if len(offsets) > 1 else 0
    if not move:
        return Motion()
    again = next((i for i in range(1, len(offsets)) if offsets[i] == offsets[0]), len(offsets))
    return Motion(move, again)
