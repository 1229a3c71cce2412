"""Hopper's instructions: mbarriers, fences, named barriers, groups of bulk copies."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import number, segments_of, word
from mlirc.host.device.declare import rule, stateful, waiting
from mlirc.host.device.engine import engine_of
from mlirc.host.device.machine import State
from mlirc.host.device.mbarriers import SIZE
from mlirc.host.device.memory import MemRef
from mlirc.host.device.order.proxies import KINDS
from mlirc.host.device.sync import Wait, block_barrier
from mlirc.host.device.translate import Translator

# -- mbarriers


@stateful("nvvm.mbarrier.init")
def _init(tr: Translator, op):
    tr.clocks = True
    tr.accesses.append(SIZE)
    return lambda s, pointer, count, *_: engine_of(s).barriers.init(s, pointer, count, op)


@stateful("nvvm.mbarrier.inval")
def _inval(tr: Translator, op):
    tr.accesses.append(SIZE)
    return lambda s, pointer: engine_of(s).barriers.inval(s, pointer, op)


@stateful("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx")
def _arrive(tr: Translator, op):
    if op.name.endswith("expect_tx"):
        return lambda s, pointer, nbytes, *_: engine_of(s).barriers.arrive(s, pointer, nbytes, op)
    return lambda s, pointer, count=1: engine_of(s).barriers.arrive(s, pointer, None, op, count)


@rule("nvvm.mbarrier.try_wait.parity")
def _wait_parity(tr: Translator, op):
    pointer, parity = (tr.reg(v) for v in list(op.operands)[:2])
    tr.waits = tr.clocks = True  # warpgroups may wait for each other

    return waiting(lambda s: wait_for(s, s.r[pointer], s.r[parity], op))


def wait_for(s: State, pointer: MemRef, parity: np.ndarray, op):
    """Waits until the phase of the given parity has ended: a generator of events."""
    barriers = engine_of(s).barriers
    for b, t, _ in barriers.each(s, pointer) if pointer.rank is not None else ():
        barriers.own(pointer, b, t, "waits for", op)
    if not barriers.passed(s, pointer, parity, op):
        who = s.m.everyone(s.mask)
        yield Wait(
            lambda: barriers.passed(s, pointer, parity, op),
            lambda k: barriers.describe(s, pointer, parity, op, k),
            who,
            op,
            still=lambda: barriers.waiting(s, pointer, parity, op),
        )
    barriers.reached(s, pointer, op)


# -- barriers by number, fences


@rule("nvvm.barrier")
def _named_barrier(tr: Translator, op):
    number, count = segments_of(op)[:2]
    identifier = (tr.known(number[0]) if number else 0) or 0
    threads = tr.known(count[0]) if count else None
    if (number and tr.known(number[0]) is None) or (count and threads is None):
        raise tr.refused(op, "a number that is not constant is not supported")
    if identifier != 0 or threads is not None:
        tr.waits = tr.clocks = True
    return waiting(lambda s: block_barrier(s, op, identifier, threads))


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


@stateful("nvvm.fence.mbarrier.init")
def _fence_init(tr: Translator, op):
    return lambda s: engine_of(s).barriers.fence_initializations(s, own=True)


@stateful("nvvm.fence.proxy")
def _fence_proxy(tr: Translator, op):
    kind = word(op, "kind")
    if kind not in KINDS:
        raise tr.refused(op, f"kind {kind} is not supported: one of {KINDS}")
    cluster = kind == "async" or "cluster" in word(op, "space")

    def fence(s: State) -> None:
        m = s.m
        if m.clocks is None or kind == "alias":
            return
        if kind != "async.global":
            if m.engine is not None:
                m.engine.barriers.fence_initializations(s, own=False)
            m.clocks.proxies.fence(s.mask, cluster)
        if kind != "async.shared":
            m.order.fence_proxies(s.mask)

    return fence


@stateful("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(tr: Translator, op):
    return lambda s: engine_of(s).commit_bulk(s)


@stateful("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(tr: Translator, op):
    pending, read = number(op, "group"), "read" in op.attributes
    return lambda s: engine_of(s).wait_bulk(s, pending, read)
