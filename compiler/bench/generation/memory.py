"""What the plans of a model that generates take of a GPU's memory, beside what they cannot do without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mlirc.runtime.plan import Plan


def in_use(device: str) -> int | None:
    """Bytes of the GPU that are taken, by whomever, once everything is done; None without a GPU."""
    if device == "cpu":
        return None
    synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return total - free


def synchronize(device: str) -> None:
    """Waits for everything that the GPU was given to do."""
    if device != "cpu":
        torch.cuda.synchronize()


def accounted(plans: Mapping[str, Plan], used: int | None) -> dict[str, Any]:
    """Bytes: of weights and constants, of the cache, of other states, of each plan's arena; and the peak, which is what
    loading and running took on the device (`used`) with the weights, which lie there in tensors that are used in place.

    `needed` is weights, cache and the largest arena; `over` the peak as a share of that, less 1.
    """
    specs = {spec.name: spec for plan in plans.values() for spec in plan.weights}
    weights = sum(s.nbytes for s in specs.values() if s.kind != "state")
    cache = sum(s.nbytes for s in specs.values() if s.kind == "state" and s.name.startswith("cache."))
    states = sum(s.nbytes for s in specs.values() if s.kind == "state") - cache
    arenas = {name: plan.arena_size for name, plan in plans.items()}
    needed = weights + cache + max(arenas.values())
    found: dict[str, Any] = {"weights": weights, "cache": cache, "states": states, "arenas": arenas, "needed": needed}
    if used is not None:
        found |= {"peak": weights + used, "over": (weights + used) / needed - 1}
    return found
