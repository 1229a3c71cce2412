"""Runs one launch of a translated kernel: batch of blocks by batch, or, where blocks wait for each other, as many as a
GPU would hold at once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlirc.device.copies import Copies
from mlirc.device.counters import Counters
from mlirc.device.declared_sizes import declared_problem
from mlirc.device.exits import check_exit
from mlirc.device.launch_maps import OfBuffer
from mlirc.device.limits import (
    SECONDS,
    SECONDS_AFTER,
    Deadline,
    Stop,
    cannot_go_on,
    deep_calls,
    launch_problem,
    resident_blocks,
)
from mlirc.device.machine import Machine
from mlirc.device.memory import POISON, Buffer, MemRef
from mlirc.device.order.clocks import Clocks
from mlirc.device.order.global_order import Knowledge, check_watched
from mlirc.device.order.launch_order import Order
from mlirc.device.report import MAY_BE_HARMLESS, Report
from mlirc.device.shadows.machine import ShadowMachine
from mlirc.device.sync import Scheduler
from mlirc.device.tensor_maps import Im2colMap, TensorMap
from mlirc.device.translate import Program, granule, operation_of
from mlirc.errors import MlircError

BATCH_THREADS = 4096  # threads executed together: larger arrays leave the cache, smaller ones pay for the interpreter
WINDOW = 1 << 16  # blocks (or clusters) that a seed shuffles among each other
_FLOAT_SUMS = re.compile(r"memref\.(atomic_rmw addf|generic_atomic_rmw)|atomicrmw fadd")
MAX_HELD = 4000  # atomic accesses in all runs in which a block is held up
MAX_BATCH_SHARED = 64 << 20  # bytes of shared memory of a batch


@dataclass
class Execution:
    """One launch. `shape`: grid, block, bytes of dynamic shared memory."""

    program: Program
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int]
    cluster: tuple[int, int, int]
    report: Report
    check: bool
    poison: int
    deadline: Deadline
    points: dict[int, int] = field(default_factory=dict)  # of the last run (Scheduler.points)
    module: dict[str, Buffer] = field(default_factory=dict)  # global memory of the module's own

    def __post_init__(self) -> None:
        for name, nbytes in self.program.module.items():
            buffer = Buffer(f"global memory @{name}", "global", nbytes, contents=np.zeros(nbytes, np.uint8))
            buffer.tracked, buffer.earlier = self.check, "writes"  # by the launch of it before this one
            self.module[name] = buffer

    def run(self, registers: list, units: Sequence[int], seed: int, pick: str = "drawn", count: bool = False,
            hold: tuple[int, int] | None = None) -> bool:  # fmt: skip
        """Runs blocks, or clusters, with a seed other than 0 in an order drawn from it. False if the launch cannot end,
        which the report tells."""
        for value in registers:
            if isinstance(value, TensorMap | Im2colMap):
                value.writers.forget()
        program, (_, block, smem), size = self.program, self.shape, math.prod(self.cluster)
        draw = np.random.default_rng(seed & (1 << 64) - 1)
        threads, shared = math.prod(block), smem + program.static_shared
        held = resident_blocks(threads, shared)
        machines = self._machines(units, draw if seed else None, count, max(held // size, 1))
        scheduler = Scheduler(machines, _end, draw, seed != 0, pick, hold=hold)
        self.points = scheduler.points
        if program.spins:
            scheduler.resident = max(held // size, 1)
            scheduler.shortage = lambda begun: (
                f"; {(len(units) - begun) * size} of the blocks have not started: a GPU holds {held} of {threads} "
                f"threads and {shared} bytes of shared memory at once"
                if begun < len(units)
                else ""
            )
        try:
            scheduler.run(program, registers)
        except Stop:
            try:
                for machine, _ in scheduler.live.values():
                    machine.deadline = Deadline(Report(), SECONDS_AFTER)
                    _finish(machine)  # what happened until then counts
            except Stop:
                pass  # what has not been looked at by now is not
            except Exception as e:
                self._stopped(e)
            return False
        except Exception as e:
            self._stopped(e)
            return False
        return True

    def _stopped(self, error: Exception) -> None:
        """Notes what the checks let through, or were not asked to look for: a report, not a traceback."""
        where = operation_of(error) or self.program.function
        why = cannot_go_on(error, self.check, math.prod(self.shape[1]))
        self.report.add("stopped", f"the kernel cannot go on: {why}", where, self.program.name)

    def _machines(
        self, units: Sequence[int], varied: np.random.Generator | None, count: bool, resident: int
    ) -> Iterator[Machine]:
        """The machines of a launch, each made when it is started; `resident` of them may be under way at once."""
        program, (grid, block, smem), size = self.program, self.shape, math.prod(self.cluster)
        per = 1 if program.spins or program.pointers else max(1, BATCH_THREADS // (math.prod(block) * size))
        own = max((smem + program.static_shared) * size, program.local * math.prod(block) * size // 4)
        if own:
            per = max(1, min(per, MAX_BATCH_SHARED // own))
        order, first = None, 0
        if self.check and (program.clocks or size > 1):
            order = Order(len(units) * size, math.prod(block), granule(program))
            if program.spins:  # machines wait for each other, so that many are there at once
                warps = min(resident, len(units)) * size * -(-math.prod(block) // 32)
                check_watched(program.name, warps, order.threads)
        for batch in _batches(units, per, varied):
            blocks = _blocks_of(batch, grid, self.cluster)
            kind = Machine if program.shadows is None else ShadowMachine
            machine = kind(program.name, blocks, grid, block, self.report, self.check, self.poison, self.cluster)
            if isinstance(machine, ShadowMachine) and program.shadows is not None:
                machine.shadows = program.shadows
            machine.deadline = self.deadline
            if machine.races is not None:
                machine.races.granule = granule(program)
            if order is not None:
                machine.order = Knowledge(machine, order, first, program.ordered)
                machine.clocks = Clocks(machine)
            first += machine.nb * machine.nt
            machine.copies, machine.module = Copies(), self.module
            machine.bulk_sources, machine.tensor_stores = program.bulk_sources, program.tensor_stores
            machine.draw = varied
            if self.check and program.grid_waits:
                machine.waited = np.zeros((machine.nb, machine.nt), bool)
            if count:
                machine.counters = Counters(self.report, program.name, machine.nt)
            self.deadline.check(machine, None, program.function)
            machine.dynamic_shared = machine.allocate("shared memory", "shared", smem, program.dynamic_align)
            for n, a in enumerate(program.arrays):
                buffer = machine.allocate(f"{a.space} memory (array {n})", a.space, a.nbytes, a.align)
                strides = tuple(a.type.get_strides_and_offset()[0])
                machine.own[a.register] = MemRef(buffer, 0, tuple(a.type.shape), strides, a.item)
            yield machine


def _end(machine: Machine) -> None:
    """The blocks of a machine have come to their end."""
    check_exit(machine)
    _finish(machine)


def _finish(machine: Machine) -> None:
    if machine.races is not None:
        machine.races.barrier()


@deep_calls()
def execute(
    program: Program,
    registers: list,
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
    blocks: Sequence[int] | None,
    report: Report,
    *,
    check: bool,
    seed: int,
    poison: int = POISON,
    count: bool = False,
    cluster: tuple[int, int, int] | None = None,
    seconds: float = SECONDS,
) -> bool:
    """Runs the given blocks of one launch (None: all; with clusters, all blocks of their clusters). `shape`: grid,
    block, bytes of dynamic shared memory. `seed`: 0 runs blocks in order and all threads of a block together, where
    they do not wait for each other; any other one draws the order of blocks, of groups of warps, and of threads in
    atomics. A kernel whose blocks order each other is checked in other orders first, so that what happens to come first
    is not taken for what must; the results are the seed's. False if the launch could
    not run to its end, which the report tells."""
    if seed < 0:
        raise MlircError(f"host device: seed {seed}: give 0 or more")
    grid, block, smem = shape
    cluster = cluster or program.cluster
    problem = launch_problem(grid, block, smem, cluster, program.static_shared, program.local)
    problem = problem or declared_problem(program.function, grid, block)
    if problem:
        report.add("bad launch", problem, program.function, program.name)
        return False
    units = _units(blocks, grid, cluster)
    launch = Execution(program, shape, cluster, report, check, poison, Deadline(report, seconds))
    whole = check and blocks is None
    if program.ordered and check:
        arrays = [*_memory(registers), *(buffer.data for buffer in launch.module.values())]
        saved = [(array, array.copy()) for array in arrays]
        before, first = _serious(report), None
        for order, pick, hold in _orders(launch, units):
            ended = launch.run(registers, order, 0, pick, hold=hold)
            if ended and whole:
                _check_module(launch)
                first = _compare(launch, _results(registers), first)
            if not ended or _serious(report) > before:
                return ended
            for array, was in saved:
                array[...] = was
    ended = launch.run(registers, units, seed, count=count)
    if ended and whole:
        _check_module(launch)
    return ended


def _results(registers: list) -> list[tuple[str, np.ndarray]]:
    """The names and bytes of a launch's arguments, but workspaces, in which places may be drawn."""
    buffers = [v.buffer for v in registers if isinstance(v, MemRef) and v.buffer.tracked]
    return [(b.name, b.data.copy()) for b in buffers if not b.name.startswith("workspace")]


def _compare(launch: Execution, results: list[tuple[str, np.ndarray]], first: list | None) -> list:
    """What blocks compute does not depend on who comes first, unless they add up floats by atomics."""
    if first is None or _FLOAT_SUMS.search(str(launch.program.function)):
        return results
    for (name, was), (_, now) in zip(first, results, strict=True):
        changed = np.flatnonzero(was != now)
        if len(changed):
            message = f"blocks in another order leave other bytes in {name}, from byte {changed[0]} on"
            launch.report.add("depends on order", message, launch.program.function, launch.program.name, len(changed))
    return first


def _check_module(launch: Execution) -> None:
    """A launch leaves the module's own memory as it was when the file was loaded: zeros, as the next one expects."""
    for buffer in launch.module.values():
        changed = np.flatnonzero(buffer.data[: buffer.nbytes])
        if len(changed):
            message = f"ends, and byte {changed[0]} of {buffer.name} is not 0, with which the next launch begins"
            launch.report.add("changed memory", message, launch.program.function, launch.program.name, len(changed))


def _orders(launch: Execution, units: Sequence[int]) -> Iterator[tuple[Sequence[int], str, tuple[int, int] | None]]:
    """The orders, besides the seed's, that a kernel whose blocks order each other is run in: blocks, which task goes
    first, and who is held up where. Blocks that wait for each other may be anywhere when another one gets between two
    atomic accesses: the first and the last block are held up at each of them in turn."""
    yield units, "first", None
    spent, points = sum(launch.points.values()), list(launch.points)
    yield units[::-1], "last", None
    if not points:
        return
    blocks = _blocks_of(np.array([units[0], units[-1]], dtype=np.int64), launch.shape[0], launch.cluster)
    for number, hold in enumerate((p, int(b)) for p in points for b in (blocks[0], blocks[-1])):
        if number * spent > MAX_HELD:
            return
        yield units, "first", hold


def _memory(registers: list) -> list[np.ndarray]:
    """The arrays behind a launch's arguments that it may write to."""
    found: dict[int, np.ndarray] = {}
    for value in registers:
        if isinstance(value, MemRef) and value.buffer.tracked:
            planes = [value.buffer.data, value.buffer.written]
        elif isinstance(value, OfBuffer):
            planes = [value.buffer.data, value.buffer.written]
        else:
            planes = [getattr(value, "array", None)]  # of a tensor map
        found.update({id(a): a for a in planes if isinstance(a, np.ndarray)})
    return list(found.values())


def _serious(report: Report) -> int:
    """How many findings there are, but those of reads of fresh memory, which may turn out to be harmless."""
    return sum(f.kind not in MAY_BE_HARMLESS for f in report.findings)


def _units(blocks: Sequence[int] | None, grid, cluster) -> Sequence[int]:
    """The numbers of the blocks, or clusters, to run, in order."""
    size, total = math.prod(cluster), math.prod(grid)
    if blocks is None:
        return range(total // size)
    chosen = sorted({b for b in blocks if 0 <= b < total})
    if size == 1:
        return chosen
    wide = [g // c for g, c in zip(grid, cluster, strict=True)]
    at = [(b % grid[0], b // grid[0] % grid[1], b // (grid[0] * grid[1])) for b in chosen]
    inside = [[x // c for x, c in zip(xyz, cluster, strict=True)] for xyz in at]
    return sorted({x + wide[0] * (y + wide[1] * z) for x, y, z in inside})


def _batches(units: Sequence[int], per: int, draw: np.random.Generator | None) -> Iterator[np.ndarray]:
    """Units in groups of so many: in order, or shuffled (those of a window of a large grid among each other)."""
    window = max(1, WINDOW // per) * per
    for start in range(0, len(units), window):
        part = np.array(units[start : start + window], dtype=np.int64)
        if draw is not None:
            part = draw.permutation(part)
        for first in range(0, len(part), per):
            yield part[first : first + per]


def _blocks_of(units: np.ndarray, grid, cluster) -> np.ndarray:
    """The linear numbers of the blocks of some clusters: each cluster's together, in the order of their ranks."""
    if math.prod(cluster) == 1:
        return units
    wide = [g // c for g, c in zip(grid, cluster, strict=True)]
    rank = np.arange(math.prod(cluster))
    inner = [rank % cluster[0], rank // cluster[0] % cluster[1], rank // (cluster[0] * cluster[1])]
    outer = [units % wide[0], units // wide[0] % wide[1], units // (wide[0] * wide[1])]
    x, y, z = (o[:, None] * c + i for o, c, i in zip(outer, cluster, inner, strict=True))
    return (x + grid[0] * (y + grid[1] * z)).reshape(-1)
