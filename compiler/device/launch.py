"""Runs the host function of one kernel's `gpu` level: its workspaces, its launches, batch of blocks by batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mlirc.backend.kernel import Copy, Launch, launches_from_gpu_module
from mlirc.device.arguments import Given, holes, results_of, stored_parameters
from mlirc.device.counters import count_sectors
from mlirc.device.dependencies import Earlier
from mlirc.device.execution import execute
from mlirc.device.launch_maps import granule_of, launch_maps, pointer_table
from mlirc.device.limits import SECONDS
from mlirc.device.memory import POISON, Buffer, MemRef
from mlirc.device.numbers import dtype_of, item_size
from mlirc.device.reference import Case, Reference, compare
from mlirc.device.report import MAY_BE_HARMLESS, Report
from mlirc.device.shadows.origins import Shadows, has_poison
from mlirc.device.tensor_maps import check_parameter
from mlirc.device.translate import Program, translate
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.passes.contract import settle_floats
from mlirc.passes.expand_math import expand_math
from mlirc.runtime.scalars import grid_of
from mlirc.timing import counted


class DeviceKernel:
    """A kernel's `gpu`-level module, translated: callable any number of times. `expand`: math functions are computed as
    in PTX, by what mlirc-expand-math makes of them, else as NumPy has them. `count`: runs fill the report's counters
    too. `inputs`: how many arguments, the first ones, the kernel must leave as they are; all others are results, which
    it must write. None: as many as a run's reference takes; without one that is not known, and every argument that it
    writes is a result, but for read-only arrays."""

    def __init__(self, module: ir.Module, expand: bool = True, count: bool = False, inputs: int | None = None):
        module = levels.copy(module)
        self.launches, self.workspaces = launches_from_gpu_module(module)  # before passes change it
        if expand:
            expand_math(module.operation)
        settle_floats(module.operation)
        self.count, self.inputs = count, inputs
        self.module = module  # keeps the operations alive
        hosts = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        hosts = [op for op in hosts if len(op.regions[0].blocks)]
        self.name = ir.StringAttr(hosts[0].attributes["sym_name"]).value
        self.arguments = [ir.MemRefType(a.type) for a in hosts[0].regions[0].blocks[0].arguments]
        self.programs: dict[str, Program] = {}
        for op in module.body.operations:
            if op.operation.name == "gpu.module":
                for f in op.operation.regions[0].blocks[0].operations:
                    if f.operation.name == "gpu.func":
                        program = self._translate(f, count)
                        self.programs[program.name] = program
        self.poison = any(has_poison(p.function) for p in self.programs.values())
        self.stored = {i for launch in self.launches for i in self._uses(launch)[1] if i < len(self.arguments)}
        self.written: set[int] = set()  # the results of the run under way, and what it must leave as it is
        self.given: set[int] = set()

    def _translate(self, function, count: bool = False, shadows: Shadows | None = None) -> Program:
        """A function's program, which knows of the tensor maps that launches give it."""
        program = translate(function, count, shadows)
        for launch in self.launches:
            if isinstance(launch, Launch) and launch.symbol == program.name:
                program.accesses += [granule_of(spec) for spec in launch.maps.values()]
        return program

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
        random: bool = False,
    ) -> Report:
        """Runs all launches; see `run_kernel`. `before`: the arguments that launches before these may write, for
        griddepcontrol.wait; None: there were none. `source` is the name of the text that the kernel was parsed from,
        and `scripts` for each of its lines the line of the schedule script, for the report. `random`: the inputs are
        independent random numbers."""
        if len(args) != len(self.arguments):
            raise MlircError(f"host device: kernel {self.name} takes {len(self.arguments)} arguments, not {len(args)}")
        inputs = reference.inputs if self.inputs is None and reference is not None else self.inputs
        self.written = results_of(args, inputs, self.stored, self.name)
        read_only = [i for i, a in enumerate(args) if not a.flags.writeable]
        self.given = set(read_only if inputs is None else range(inputs))
        report = Report(seed=seed, source=source, scripts=list(scripts), calls={self.name: 1})
        options = dict(blocks=blocks, check=check, seed=seed, seconds=seconds)
        fresh = [*self.written, *range(len(args), len(args) + len(self.workspaces))]
        buffers = self._run(args, report, POISON, options, earlier=Earlier(before, fresh))
        if check and report.ended and (MAY_BE_HARMLESS & report.kinds() or self.poison):
            self._follow_undefined(args, report, options)
        if check and blocks is None and report.ended:
            self._complain_of_holes(buffers, report)
        for i in self.written:
            target, buffer = args[i], buffers[i]
            raw = buffer.data[: target.nbytes].view(target.dtype).reshape(target.shape)
            if check and blocks is not None and buffer.written is not None:
                known = buffer.written[: target.nbytes].reshape(-1, target.itemsize).all(axis=1)
                raw = np.where(known.reshape(target.shape), raw, target)
            target[...] = raw
        # With some blocks only, a second launch would read what the others have not computed.
        if reference is not None and check and report.ended and (blocks is None or len(self.launches) == 1):
            report.compared = int(self._compare(reference, args, buffers, report, options, random))
        launched = [math.prod(x.grid) for x in self.launches if isinstance(x, Launch)]
        report.blocks = sum(n if blocks is None else len({b for b in blocks if 0 <= b < n}) for n in launched)
        return report

    def _compare(
        self, reference: Reference, args, buffers: list[Buffer], report: Report, options: dict, random: bool
    ) -> bool:  # fmt: skip
        """Reports results that are not the reference's. What nobody wrote has no number to be wrong: it is an unwritten
        result, or the business of blocks that do not run. Whether they were compared."""
        first, known = reference.inputs, []
        for array, buffer in zip(args[first:], buffers[first:], strict=False):
            mine = np.ones(array.size, bool)
            mine[holes(buffer, array.nbytes, array.itemsize)] = False
            known.append(None if mine.all() else mine.reshape(array.shape))
        case = Case(
            args[:first], args[first:], known, lambda i, at: self._writer(args, first + i, at, options),
            options["seconds"], random,
        )  # fmt: skip
        return compare(reference, case, report, self.name)

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
        earlier: Earlier | None = None, programs: dict[str, Program] | None = None,
    ) -> list[Buffer]:  # fmt: skip
        """One run from fresh buffers, which it returns. `watch`: an argument, a byte of it, and a list that gets those
        who write it. `programs`: others than the kernel's own, that follow undefined values."""
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
                    if launch.target in self.given:
                        what = buffers[launch.target].given.element(launch.target_offset)
                        report.add("overwritten input", f"a copy of {launch.size} bytes writes {what}", None, self.name)
                    self._copy(launch, buffers)
                elif not self._launch(launch, buffers, report, poison, options, programs or self.programs):
                    report.ended = False
                    break
                earlier.add(*self._uses(launch))
        return buffers

    def _complain_of_holes(self, buffers: list[Buffer], report: Report) -> None:
        """Every element of a result must have been written."""
        for i in sorted(self.written):
            shape = tuple(self.arguments[i].shape)
            missing = holes(buffers[i], buffers[i].nbytes, item_size(self.arguments[i]))
            if len(missing):
                at = list(map(int, np.unravel_index(missing[0], shape or (1,))))[: len(shape)]
                message = (
                    f"{len(missing)} of {math.prod(shape)} elements of argument {i} ({self.arguments[i]}) are never "
                    f"written, the first at {at}: {self._threads(i, len(missing))}"
                )
                report.add("unwritten result", message, self._function_of(i), self.name)

    def _threads(self, argument: int, missing: int) -> str:
        """How the last launch that gets an argument is launched, in words, and whether that is too few threads."""
        launch, size = self._last_launch(argument), math.prod(self.arguments[argument].shape)
        threads = math.prod(launch.grid) * math.prod(launch.block)
        text = (
            f"the launch has {counted(threads, 'thread')}, a grid of {list(launch.grid)} blocks of {list(launch.block)}"
        )
        each, rest = divmod(size - missing, threads)
        if each and not rest:  # every thread did its part
            text += f": too few, where each writes {counted(each, 'element')}"
        return text

    def _last_launch(self, argument: int) -> Launch:
        """The last launch that gets an argument of the host function."""
        launches = [x for x in self.launches if isinstance(x, Launch)]
        return ([x for x in launches if argument in x.args] or launches)[-1]

    def _function_of(self, argument: int) -> ir.Operation:
        """The function of the last launch that gets an argument of the host function."""
        return self.programs[self._last_launch(argument).symbol].function

    def _follow_undefined(self, args, report: Report, options: dict) -> None:
        """Runs the kernel again with shadows, and reports what depends on undefined values; clears reads of fresh
        memory, and arithmetic without a meaning, of which nothing does (the rows that pad a tile are computed, but
        not stored)."""
        shadows = Shadows(report)
        functions = {name: p.function for name, p in self.programs.items()}
        programs = {name: self._translate(function, shadows=shadows) for name, function in functions.items()}
        again = Report()
        buffers = self._run(args, again, POISON, options, programs=programs)
        for i in sorted(self.written):
            shadows.judge_result(buffers[i], buffers[i].nbytes, item_size(self.arguments[i]), self.name)
        shadows.settle(report, again)

    def _uses(self, launch: Launch | Copy) -> tuple[set[int], set[int]]:
        """The buffers of a launch, and those that it writes."""
        if isinstance(launch, Copy):
            return {launch.source, launch.target}, {launch.target}
        stored = stored_parameters(self.programs[launch.symbol].function)
        places = [buffer for buffer, _ in launch.places]
        return set(places), {b for i in stored for b in launch.written(i)}

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
        buffer = Buffer(f"argument {i}", "global", array.nbytes, contents=contents, poison=poison)
        if i in self.given:
            buffer.given = Given(f"argument {i} ({t})", shape, array.itemsize)
        return buffer

    def _copy(self, copy: Copy, buffers: list[Buffer]) -> None:
        source, target = buffers[copy.source], buffers[copy.target]
        for plane in ("data", "written"):
            if getattr(target, plane) is None:
                continue
            into = getattr(target, plane)[copy.target_offset : copy.target_offset + copy.size]
            from_ = getattr(source, plane)
            into[:] = 0xFF if from_ is None else from_[copy.source_offset : copy.source_offset + copy.size]

    def _launch(
        self, launch: Launch, buffers: list[Buffer], report: Report, poison: int, options: dict,
        programs: dict[str, Program],
    ) -> bool:  # fmt: skip
        """Runs a launch; False if it could not run to its end."""
        program = programs[launch.symbol]
        numbers = {i: self._number(buffers[i], i) for i, _ in launch.deciding}
        grid = grid_of(launch, numbers, {i: f"argument {i} of {self.name}" for i in numbers})
        if 0 in grid and launch.extents:  # by numbers; a grid that is always empty is a mistake
            return True
        for p in launch.maps:
            check_parameter(program.function, p, program.name, report)
        stored = stored_parameters(program.function)
        tracked = {b for i in stored for b in launch.written(i)}
        for i, buffer in enumerate(buffers):
            buffer.tracked = options["check"] and i in tracked
            buffer.start_launch()
        ended = execute(
            program,
            self._registers(program, launch, buffers),
            (grid, launch.block, launch.smem),
            report=report,
            poison=poison,
            count=self.count and programs is self.programs,
            cluster=launch.cluster,
            **options,
        )
        if self.count and programs is self.programs:
            count_sectors(report, program.name, buffers)
        return ended

    def _number(self, buffer: Buffer, argument: int) -> np.ndarray:
        """The scalar that an argument of one element is."""
        dtype = dtype_of(self.arguments[argument])
        return buffer.data[: dtype.itemsize].view(dtype)[:1].reshape(())

    def _registers(self, program: Program, launch: Launch, buffers: list[Buffer]) -> list:
        r = list(program.initial)
        entry = program.function.regions[0].blocks[0]
        maps = launch_maps(launch, buffers)
        for k, (number, argument) in enumerate(zip(program.parameters, entry.arguments, strict=False)):
            if k in maps:
                r[number] = maps[k]
                continue
            if k in launch.tables:
                r[number] = pointer_table(launch, k, buffers)
                continue
            if k in launch.values:
                r[number] = self._number(buffers[launch.args[k]], launch.args[k]).reshape(1, 1)
                continue
            t = ir.MemRefType(argument.type)
            strides, _ = t.get_strides_and_offset()
            item = item_size(t)
            first = launch.offsets[k] // item
            r[number] = MemRef(buffers[launch.args[k]], first, tuple(t.shape), tuple(strides), item, start=first)
        return r


def run_kernel(
    gpu_module: ir.Module,
    args: Sequence[np.ndarray],
    *,
    blocks: Sequence[int] | None = None,
    check: bool = True,
    seed: int = 0,
    seconds: float = SECONDS,
    reference: Reference | None = None,
    inputs: int | None = None,
) -> Report:
    """Executes one kernel at the `gpu` level.

    `args`: the host function's arguments, inputs then results, as arrays (bf16 as `ml_dtypes.bfloat16`, i1 as bool or
    uint8). `inputs`: how many of them are inputs (None: as many as `reference` takes). Results are changed in place,
    and what was in them before counts as uninitialized; a kernel that writes an input, or an array that is read-only,
    is a finding, and changes nothing. Where neither `inputs` nor `reference` is given, results are what it writes.
    `blocks`: linear numbers of the blocks to run, None for all. `check`: look for out of bounds, misaligned and
    uninitialized accesses and for races, and compare the results with those of `reference`, where it is given.
    `seconds`: how long a launch may take. Raises MlircError for arguments that do not fit and for operations that the
    device does not know.
    """
    return DeviceKernel(gpu_module, inputs=inputs).run(
        args, blocks=blocks, check=check, seed=seed, seconds=seconds, reference=reference
    )
