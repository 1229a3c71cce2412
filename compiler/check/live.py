"""`check_torch`: every level of a live torch module beside PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirc.check.result import Result
from mlirc.driver.compilation import Compilation
from mlirc.driver.live import this_gpu
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.targets import get_target


def check_torch(
    module: Any, args: tuple = (), kwargs: dict | None = None, levels: Sequence[str] = (), *,
    target: str | None = None, schedule: Sequence[str] = (), seed: int = 0, kinds: Sequence[str] | None = None,
    name: str = "model", train: bool = False, fp32: str = DEFAULT_FP32,
) -> Result:  # fmt: skip
    """Compiles a live torch module for its example inputs, as `mlirc.compile` does, and checks `levels` of it, on all
    kinds of inputs or those of `kinds`."""
    job = Compilation(name, get_target(target or this_gpu()), tuple(schedule), fp32=check_fp32(fp32))
    job.import_module(module, tuple(args), dict(kwargs or {}), train)
    return job.check(levels, seed=seed, kinds=kinds)
