"""Runs the host function of one kernel's `gpu` level: its workspaces, its launches, batch of blocks by batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc import levels
from mlirc.backend.kernel import Copy, Launch, launches_from_gpu_module
from mlirc.errors import MlircError
from mlirc.host.device.clocks import Clocks
from mlirc.host.device.counters import Counters
from mlirc.host.device.machine import Machine, Stop
from mlirc.host.device.memory import OTHER_POISON, POISON, Buffer, MemRef
from mlirc.host.device.memref_rules import item_size
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.report import Report
from mlirc.host.device.sync import Scheduler
from mlirc.host.device.translate import Program, granule, translate
from mlirc.mlir import ir
from mlirc.passes.expand_math import expand_math

BATCH_THREADS = 4096  # threads executed together: larger arrays leave the cache, smaller ones pay for the interpreter
MAX_BATCH_SHARED = 64 << 20  # bytes of shared memory of a batch


def execute(
    program: Program,
    registers: list,
    shape: tuple[tuple[int, int, int], tuple[int, int, int], int],
    blocks: np.ndarray,
    report: Report,
    *,
    check: bool,
    seed: int,
    poison: int = POISON,
    count: bool = False,
    cluster: tuple[int, int, int] | None = None,
) -> None:
    """Runs the given blocks of one launch (and all blocks of their clusters), batch by batch. `shape`: grid, block,
    bytes of dynamic shared memory."""
    grid, block, smem = shape
    threads = int(np.prod(block))
    per = max(1, BATCH_THREADS // threads)
    if smem:
        per = max(1, min(per, MAX_BATCH_SHARED // smem))
    cluster = cluster or program.cluster
    size = int(np.prod(cluster))
    if size > 1:
        blocks, per = in_clusters(blocks, grid, cluster, program.name), max(per // size, 1) * size
    for first in range(0, len(blocks), per):
        machine = Machine(program.name, blocks[first : first + per], grid, block, report, check, poison, cluster)
        if machine.races is not None:
            machine.races.granule = granule(program)
            if program.clocks or size > 1:
                machine.clocks = Clocks(machine)
        machine.proxies = program.proxies
        if count:
            machine.counters = Counters(report, program.name, machine.nt)
        machine.dynamic_shared = machine.allocate("shared memory", "shared", max(smem, 1), program.dynamic_align)
        try:
            Scheduler(machine, seed).run(program.code, list(registers), program.group)
        except Stop:
            return
        except (IndexError, ValueError, OverflowError, MemoryError) as e:
            # what the checks let through, or were not asked to look for: a report, not a traceback
            report.add("stopped", f"the kernel cannot go on: {type(e).__name__}: {e}", None, program.name)
            return
        if machine.races is not None:
            machine.races.barrier()


def in_clusters(blocks: np.ndarray, grid, cluster, name: str) -> np.ndarray:
    """The blocks of all clusters that hold one of the given blocks: each cluster's together, in the order of their
    ranks."""
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise MlircError(f"host device: kernel {name}: clusters of {list(cluster)} do not divide the grid {list(grid)}")
    b = np.arange(int(np.prod(grid)))
    at = [b % grid[0], b // grid[0] % grid[1], b // (grid[0] * grid[1])]
    number = [x // c for x, c in zip(at, cluster, strict=True)]
    wide = [g // c for g, c in zip(grid, cluster, strict=True)]
    which = number[0] + wide[0] * (number[1] + wide[1] * number[2])
    inner = [x % c for x, c in zip(at, cluster, strict=True)]
    rank = inner[0] + cluster[0] * (inner[1] + cluster[1] * inner[2])
    order = np.lexsort((rank, which))
    return order[np.isin(which[order], which[blocks])].astype(np.int64)


class DeviceKernel:
    """A kernel's `gpu`-level module, translated: callable any number of times. `expand`: math functions are computed as
    in PTX, by what mlirc-expand-math makes of them, else as NumPy has them. `count`: runs fill the report's counters
    too."""

    def __init__(self, module: ir.Module, expand: bool = True, count: bool = False):
        if expand:
            module = levels.copy(module)
            expand_math(module.operation)
        self.count = count
        self.module = module  # keeps the operations alive
        hosts = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        hosts = [op for op in hosts if len(op.regions[0].blocks)]
        self.launches, self.workspaces = launches_from_gpu_module(module)
        self.name = ir.StringAttr(hosts[0].attributes["sym_name"]).value
        self.arguments = [ir.MemRefType(a.type) for a in hosts[0].regions[0].blocks[0].arguments]
        self.programs: dict[str, Program] = {}
        for op in module.body.operations:
            if op.operation.name == "gpu.module":
                for f in op.operation.regions[0].blocks[0].operations:
                    if f.operation.name == "gpu.func":
                        program = translate(f, count)
                        self.programs[program.name] = program
        self.written = self._written_arguments()

    def run(
        self,
        args: Sequence[np.ndarray],
        *,
        blocks: Sequence[int] | None = None,
        check: bool = True,
        seed: int = 0,
        source: str = "",
        scripts: Sequence[str] = (),
    ) -> Report:
        """Runs all launches; see `run_kernel`. `source` is the name of the text that the kernel was parsed from, and
        `scripts` for each of its lines the line of the schedule script, for the report."""
        if len(args) != len(self.arguments):
            raise MlircError(f"host device: kernel {self.name} takes {len(self.arguments)} arguments, not {len(args)}")
        report = Report(source=source, scripts=list(scripts))
        buffers = self._run(args, report, blocks, check, seed, POISON)
        if "uninitialized read" in report.kinds() and self._same_without_poison(args, buffers, blocks, seed):
            report.findings = [f for f in report.findings if f.kind != "uninitialized read"]
        if check and blocks is None:
            self._complain_of_holes(buffers, report)
        for i in self.written:
            target, buffer = args[i], buffers[i]
            raw = buffer.data[: target.nbytes].view(target.dtype).reshape(target.shape)
            if check and blocks is not None and buffer.written is not None:
                known = buffer.written[: target.nbytes].reshape(-1, target.itemsize).all(axis=1)
                raw = np.where(known.reshape(target.shape), raw, target)
            target[...] = raw
        return report

    def _run(self, args, report: Report, blocks, check: bool, seed: int, poison: int) -> list[Buffer]:
        """One run from fresh buffers, which it returns."""
        buffers = [self._bind(i, a, t, poison) for i, (a, t) in enumerate(zip(args, self.arguments, strict=True))]
        workspaces = [Buffer(f"workspace {i}", "global", n, poison=poison) for i, n in enumerate(self.workspaces)]
        if blocks is not None:  # a later launch reads what blocks that do not run would have written
            for buffer in workspaces:
                buffer.written = None
        buffers += workspaces
        with np.errstate(all="ignore"):
            for launch in self.launches:
                if isinstance(launch, Copy):
                    self._copy(launch, buffers)
                else:
                    self._launch(launch, buffers, report, blocks, check, seed, poison)
        return buffers

    def _complain_of_holes(self, buffers: list[Buffer], report: Report) -> None:
        """Every element of a result must have been written."""
        for i in sorted(self.written):
            known = buffers[i].written
            holes = 0 if known is None else int((known[: buffers[i].nbytes] == 0).sum())
            if holes:
                report.add("unwritten result", f"{holes} bytes of argument {i} are never written", None, self.name)

    def _same_without_poison(self, args, buffers: list[Buffer], blocks, seed: int) -> bool:
        """Whether the results are the same with other contents in fresh memory: then what was read there was never
        used (the rows and columns that pad a tile are computed, but not stored)."""
        other = self._run(args, Report(), blocks, True, seed, OTHER_POISON)
        for i in self.written:
            known = buffers[i].written
            same = buffers[i].data == other[i].data
            if not (same if known is None else same | (known == 0)).all():
                return False
        return True

    def _written_arguments(self) -> set[int]:
        """The host arguments that a launch or copy may write to: those whose memrefs a store reaches."""
        out = set()
        for launch in self.launches:
            if isinstance(launch, Copy):
                out.add(launch.target)
                continue
            stored = stored_parameters(self.programs[launch.symbol].function)
            out.update(launch.args[i] for i in stored)
        return {i for i in out if i < len(self.arguments)}

    def _bind(self, i: int, array: np.ndarray, t: ir.MemRefType, poison: int) -> Buffer:
        want, shape = dtype_of(t), tuple(t.shape)
        compatible = array.dtype == want or (want.itemsize == 1 and array.dtype in (np.bool_, np.uint8, np.int8))
        if not compatible or array.shape != shape:
            raise MlircError(
                f"host device: kernel {self.name}, argument {i}: got {array.dtype}{list(array.shape)}, "
                f"but it must be {want}{list(shape)}"
            )
        contents = None
        if i not in self.written:
            contents = np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8)
        return Buffer(f"argument {i}", "global", array.nbytes, contents=contents, poison=poison)

    def _copy(self, copy: Copy, buffers: list[Buffer]) -> None:
        source, target = buffers[copy.source], buffers[copy.target]
        for plane in ("data", "written"):
            if getattr(target, plane) is None:
                continue
            into = getattr(target, plane)[copy.target_offset : copy.target_offset + copy.size]
            from_ = getattr(source, plane)
            into[:] = 0xFF if from_ is None else from_[copy.source_offset : copy.source_offset + copy.size]

    def _launch(
        self, launch: Launch, buffers: list[Buffer], report: Report, blocks, check: bool, seed: int, poison: int
    ) -> None:
        program = self.programs[launch.symbol]
        total = int(np.prod(launch.grid))
        chosen = (
            np.arange(total) if blocks is None else np.array(sorted(b for b in blocks if b < total), dtype=np.int64)
        )
        stored = stored_parameters(program.function)
        tracked = {launch.args[i] for i in stored}
        for i, buffer in enumerate(buffers):
            buffer.tracked = check and i in tracked
            buffer.start_launch()
        execute(
            program,
            self._registers(program, launch, buffers),
            (launch.grid, launch.block, launch.smem),
            chosen,
            report,
            check=check,
            seed=seed,
            poison=poison,
            count=self.count,
            cluster=launch.cluster,
        )

    def _registers(self, program: Program, launch: Launch, buffers: list[Buffer]) -> list:
        r = list(program.initial)
        entry = program.function.regions[0].blocks[0]
        for k, (number, argument) in enumerate(zip(program.parameters, entry.arguments, strict=False)):
            t = ir.MemRefType(argument.type)
            strides, _ = t.get_strides_and_offset()
            item = item_size(t)
            r[number] = MemRef(buffers[launch.args[k]], launch.offsets[k] // item, tuple(t.shape), tuple(strides), item)
        return r


_VIEWS = ("memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast", "memref.subview",
          "memref.view", "memref.memory_space_cast", "memref.assume_alignment")  # fmt: skip
_STORES = {"memref.store": 1, "vector.store": 1, "vector.transfer_write": 1, "memref.copy": 1, "memref.atomic_rmw": 1,
           "nvgpu.device_async_copy": 0, "vector.maskedstore": 0}  # fmt: skip


def stored_parameters(function) -> set[int]:
    """The numbers of the parameters of a gpu.func that it writes to."""
    arguments = list(function.regions[0].blocks[0].arguments)
    found: set[int] = set()

    def visit(op) -> ir.WalkResult:
        if op.name in _STORES:
            value = op.operands[_STORES[op.name]]
            while not isinstance(value.owner, ir.Block) and value.owner.operation.name in _VIEWS:
                value = value.owner.operation.operands[0]
            if value in arguments:
                found.add(arguments.index(value))
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def run_kernel(
    gpu_module: ir.Module,
    args: Sequence[np.ndarray],
    *,
    blocks: Sequence[int] | None = None,
    check: bool = True,
    seed: int = 0,
) -> Report:
    """Executes one kernel at the `gpu` level.

    `args`: the host function's arguments, inputs then results, as arrays (bf16 as `ml_dtypes.bfloat16`, i1 as bool or
    uint8). Arguments that the kernel writes are changed in place; what was in them before counts as uninitialized.
    `blocks`: linear numbers of the blocks to run, None for all. `check`: look for out of bounds, misaligned and
    uninitialized accesses and for races. Raises MlircError for arguments that do not fit and for operations that the
    device does not know.
    """
    return DeviceKernel(gpu_module).run(args, blocks=blocks, check=check, seed=seed)
