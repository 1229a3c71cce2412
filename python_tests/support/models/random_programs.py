"""Random programs of PyTorch operations on inputs of every dtype, special values among them: `Program(seed)`.

A program is drawn while eager PyTorch runs it; a step that eager refuses, or that makes too large a tensor, is drawn
again. Its results are all values that no later step takes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

import support.models.random_moves  # noqa: F401  (adds its kinds)
from support.models.random_ops import FLOATS, INTEGERS, KINDS, MOST_ELEMENTS, Draw, Step, Value

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 17)
_ROUNDS = {"smooth", "arithmetic", "scalar_arithmetic", "reduction", "product", "layer", "remainder", "float_cast"}
_MOVES = {"move", "join", "pad", "gather", "write"}
SPECIAL = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 0.5, -0.5, 1.5, 2.5, 1.0, 1e4, -3e4, 1e-7)


class Program(torch.nn.Module):
    """A random program: `inputs` are its tensors, `steps` (kind, function, operands' numbers), in order."""

    def __init__(self, seed: int | str, length: int = 8):
        super().__init__()
        draw = Draw(f"program {seed}")
        generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        self.inputs = [_input(draw, generator) for _ in range(draw.randint(1, 4))]
        draw.values = [Value(t, True) for t in self.inputs]
        self.steps: list[tuple[str, Any, list[int]]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while len(self.steps) < length:
                self._add(draw)
        used = {i for _, _, operands in self.steps for i in operands}
        self.results = [i for i in range(len(self.inputs), len(draw.values)) if i not in used]

    def _add(self, draw: Draw) -> None:
        values = draw.values
        name = draw.choice([*KINDS, "move", "arithmetic", "scalar_arithmetic", "reduction"])
        step: Step | None = KINDS[name](draw)
        if step is None:
            return
        function, operands = step
        try:
            result = function(*[values[i].tensor.clone() for i in operands])
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return
        if not isinstance(result, torch.Tensor) or result.numel() > MOST_ELEMENTS or result.dim() > 5:
            return
        exact = all(values[i].exact for i in operands) and (name not in _ROUNDS or not result.is_floating_point())
        if name == "write" and result.is_floating_point():
            exact = False  # it may add
        self.steps.append((name, function, operands))
        values.append(Value(result.detach(), exact))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for _, function, operands in self.steps:
            values.append(function(*[values[i] for i in operands]))
        return tuple(values[i] for i in self.results)

    def only(self, result: int) -> Program:
        """The same program with one result: the value of this number."""
        self.results = [result]
        return self

    def described(self) -> str:
        """The steps that the results need, and the dtypes, shapes and strides of the inputs that they need."""
        needed, lines = set(self.results), []
        for number in range(len(self.steps) - 1, -1, -1):
            name, function, operands = self.steps[number]
            if number + len(self.inputs) in needed:
                needed.update(operands)
                line = getattr(function, "__code__", None)
                where = f"{Path(line.co_filename).name}:{line.co_firstlineno}" if line else function.__name__
                lines.append(f"{name} {where} {operands}")
        inputs = [f"{i}: {t.dtype}{list(t.shape)}" for i, t in enumerate(self.inputs) if i in needed]
        return ", ".join([*inputs, *reversed(lines)]).replace("torch.", "")


def _input(d: Draw, generator: torch.Generator) -> torch.Tensor:
    shape = [d.choice(SIZES) for _ in range(d.choice([0, 1, 2, 2, 3, 3, 4]))]
    dtype = d.choice([torch.float32, torch.float32, *FLOATS, d.choice(INTEGERS), torch.bool])
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype in INTEGERS:
        low = 0 if dtype == torch.uint8 else -9
        return torch.randint(low, 10, shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    style = d.choice(["normal", "normal", "normal", "ties", "special", "far", "large"])
    if style == "ties":
        values = (values * 4).round() / 2
    elif style == "special":
        places = torch.randint(0, 3 * len(SPECIAL), shape, generator=generator)
        values = torch.where(places < len(SPECIAL), torch.tensor(SPECIAL).double()[places % len(SPECIAL)], values)
    elif style == "far":
        values = values + 1000
    elif style == "large":
        values = values * 100
    return values.to(dtype)
