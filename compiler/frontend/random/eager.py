"""PyTorch on the CPU with the random numbers of a compiled model: what a check compares with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mlirc.frontend.random.distributions import DISTRIBUTIONS, NORMAL, Generator
from mlirc.frontend.random.dropouts import dropouts_as_on_a_gpu
from mlirc.frontend.random.graph import is_random
from mlirc.runtime.random_state import DEFAULT_SEED

aten = torch.ops.aten

# In place; what PyTorch makes of them where it takes mutation out of a program.
_IN_PLACE = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.log_normal_.default: aten.log_normal.default,
    aten.exponential_.default: aten.exponential.default,
    aten.geometric_.default: aten.geometric.default,
    aten.cauchy_.default: aten.cauchy.default,
    aten.random_.default: aten.random.default,
    aten.random_.to: aten.random.to,
    aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default,
    getattr(aten.random_, "from"): getattr(aten.random, "from"),
}


class ModelNumbers(TorchDispatchMode):
    """Inside, PyTorch's random ops draw what a compiled model draws in its first call. `drawn` collects what each op
    drew, and where; given again as `known`, the ops of an FP64 run of the same model draw the same, normal numbers
    without the rounding of FP32."""

    def __init__(self, known: Sequence[Any] | None = None):
        super().__init__()
        self.drawn: list[Any] = []
        self._known = None if known is None else iter(known)
        self._seed = torch.tensor(DEFAULT_SEED)
        self._generator = Generator(self._seed, torch.tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        op = _IN_PLACE.get(func, func)
        if op not in DISTRIBUTIONS:
            if is_random(func):
                raise RuntimeError(f"{func} draws numbers that a compiled model does not")
            return func(*args, **kwargs)
        if self._known is None:
            position = self._generator.position
            drawn = DISTRIBUTIONS[op](self._generator, *args, **kwargs)
            self.drawn.append((position, drawn))
        else:
            position, drawn = next(self._known)
            if op in NORMAL and drawn.dtype != torch.float64 and drawn.numel():
                exact = Generator(self._seed, torch.tensor, position, exact=True)
                drawn = DISTRIBUTIONS[op](exact, *args, **{**kwargs, "dtype": torch.float64})
        if op is aten.native_dropout.default:
            x, mask = args[0], drawn[1]
            return (x * mask * (1 / (1 - args[1])) if args[1] < 1 else x * 0.0, mask) if self._known else drawn
        if func is aten.rrelu_with_noise.default:
            args[1].copy_(drawn[1])
            return drawn[0] if self._known is None else args[0] * args[1]
        if func in _IN_PLACE:
            return args[0].copy_(drawn)
        return drawn.double() if self._known is not None and drawn.is_floating_point() else drawn

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Runs the body in this mode, with dropout as it is on a GPU, where it is one op."""
        with dropouts_as_on_a_gpu(), self:
            yield
