"""A compiled model on the host device: what `mlirc.load(path, device="host")` gives, called as one on a GPU is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host.device.limits import SECONDS
from mlirc.host.device.model import DeviceModel
from mlirc.host.device.reference import References
from mlirc.host.device.report import Report
from mlirc.mlir_text import read_level
from mlirc.runtime.arrays import NUMPY_DTYPES, View, check, empty_like, match, view
from mlirc.runtime.plan import Plan, TensorSpec


def as_array(seen: View, name: str) -> np.ndarray:
    """A dense tensor on the host as a NumPy array of the same memory; raises MlircError for one on a GPU."""
    if seen.device is not None:
        raise MlircError(f"'{name}': lies on GPU {seen.device}, but the model runs on the host: copy it there first")
    dtype = NUMPY_DTYPES[seen.dtype]
    if not seen.nbytes:
        return np.empty(seen.shape, dtype)
    memory = (ctypes.c_uint8 * seen.nbytes).from_address(seen.pointer)
    array = np.ctypeslib.as_array(memory).view(dtype).reshape(seen.shape)
    memory.owner = seen.owner  # type: ignore[attr-defined]  # which the array keeps alive through its base
    return array


class HostModel:
    """A compiled model whose kernels run on the host device, from the `gpu` level that mlirc wrote beside the PTX.

    `check` looks for what the sanitizer finds: a finding raises MlircError, and all are in `report` after every run.
    `compare` makes wrong numbers a finding, too: each kernel's results must be those of the `kernels` level.
    `blocks` (linear numbers) runs only those blocks of every launch: what no other block computed is left as zeros.
    `seed` draws the order of blocks, warps and atomics (0: threads go together where they can). A launch that takes
    longer than `seconds` is stopped. `count` fills the report's counters.
    """

    device = "host"

    def __init__(self, path: Path, plan: Plan, weights: Mapping[str, Any], *, count: bool = False):
        self.plan, self.check, self.compare, self.seed = plan, True, True, 0
        self.seconds = SECONDS  # that a launch may take
        self.blocks: Sequence[int] | None = None
        self.report = Report()
        self.progress: Callable[[int, int], None] = lambda done, total: None
        folder = path.with_suffix(".levels")
        file = folder / "gpu.mlir"
        self._model = DeviceModel.parse(read_level(file), str(file), count)
        self._levels = folder
        self._names = self._model.argument_names()
        self._arrays: dict[str, np.ndarray] = {}
        for spec in plan.weights:
            if spec.name not in weights:
                raise MlircError(f"{path}: {spec.kind} '{spec.name}' ({spec}) is missing from the given weights")
            self._arrays[spec.name] = self._array(weights[spec.name], spec)
        for name in self._names:
            if name not in self._arrays and name not in [spec.name for spec in plan.inputs]:
                raise MlircError(f"{file}: argument '{name}' is not in the model's plan: compile the model again")
        self._outputs: list[np.ndarray] = []
        self._found: References | None = None
        self._bound: list[np.ndarray] | None = None if plan.inputs else []

    def _array(self, tensor: Any, spec: TensorSpec) -> np.ndarray:
        if hasattr(tensor, "is_contiguous") and not tensor.is_contiguous() and spec.kind != "input":
            tensor = tensor.contiguous()
        seen = tensor if isinstance(tensor, View) else view(tensor, spec.name)
        check(seen, spec)
        array = as_array(seen, spec.name)
        array.flags.writeable = False  # the caller's tensor, or a file's bytes, which may not be written at all
        return array

    def bind(self, *tensors: Any, **named: Any) -> None:
        """Sets the inputs for `launch`."""
        specs = self.plan.inputs
        self._bound = [self._array(t, s) for t, s in zip(match(specs, tensors, named), specs, strict=True)]

    def launch(self, stream: Any = None) -> None:
        """Runs the model on the inputs of the last `bind` or call, into `outputs`. Raises MlircError for a finding."""
        if self._bound is None:
            raise MlircError("launch: the inputs are not bound yet: call bind(...) first")
        self._model.references = self._references() if self.check and self.compare else None
        given = self._arrays | {s.name: a for s, a in zip(self.plan.inputs, self._bound, strict=True)}
        self._outputs, self.report = self._model.run(
            [given[name] for name in self._names],
            blocks=self.blocks, check=self.check, seed=self.seed, seconds=self.seconds, progress=self.progress,
        )  # fmt: skip
        self.report.raise_if_bad()

    def _references(self) -> References:
        if self._found is None:
            files = [self._levels / f"{name}.mlir" for name in ("kernels", "tiles")]
            self._found = References(
                {f.stem: mlir.parse(read_level(f), str(f)) for f in files}, {f.stem: str(f) for f in files}
            )
        return self._found

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
        """Runs the model: inputs by position in the plan's order, or by name. Outputs are torch tensors if the first
        input is one, else NumPy arrays; one is returned as it is, several as a tuple."""
        self.bind(*tensors, **named)
        self.launch()
        first = next(iter([*tensors, *named.values()]), None)
        like = view(first, "input") if first is not None else View(0, None, "i8", (), True, None, "numpy")
        results = [_copy(a, like, spec) for a, spec in zip(self._outputs, self.plan.outputs, strict=True)]
        return results[0] if len(results) == 1 else tuple(results)

    def close(self) -> None:
        """Forgets the weights; the model cannot run afterwards."""
        self._arrays.clear()

    def __enter__(self) -> HostModel:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HostModel({self.plan.signature()} on the host device)"


def _copy(array: np.ndarray, like: View, spec: TensorSpec) -> Any:
    """An array as a tensor of the library that `like` came from."""
    made = empty_like(like, spec, 0)
    if made is None:
        return array
    as_array(made, spec.name)[...] = array
    return made.owner[0] if isinstance(made.owner, tuple) else made.owner
