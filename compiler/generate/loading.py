"""Opening a generating model: an artifact's folder, or what was just compiled, on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirc.errors import MlircError, missing_package
from mlirc.files.opening import shorten
from mlirc.generate.artifact import WEIGHTS, About, check_model, read_about
from mlirc.generate.plan_engine import SLOT_STATES, PlanEngine
from mlirc.generate.progress import Progress, silent
from mlirc.generate.sizes import Sizes
from mlirc.generate.source_engine import SourceEngine
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.loading import load_text, read_model
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.runtime.weights import WeightFile

if TYPE_CHECKING:
    from mlirc.host.level_code import LevelCode

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}


def load_engine(
    folder: str | os.PathLike,
    device: int | str = 0,
    weights: str | os.PathLike | Mapping[str, Any] | None = None,
    progress: Progress = silent,
    verify: bool = True,
) -> PlanEngine:
    """The engine of an artifact's folder: on a GPU by number, on the host device (`host`) or on the CPU (`cpu`).

    `weights`: another safetensors file, or tensors by name, in the stead of the artifact's. `progress` is told of each
    stage that takes its time. `verify=False` leaves out the checksums of files. Raises MlircError for a
    folder that is none or is damaged, and for weights that do not fit.
    """
    path = Path(folder)
    about = read_about(path)
    if verify:
        check_model(path, about, levels=isinstance(device, str))
    tensors = _Tensors(path / WEIGHTS, weights, verify)
    plans = {name: read_model(path / f"{name}.ptx") for name in about.plans}
    for name, (_, plan) in plans.items():
        _check(path / f"{name}.ptx", plan, about)
    if device == "cpu":
        found = {name: _levels(path / f"{name}.ptx", plan, verify) for name, (_, plan) in plans.items()}
        codes = {name: partial(found[name].code, "tiles", name) for name in plans}
        return engine_of(device, about.sizes, tensors, codes=codes, progress=progress)
    levels = {
        n: _levels(path / f"{n}.ptx", plan, verify) if device == "host" else None for n, (_, plan) in plans.items()
    }
    given = {name: (text, plan, levels[name]) for name, (text, plan) in plans.items()}
    return engine_of(device, about.sizes, tensors, plans=given)


def engine_of(
    device: int | str,
    sizes: Sizes,
    tensors: Mapping[str, Any],
    *,
    plans: Mapping[str, tuple[str, Plan, Any]] | None = None,
    codes: Mapping[str, Callable[[Callable[[], object]], LevelCode]] | None = None,
    progress: Progress = silent,
) -> PlanEngine:
    """An engine of `plans` (the PTX file's text, its plan and, for the host device, its levels), or on the CPU of
    `codes`, each of which is called for its level's code, and calls what it is given where that takes its time.
    `tensors` are all weights and constants by name; states begin as zeros."""
    if device == "cpu":
        return engine_class(sizes)(_on_cpu(codes or {}, tensors, progress), sizes)
    models: dict[str, Any] = {}
    try:
        for name, (text, plan, levels) in (plans or {}).items():
            found = _WithStates(tensors, plan)
            first = next(iter(models.values()), None)
            if device == "host":
                from mlirc.device import HostModel

                models[name] = HostModel(Path(name), plan, found, levels=levels, share=first)
            else:
                models[name] = load_text(text, found, device, share=first)  # type: ignore[arg-type]
        return engine_class(sizes)(models, sizes)
    except BaseException:
        for model in reversed(list(models.values())):
            model.close()
        raise


def engine_class(sizes: Sizes) -> type[PlanEngine]:
    """What runs plans of these sizes."""
    return PlanEngine if sizes.source is None else SourceEngine


def _on_cpu(codes: Mapping[str, Callable], tensors: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    try:
        from mlirc.host.level_model import LevelModel
        from mlirc.host.tensors import to_numpy
    except ModuleNotFoundError as e:
        raise missing_package(e) or e from e
    arrays: dict[str, np.ndarray] = {}
    files: list[WeightFile] = []
    models = {}
    for number, (name, code_of) in enumerate(codes.items(), 1):
        code = code_of(partial(progress, f"{name} for this CPU ({number} of {len(codes)} plans)"))
        for argument, kind, spec in zip(code.names, code.kinds, code.function.inputs, strict=True):
            if kind == "state" and argument not in arrays:
                arrays[argument] = np.zeros(spec.shape, spec.dtype)
            elif argument in tensors and argument not in arrays:
                tensor = tensors[argument]
                owner = getattr(tensor, "owner", None)
                arrays[argument] = to_numpy(tensor) if owner is None else owner.array(argument)
                if owner is not None and owner not in files:
                    files.append(owner)
        models[name] = LevelModel(code, arrays, files)
    return models


class _WithStates(Mapping[str, Any]):
    """Weights by name, with zeros for the states of a plan."""

    def __init__(self, tensors: Mapping[str, Any], plan: Plan):
        self._tensors = tensors
        self._states = {spec.name: spec for spec in plan.weights if spec.kind == "state"}

    def __getitem__(self, name: str) -> Any:
        if name not in self._states:
            return self._tensors[name]
        spec = self._states[name]
        zeros = np.zeros(spec.shape, NUMPY_DTYPES[spec.dtype])
        zeros.flags.writeable = False  # which says that it stays as it is, and need not be copied to be remembered
        return zeros

    def __contains__(self, name: object) -> bool:
        return name in self._states or name in self._tensors

    def __iter__(self) -> Any:
        return iter({*self._states, *self._tensors})

    def __len__(self) -> int:
        return len({*self._states, *self._tensors})


class _Tensors(Mapping[str, Any]):
    """An artifact's tensors, as views of its file; those that are given in their stead first."""

    def __init__(self, file: Path, given: str | os.PathLike | Mapping[str, Any] | None, verify: bool):
        self._file = WeightFile(file)
        if not (given is None or isinstance(given, str | os.PathLike | Mapping)):
            raise MlircError(f"weights are {shorten(repr(given), 80)}: give a safetensors file, or tensors by name")
        self._given: Any = WeightFile(given) if isinstance(given, str | os.PathLike) else given or {}
        if verify and isinstance(self._given, WeightFile):
            self._given.verify()

    def __getitem__(self, name: str) -> Any:
        if name in self._given:
            return self._given.view(name) if isinstance(self._given, WeightFile) else self._given[name]
        return self._file.view(name)

    def __contains__(self, name: object) -> bool:
        return name in self._given or name in self._file

    def __iter__(self) -> Any:
        return iter(self._file.entries)

    def __len__(self) -> int:
        return len(self._file.entries)


def _levels(path: Path, plan: Plan, verify: bool) -> Any:
    try:
        from mlirc.host.level_files import Levels
    except ModuleNotFoundError as e:
        raise missing_package(e) or e from e
    return Levels.beside(path, plan, verify)


def _check(path: Path, plan: Plan, about: About) -> None:
    """Raises MlircError unless a plan is one of this artifact: its states, inputs and output as the sizes say."""
    sizes = about.sizes
    n = sizes.slots
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        "table": ("i64", (n, sizes.pages_each)), "seen": ("i1", (n, sizes.vocabulary)),
    }  # fmt: skip
    wanted |= {name: (_NAMES[np.dtype(kind)], (n,)) for name, (kind, _) in SLOT_STATES.items()}
    if sizes.source is not None:
        wanted |= {"encoded": ("i64", (n,)), "begin": ("i64", (n,))}
    states = {spec.name: spec for spec in plan.weights if spec.kind == "state"}
    kind, _, length = path.stem.partition("-")
    inputs: list[tuple[str, str, tuple[int, ...]]] = []
    if kind == "prefill":
        inputs = [("tokens", "i64", (1, int(length))), *((name, "i64", ()) for name in ("slot", "start", "count"))]
    elif kind == "encode" and sizes.source is not None:
        n, bins = int(length), sizes.source.bins
        read = ("source", "f32", (1, bins, n)) if bins else ("source", "i64", (1, n))
        inputs = [read, *((name, "i64", ()) for name in ("slot", "count"))]
    found = [(spec.name, spec.dtype, spec.shape) for spec in plan.inputs]
    right = found == inputs and [spec.dtype for spec in plan.outputs] == ["i64"]
    right &= all(k in states and (states[k].dtype, states[k].shape) == v for k, v in wanted.items())
    right &= plan.model.endswith(f".{path.stem}") and plan.target == about.target
    right &= all(_is_pool(spec, sizes) for name, spec in states.items() if name.startswith("cache."))
    if not right:
        raise MlircError(f"{path}: is no plan of this generating model: compile it again")


def _is_pool(spec: TensorSpec, sizes: Sizes) -> bool:
    return len(spec.shape) == 4 and (spec.shape[0], spec.shape[2]) == (sizes.pages, sizes.page_size)
