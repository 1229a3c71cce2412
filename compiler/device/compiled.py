"""A compiled model on the host device: what `mlirc.load(path, device="host")` gives, called as one on a GPU is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlirc.device.input_sets import QUICK
from mlirc.device.limits import SECONDS
from mlirc.device.model import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.device.ptx.beside import PtxBeside
from mlirc.device.reference import References
from mlirc.device.report import Report
from mlirc.errors import MlircError
from mlirc.host.level_files import Levels, without_bodies
from mlirc.ir import levels as level_facts
from mlirc.runtime.arrays import View, check, empty_like, view
from mlirc.runtime.calls import arguments_of, result_of
from mlirc.runtime.fitting import cut
from mlirc.runtime.padding import padded
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.random_state import RandomState
from mlirc.runtime.scalars import scalar_array
from mlirc.runtime.sized_copies import actual, check_sized, dims_of, host_array
from mlirc.runtime.state import State
from mlirc.runtime.weights import WeightFile
from mlirc.runtime.written_inputs import check_written
from mlirc.timing import counted
from mlirc.turns import MLIR, LoadedModel, Turn, mlir_turn, model_turn

_WELL = 90  # percent of a kernel's elements: the summary names those of which less are judged


def as_array(seen: View, name: str) -> np.ndarray:
    """A dense tensor on the host as a NumPy array of the same memory; raises MlircError for one on a GPU."""
    if seen.device is not None:
        raise MlircError(f"'{name}': lies on GPU {seen.device}, but the model runs on the host: copy it there first")
    return host_array(seen)


class HostModel(LoadedModel):
    """A compiled model whose kernels run on the host device, from the `gpu` level that mlirc wrote beside the PTX, or
    from `levels`.

    `verify` holds the levels against their checksums. `check` looks for what the sanitizer finds: a finding raises
    MlircError, and all are in `report` after every run.
    `compare` makes wrong numbers a finding, too: each kernel's results must be those of the `kernels` level. So does
    `match` where the launch plan does something else than the `gpu` level, or `ptx`, the PTX file's text, is not what
    that level compiles to (which is looked at where nothing else was found). With `execute_ptx` each call runs through
    the kernel's PTX, too, and the whole plan in its arena, and must give the same bits.
    `input_sets` are made-up inputs that each kernel is tried on, too, and compared
    (`mlirc.device.input_sets`; those that are quick, unless told otherwise).
    `blocks` (linear numbers) runs only those blocks of every launch: what no other block computed is left as zeros.
    `share`: another one whose weights and states this one uses where it has them, by name.
    `seed` draws the order of blocks, warps and atomics (0: threads go together where they can). A launch that takes
    longer than `seconds` is stopped. `count` fills the report's counters. Calls of several threads, also those of other
    models on the host device, are made in turn.
    """

    device = "host"

    @mlir_turn
    def __init__(
        self, path: Path, plan: Plan, weights: Mapping[str, Any], *, ptx: str | None = None, count: bool = False,
        levels: Levels | None = None, share: HostModel | None = None, verify: bool = True,
    ):  # fmt: skip
        self._turn = Turn(str(path), MLIR)
        self.plan, self.check, self.compare, self.match, self.seed = plan, True, True, True, 0
        self.input_sets: Sequence[str] = QUICK
        self.execute_ptx = False
        self._beside: PtxBeside | None = None
        self._random = RandomState(plan.draws)
        self.seconds = SECONDS  # that a launch may take
        self.blocks: Sequence[int] | None = None
        self.report = Report()
        self.progress: Callable[[int, int], None] = lambda done, total: None
        self._levels = levels or Levels.beside(path, plan, verify)
        gpu_level = self._levels.text("gpu")
        self._model = DeviceModel.parse(gpu_level, self._levels.name("gpu"), count)
        self._levels.check(self._model.module, "gpu")
        self._file = FileCheck(plan, self._model, gpu_level, path, ptx)
        self._names = self._model.argument_names()
        self._arrays: dict[str, np.ndarray] = {}
        self._files: dict[int, WeightFile] = {}  # that some of them are maps of
        self._states: dict[str, np.ndarray] = share._states if share else {}  # all that models share, and maybe more
        self._weights: dict[str, TensorSpec] = dict(share._weights) if share else {}
        self.state = host_state(plan, self._states, self._turn)
        for spec in plan.weights:
            if spec.name in self._weights and spec.kind != "constant" and share:
                self._take(spec, self._weights[spec.name], share)
                continue
            if spec.name not in weights:
                raise MlircError(f"{path}: {spec.kind} '{spec.name}' ({spec}) is missing from the given weights")
            array = self._array(weights[spec.name], spec)
            if spec.kind == "state":
                self._states[spec.name] = _frozen(array.copy())  # not the caller's, which may change
                self.state.remember(spec.name, self._states[spec.name])
            else:
                self._arrays[spec.name] = array
            if spec.kind != "constant":
                self._weights[spec.name] = spec
        self._order = level_facts.main_results(self._model.main, plan)
        self._outputs: list[np.ndarray] = []
        self._found: References | None = None
        self._sizes: dict[str, int] = {}  # of the last `bind`
        self._alone = False  # whether there is no level above that has the kernels
        self._bound: list[np.ndarray] | None = None if plan.inputs else []
        self._given: list[Any] = []  # as the last `bind` was given them
        self.rebuild: Callable[[Sequence[Any]], Any] | None = None  # makes a result of the module's own classes

    def _take(self, spec: TensorSpec, other: TensorSpec, share: HostModel) -> None:
        """Makes a weight or state of the model that this one shares with this one's, too."""
        if (spec.dtype, spec.shape, spec.kind) != (other.dtype, other.shape, other.kind):
            raise MlircError(
                f"{self.plan.model}: {spec.kind} '{spec.name}' ({spec}) is {other.kind} {other} in the model that it "
                "shares with"
            )
        if spec.kind == "state":
            self.state.remember(spec.name, share.state.initial(spec.name))
        else:
            self._arrays[spec.name] = share._arrays[spec.name]
            self._files |= share._files

    def _array(self, tensor: Any, spec: TensorSpec) -> np.ndarray:
        if spec.kind == "scalar":
            return _frozen(scalar_array(tensor, spec))
        if hasattr(tensor, "is_contiguous") and not tensor.is_contiguous() and spec.kind != "input":
            tensor = tensor.contiguous()
        seen = tensor if isinstance(tensor, View) else view(tensor, spec.name)
        if isinstance(seen.owner, WeightFile):
            self._files[id(seen.owner)] = seen.owner
        check_sized(seen, spec) if dims_of(self.plan, spec) else check(seen, spec)
        array = as_array(seen, spec.name)
        array.flags.writeable = False  # the caller's tensor, or a file's bytes, which may not be written at all
        return array

    @model_turn
    def manual_seed(self, seed: int) -> None:
        """Starts the sequence of random numbers of a seed, for the calls from here on."""
        self._random.manual_seed(seed)

    @model_turn
    def bind(self, *tensors: Any, **named: Any) -> None:
        """Sets the inputs for `launch`, and the random numbers that every launch until the next `bind` draws."""
        specs = self.plan.asked
        given = self._given = arguments_of(self.plan, tensors, named)
        self._bound = [self._array(t, s) for t, s in zip(given, specs, strict=True)]
        if sizes := self.plan.sizes:
            arrays = dict(zip([s.name for s in specs], self._bound, strict=True))
            self._sizes = sizes.solve(sizes.shapes(list(arrays), list(arrays.values())))
            filled = padded(sizes, arrays, self._sizes)
            self._bound = [_frozen(filled[s.name]) for s in self.plan.given]
        if self.plan.written:
            seen = [view(a, s.name) for a, s in zip(self._bound, specs, strict=True)]
            check_written(specs, seen, given, ())
        if self.plan.draws:
            self._bound.append(self._random.advance())

    @model_turn
    def launch(self, stream: Any = None) -> None:
        """Runs the model on the inputs of the last `bind` or call, into `outputs`; what it writes is there for the next
        run, unless there was a finding, or only some blocks ran. Raises MlircError for a finding."""
        if self._bound is None:
            raise MlircError("launch: the inputs are not bound yet: call bind(...) first")
        self._require_same_files()
        self._model.references = self._references() if self.check and self.compare else None
        given = self._arrays | self._states | {s.name: a for s, a in zip(self.plan.inputs, self._bound, strict=True)}
        self._model.beside = self._ptx_beside() if self.execute_ptx else None
        results, self.report = self._model.run(
            [given[name] for name in self._names],
            blocks=self.blocks, check=self.check, seed=self.seed, seconds=self.seconds, progress=self.progress,
            input_sets=self.input_sets,
        )  # fmt: skip
        self._require_same_files()
        ordered = [results[self._order.index(i)] for i in range(len(results))]
        outputs, written = ordered[: len(self.plan.outputs)], ordered[len(self.plan.outputs) :]
        pairs = zip(outputs, self.plan.outputs, strict=True)
        self._outputs = [cut(a, dims_of(self.plan, s), self._sizes) for a, s in pairs]
        if self._beside is not None and self.execute_ptx and self.report.ok and self.blocks is None:
            self.report.findings += self._beside.whole_plan(self.plan, given, ordered)
        if self.check and self.match:
            self.report.findings += self._file.of_plan(self._found.modules if self._found else None)
            self.report.findings += self._file.of_text() if self.report.ok else []
        self.report.raise_if_bad()
        if self.blocks is None:
            self._keep(written)

    def _require_same_files(self) -> None:
        for file in self._files.values():
            file.require_same()

    def _keep(self, written: list[np.ndarray]) -> None:
        """Makes what a run has written the states and the bound inputs of the next one."""
        for spec, array in zip(self.plan.written, written, strict=True):
            if spec.kind == "state":
                self._states[spec.name] = _frozen(array)
            elif self._bound is not None:
                self._bound[self.plan.inputs.index(spec)] = _frozen(array)

    @property
    @model_turn
    def written(self) -> list[np.ndarray]:
        """What the runs so far have made of `plan.written`: the states, and the inputs that are changed in place."""
        places = {id(spec): i for i, spec in enumerate(self.plan.inputs)}
        return [
            self._states[spec.name] if spec.kind == "state" else (self._bound or [])[places[id(spec)]]
            for spec in self.plan.written
        ]

    @model_turn
    def remember(self) -> Callable[[], None]:
        """What makes the states and the bound inputs again what they are now."""
        states, bound = {name: self._states[name] for name in self.state}, list(self._bound or [])

        def restore() -> None:
            self._states.update(states)
            self._bound = list(bound) if self._bound is not None else None

        return restore

    def _ptx_beside(self) -> PtxBeside:
        if self._file.text is None:
            raise MlircError("execute_ptx: the model is in memory: compile it to a file, whose PTX can be executed")
        self._beside = PtxBeside(self._file.text, self._model.parts)
        return self._beside

    def _references(self) -> References | None:
        """What kernels are compared with; None for a model that was compiled from the `gpu` level."""
        if self._found is None and not self._alone:
            modules = {"kernels": self._levels.module("kernels")}
            self._alone = without_bodies(modules["kernels"])
            if not self._alone:
                modules["tiles"] = self._levels.module("tiles")
                self._found = References(modules, {name: self._levels.name(name) for name in modules})
        return self._found

    def summary(self) -> str:
        """What the last run checked, in words: `3 kernels, 128 blocks, 1 input, compared with level kernels,
        plan and PTX checked`."""
        report, parts = self.report, []
        parts.append(counted(len(report.calls), "kernel"))
        parts.append(counted(report.blocks, "block") + (" (of every launch those asked for)" if self.blocks else ""))
        parts.append(counted(len(self.plan.asked), "input"))
        calls = sum(report.calls.values())
        if not calls:
            parts.append("which leaves nothing to check")
        elif not self.check:
            parts.append("nothing checked")
        elif not self.compare:
            parts.append("numbers compared with nothing (compare is off)")
        elif self._alone:
            parts.append("numbers compared with nothing (the model was compiled from the gpu level)")
        else:
            some = f" in {report.compared} of {calls} calls" if report.compared < calls else ""
            parts.append(f"compared with level kernels{some}")
            parts += [text] if (text := _judged(report)) else []
            tried = sum(map(len, report.sets.values()))
            parts += [f"tried on {counted(tried, 'set')} of made-up inputs"] if tried else []
            rough = len(self._found.unbounded) if self._found else 0
            parts += [f"{counted(rough, 'kernel')} judged by the largest element"] if rough else []
            stated = self._found.stated if self._found else {}
            parts += [f"{name}: {what}" for name, what in stated.items() if name in report.calls]
        if self.check and self.match and calls:
            parts.append("plan checked" if self._file.text is None else "plan and PTX checked")
        if self._beside is not None:
            parts.append(f"PTX executed in {self._beside.calls} of {calls} calls")
            parts += [f"not that of {name} ({why})" for name, why in self._beside.refused.items()]
            parts += ["the whole plan executed in its arena"] if self._beside.planned else []
        return ", ".join(parts)

    @property
    def outputs(self) -> list[np.ndarray]:
        """The results of the last run, one array per output of the plan."""
        return self._outputs

    @property
    def digests(self) -> list[tuple[str, bytes]]:
        """For every call of the last run the kernel, and a hash of its results."""
        return self._model.digests

    def synchronize(self) -> None:
        """Nothing to wait for: a run ends before it returns."""

    def __call__(self, *tensors: Any, stream: Any = None, **named: Any) -> Any:
        """Runs the model: inputs as the module takes them, or tensor by tensor, by position in the plan's order or by
        name. Outputs are torch tensors if the first input is one, else NumPy arrays, in the module's structure
        (`plan.structure`); without one, one is returned as it is, several as a tuple."""
        return result_of(self.plan, self.flat(*tensors, **named), self.rebuild)

    @model_turn
    def flat(self, *tensors: Any, **named: Any) -> list[Any]:
        """Runs the model as a call does; returns the plan's outputs, complex ones as pairs of real numbers."""
        self.bind(*tensors, **named)
        self.launch()
        specs = self.plan.asked
        if self.plan.written and self.blocks is None:
            for spec, tensor, array in zip(specs, self._given, self._bound or [], strict=False):
                if spec.kind == "inout":
                    _write_into(tensor, array, spec)
        first = next((t for t, s in zip(self._given, specs, strict=True) if s.kind != "scalar"), None)
        like = view(first, "input") if first is not None else View(0, None, "i8", (), True, None, "numpy")
        actuals = [actual(self.plan, spec, self._sizes) for spec in self.plan.outputs]
        return [_copy(a, like, spec) for a, spec in zip(self._outputs, actuals, strict=True)]

    def close(self) -> None:
        """Forgets the weights; the model cannot run afterwards."""
        with MLIR:
            self._turn.closed, self._arrays, self._states = True, {}, {}

    def __enter__(self) -> HostModel:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HostModel({self.plan.signature()} on the host device)"


def _judged(report: Report) -> str:
    """How much of the results was judged, in words, and by which kernels less than elsewhere; "" where nothing was."""
    here, total = (sum(x) for x in zip(*report.judged.values(), strict=True)) if report.judged else (0, 0)
    if not total:
        return ""
    low = sorted((share, kernel) for kernel, share in report.shares().items() if share < _WELL)
    text = "; ".join(
        [f"judged {_percent(100 * here / total)} of elements", *(f"{k} {_percent(s)}" for s, k in low[:3])]
    )
    return text + (f" and {len(low) - 3} kernels more below {_WELL} %" if len(low) > 3 else "")


def _percent(share: float) -> str:
    """A share, cut to a tenth of a percent, so that 100 % are all."""
    return f"{math.floor(10 * share) / 10:g} %"


def _frozen(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def host_state(plan: Plan, arrays: dict[str, np.ndarray], turn: Turn) -> State:
    """The state of a model whose tensors are `arrays`, which are replaced and never changed."""

    def write(name: str, source: View | np.ndarray) -> None:
        array = as_array(source, name) if isinstance(source, View) else source
        arrays[name] = _frozen(array.copy())

    return State(plan.weights, arrays.__getitem__, write, turn)


def _write_into(tensor: Any, array: np.ndarray, spec: TensorSpec) -> None:
    """Gives the caller's tensor the new value of an input that the model writes."""
    if isinstance(tensor, np.ndarray):
        tensor[...] = array
    else:
        as_array(view(tensor, spec.name), spec.name)[...] = array


def _copy(array: np.ndarray, like: View, spec: TensorSpec) -> Any:
    """An array as a tensor of the library that `like` came from."""
    made = empty_like(like, spec, 0)
    if made is None:
        return array
    as_array(made, spec.name)[...] = array
    return made.owner[0] if isinstance(made.owner, tuple) else made.owner
