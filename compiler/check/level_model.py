"""The level that an .mlir file holds as what the levels below it are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from mlirc.check.cases import Inputs
from mlirc.check.compare import Reference
from mlirc.check.levels import level_runner, main_arguments
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.weights import random_weight
from mlirc.host.jit import tensor_spec
from mlirc.host.tensors import from_numpy
from mlirc.ir import levels
from mlirc.ir.sizes import read_sizes
from mlirc.mlir import context
from mlirc.runtime.plan import GIVEN


class LevelModel:
    """The uppermost level of a compilation that started from an .mlir file, with weights that are made up."""

    described = "the level of the file"

    def __init__(self, job: Any):
        job.lower("linalg")  # a file of the torch level is run as that
        self._level = "linalg" if job.given in ("torch", "linalg") else job.given
        self._job = job
        module = job.modules[self._level]
        self._given: list[InputSpec] = []
        made: list[InputSpec] = []
        with context():
            main = levels.functions(module)["main"]
            types = [tensor_spec(t) for t in main.type.inputs]
            symbolic = read_sizes(main)
            sizes = symbolic.names if symbolic else ()
        for (kind, name), spec in zip(main_arguments(module), types, strict=True):
            dtype = from_numpy(np.zeros(1, spec.dtype)).dtype
            if kind != "random" and name not in sizes:
                (self._given if kind in GIVEN else made).append(InputSpec(name, dtype, spec.shape))
        self._tensors = {s.name: random_weight(s, 0) for s in made}
        self._run: Any = None

    def inputs(self) -> Inputs:
        """Integers are 0 or 1: what they index is not known, and two of anything there mostly is."""
        specs = self._given
        limits = {s.name: 2 for s in specs if not s.dtype.is_floating_point and s.dtype != torch.bool}
        return Inputs(specs, [torch.zeros(s.shape, dtype=s.dtype) for s in specs], limits)

    def tensors(self, job: Any) -> Mapping[str, torch.Tensor]:
        """Weights and constants, by name."""
        return self._tensors

    def references(self, tensors: Sequence[torch.Tensor]) -> list[Reference]:
        """What the file's level computes."""
        if self._run is None:
            self._run = level_runner(self._job, self._level, self._tensors)
        return [Reference(t, t) for t in self._run(tensors)]
