"""Loops over time steps in the launch plan: where a loop's tensors lie, and the steps of one iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mlirc.backend.plan_draft import Draft
from mlirc.backend.plan_views import View, is_aligned, tensor_bytes
from mlirc.errors import MlircError
from mlirc.ir.loops import Loop, Source
from mlirc.mlir import ir
from mlirc.runtime.plan import POINTER_ALIGNMENT, Repeat
from mlirc.runtime.repeats import Motion


@dataclass(frozen=True)
class _Place:
    """Where a carried value lies: what an iteration reads and what it writes (None where nothing changes), and what is
    there after the last one."""

    read: View
    write: View | None
    final: View


class LoopReader:
    """Adds a call of a loop to the draft's steps: what comes before the loop, and its first iteration.

    A value that is carried whole changes between two places. One that is stacked, too, has its states one after the
    other in the stack, before the first (or, from the last to the first, behind the last) of which the initial one
    lies: so each step reads what the step before wrote, and nothing is copied. Inputs are copied into the arena and
    outputs out of it, since each of their addresses in a graph that the driver holds costs time to change.
    """

    def __init__(self, draft: Draft, call: ir.Operation, loop: Loop, step: ir.Operation):
        self.block = step.regions[0].blocks[0]
        made = list(self.block.operations[len(self.block.operations) - 1].operands)
        once = [
            replace(s, number=made.index(made[s.number])) if s.kind == "result" else s for s in loop.yields
        ]  # one number for a tensor that a step returns twice: as a state and as a slice of the results
        self.draft, self.call, self.loop = draft, call, replace(loop, yields=tuple(once))
        self.arguments = [self.settled(draft.values[v]) for v in call.operands]

    def settled(self, view: View) -> View:
        buffer = self.draft.buffers[view.buffer]
        if buffer.space != "input" or not view.size:
            return view
        target = self.draft.new_buffer("arena", view.size)
        self.draft.copy(view, target)
        return target

    def add(self, read: Callable[[ir.Operation], None]) -> None:
        """`read` adds an operation of the step."""
        draft, loop = self.draft, self.loop
        for source in loop.operands:
            if source.kind == "argument":
                self.arguments[source.number] = draft.align(self.arguments[source.number])
        places = self.places()
        operands = [self.operand(source, places) for source in loop.operands]
        first, known, realigned = len(draft.steps), len(draft.buffers), dict(draft.realigned)
        draft.values.update(zip(self.block.arguments, operands, strict=True))
        *inner, end = [op.operation for op in self.block.operations]
        for op in inner:
            read(op)
        made = [draft.values[v] for v in end.operands]
        self.write_results(places, made, first, known)
        draft.realigned = realigned  # what an iteration copied is there for that iteration
        length = len(draft.steps) - first
        if length and loop.count > 1:
            draft.loops.append(Repeat(first, length, loop.count))
            self.keep(first, length)
        for value, number in zip(self.call.results, loop.results, strict=True):
            draft.values[value] = places[number].final

    def places(self) -> list[_Place]:
        """Where the carried values lie, with the initial ones there."""
        found: dict[int, _Place] = {}
        for number, (source, reverse) in enumerate(zip(self.loop.yields, self.loop.slices, strict=True)):
            if reverse is None or number in found:
                continue
            partner = self.state_of(source, number)
            if partner is None:
                found[number] = self.stack(number, reverse)
            else:
                found[number], found[partner] = self.stack_of_states(number, partner, reverse)
        for number in range(len(self.loop.yields)):
            if number not in found:
                found[number] = self.state(number)
        return [found[number] for number in range(len(found))]

    def size(self, number: int) -> int:
        """Bytes of a carried value."""
        result = self.call.results[self.loop.results.index(number)] if number in self.loop.results else None
        if result is None:
            start = self.loop.starts[number]
            if start is None:
                raise MlircError(f"loop {self.name}: it makes a tensor that it does not return")
            return self.arguments[start].size
        return tensor_bytes(result.type, f"loop {self.name}, result")

    @property
    def name(self) -> str:
        return ir.FlatSymbolRefAttr(self.call.attributes["callee"]).value

    def state_of(self, stacked: Source, number: int) -> int | None:
        """The value carried whole of which a stack holds the states."""
        aligned = self.size(number) // self.loop.count % POINTER_ALIGNMENT == 0
        for other, (source, reverse) in enumerate(zip(self.loop.yields, self.loop.slices, strict=True)):
            if reverse is None and source == stacked and self.loop.starts[other] is not None and aligned:
                return other
        return None

    def start(self, number: int, target: View) -> None:
        """Copies a value's initial state to where the first iteration reads it."""
        start = self.loop.starts[number]
        if start is not None and target.size:
            self.draft.copy(self.arguments[start], target)

    def stack(self, number: int, reverse: bool) -> _Place:
        whole = self.draft.new_buffer("arena", self.size(number))
        row = whole.size // self.loop.count
        write = replace(whole, size=row, **self.moving(row, reverse))
        return _Place(write, write, whole)

    def stack_of_states(self, number: int, state: int, reverse: bool) -> tuple[_Place, _Place]:
        count = self.loop.count
        row = self.size(number) // count
        buffer = self.draft.new_buffer("arena", row * (count + 1))
        states = [replace(buffer, offset=i * row, size=row) for i in range(count + 1)]
        before, after, last = (states[count], states[count - 1], states[0]) if reverse else (*states[:2], states[count])
        self.start(state, before)
        motion = Motion(-row if reverse else row, count)
        whole = replace(buffer, offset=0 if reverse else row, size=row * count)
        write = replace(after, motion=motion)
        return _Place(write, write, whole), _Place(replace(before, motion=motion), write, last)

    def state(self, number: int) -> _Place:
        start = self.loop.starts[number]
        if self.loop.yields[number] == Source("carry", number) and start is not None:
            view = self.arguments[start] = self.draft.align(self.arguments[start])
            return _Place(view, None, view)
        size = self.size(number)
        pitch = -(-size // POINTER_ALIGNMENT) * POINTER_ALIGNMENT
        buffer = self.draft.new_buffer("arena", 2 * pitch)
        even, odd = (replace(buffer, offset=i * pitch, size=size) for i in range(2))
        self.start(number, even)
        read, write = replace(even, motion=Motion(pitch, 2)), replace(odd, motion=Motion(-pitch, 2))
        return _Place(read, write, odd if self.loop.count % 2 else even)

    def moving(self, row: int, reverse: bool) -> dict:
        count = self.loop.count
        return {"offset": (count - 1) * row if reverse else 0, "motion": Motion(-row if reverse else row, count)}

    def operand(self, source: Source, places: list[_Place]) -> View:
        if source.kind == "carry":
            return places[source.number].read
        view = self.arguments[source.number]
        if source.kind == "argument":
            return view
        row = view.size // self.loop.count
        moving = self.moving(row, source.reverse)
        return replace(view, size=row, offset=view.offset + moving["offset"], motion=moving["motion"])

    def write_results(self, places: list[_Place], made: list[View], first: int, known: int) -> None:
        """Has the kernels write what an iteration makes where it belongs; what they cannot write there is copied."""
        draft = self.draft
        moved: dict[int, View] = {}
        done: set[View] = set()
        for source, place in zip(self.loop.yields, places, strict=True):
            target = place.write
            if target is None or target in done or not target.size:
                continue
            done.add(target)
            view = made[source.number] if source.kind == "result" else places[source.number].read
            own = view.buffer >= known and view.buffer not in moved and view == _whole(draft, view)
            if own and is_aligned(target):
                moved[view.buffer] = target
            else:
                draft.copy(view, target)
        for number in range(first, len(draft.steps)):
            step = draft.steps[number]
            draft.steps[number] = replace(step, views=tuple(_redirected(v, moved) for v in step.views))
        for buffer in moved:
            draft.buffers[buffer].size = 0

    def keep(self, first: int, length: int) -> None:
        """What an iteration uses lives through the whole loop."""
        for step in self.draft.steps[first : first + length]:
            for view in step.views:
                buffer = self.draft.buffers[view.buffer]
                buffer.first, buffer.last = min(buffer.first, first), max(buffer.last, first + length - 1)
                buffer.looped = True


def _whole(draft: Draft, view: View) -> View:
    return replace(view, offset=0, size=draft.buffers[view.buffer].size, motion=Motion())


def _redirected(view: View, moved: dict[int, View]) -> View:
    target = moved.get(view.buffer)
    if target is None:
        return view
    return replace(view, buffer=target.buffer, offset=target.offset + view.offset, motion=target.motion)


def read_loop_call(
    draft: Draft,
    call: ir.Operation,
    loop: Loop,
    functions: Callable[[str], ir.Operation | None],
    read: Callable[[ir.Operation], None],
) -> None:
    """Adds a call of a loop, whose step's operations `read` adds; raises MlircError where its step is missing or holds
    a loop itself."""
    name = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
    step = functions(loop.step)
    if step is None:
        raise MlircError(f"loop {name}: the module has no function @{loop.step}")
    if draft.in_loop:
        raise MlircError(f"loop {name}: a loop inside of a loop's step cannot be launched")
    draft.in_loop = True
    LoopReader(draft, call, loop, step).add(read)
    draft.in_loop = False
