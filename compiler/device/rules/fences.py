"""Fences (PTX ISA, "Parallel Synchronization and Communication Instructions": membar, fence, fence.proxy,
fence.mbarrier_init)."""

from __future__ import annotations

import numpy as np

from mlirc.device.atomic_access import SCOPES, Strength, strength_of
from mlirc.device.attributes import word
from mlirc.device.declare import stateful
from mlirc.device.engine import engine_of
from mlirc.device.machine import State
from mlirc.device.order.proxies import KINDS
from mlirc.device.translate import Translator


@stateful("llvm.fence", "nvvm.memory.barrier", "nvvm.fence.sc.cluster")
def _fence(tr: Translator, op):
    if op.name == "llvm.fence":
        strength = strength_of(tr, op)
    else:
        strength = Strength(True, True, SCOPES[word(op, "scope") or "cluster"])
    tr.ordered = True

    def fence(s: State) -> None:
        m = s.m
        if m.order is not None:
            threads = np.arange(m.nb * m.nt) if s.mask is None else m.lanes(s.mask)
            m.order.fence(threads, strength.scope, strength.release, strength.acquire)

    return fence


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
