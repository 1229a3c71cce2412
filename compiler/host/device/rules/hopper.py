"""Hopper's instructions: mbarriers, fences, named barriers, groups of bulk copies."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import segments_of
from mlirc.host.device.declare import rule, waiting
from mlirc.host.device.engine import Engine
from mlirc.host.device.machine import State
from mlirc.host.device.mbarriers import SIZE
from mlirc.host.device.memory import MemRef
from mlirc.host.device.order.proxies import KINDS
from mlirc.host.device.sync import Wait, block_barrier
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

WARPGROUP = 128


def engine_of(s: State) -> Engine:
    if s.m.engine is None:
        s.m.engine = Engine(s.m)
    return s.m.engine


def warpgroups(s: State, op):
    """Yields (block, first thread) of every warpgroup that is active; complains about one that is so in part."""
    m = s.m
    active = np.zeros((m.nb, -(-m.nt // WARPGROUP) * WARPGROUP), bool)  # the last one may have less than four warps
    active[:, : m.nt] = True if s.mask is None else s.mask
    groups = active.reshape(m.nb, -1, WARPGROUP)
    missing = groups.any(axis=2, keepdims=True) & ~groups
    if missing.any():
        there = missing.reshape(m.nb, -1)[:, : m.nt]
        bad = there if there.any() else active[:, : m.nt]
        m.complain("divergent warp", bad, f"does not take part in {op.name}, which is of whole warpgroups", op)
    for b, g in np.argwhere(groups.all(axis=2) if m.nt % WARPGROUP else groups.any(axis=2)):
        yield int(b), int(g) * WARPGROUP


# -- mbarriers


@rule("nvvm.mbarrier.init")
def _init(tr: Translator, op):
    tr.clocks = True
    tr.accesses.append(SIZE)
    pointer, count = (tr.reg(v) for v in list(op.operands)[:2])
    return lambda s: engine_of(s).barriers.init(s, s.r[pointer], s.r[count], op)


@rule("nvvm.mbarrier.inval")
def _inval(tr: Translator, op):
    tr.accesses.append(SIZE)
    pointer = tr.reg(op.operands[0])
    return lambda s: engine_of(s).barriers.inval(s, s.r[pointer], op)


@rule("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx")
def _arrive(tr: Translator, op):
    pointer = tr.reg(op.operands[0])
    extra = tr.reg(op.operands[1]) if len(op.operands) > 1 else None
    expects = op.name.endswith("expect_tx")
    out = tr.reg(op.results[0]) if len(op.results) else None

    def step(s: State) -> None:
        given = None if extra is None else s.r[extra]
        count = 1 if expects or given is None else given
        tokens = engine_of(s).barriers.arrive(s, s.r[pointer], given if expects else None, op, count)
        if out is not None:
            s.r[out] = tokens

    return step


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


@rule("nvvm.barrier.arrive")
def _barrier_arrive(tr: Translator, op):
    *number, many = op.operands
    count = [many]
    identifier, threads = tr.known(number[0]) if number else 0, tr.known(count[0])
    if identifier is None or threads is None:
        raise tr.refused(op, "a number that is not constant is not supported")

    tr.waits = tr.clocks = True

    def step(s: State) -> None:
        next(block_barrier(s, op, identifier, threads), None)

    return step


@rule("nvvm.fence.mbarrier.init")
def _fence_init(tr: Translator, op):
    return lambda s: engine_of(s).barriers.fence_initializations(s, own=True)


@rule("nvvm.prefetch")
def _nothing(tr: Translator, op):
    return lambda s: None


@rule("nvvm.fence.proxy")
def _fence_proxy(tr: Translator, op):
    kind = str(op.attributes["kind"]).split("<")[-1].rstrip(">").strip()
    if kind not in KINDS:
        raise tr.refused(op, f"kind {kind} is not supported: one of {KINDS}")
    cluster = kind == "async" or ("space" in op.attributes and "cluster" in str(op.attributes["space"]))

    def step(s: State) -> None:
        m = s.m
        if m.clocks is None or kind == "alias":
            return
        if kind != "async.global":
            if m.engine is not None:
                m.engine.barriers.fence_initializations(s, own=False)
            m.clocks.proxies.fence(s.mask, cluster)
        if kind != "async.shared":
            m.order.fence_proxies(s.mask)

    return step


@rule("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(tr: Translator, op):
    return lambda s: engine_of(s).commit_bulk(s)


@rule("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(tr: Translator, op):
    pending = ir.IntegerAttr(op.attributes["group"]).value
    read = "read" in op.attributes
    return lambda s: engine_of(s).wait_bulk(s, pending, read)
