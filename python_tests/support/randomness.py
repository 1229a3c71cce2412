"""Random inputs that depend on the test alone: not on the tests before it, nor on who imported what."""

from __future__ import annotations

import random
import sys

import numpy as np

_TORCH_SEED = 67280421310721  # what PyTorch starts with, for it may be imported in the middle of a test
_own: np.random.Generator | None = None


def start() -> None:
    """Gives a test a generator of its own, and the global ones their seeds; conftest.py calls it before each."""
    global _own
    _own = np.random.default_rng(0)
    random.seed(0)
    np.random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(_TORCH_SEED)


def generator() -> np.random.Generator:
    """The generator of the test that runs. Raises RuntimeError outside of a test, where a module would share it."""
    if _own is None:
        raise RuntimeError("no test runs: a constant of a module is drawn from a generator with a seed of its own")
    return _own


def stop() -> None:
    """What is drawn from now on is no test's."""
    global _own
    _own = None
