"""What `torch.compile(..., backend="mlirc", options={...})` may say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.precision import DEFAULT_FP32, check_fp32
from mlirc.targets import get_target

LEVELS = ("linalg", "kernels", "tiles")


@dataclass(frozen=True)
class Options:
    """`target`: the GPU to compile for (None: the one of this machine). `schedule`: as `--schedule`, one or several.
    `fp32`: how FP32 products may be made. `fallback`: whether what cannot be compiled runs in eager.

    For tensors on the CPU: `level` is the one that runs there, by MLIR's JIT, and with `device="host"` it is the GPU's
    kernels, on the host device. Tensors on a GPU run there."""

    target: str | None = None
    schedule: tuple[str, ...] = ()
    fp32: str = DEFAULT_FP32
    device: str | None = None
    level: str = "linalg"
    fallback: bool = True


def read_options(given: Mapping[str, Any] | None, mode: str | None = None) -> Options:
    """The options, checked; raises MlircError for one that is unknown, or whose value is."""
    if mode is not None:
        raise MlircError(f"torch.compile: mode='{mode}' is not for backend 'mlirc': leave it out; options={{...}} is")
    found = dict(given or {})
    known = [field.name for field in dataclasses.fields(Options)]
    for name in found:
        if name not in known:
            raise MlircError(f"torch.compile: unknown option '{name}' of backend 'mlirc': it has {', '.join(known)}")
    schedule = found.get("schedule", ())
    found["schedule"] = (schedule,) if isinstance(schedule, str) else tuple(map(str, schedule))
    options = Options(**found)
    check_fp32(options.fp32)
    if options.target is not None:
        get_target(options.target)
    if options.device not in (None, "host"):
        raise MlircError(
            f"torch.compile: option device={options.device!r}: leave it out, for the tensors' own device decides, or "
            "give 'host', for tensors on the CPU"
        )
    if options.level not in LEVELS:
        raise MlircError(f"torch.compile: option level={options.level!r}: use one of {', '.join(LEVELS)}")
    if not isinstance(options.fallback, bool):
        raise MlircError(f"torch.compile: option fallback={options.fallback!r}: give True or False")
    return options
