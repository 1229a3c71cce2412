"""Steps of a launch plan that may run at the same time: branches of a model that do not depend on each other.

A step waits for those that made what it reads, and for those that use what it writes over. Copies, launches that a
scalar may leave out and cooperative ones wait for all before them, and all behind wait for them. Buffers of steps that
may run at the same time share no memory: between two steps that all others are ordered with, a buffer is held
throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.backend.arena import Lifetime
from mlirc.backend.plan_views import Buffer, Step


@dataclass(frozen=True)
class Branches:
    """`after`: by number, the steps that a step waits for, where those are others than the one in front of it. `spans`:
    for each step, the first and the last step among which it has no fixed place."""

    after: dict[int, tuple[int, ...]]
    spans: list[tuple[int, int]]

    def lifetime(self, buffer: Buffer) -> Lifetime:
        """When a buffer is in use, whatever the order of the steps."""
        if not self.after or buffer.first >= len(self.spans):
            return Lifetime(buffer.size, buffer.first, buffer.last)
        last = self.spans[buffer.last][1] if buffer.last < len(self.spans) else buffer.last
        return Lifetime(buffer.size, self.spans[buffer.first][0], last)


IN_ORDER = Branches({}, [])


def find_branches(steps: Sequence[Step], setup: int) -> Branches:
    """The branches among the steps from number `setup` on."""
    before: list[int] = []  # for each step, the bits of those that have ended when it begins
    after: dict[int, tuple[int, ...]] = {}
    for number, needed in enumerate(_needed(steps, setup)):
        ended, direct = 0, []
        for other in sorted(needed, reverse=True):
            if not ended >> other & 1:
                direct.append(other)
                ended |= before[other] | 1 << other
        before.append(ended)
        if direct != ([number - 1] if number else []) and number >= setup:
            after[number] = tuple(n for n in sorted(direct) if n >= setup)
    return Branches({n: w for n, w in after.items() if n > setup or w}, _spans(before))


def _needed(steps: Sequence[Step], setup: int) -> list[set[int]]:
    """For each step, those that it waits for, and maybe others that these wait for."""
    writers: dict[int, set[int]] = {}  # by buffer
    users: dict[int, set[int]] = {}
    all_needed: list[set[int]] = []
    alone = -1  # the last step that runs next to no other one
    for number, step in enumerate(steps):
        needed = {alone} if alone >= 0 else set()
        written = {view.buffer for view in step.written}
        for buffer in {view.buffer for view in step.views}:
            needed |= (users if buffer in written else writers).get(buffer, set())
        if number < setup or not step.launch or step.launch.extents or step.launch.cooperative:
            needed |= set(range(max(alone, 0), number))
            alone = number
        for buffer in {view.buffer for view in step.views}:
            users[buffer] = {number} if buffer in written else users.get(buffer, set()) | {number}
        writers |= {buffer: {number} for buffer in written}
        all_needed.append(needed)
    return all_needed


def _spans(before: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last step of each step's part of the plan; the parts run one after the other."""
    if not before:
        return []
    least, starts = len(before), []
    for number in reversed(range(len(before))):
        ended = before[number]
        least = min(least, (~ended & (ended + 1)).bit_length() - 1)  # the first step that need not have ended
        if least >= number:
            starts.append(number)
    spans: list[tuple[int, int]] = []
    for start, end in zip(starts[::-1], [*starts[-2::-1], len(before)], strict=True):
        spans += [(start, end - 1)] * (end - start)
    return spans
