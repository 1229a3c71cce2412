"""A launch plan in the making: where values lie, and the steps so far. The arena is not laid out yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.backend.plan_views import Buffer, Step, View, is_aligned
from mlirc.mlir import ir
from mlirc.runtime.plan import Repeat


@dataclass
class Draft:
    """`values` says where each value of `@main` lies; `realigned` which views have an aligned copy."""

    buffers: list[Buffer] = field(default_factory=list)
    values: dict[ir.Value, View] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    realigned: dict[View, View] = field(default_factory=dict)
    loops: list[Repeat] = field(default_factory=list)  # in numbers of `steps`, which has one iteration of each
    in_setup: bool = True
    in_loop: bool = False

    def new_buffer(self, space: str, size: int, index: int = 0) -> View:
        now = len(self.steps)
        self.buffers.append(Buffer(space, size, index, first=now, last=now, static=self.in_setup and space == "arena"))
        return View(len(self.buffers) - 1, 0, size)

    def align(self, view: View) -> View:
        """The view itself when kernels may load 16 bytes at a time from it, else a copy of it in the arena."""
        if is_aligned(view) or view.size == 0:
            return view
        if view not in self.realigned:
            target = self.new_buffer("arena", view.size)
            self.copy(view, target)
            self.realigned[view] = target
        return self.realigned[view]

    def copy(self, source: View, target: View) -> None:
        for view in (source, target):
            self.buffers[view.buffer].last = len(self.steps)
        self.steps.append(Step((source, target), written=(target,)))
