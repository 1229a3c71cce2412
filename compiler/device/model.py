"""A whole model at the `gpu` level: `@main`'s calls one after the other, each kernel on the host device."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mlirc import mlir
from mlirc.backend.kernel import Launch
from mlirc.device.arguments import own_copies
from mlirc.device.attributes import integers
from mlirc.device.input_sets import try_sets
from mlirc.device.launch import DeviceKernel
from mlirc.device.limits import SECONDS
from mlirc.device.numbers import bits_of
from mlirc.device.reference import References
from mlirc.device.report import Finding, Report
from mlirc.errors import MlircError
from mlirc.host.jit import TensorSpec, tensor_spec
from mlirc.ir import levels
from mlirc.ir.levels import argument_names
from mlirc.ir.loops import is_loop, read_loop
from mlirc.mlir import ir
from mlirc.schedule.places import places_by_line

SEPARATOR = re.compile(r"^// -----.*\n", flags=re.MULTILINE)  # between the parts of the `gpu` level's text


class DeviceModel:
    """`@main` of the `kernels` level (its kernels may be declarations), and the `gpu`-level module of each kernel."""

    def __init__(self, main: ir.Module, kernels: Mapping[str, ir.Module], source: str = "", count: bool = False,
                 scripts: Sequence[str] = ()):  # fmt: skip
        found = levels.functions(main)
        if "main" not in found:
            raise MlircError("host device: the gpu level has no function @main")
        self.module, self.main, self.functions = main, found["main"], found
        self.parts, self.source, self.scripts = dict(kernels), source, list(scripts)
        self.kernels: dict[str, DeviceKernel] = {}
        self.origins = {n: ", ".join(levels.strings(f, "mlirc.origin")) for n, f in found.items()}
        self.count = count
        self._computed: set[ir.Value] | None = None  # by calls of this run; None before the first one
        self.digests: list[tuple[str, bytes]] = []  # of the last run, per call: its kernel, a hash of its results
        self.beside: Callable[[str, list[np.ndarray], int], list[Finding]] | None = None  # also runs each whole call
        self.references: References | None = None  # what the kernels must compute, where the levels above are known

    @staticmethod
    def parse(text: str, what: str = "gpu level", count: bool = False) -> DeviceModel:
        """From the text of the `gpu` level: `@main`, then the kernels, between lines of `// -----`. Reports give
        lines of that text, called `what`."""
        parts, line = [], 0
        for part in SEPARATOR.split(text):
            if part.strip():
                parts.append(mlir.parse("\n" * line + part, what))  # so that lines are those of the whole text
            line += part.count("\n") + 1
        if not parts or len(parts) <= bool(levels.kernels(parts[0])):  # a model may return its inputs as they are
            raise MlircError(
                f"{what}: holds no kernels: it must be @main and then each kernel, between `// -----` lines"
            )
        return DeviceModel(parts[0], {levels.host_function(p): p for p in parts[1:]}, what, count, places_by_line(text))

    def argument_names(self) -> list[str]:
        """`mlirc.name` of every argument of `@main`, `argN` where there is none."""
        return argument_names(self.main)

    def run(
        self,
        args: Sequence[np.ndarray],
        *,
        blocks: Sequence[int] | None = None,
        check: bool = True,
        seed: int = 0,
        seconds: float = SECONDS,
        input_sets: Sequence[str] = (),
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> tuple[list[np.ndarray], Report]:
        """Runs `@main` with one array per argument; returns its results, in memory of their own, and what was found.
        `blocks` are the blocks to run of every launch, None for all. On `input_sets`
        (`mlirc.device.input_sets`) each kernel is tried when it is first called, if there are `references`.
        `progress` is called with the number of calls done and their total. Raises MlircError for arguments that do not
        fit."""
        block = self.main.operation.regions[0].blocks[0]
        if len(args) != len(block.arguments):
            raise MlircError(f"host device: @main takes {len(block.arguments)} arguments, not {len(args)}")
        values: dict[ir.Value, np.ndarray] = {}
        self._computed = None
        meant = levels.boundary_dtypes(self.main, "arg_attrs", len(args))
        for i, (value, array) in enumerate(zip(block.arguments, args, strict=True)):
            spec = tensor_spec(value.type, meant[i])
            if array.shape != spec.shape or array.dtype != spec.dtype:
                raise MlircError(
                    f"host device: argument {i} of @main is {array.dtype}{list(array.shape)}, but must be "
                    f"{spec.dtype}{list(spec.shape)}"
                )
            values[value] = array.view(tensor_spec(value.type).dtype)
        report = Report(source=self.source, scripts=self.scripts)
        self.digests = []
        self._check_blocks(blocks)
        self._sets = list(input_sets)
        self._done, self._total, self._progress = 0, levels.calls(self.module).total(), progress
        end = self._run_all(block, values, report, dict(blocks=blocks, check=check, seed=seed, seconds=seconds))
        specs = self._result_specs(end)
        if not report.ended:
            return [np.zeros(spec.shape, spec.dtype) for spec in specs], report
        return own_copies([values[v].view(s.dtype) for v, s in zip(end.operands, specs, strict=True)], args), report

    def _run_all(self, block: ir.Block, values: dict, report: Report, options: dict) -> ir.Operation:
        """Runs the operations of a block, and returns its last one, which returns. Ends early where a kernel does not
        come to its end: what follows would work on what was never computed."""
        *ops, end = [o.operation for o in block.operations]
        for op in ops:
            if report.ended:
                self._step(op, values, report, options)
        return end

    def _result_specs(self, end: ir.Operation) -> list[TensorSpec]:
        meant = levels.boundary_dtypes(self.main, "res_attrs", len(end.operands))
        return [tensor_spec(v.type, dtype) for v, dtype in zip(end.operands, meant, strict=True)]

    def _check_blocks(self, blocks: Sequence[int] | None) -> None:
        """Raises MlircError if there is one of the blocks that no launch has."""
        if blocks is None:
            return
        if not blocks:
            raise MlircError("host device: blocks is empty: give numbers of blocks, or None for all")
        grids = [k.launches for k in map(self._kernel, levels.calls(self.module))]
        most = max((math.prod(x.grid) for launches in grids for x in launches if isinstance(x, Launch)), default=0)
        wrong = [b for b in (min(blocks), max(blocks)) if not 0 <= b < most]
        if wrong:
            has = f"the largest has blocks 0 to {most - 1}" if most else "there are no blocks to run"
            raise MlircError(f"host device: no launch has block {wrong[0]}: {has}")

    def _step(self, op: ir.Operation, values: dict, report: Report, options: dict) -> None:
        if op.name == "func.call":
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if name in self.functions and is_loop(self.functions[name]):
                self._loop(self.functions[name], op, values, report, options)
                return
            self._call(name, op, values, report, options)
            self._done += 1
            self._progress(self._done, self._total)
        elif op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
            values[op.results[0]] = values[op.operands[0]].reshape(tensor_spec(op.results[0].type).shape)
        elif op.name == "tensor.extract_slice":
            starts, sizes, strides = (integers(op, f"static_{n}") for n in ("offsets", "sizes", "strides"))
            window = tuple(slice(o, o + (n - 1) * s + 1, s) for o, n, s in zip(starts, sizes, strides, strict=True))
            part = np.ascontiguousarray(values[op.operands[0]][window])
            values[op.results[0]] = part.reshape(tensor_spec(op.results[0].type).shape)
        elif op.name == "tensor.empty":
            spec = tensor_spec(op.results[0].type)
            values[op.results[0]] = np.zeros(spec.shape, spec.dtype)
        else:
            raise MlircError(f"host device: {op.name} in @main at {op.location}: only calls and views are expected")
        if self._computed and set(op.operands) & self._computed:  # a view of it
            self._computed.update(op.results)

    def _loop(self, function: ir.OpView, op: ir.Operation, values: dict, report: Report, options: dict) -> None:
        """Runs the steps of a loop one after the other."""
        loop = read_loop(function)
        block = self.functions[loop.step].operation.regions[0].blocks[0]
        given = [values[v] for v in op.operands]
        computed = [v in (self._computed or ()) for v in op.operands]
        returned = {i: tensor_spec(t) for i, t in zip(loop.results, function.type.results, strict=True)}
        carried = [
            given[start] if start is not None else np.zeros(returned[i].shape, returned[i].dtype)
            for i, start in enumerate(loop.starts)
        ]
        carried = [c.copy() if sliced is not None else c for c, sliced in zip(carried, loop.slices, strict=True)]
        for step in range(loop.count):
            inner: dict[ir.Value, np.ndarray] = {}
            for argument, source in zip(block.arguments, loop.operands, strict=True):
                at = loop.count - 1 - step if source.reverse else step
                tensor = carried[source.number] if source.kind == "carry" else given[source.number]
                inner[argument] = np.ascontiguousarray(tensor[at]) if source.kind == "slice" else tensor
                ready = step > 0 if source.kind == "carry" else computed[source.number]
                if self._computed is not None:
                    (self._computed.add if ready else self._computed.discard)(argument)
            end = self._run_all(block, inner, report, options)
            if not report.ended:
                return
            before = list(carried)
            for i, (source, reverse) in enumerate(zip(loop.yields, loop.slices, strict=True)):
                new = inner[end.operands[source.number]] if source.kind == "result" else before[source.number]
                if reverse is None:
                    carried[i] = new
                else:
                    carried[i][loop.count - 1 - step if reverse else step] = new
        values.update({v: carried[i] for v, i in zip(op.results, loop.results, strict=True)})
        self._computed = {*(self._computed or ()), *op.results}

    def _call(self, name: str, op: ir.Operation, values: dict, report: Report, options: dict) -> None:
        results = [np.zeros(spec.shape, spec.dtype) for spec in (tensor_spec(r.type) for r in op.results)]
        arguments = [*(values[v] for v in op.operands), *results]
        reference = self.references.of(name) if self.references and options["check"] else None
        made = self._computed
        before = None if made is None else [i for i, v in enumerate(op.operands) if v in made]
        found = self._kernel(name).run(
            arguments, before=before, source=self.source, scripts=self.scripts, reference=reference, **options
        )
        if reference is not None and found.ok and reference.function is not None and name not in report.calls:
            found.merge(try_sets(self._kernel(name), reference, arguments, self._sets,
                                 source=self.source, scripts=self.scripts, **options))  # fmt: skip
        if self.beside is not None and found.ok and options["blocks"] is None:
            found.findings += self.beside(name, arguments, len(results))
        self._computed = {*(made or ()), *op.results}
        for finding in found.findings:
            finding.origin = self.origins.get(name, "")
        report.merge(found)
        origin = self.origins.get(name)
        label = f"{name} ({origin})" if origin else name
        self.digests.append((label, hashlib.blake2b(b"".join(map(bits_of, results))).digest()))
        values.update(zip(op.results, results, strict=True))

    def _kernel(self, name: str) -> DeviceKernel:
        if name not in self.kernels:
            if name not in self.parts:
                raise MlircError(f"host device: kernel {name} has no gpu-level module")
            self.kernels[name] = DeviceKernel(
                self.parts[name], count=self.count, inputs=len(self.functions[name].type.inputs)
            )
        return self.kernels[name]
