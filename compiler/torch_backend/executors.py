"""What runs a compiled graph where its tensors are: on the GPU, or, to try things out, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from mlirc.check.levels import main_arguments
from mlirc.driver.compilation import Compilation
from mlirc.driver.live import host_model
from mlirc.errors import MlircError
from mlirc.host.jit import HostFunction
from mlirc.host.tensors import from_numpy, to_numpy
from mlirc.ir import levels
from mlirc.ir.sizes import read_sizes, result_dims
from mlirc.mlir import context
from mlirc.runtime.fitting import cut
from mlirc.runtime.loading import load_text
from mlirc.runtime.padding import padded
from mlirc.runtime.plan import GIVEN
from mlirc.runtime.random_state import RandomState
from mlirc.runtime.sizes import Sizes
from mlirc.torch_backend.options import Options
from mlirc.turns import MLIR, Turn, model_turn

_SEEDS = (1 << 63) - 1


class Executor(Protocol):
    """A compiled graph: from its dense tensors, of which it changes those that it writes, to fresh ones."""

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]: ...  # several threads' in turn


def executor(job: Compilation, device: torch.device, options: Options) -> Executor:
    """What runs a lowered compilation on tensors of this device. Raises MlircError for a device that there is no way
    to compile for."""
    if device.type == "cuda":
        return _OnGpu(job, device)
    if device.type != "cpu":
        raise MlircError(f"tensors are on a device of type {device.type}: on 'cuda' and 'cpu' they can be compiled for")
    with MLIR:
        return _OnHostDevice(job) if options.device == "host" else _OnCpu(job, options.level)


def sizes_of(job: Compilation, options: Options) -> Sizes | None:
    """The sizes of a compilation that is lowered as `executor` wants it."""
    level = options.level if options.level in job.modules else "kernels"
    with context():
        return read_sizes(levels.functions(job.modules[level])["main"])


class _OnCpu:
    """A level above `gpu`, by MLIR's JIT."""

    def __init__(self, job: Compilation, level: str):
        self._turn = Turn(job.name)
        module = job.modules[level]
        self._function = HostFunction(module)
        main = levels.functions(module)["main"]
        self._constants = {name: to_numpy(value) for name, value in job.tensors().items()}
        self._arguments = main_arguments(module)
        given = [i for i, (kind, _) in enumerate(self._arguments) if kind in GIVEN]
        self._writes = [None if w is None else given.index(w) for w in levels.writes(main)]
        draws = levels.random_draws(main)
        self._random = RandomState(draws) if draws else None
        with context():
            self._sizes, self._dims = read_sizes(main), result_dims(main)

    @model_turn
    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._random:
            self._random.manual_seed(_drawn_seed())
        found: dict[str, int] = {}
        given: Iterator[Any] = iter(tensors)
        if self._sizes:
            names = [name for kind, name in self._arguments if kind in GIVEN and name not in self._sizes.names]
            found = self._sizes.solve(self._sizes.shapes(names, tensors))
            filled = padded(self._sizes, dict(zip(names, map(to_numpy, tensors), strict=True)), found)
            given = iter([from_numpy(filled[name]) for kind, name in self._arguments if kind in GIVEN])
        arrays = [self._array(kind, name, given) for kind, name in self._arguments]
        seen = [_as_level_says(a, s.dtype) for a, s in zip(arrays, self._function.inputs, strict=True)]
        results = []
        for array, target, dims in zip(self._function(*seen), self._writes, self._dims, strict=True):
            if target is None:
                results.append(from_numpy(cut(array, dims, found)))
            else:
                tensors[target].copy_(from_numpy(array))
        return results

    def _array(self, kind: str, name: str, given: Any) -> np.ndarray:
        if kind == "random":
            assert self._random is not None
            return self._random.state()
        return to_numpy(next(given)) if kind in GIVEN else self._constants[name]


def _as_level_says(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """MLIR's integers have no sign."""
    return array.view(dtype) if array.dtype != dtype and array.dtype.kind in "iu" and dtype.kind in "iu" else array


class _OnHostDevice:
    """The GPU's kernels, on the host device."""

    def __init__(self, job: Compilation):
        self._model = host_model(job)
        self._turn = self._model._turn

    @model_turn
    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if self._model.plan.draws:
            self._model.manual_seed(_drawn_seed())
        if self._model.plan.sizes:  # such a model writes to nothing
            return self._model.flat(*tensors)
        self._model.bind(*tensors)
        self._model.launch()
        written = [s for s in self._model.plan.written if s.kind == "inout"]
        names = [s.name for s in self._model.plan.given]
        for spec, array in zip(written, self._model.written, strict=True):
            tensors[names.index(spec.name)].copy_(from_numpy(np.array(array)))
        return [from_numpy(np.array(a)) for a in self._model.outputs]


class _OnGpu:
    """The PTX, on PyTorch's current stream."""

    def __init__(self, job: Compilation, device: torch.device):
        if not job.plan.given:
            raise MlircError("the graph reads no tensor, so that nothing says on which stream it is to run")
        self._device = device
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._model = load_text(job.ptx, job.tensors(), self._index)
        self._turn = self._model._turn

    @model_turn
    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # Numbers may come as tensors on the CPU.
        moved = [t if t.is_cuda else t.to(self._device) for t in tensors]
        plan = self._model.plan
        generator = torch.cuda.default_generators[self._index] if plan.draws else None
        if generator is not None:  # PyTorch's own numbers: its seed, and its place in the sequence
            self._model.manual_seed(generator.initial_seed(), generator.get_offset())
        found = self._model.flat(*moved)
        if generator is not None:
            generator.set_offset(generator.get_offset() + plan.draws[-1])
        for spec, tensor, given in zip(plan.asked, moved, tensors, strict=True):
            if spec.kind != "inout":
                continue
            if tensor is not given:
                given.copy_(tensor)
            elif not given.is_inference():
                torch.autograd.graph.increment_version(given)
        return found


def _drawn_seed() -> int:
    """A seed for one call, from PyTorch's generator: `torch.manual_seed` decides it."""
    return int(torch.randint(_SEEDS, (), device="cpu"))
