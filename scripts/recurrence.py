"""Recurrences: LSTM, GRU and RNN layers over all time steps, by the pass `mlirc-recurrence`."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes.recurrence.geometry import Geometry, ceil_div, chosen
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import annotate, script
from mlirc.targets import Target


@register(matches=lambda kernel: kernel.recurrence is not None, priority=50)
def recurrence(kernel: KernelInfo, target: Target, *, units: int | None = None, warps: int | None = None) -> ir.Module:
    """Blocks that keep all gates of some units of the matrix in registers, and wait for each other at every step.

    Knobs:
      units: units of a block (default: those that leave each multiprocessor a block).
      warps: warps of a block.
    """
    r = kernel.recurrence
    assert r is not None
    best = chosen(r.batch, r.units, r.gates, target)
    own = units or (best.own if best else ceil_div(r.units, target.sms))
    found = Geometry(r.batch, r.units, r.gates, own, warps or (best.warps if best else 8))
    if problem := found.problem(target):
        raise MlircError(f"kernel '{kernel.name}': units={own}, warps={found.warps}: {problem}")
    with script(units=found.own, warps=found.warps) as (module, function):
        annotate(function, lowering="recurrence", units=found.own, warps=found.warps)
    return module
