"""The levels of a compilation as functions from a model's inputs to its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mlirc.host.jit import HostFunction, TensorSpec, tensor_spec
from mlirc.host.tensors import from_numpy, to_numpy
from mlirc.ir import levels
from mlirc.ir.sizes import read_sizes, result_dims
from mlirc.mlir import context, ir
from mlirc.runtime.fitting import cut
from mlirc.runtime.padding import padded
from mlirc.runtime.plan import GIVEN
from mlirc.runtime.random_state import DEFAULT_SEED

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


def level_runner(job: Any, level: str, tensors: Mapping[str, torch.Tensor]) -> Run:
    """A function that runs one level of a compilation, lowered that far, with these weights and constants.

    It takes the inputs in order and returns the outputs; every run draws the random numbers of a model's first call.
    Raises MlircError for what cannot be run, and for what the host device finds.
    """
    if level == "ptx":
        return _on_gpu(job, tensors)
    module = job.modules["kernels" if level == "gpu" else level]
    arguments = main_arguments(module)
    fixed = {name: to_numpy(tensors[name]) for kind, name in arguments if kind not in (*GIVEN, "random")}
    fixed |= levels.random_state(module)
    if level == "gpu":
        function, specs = _host_device(job)
    else:
        compiled = HostFunction(module)
        function, specs = compiled, compiled.inputs

    main = levels.functions(module)["main"]
    with context():
        sizes, dims = read_sizes(main), result_dims(main)

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        found: dict[str, int] = {}
        if sizes:
            names = [name for kind, name in arguments if kind in GIVEN and name not in sizes.names]
            found = sizes.solve(sizes.shapes(names, inputs))
            named = {name: to_numpy(t) for name, t in zip(names, inputs, strict=True)}
            filled = padded(sizes, named, found)
            inputs = [from_numpy(filled[name]) for kind, name in arguments if kind in GIVEN]
        given = iter(inputs)
        arrays = [to_numpy(next(given)) if kind in GIVEN else fixed[name] for kind, name in arguments]
        results = function(*[_seen_as(a, s) for a, s in zip(arrays, specs, strict=True)])
        return [from_numpy(cut(r, d, found)) for r, d in zip(results, dims, strict=True)]

    return run


def main_arguments(module: ir.Module) -> list[tuple[str, str]]:
    """(kind, name) of every argument of `@main`; those that say neither are inputs."""
    main = levels.functions(module)["main"]
    with context():
        count = len(main.type.inputs)
        named = list(main.arg_attrs) if "arg_attrs" in main.operation.attributes else [{}] * count
        found = []
        for i, attributes in enumerate(named):
            kind = ir.StringAttr(attributes["mlirc.kind"]).value if "mlirc.kind" in attributes else "input"
            name = ir.StringAttr(attributes["mlirc.name"]).value if "mlirc.name" in attributes else f"arg{i}"
            found.append((kind, name))
    return found


def _seen_as(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """MLIR's integers have no sign: bytes are given as what the level calls them."""
    same = array.dtype.kind in "iu" and spec.dtype.kind in "iu" and array.dtype.itemsize == spec.dtype.itemsize
    return array.view(spec.dtype) if same else array


def _host_device(job: Any) -> tuple[Callable[..., list[np.ndarray]], list[TensorSpec]]:
    from mlirc.device import DeviceModel

    model = DeviceModel.parse(job.text("gpu"))
    with context():
        types = list(model.main.type.inputs)
        meant = levels.boundary_dtypes(model.main, "arg_attrs", len(types))
        specs = [tensor_spec(t, dtype) for t, dtype in zip(types, meant, strict=True)]

    def function(*arrays: np.ndarray) -> list[np.ndarray]:
        outputs, report = model.run(arrays)
        report.raise_if_bad()
        return outputs

    return function, specs


def _on_gpu(job: Any, tensors: Mapping[str, torch.Tensor]) -> Run:
    from mlirc.runtime.loading import load_text

    model = load_text(job.ptx, tensors)

    order = levels.main_results(levels.functions(job.modules["kernels"])["main"], job.plan)

    def run(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        model.manual_seed(DEFAULT_SEED)
        model.state.reset()
        given = [t.cuda() for t in inputs]
        outputs = model.flat(*given)
        found = [from_numpy(t) if isinstance(t, np.ndarray) else t.cpu() for t in outputs]  # NumPy's without inputs
        named = dict(zip((s.name for s in job.plan.given), given, strict=True))
        for spec in job.plan.written:
            found.append(from_numpy(model.state[spec.name].numpy()) if spec.kind == "state" else named[spec.name].cpu())
        return [found[i] for i in order]

    return run
