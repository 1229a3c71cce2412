"""A level of a model on the CPU, called as a loaded model is: what it writes lasts from one call to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.level_code import LevelCode
from mlirc.runtime.plan import GIVEN
from mlirc.runtime.weights import WeightFile


class LevelModel:
    """A level's compiled `@main`.

    `arrays` has a weight, constant or state for every argument of those kinds, by name; what a call writes takes its
    place there, so that models that are given the same dictionary share their states. `files` are those that arrays are
    maps of. Raises MlircError for arrays that are missing or do not fit.
    """

    def __init__(self, code: LevelCode, arrays: dict[str, np.ndarray], files: Collection[WeightFile] = ()):
        self._files = files
        self._function, self._names, self._written = code.function, code.names, code.writes
        self._given = [n for n, kind in zip(code.names, code.kinds, strict=True) if kind in GIVEN]
        self.state = arrays
        for name, spec in zip(code.names, code.function.inputs, strict=True):
            if name in self._given:
                continue
            if name not in arrays:
                raise MlircError(f"'{name}' is missing from the given weights")
            if arrays[name].shape != spec.shape or arrays[name].dtype != spec.dtype:
                found = f"{arrays[name].dtype}{list(arrays[name].shape)}"
                raise MlircError(f"'{name}' is {found}, but the model asks for {spec.dtype}{list(spec.shape)}")

    def __call__(self, **inputs: Any) -> Any:
        """Runs the model on inputs by name; returns its output, several as a tuple. Raises MlircError for inputs that
        do not fit, for an index outside of its tensor, and where a weights' file has been written to."""
        for file in self._files:
            file.require_same()
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

    def close(self) -> None:
        """Forgets the weights; the model cannot run afterwards."""
        self.state.clear()
