"""Steps of a plan that may run at the same time: neither may write what the other one uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirc.runtime.plan import Plan, Ref


@dataclass
class Uses:
    """The bytes that each step of a run uses, by its number: references, and whether it writes there."""

    steps: dict[int, list[tuple[Ref, bool]]] = field(default_factory=dict)

    def add(self, number: int, ref: Ref, size: int, written: bool) -> None:
        self.steps.setdefault(number, []).append((Ref(ref.space, ref.index, ref.offset, size), written))

    def conflicts(self, plan: Plan) -> Iterator[tuple[int, int, Ref]]:
        """Two steps that do not wait for each other, and what the later one uses of what either writes."""
        if not plan.after:
            return
        ended: list[int] = []  # for each step, the bits of those that have ended when it begins
        for number in range(len(plan.steps)):
            bits = 0
            for other in plan.waits(number):
                bits |= ended[other] | 1 << other
            ended.append(bits)
            if number < plan.setup:
                continue
            for other in range(plan.setup, number):
                if not bits >> other & 1 and (ref := self._shared(other, number)):
                    yield other, number, ref

    def _shared(self, a: int, b: int) -> Ref | None:
        for r, r_written in self.steps.get(a, ()):
            for s, s_written in self.steps.get(b, ()):
                if (r_written or s_written) and (r.space, r.index) == (s.space, s.index):
                    if r.offset < s.offset + s.size and s.offset < r.offset + r.size:
                        return s
        return None
