"""A level of a model on the CPU, called as a loaded model is: what it writes lasts from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.jit import HostFunction, tensor_spec
from mlirc.host.level_files import argument_names
from mlirc.ir import levels
from mlirc.mlir import context, ir
from mlirc.runtime.plan import GIVEN


class LevelModel:
    """`@main` of a `linalg`-, `kernels`- or `tiles`-level module through MLIR's JIT.

    `arrays` has a weight, constant or state for every argument of those kinds, by name; what a call writes takes its
    place there, so that models that are given the same dictionary share their states. `source`: the name of the
    module's text, for errors. Raises MlircError for arrays that are missing or do not fit.
    """

    def __init__(self, module: ir.Module, arrays: dict[str, np.ndarray], source: str = ""):
        main = levels.functions(module)["main"]
        self._names = argument_names(main)
        self._written = levels.writes(main)
        kinds = _kinds(main)
        if "random" in kinds:
            raise MlircError("a model that draws random numbers cannot be run so on the CPU")
        self._given = [n for n, kind in zip(self._names, kinds, strict=True) if kind in GIVEN]
        self.state = arrays
        dtypes = levels.boundary_dtypes(main, "arg_attrs", len(self._names))
        for name, type_, dtype in zip(self._names, main.type.inputs, dtypes, strict=True):
            spec = tensor_spec(type_, dtype)
            if name in self._given:
                continue
            if name not in arrays:
                raise MlircError(f"'{name}' is missing from the given weights")
            if arrays[name].shape != spec.shape or arrays[name].dtype != spec.dtype:
                found = f"{arrays[name].dtype}{list(arrays[name].shape)}"
                raise MlircError(f"'{name}' is {found}, but the model asks for {spec.dtype}{list(spec.shape)}")
        self._function = HostFunction(module, source=source)

    def __call__(self, **inputs: Any) -> Any:
        """Runs the model on inputs by name; returns its output, several as a tuple. Raises MlircError for inputs that
        do not fit, and for an index outside of its tensor."""
        if set(inputs) != set(self._given):
            raise MlircError(f"the model takes the inputs {', '.join(self._given) or 'none'}, not {', '.join(inputs)}")
        given: Mapping[str, Any] = {**self.state, **inputs}
        results = self._function(*(given[name] for name in self._names))
        outputs = []
        for result, argument in zip(results, self._written, strict=True):
            if argument is None:
                outputs.append(result)
            else:
                self.state[self._names[argument]] = result
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def names_of_states(main: ir.OpView) -> set[str]:
        """The arguments of `@main` that are states."""
        return {n for n, kind in zip(argument_names(main), _kinds(main), strict=True) if kind == "state"}

    def close(self) -> None:
        """Forgets the weights; the model cannot run afterwards."""
        self.state.clear()


def _kinds(main: ir.OpView) -> list[str]:
    with context():
        about = [ir.DictAttr(a) for a in main.operation.attributes["arg_attrs"]] if main.type.inputs else []
        return [ir.StringAttr(a["mlirc.kind"]).value for a in about]
