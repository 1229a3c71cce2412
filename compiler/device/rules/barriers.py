"""Barriers of the block and of the warp (PTX ISA, "Parallel Synchronization and Communication Instructions": bar,
barrier, bar.warp.sync)."""

from __future__ import annotations

import numpy as np

from mlirc.device.attributes import segments_of
from mlirc.device.declare import stateful, waiting
from mlirc.device.machine import State
from mlirc.device.sync import block_barrier, warp_barrier
from mlirc.device.translate import Translator


@stateful("gpu.barrier")
def _barrier(tr: Translator, op):
    return waiting(lambda s: block_barrier(s, op))


@stateful("nvvm.barrier")
def _named_barrier(tr: Translator, op):
    number, count = segments_of(op)[:2]
    identifier = (tr.known(number[0]) if number else 0) or 0
    threads = tr.known(count[0]) if count else None
    if (number and tr.known(number[0]) is None) or (count and threads is None):
        raise tr.refused(op, "a number that is not constant is not supported")
    if identifier != 0 or threads is not None:
        tr.waits = tr.clocks = True
    return waiting(lambda s, *_: block_barrier(s, op, identifier, threads))


@stateful("nvvm.barrier.arrive")
def _barrier_arrive(tr: Translator, op):
    *known, threads = (tr.known(v) for v in op.operands)
    identifier = known[0] if known else 0
    if identifier is None or threads is None:
        raise tr.refused(op, "a number that is not constant is not supported")
    tr.waits = tr.clocks = True

    def arrive(s: State, *_: np.ndarray) -> None:
        next(block_barrier(s, op, identifier, threads), None)

    return arrive


@stateful("nvvm.bar.warp.sync")
def _warp_sync(tr: Translator, op):
    return lambda s, mask: warp_barrier(s, mask, op)
