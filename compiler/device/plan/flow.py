"""Does a launch plan do what `@main` says? Every step's reads and writes are followed through the arena, byte by byte,
with what the bytes hold (`contents.py`), and each launch is held against those of `@main` (`expected.py`).

Two runs are followed, the second in what the first one left in the arena. No numbers are computed: what differs is
found for every input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from mlirc.backend.kernel import Launch
from mlirc.device.plan.contents import NOTHING, Content, Memory, Values, joined, part, whole
from mlirc.device.plan.expected import Expected, ExpectedLaunch
from mlirc.device.plan.kernels import KernelLaunches, masked
from mlirc.device.plan.side_by_side import Uses
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.runtime.plan import POINTER_ALIGNMENT, WRITTEN, CopyStep, KernelLaunch, Plan, Ref
from mlirc.runtime.plan_check import is_written
from mlirc.runtime.repeats import references
from mlirc.runtime.tensor_map import TensorMapSpec

MOST = 20  # problems that are told apart
RUNS = 2


@dataclass(frozen=True)
class Problem:
    """What is wrong with a plan or with a kernel's PTX: in words, and where; `kernel` is "" where it is none's."""

    message: str
    place: str
    kernel: str = ""


@dataclass(frozen=True)
class _Known:
    """One of a kernel's launches, with what of its arguments the kernel itself has made by then."""

    kernel: KernelLaunches
    launch: Launch
    stored: frozenset[int]
    masks: list[Content]


class PlanFlow:
    """Follows a plan through its runs. After a mistake, what the launch should have made is taken for made, so that one
    mistake is one problem."""

    def __init__(self, plan: Plan, module: ir.Module, kernels: Mapping[str, KernelLaunches]):
        self.plan, self.module, self.kernels, self.values = plan, module, kernels, Values()
        self.known: dict[str, list[_Known]] = {}  # by symbol
        for kernel in kernels.values():
            for launch, stored, masks in zip(kernel.launches, kernel.stored, kernel.unwritten(), strict=True):
                if isinstance(launch, Launch):
                    self.known.setdefault(launch.symbol, []).append(_Known(kernel, launch, stored, masks))
        self.found: list[Callable[[], Problem]] = []  # made at the end, when all that steps make is known
        self.made: set[int] = set()  # values that steps have made
        self.uses = Uses()

    def problems(self) -> list[Problem]:
        """What is wrong with the plan, in the order of the steps; of many only the first."""
        arena = Memory(self.plan.arena_size)
        for run in range(RUNS):
            if not self.found:
                self._run(arena, run)
        for a, b, ref in self.uses.conflicts(self.plan):
            what = f"may run at the same time as step {a}, and one of them writes bytes of {_buffer(ref)} that both use"
            self.found.append(partial(Problem, what, f"step {b}"))
        return list(dict.fromkeys(make() for make in self.found))[:MOST]

    def _run(self, arena: Memory, run: int) -> None:
        """Follows one run, with inputs of its own."""
        plan, given = self.plan, {}
        for spec in (*plan.weights, *plan.inputs):
            number = 0 if spec.kind in ("weight", "constant") else run
            given[spec.name] = self.values.number((spec.kind, spec.name, number), f"{spec.kind} '{spec.name}'")
        memories = {("arena", 0): arena}
        for space, specs in (("input", plan.inputs), ("weight", plan.weights), ("output", plan.outputs)):
            for index, spec in enumerate(specs):
                memories[space, index] = Memory(spec.nbytes)
                if space != "output":
                    memories[space, index].write(0, whole(given[spec.name], spec.nbytes))
        following = _Run(self, Expected(self.module, self.kernels, self.values, given), memories, run)
        for number, step in enumerate(plan.steps):
            if (run == 0 or number >= plan.setup) and len(self.found) < MOST:
                following.step(number, step)
        following.end()


def compare_mains(
    plan: Plan, main: ir.Module, above: ir.Module, level: str, kernels: Mapping[str, KernelLaunches]
) -> list[Problem]:
    """The outputs of `@main` at the `gpu` level that another level's `@main` makes of other calls or arguments."""
    values = Values()
    given = {s.name: values.number(s.name, f"{s.kind} '{s.name}'") for s in (*plan.weights, *plan.inputs)}
    found = [in_order(plan, module, Expected(module, kernels, values, given).outputs) for module in (main, above)]
    return [
        Problem(f"{spec.kind} '{spec.name}' is {values.name(a)}, but {values.name(b)} at level {level}", "@main")
        for spec, a, b in zip(plan.results, *found, strict=True)
        if a != b
    ]


def in_order(plan: Plan, module: ir.Module, results: Sequence[Content]) -> list[Content]:
    """The results of `@main` in the order of the plan's: outputs, then what it writes."""
    places = levels.main_results(levels.functions(module)["main"], plan)
    return [results[places.index(i)] for i in range(len(places))]


class _Run:
    """One run of a plan's steps."""

    def __init__(self, flow: PlanFlow, expected: Expected, memories: dict[tuple[str, int], Memory], run: int):
        self.flow, self.expected, self.memories = flow, expected, memories
        self.when = " (in the second run: it must last from one run to the next)" if run else ""
        self.matched: set[ExpectedLaunch] = set()
        self.launched: dict[str, int] = {}  # how often, by symbol
        steps = flow.plan.steps[flow.plan.setup if run else 0 :]
        self.total = Counter(step.symbol for step in steps if isinstance(step, KernelLaunch))

    def add(self, message: str, place: str, kernel: str = "") -> None:
        problem = Problem(message, place, kernel)
        self.flow.found.append(lambda: problem)

    def add_content(self, what: str, held: Content, right: Content, place: str, kernel: str = "") -> None:
        flow, when = self.flow, self.when
        needed = {v for v, _, _ in right if v in self.expected.makers}

        def make() -> Problem:
            never = ", which no step makes" if needed - flow.made else ""
            names = [flow.values.name(content) for content in (held, right)]
            return Problem(f"{what} holds {names[0]}, but must hold {names[1]}{never}{when}", place, kernel)

        flow.found.append(make)

    def step(self, number: int, step: KernelLaunch | CopyStep) -> None:
        """Follows a step: a copy moves what it moves, a launch makes what `@main`'s makes."""
        if isinstance(step, CopyStep):
            source, target = step.source, step.target
            self.flow.uses.add(number, source, source.size, False)
            self.flow.uses.add(number, target, source.size, True)
            self.memories[target.space, target.index].write(target.offset, self._read(source, source.size))
            return
        where = f"step {number}"
        if step.symbol not in self.flow.known:
            self.add(f"launches {step.symbol}, which the gpu level does not have", where, step.kernel)
            return
        known = self.flow.known[step.symbol]
        count = self.launched.get(step.symbol, 0)
        self.launched[step.symbol] = count + 1
        self._launch(number, step, known[count % len(known)])

    def _launch(self, number: int, step: KernelLaunch, known: _Known) -> None:
        where, launch, kernel = f"step {number}", known.launch, known.kernel.name
        sizes = known.kernel.bytes_of(launch)
        if step.kernel not in ("", kernel):
            self.add(f"says that {step.symbol} is a launch of {step.kernel}", where, kernel)
        for what in ("grid", "block", "smem", "cluster", "dependent", "cooperative", "values"):
            a, b = getattr(step, what), getattr(launch, what)
            if a != b:
                what = {"smem": "dynamic shared memory"}.get(what, what)
                self.add(f"{what} is {_shown(a)}, but {_shown(b)} at the gpu level", where, kernel)
        if len(step.args) != len(launch.args):
            self.add(f"has {len(step.args)} arguments, but {len(launch.args)} at the gpu level", where, kernel)
            return
        for what, a, b in zip(("tables", "extents"), _forms(step), _forms(launch), strict=True):
            if a != b:
                self.add(f"{what} are {a}, but {b} at the gpu level", where, kernel)
                return
        inputs = self.flow.plan.inputs
        deciding = [Ref("input", e.scalar, 0, inputs[e.scalar].nbytes) for _, e in sorted(step.extents.items())]
        refs = (*references(step), *deciding)
        for p in range(len(step.args)):
            a, b = (_shown_map(x.maps.get(p)) for x in (step, launch))
            if a != b:
                self.add(f"argument {p} is {a}, but {b} at the gpu level", where, kernel)
        self._check_places(refs, known, sizes, where)
        for p, (ref, size) in enumerate(zip(refs, sizes, strict=True)):
            self.flow.uses.add(number, ref, size, p in known.stored)
        contents = tuple(
            masked(self._read(ref, size), mask) for ref, size, mask in zip(refs, sizes, known.masks, strict=True)
        )
        right = self.expected.launches.get((step.symbol, contents)) or self._nearest(step.symbol, contents)
        if right is None:
            self.add("is a launch more than the gpu level has", where, kernel)
            return
        self.matched.add(right)
        for p, (a, b) in enumerate(zip(contents, right.contents, strict=True)):
            if a != b:
                self.add_content(f"argument {p}", a, b, where, kernel)
        for p, value in right.made.items():
            ref, memory = refs[p], self.memories[refs[p].space, refs[p].index]
            memory.write(ref.offset, part(whole(value, sizes[p]), 0, memory.size - ref.offset))
            self.flow.made.add(value)

    def _nearest(self, symbol: str, contents: tuple[Content, ...]) -> ExpectedLaunch | None:
        """The launch that one with other contents was meant to be, of those that no step has done yet: the one in its
        place, where the plan has as many; unless another one has two arguments more in common."""
        launches = self.expected.by_symbol.get(symbol, [])
        place = self.launched[symbol] - 1 if len(launches) == self.total[symbol] else -1

        def alike(i: int) -> float:
            return sum(a == b for a, b in zip(launches[i].contents, contents, strict=True)) + 1.5 * (i == place)

        left = [i for i, launch in enumerate(launches) if launch not in self.matched]
        return launches[max(left, key=alike)] if left else None

    def _read(self, ref: Ref, size: int) -> Content:
        """What a reference holds, NOTHING behind the end of its buffer."""
        memory = self.memories[ref.space, ref.index]
        room = max(0, min(size, memory.size - ref.offset))
        return joined([*memory.read(ref.offset, room), (NOTHING, 0, size - room)])

    def _check_places(self, refs: Sequence[Ref], known: _Known, sizes: Sequence[int], where: str) -> None:
        """Sizes, alignments, and what a launch writes: no input, and nothing that it has under another name, too."""
        launch, kernel = known.launch, known.kernel.name
        buffers, offsets = zip(*launch.places, strict=True)
        for p, (ref, size, offset) in enumerate(zip(refs, sizes, offsets, strict=True)):
            if ref.size != size:
                self.add(f"argument {p} has {ref.size} bytes, but {size} at the gpu level", where, kernel)
            if size and (ref.offset - offset) % POINTER_ALIGNMENT:
                self.add(f"argument {p} starts at byte {ref.offset - offset} of {_buffer(ref)}: not a multiple of "
                         f"{POINTER_ALIGNMENT}", where, kernel)  # fmt: skip
        for p in sorted(known.stored):
            if refs[p].space in ("input", "weight") and not is_written(self.flow.plan, refs[p]):
                self.add(f"writes argument {p}, which is {_buffer(refs[p])}", where, kernel)
            for q, ref in enumerate(refs):
                if buffers[p] != buffers[q] and _overlap(refs[p], sizes[p], ref, sizes[q]):
                    self.add(f"argument {p}, which it writes, overlaps argument {q}", where, kernel)

    def end(self) -> None:
        """Looks at the outputs, and at what is written."""
        plan = self.flow.plan
        spaces = (("output", plan.outputs), ("weight", plan.weights), ("input", plan.inputs))
        ends = [(space, i) for space, specs in spaces for i, s in enumerate(specs) if s.kind in ("output", *WRITTEN)]
        right = in_order(plan, self.flow.module, self.expected.outputs)
        for (space, index), spec, content in zip(ends, plan.results, right, strict=True):
            held = self.memories[space, index].read(0, spec.nbytes)
            if held != content:
                self.add_content(f"{spec.kind} '{spec.name}'", held, content, "the end")


def _forms(launch: KernelLaunch | Launch) -> tuple[str, str]:
    """How many pointers each table has, and how scalars decide the grid, in words."""
    tables = [f"{1 + len(table)} pointers as argument {p}" for p, table in sorted(launch.tables.items())]
    extents = [f"{'xyz'[d]} divided by {e.divisor}, times {e.factor}" for d, e in sorted(launch.extents.items())]
    return ", ".join(tables) or "none", ", ".join(extents) or "none"


def _overlap(a: Ref, a_size: int, b: Ref, b_size: int) -> bool:
    if (a.space, a.index) != (b.space, b.index) or not a_size or not b_size:
        return False
    return a.offset < b.offset + b_size and b.offset < a.offset + a_size


def _buffer(ref: Ref) -> str:
    return "the arena" if ref.space == "arena" else f"{ref.space} {ref.index}"


def _shown_map(spec: TensorMapSpec | None) -> str:
    return f"a tensor map of {spec}" if spec else "a pointer"


def _shown(value: int | tuple[int, ...] | None) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    return "none" if value is None else str(value)
