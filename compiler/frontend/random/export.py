"""What an export needs so that random numbers get through it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """Runs the body with `torch.distributions` not looking at parameters' values, which an export does not have."""
    distribution = torch.distributions.Distribution
    old = distribution._validate_args
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distribution.set_default_validate_args(old)
