"""Models with symbolic sizes, run level by level with padding that shows, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from mlirc.check.levels import level_runner
from mlirc.driver.compilation import Compilation
from mlirc.targets import DEFAULT_TARGET, get_target


class Of(nn.Module):
    """A module of a function of its input, with the modules that it uses as `m.parts`."""

    def __init__(self, function: Callable, *parts: nn.Module):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x):
        return self.function(self, x)


def compiled(
    module: nn.Module, args: tuple, sizes: Any = None, dynamic_shapes: Any = None, **kwargs: Any
) -> Compilation:
    """A compilation at level `torch`, for sizes that a call decides."""
    job = Compilation("model", get_target(DEFAULT_TARGET))
    job.import_module(module.eval(), args, kwargs, sizes=sizes, dynamic_shapes=dynamic_shapes)
    return job


def runner(job: Compilation, level: str = "linalg") -> Callable[..., list[torch.Tensor]]:
    """A level as a function of the inputs."""
    job.lower(level)
    run = level_runner(job, level, dict(job.tensors()))
    return lambda *inputs: run(list(inputs))


def agree(run: Callable, module: nn.Module, inputs: Iterable[Sequence[torch.Tensor]], tolerance: float = 2e-5) -> None:
    """The level beside PyTorch on inputs of several sizes: the same shapes, and the same numbers, none of them NaN."""
    for given in inputs:
        with torch.no_grad():
            wanted = module(*given)
        wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
        found = run(*given)
        assert len(found) == len(wanted)
        for got, want in zip(found, map(torch.as_tensor, wanted), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype, (given[0].shape, got, want)
            torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
