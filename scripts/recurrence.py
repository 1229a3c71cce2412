"""Recurrences: LSTM, GRU and RNN layers over all time steps, by the pass `mlirc-recurrence`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from mlirc.errors import MlircError
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir
from mlirc.passes.recurrence.geometry import Geometry, ceil_div, chosen
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, match_contractions, script
from mlirc.targets import Target


@register(matches=lambda kernel: kernel.recurrence is not None, priority=50)
def recurrence(
    kernel: KernelInfo,
    target: Target,
    *,
    units: int | None = None,
    warps: int | None = None,
    mma: Literal["fma", "mma", "tf32x3"] | None = None,
) -> ir.Module:
    """Blocks that keep all gates of some units of the matrix in registers, and wait for each other at every step.

    Knobs:
      units: units of a block (default: those of which steps take the least).
      warps: warps of a block.
      mma: what multiplies: FMA, or tensor cores, 16-bit floats (`mma`) or FP32 in three products (`tf32x3`).
    """
    r = kernel.recurrence
    assert r is not None
    size, target = ELEMENT_BYTES[r.dtype], replace(target, sms=target.sms // r.count)
    best = chosen(r.batch, r.units, r.gates, size, r.k_last, target, mma)
    found = best or Geometry(r.batch, r.units, r.gates, size, ceil_div(r.units, target.sms), 8, mma or "fma")
    found = replace(found, own=units or found.own, warps=warps or found.warps)
    if problem := found.problem(target):
        raise MlircError(f"kernel '{kernel.name}': units={found.own}, warps={found.warps}: {problem}")
    with script(units=found.own, warps=found.warps, mma=found.instruction) as (module, function):
        annotate(function, lowering="recurrence", units=found.own, warps=found.warps)
        annotate(match_contractions(function), mma=found.instruction)
    return module
