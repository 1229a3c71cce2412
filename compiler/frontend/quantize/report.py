"""How far packed weights are from what they were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlirc.frontend.quantize.rounding import Weight
from mlirc.frontend.quantize.scheme import Scheme


@dataclass(frozen=True)
class LayerError:
    """The relative error of a layer's weight [N, K] in the Frobenius norm."""

    name: str
    shape: tuple[int, int]
    error: float


def weight_error(weight: torch.Tensor, packed: Weight, scheme: Scheme) -> float:
    """||dequantized - weight|| / ||weight|| (Frobenius), 0 for a weight of zeros."""
    found = packed.floats(scheme, weight.shape[1])
    norm = torch.linalg.vector_norm(weight, dtype=torch.float64).item()
    distance = torch.linalg.vector_norm(found.double() - weight.double()).item()
    return distance / norm if norm else 0.0


def summary(errors: Sequence[LayerError], scheme: Scheme) -> str:
    """One line about all layers."""
    worst = max(errors, key=lambda e: e.error)
    numbers = sorted(e.error for e in errors)
    middle = numbers[len(numbers) // 2]
    return (
        f"{len(errors)} layers as {scheme}: error of the weights {middle:.2e} (median), "
        f"at most {worst.error:.2e} ({worst.name})"
    )


def table(errors: Sequence[LayerError]) -> str:
    """A line for each layer."""
    width = max(len(e.name) for e in errors)
    lines = [f"{'layer':<{width}}  {'shape':<13}  error of the weight"]
    lines += [f"{e.name:<{width}}  {f'{e.shape[0]}x{e.shape[1]}':<13}  {e.error:.3e}" for e in errors]
    return "\n".join(lines)
