"""What an export needs so that random numbers get through it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mlirc.errors import MlircError

GENERATOR = (
    "a compiled model has one generator of random numbers, its own: draw without generator=, and seed the compiled "
    "model with manual_seed"
)

_OWN_SEED = 0x6D6C697263  # of PyTorch's generator while the body runs: no model's seed


class _Exportable(TorchFunctionMode):
    """Refuses a generator of the model's own; writes `random_(low, high)`, which torch.export cannot write down, in
    another way."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values())):
            raise MlircError(f"{getattr(func, '__name__', func)} with a torch.Generator: {GENERATOR}")
        if func is torch.Tensor.random_ and (len(args) == 3 or "from" in kwargs):
            low, high = kwargs.get("from", args[1] if len(args) > 1 else 0), kwargs.get("to", args[-1])
            return args[0].copy_(torch.randint_like(args[0], low, high))
        return func(*args, **kwargs)


@contextlib.contextmanager
def exportable_random() -> Iterator[None]:
    """Runs the body, an export, with random ops as it can take them, and with `torch.distributions` not looking at
    their parameters' values, which are not there. Raises MlircError when the body seeds PyTorch's generator."""
    distribution = torch.distributions.Distribution
    old = distribution._validate_args
    distribution.set_default_validate_args(False)
    state = torch.get_rng_state()
    torch.manual_seed(_OWN_SEED)
    try:
        with _Exportable():
            yield
        if torch.initial_seed() != _OWN_SEED:
            raise MlircError(f"the model seeds PyTorch's generator (torch.manual_seed) when it runs: {GENERATOR}")
    finally:
        torch.set_rng_state(state)
        distribution.set_default_validate_args(old)
