"""Runs the host function of one kernel's `gpu` level: its workspaces, its launches, batch of blocks by batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mlirc import levels
from mlirc.backend.kernel import Copy, Launch, launches_from_gpu_module
from mlirc.errors import MlircError
from mlirc.host.device.counters import count_sectors
from mlirc.host.device.dependencies import Earlier
from mlirc.host.device.execution import execute
from mlirc.host.device.limits import SECONDS
from mlirc.host.device.memory import OTHER_POISON, POISON, Buffer, MemRef
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.reference import Case, Reference, compare
from mlirc.host.device.report import Report
from mlirc.host.device.rules.memref import item_size
from mlirc.host.device.translate import Program, translate
from mlirc.mlir import ir
from mlirc.passes.expand_math import expand_math


class DeviceKernel:
    """A kernel's `gpu`-level module, translated: callable any number of times. `expand`: math functions are computed as
    in PTX, by what mlirc-expand-math makes of them, else as NumPy has them. `count`: runs fill the report's counters
    too. `inputs`: how many arguments, the first ones, the kernel must leave as they are; None: that is not known, and
    every argument that it writes is a result."""

    def __init__(self, module: ir.Module, expand: bool = True, count: bool = False, inputs: int | None = None):
        if expand:
            module = levels.copy(module)
            expand_math(module.operation)
        self.count, self.inputs = count, inputs or 0
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
        seconds: float = SECONDS,
        before: Collection[int] | None = None,
        source: str = "",
        scripts: Sequence[str] = (),
        reference: Reference | None = None,
    ) -> Report:
        """Runs all launches; see `run_kernel`. `before`: the arguments that launches before these may write, for
        griddepcontrol.wait; None: there were none. `source` is the name of the text that the kernel was parsed from,
        and `scripts` for each of its lines the line of the schedule script, for the report."""
        if len(args) != len(self.arguments):
            raise MlircError(f"host device: kernel {self.name} takes {len(self.arguments)} arguments, not {len(args)}")
        report = Report(seed=seed, source=source, scripts=list(scripts), calls={self.name: 1})
        options = dict(blocks=blocks, check=check, seed=seed, seconds=seconds)
        fresh = [*self.written, *range(len(args), len(args) + len(self.workspaces))]
        buffers = self._run(args, report, POISON, options, earlier=Earlier(before, fresh))
        if "uninitialized read" in report.kinds() and self._same_without_poison(args, buffers, options):
            report.findings = [f for f in report.findings if f.kind != "uninitialized read"]
        if check and blocks is None and report.ended:
            self._complain_of_holes(buffers, report)
        if check:
            self._complain_of_spoiled(args, buffers, report, options)
        for i in self.written:
            target, buffer = args[i], buffers[i]
            if not target.flags.writeable:
                raise MlircError(f"host device: kernel {self.name} writes argument {i}, an array that is read-only")
            raw = buffer.data[: target.nbytes].view(target.dtype).reshape(target.shape)
            if check and blocks is not None and buffer.written is not None:
                known = buffer.written[: target.nbytes].reshape(-1, target.itemsize).all(axis=1)
                raw = np.where(known.reshape(target.shape), raw, target)
            target[...] = raw
        # With some blocks only, a second launch would read what the others have not computed.
        if reference is not None and check and report.ended and (blocks is None or len(self.launches) == 1):
            self._compare(reference, args, buffers, report, options)
            report.compared = 1
        launched = [math.prod(x.grid) for x in self.launches if isinstance(x, Launch)]
        report.blocks = sum(n if blocks is None else len({b for b in blocks if 0 <= b < n}) for n in launched)
        return report

    def _compare(self, reference: Reference, args, buffers: list[Buffer], report: Report, options: dict) -> None:
        """Reports results that are not the reference's."""
        first, some = reference.inputs, options["blocks"] is not None
        known = []
        for array, buffer in zip(args[first:], buffers[first:], strict=False):
            written = buffer.written[: array.nbytes] if some and buffer.written is not None else None
            known.append(None if written is None else written.reshape(-1, array.itemsize).all(1).reshape(array.shape))
        case = Case(args[:first], args[first:], known, lambda i, at: self._writer(args, first + i, at, options))
        compare(reference, case, report, self.name)

    def _writer(self, args, i: int, element: int, options: dict) -> tuple[str, Any]:
        """Who wrote an element of an argument last: runs the kernel again and watches it."""
        writers: list[tuple[int, int, Any]] = []
        watch = (i, element * args[i].itemsize, writers)
        self._run(args, Report(), POISON, options | {"check": False}, watch)
        if not writers:
            return "the kernel", None
        block, thread, op = writers[-1]
        return f"block {block} thread {thread}", op

    def _run(
        self, args, report: Report, poison: int, options: dict, watch: tuple[int, int, list] | None = None,
        earlier: Earlier | None = None,
    ) -> list[Buffer]:  # fmt: skip
        """One run from fresh buffers, which it returns. `watch`: an argument, a byte of it, and a list that gets those
        who write it."""
        earlier = earlier or Earlier()
        buffers = [self._bind(i, a, t, poison) for i, (a, t) in enumerate(zip(args, self.arguments, strict=True))]
        workspaces = [Buffer(f"workspace {i}", "global", n, poison=poison) for i, n in enumerate(self.workspaces)]
        if options["blocks"] is not None:  # a later launch reads what blocks that do not run would have written
            for buffer in workspaces:
                buffer.written = None
        buffers += workspaces
        if watch is not None:
            buffers[watch[0]].watch = watch[1:]
        with np.errstate(all="ignore"):
            for launch in self.launches:
                earlier.mark(buffers)
                if isinstance(launch, Copy):
                    self._copy(launch, buffers)
                elif not self._launch(launch, buffers, report, poison, options):
                    report.ended = False
                    break
                earlier.add(*self._uses(launch))
        return buffers

    def _complain_of_holes(self, buffers: list[Buffer], report: Report) -> None:
        """Every element of a result must have been written."""
        for i in sorted(self.written):
            known = buffers[i].written
            item = item_size(self.arguments[i])
            missing = np.flatnonzero(known[: buffers[i].nbytes] == 0) if known is not None else np.empty(0, np.int64)
            if len(missing):
                at = list(map(int, np.unravel_index(missing[0] // item, tuple(self.arguments[i].shape) or (1,))))
                message = f"{len(missing)} bytes of argument {i} ({self.arguments[i]}) are never written: first at {at}"
                report.add("unwritten result", message, self._function_of(i), self.name)

    def _complain_of_spoiled(self, args, buffers: list[Buffer], report: Report, options: dict) -> None:
        """Nothing may write an input: on a GPU it is the caller's tensor, or a weight that the next run reads. The
        buffers are copies, so that what follows here still reads what it should."""
        for i, (array, buffer) in enumerate(zip(args[: self.inputs], buffers, strict=False)):
            given = np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8)
            changed = np.flatnonzero(buffer.data[: len(given)] != given)
            if len(changed):
                element = int(changed[0]) // array.itemsize
                who, op = self._writer(args, i, element, options)
                at = list(map(int, np.unravel_index(element, array.shape)))
                message = f"{who} writes element {at} of argument {i} ({self.arguments[i]}), which is an input"
                report.add("overwritten input", message, op, self.name, len(np.unique(changed // array.itemsize)))

    def _function_of(self, argument: int) -> ir.Operation:
        """The function of the last launch that gets an argument of the host function."""
        launches = [x for x in self.launches if isinstance(x, Launch)]
        found = [x for x in launches if argument in x.args] or launches
        return self.programs[found[-1].symbol].function

    def _same_without_poison(self, args, buffers: list[Buffer], options: dict) -> bool:
        """Whether the results are the same with other contents in fresh memory: then what was read there was never
        used (the rows and columns that pad a tile are computed, but not stored)."""
        other = self._run(args, Report(), OTHER_POISON, options)
        for i in self.written:
            known = buffers[i].written
            same = buffers[i].data == other[i].data
            if not (same if known is None else same | (known == 0)).all():
                return False
        return True

    def _written_arguments(self) -> set[int]:
        """The results: the host arguments that a launch or copy may write to, those whose memrefs a store reaches."""
        out = {i for launch in self.launches for i in self._uses(launch)[1]}
        return {i for i in out if self.inputs <= i < len(self.arguments)}

    def _uses(self, launch: Launch | Copy) -> tuple[set[int], set[int]]:
        """The buffers of a launch, and those that it writes."""
        if isinstance(launch, Copy):
            return {launch.source, launch.target}, {launch.target}
        stored = stored_parameters(self.programs[launch.symbol].function)
        return set(launch.args), {launch.args[i] for i in stored}

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

    def _launch(self, launch: Launch, buffers: list[Buffer], report: Report, poison: int, options: dict) -> bool:
        """Runs a launch; False if it could not run to its end."""
        program = self.programs[launch.symbol]
        stored = stored_parameters(program.function)
        tracked = {launch.args[i] for i in stored}
        for i, buffer in enumerate(buffers):
            buffer.tracked = options["check"] and i in tracked
            buffer.start_launch()
        ended = execute(
            program,
            self._registers(program, launch, buffers),
            (launch.grid, launch.block, launch.smem),
            report=report,
            poison=poison,
            count=self.count,
            cluster=launch.cluster,
            **options,
        )
        if self.count:
            count_sectors(report, program.name, buffers)
        return ended

    def _registers(self, program: Program, launch: Launch, buffers: list[Buffer]) -> list:
        r = list(program.initial)
        entry = program.function.regions[0].blocks[0]
        for k, (number, argument) in enumerate(zip(program.parameters, entry.arguments, strict=False)):
            t = ir.MemRefType(argument.type)
            strides, _ = t.get_strides_and_offset()
            item = item_size(t)
            r[number] = MemRef(buffers[launch.args[k]], launch.offsets[k] // item, tuple(t.shape), tuple(strides), item)
        return r


_VIEWS = ("memref.extract_aligned_pointer_as_index", "arith.index_cast", "arith.index_castui", "llvm.inttoptr",
          "llvm.getelementptr", "llvm.addrspacecast", "memref.cast",
          "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast", "memref.subview",
          "memref.view", "memref.memory_space_cast", "memref.assume_alignment")  # fmt: skip
_STORES = {"memref.store": 1, "vector.store": 1, "vector.transfer_write": 1, "memref.copy": 1, "memref.atomic_rmw": 1,
           "memref.generic_atomic_rmw": 0, "llvm.store": 1, "llvm.atomicrmw": 0, "llvm.cmpxchg": 0,
           "nvgpu.device_async_copy": 0, "vector.maskedstore": 0}  # fmt: skip


def stored_parameters(function) -> set[int]:
    """The numbers of the parameters of a gpu.func that it writes to."""
    inputs = len(ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value).inputs)
    arguments = list(function.regions[0].blocks[0].arguments)[:inputs]  # its own buffers follow
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
    seconds: float = SECONDS,
    reference: Reference | None = None,
) -> Report:
    """Executes one kernel at the `gpu` level.

    `args`: the host function's arguments, inputs then results, as arrays (bf16 as `ml_dtypes.bfloat16`, i1 as bool or
    uint8). Arguments that the kernel writes are changed in place; what was in them before counts as uninitialized.
    `blocks`: linear numbers of the blocks to run, None for all. `check`: look for out of bounds, misaligned and
    uninitialized accesses and for races, and compare the results with those of `reference`, where it is given.
    `seconds`: how long a launch may take. Raises MlircError for arguments that do not fit and for operations that the
    device does not know.
    """
    return DeviceKernel(gpu_module).run(
        args, blocks=blocks, check=check, seed=seed, seconds=seconds, reference=reference
    )
