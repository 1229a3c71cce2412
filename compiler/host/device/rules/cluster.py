"""Clusters: who is who, barriers, the shared memory of the other blocks, and bulk copies without tensor maps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlirc.host.device.attributes import number
from mlirc.host.device.bulk_copies import begin_transfer, multicast_to, read_source, write_target
from mlirc.host.device.deadlocks import never_reach
from mlirc.host.device.declare import rule, stateful, waiting
from mlirc.host.device.engine import engine_of
from mlirc.host.device.machine import Machine, State
from mlirc.host.device.membermask import check_aligned
from mlirc.host.device.memory import MemRef
from mlirc.host.device.rules.tensor_copy import read_for_store
from mlirc.host.device.sync import Wait
from mlirc.host.device.translate import Translator


@stateful("nvvm.mapa")
def _mapa(tr: Translator, op):
    tr.clocks = True

    def mapped(s: State, pointer: MemRef, rank: np.ndarray) -> MemRef:
        m, to = s.m, rank.astype(np.int64)
        bad = m.active(s.mask, (to < 0) | (to >= m.cluster_size))
        if bad is not None:
            m.complain("out of bounds", bad, f"names a block that a cluster of {m.cluster_size} does not have", op)
            to = np.clip(to, 0, m.cluster_size - 1)
        return MemRef(pointer.buffer, pointer.base, (), (), 1, to)

    return mapped


@dataclass
class ClusterBarrier:
    """How often every thread has arrived; the clocks left there, by unit and phase."""

    arrived: np.ndarray
    met: np.ndarray  # how often every thread has waited
    waited: np.ndarray  # per block, whether one who has arrived in its cluster is behind griddepcontrol.wait
    left: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)


def _barrier(m: Machine) -> ClusterBarrier:
    def none() -> np.ndarray:
        return np.zeros((m.nb, m.nt), np.int64)

    return m.arrived.setdefault("cluster", ClusterBarrier(none(), none(), np.zeros(m.nb, bool)))


@stateful("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed")
def _arrive(tr: Translator, op):
    tr.clocks = True
    orders, aligned = not op.name.endswith("relaxed"), "aligned" in op.attributes

    def arrive(s: State) -> None:
        m, b = s.m, _barrier(s.m)
        mine = m.everyone(s.mask)
        if aligned:
            check_aligned(m, mine, op)
        units = b.arrived.reshape(-1, m.cluster_size * m.nt).min(axis=1)
        early = mine & (b.arrived > b.met) | mine & (b.arrived > np.repeat(units, m.cluster_size)[:, None])
        if early.any():
            m.complain("divergent barrier", early, "arrives twice at the barrier of the cluster", op)
        b.arrived += mine
        if m.waited is not None:
            b.waited |= np.repeat((m.waited & mine).any(axis=1).reshape(-1, m.cluster_size).any(axis=1), m.cluster_size)
        c = m.clocks
        for k, row in c.active(s.mask) if c is not None else ():
            phase = int(b.arrived[k][mine[k]].max())
            left = b.left.setdefault((c.unit(k), phase), np.zeros(c.columns, np.int32))
            if orders:
                c.release(k, row, left)
            else:  # that it has started, and what fence.mbarrier.init has released
                told = slice(c.started, c.started + 2 * c.size)
                np.maximum(left[told], c.now[c.unit(k), row, told], out=left[told])

    return arrive


@rule("nvvm.cluster.wait")
def _wait(tr: Translator, op):
    tr.waits = tr.clocks = True

    def run(s: State):
        m, b, mine = s.m, _barrier(s.m), s.m.everyone(s.mask)
        if "aligned" in op.attributes:
            check_aligned(m, mine, op)
        blocks = np.flatnonzero(mine.any(axis=1))
        none = mine & (b.met >= b.arrived)
        if none.any():
            m.complain("divergent barrier", none, "waits at the barrier of the cluster, where it has not arrived", op)
        b.met += mine & ~none
        goal = {int(k): int(b.arrived[k][mine[k]].max()) for k in blocks}

        def ready() -> bool:
            units = b.arrived.reshape(-1, m.cluster_size * m.nt).min(axis=1)
            return all(units[k // m.cluster_size] >= g for k, g in goal.items())

        def what(k: int) -> str:
            first = k // m.cluster_size * m.cluster_size
            late = b.arrived[first : first + m.cluster_size] < goal[k]
            peer = int(np.flatnonzero(late.any(axis=1))[0])
            return f"the barrier of the cluster, which in block {int(m.blocks[first + peer])} {never_reach(late[peer])}"

        def still() -> np.ndarray:
            units = b.arrived.reshape(-1, m.cluster_size * m.nt).min(axis=1)
            late = [units[k // m.cluster_size] < goal.get(k, 0) for k in range(m.nb)]
            return mine & np.array(late)[:, None]

        if not ready():
            yield Wait(ready, what, mine, op, still=still)
        if m.waited is not None:
            m.waited |= mine & b.waited[:, None]
        if m.clocks is None:
            return
        for k, row in m.clocks.active(s.mask):
            left = b.left.get((m.clocks.unit(k), goal[k]))
            if left is not None:
                m.clocks.lanes.meet(k, row % m.clocks.warps)
                m.clocks.acquire(k, row, left)
        if m.races is not None:
            m.races.met(s.mask)

    return waiting(run)


# -- bulk copies of bytes


def _copies(s: State, pointers: list[MemRef], length: np.ndarray, ends: int, op):
    """Yields (block, thread, bytes, place of each pointer ...) for every active thread whose copy fits: the first
    `ends` pointers are where it begins and ends."""
    barriers = engine_of(s).barriers
    tables = [{(b, t): byte for b, t, byte in barriers.each(s, p)} for p in pointers]
    for b, t in tables[0]:
        n, at = s.m.number(length, b, t), [table[b, t] for table in tables]
        if all(_fits(s, p.buffer, byte, n, b, t, op) for p, byte in zip(pointers[:ends], at, strict=False)):
            yield (b, t, n, *at)


@stateful("nvvm.cp.async.bulk.prefetch")
def _bulk_prefetch(tr: Translator, op):
    """Moves nothing that a thread can see; the bytes must be there all the same."""

    def look(s: State, source: MemRef, size: np.ndarray, *_: np.ndarray) -> None:
        for _ in _copies(s, [source], size, 1, op):
            pass

    return look


def _fits(s: State, buffer, byte: int, size: int, b: int, t: int, op) -> bool:
    lone = s.m.one(b, t)
    if byte % 16 or size % 16:
        s.m.complain(
            "misaligned", lone, f"copies {size} bytes at byte {byte} of {buffer.name}: both must be multiples of 16", op
        )
        return False
    if byte < 0 or byte + size > buffer.nbytes:
        s.m.complain(
            "out of bounds", lone, f"copies {size} bytes at byte {byte} of {buffer.name}, which has {buffer.nbytes}", op
        )
        return False
    return True


@stateful("nvvm.cp.async.bulk.shared.cluster.global", segments=True)
def _bulk_load(tr: Translator, op):
    tr.proxies = tr.clocks = tr.bulk_sources = True

    def load(s: State, to: list, at: list, signal: list, size: list, many: list, *_: list) -> None:
        (target,), (source,), (barrier,) = to, at, signal
        for b, t, n, first, start, bar in _copies(s, [target, source, barrier], size[0], 2, op):
            raw = source.buffer.data[start : start + n].copy()
            read_source(s.m, source.buffer, start, n, (b, t), op)
            ranks: list[int | None] = [engine_of(s).barriers.rank(target, b, t)]
            if many:
                ranks = multicast_to(s.m, s.m.number(many[0], b, t), (b, t), op)
            for rank in ranks:
                whole, read = (target.buffer, first + np.arange(n)), (source.buffer, start, start + n)
                begin_transfer(s, raw, whole, (b, t), rank, (barrier, bar), op, read)

    return load


@stateful("nvvm.cp.async.bulk.shared.cluster.shared.cta")
def _bulk_between(tr: Translator, op):
    tr.proxies = tr.clocks = True

    def copy(s: State, to: MemRef, at: MemRef, barrier: MemRef, size: np.ndarray) -> None:
        target, source, barriers = to.buffer, at.buffer, engine_of(s).barriers
        for b, t, n, first, start, bar in _copies(s, [to, at, barrier], size, 2, op):
            cells = b * source.stride + start + np.arange(n)
            read_for_store(s, source, cells, (b, t), op, group=False)
            rank = barriers.rank(to, b, t)
            if rank != barriers.rank(barrier, b, t):
                lone = s.m.one(b, t)
                s.m.complain("bad mbarrier", lone, "tells an mbarrier of another block than it copies to", op)
            whole, read = (target, first + np.arange(n)), (source, int(cells[0]), int(cells[-1]) + 1)
            begin_transfer(s, source.data[cells], whole, (b, t), rank, (barrier, bar), op, read)

    return copy


@stateful("nvvm.cp.async.bulk.global.shared.cta", segments=True)
def _bulk_store(tr: Translator, op):
    tr.proxies = True

    def store(s: State, to: list, at: list, size: list, *_: list) -> None:
        target, source = to[0].buffer, at[0].buffer
        for b, t, n, first, start in _copies(s, [to[0], at[0]], size[0], 2, op):
            cells = b * source.stride + start + np.arange(n)
            read_for_store(s, source, cells, (b, t), op, target=(target, first, first + n))
            write_target(s.m, target, first, source.data[cells], (b, t), op)

    return store


@stateful("nvvm.st.bulk")
def _zeros(tr: Translator, op):
    """Fills shared memory with zeros (sm_100 and later)."""
    value = number(op, "initVal")

    def fill(s: State, pointer: MemRef, size: np.ndarray) -> None:
        target = pointer.buffer
        for b, t, n, first in _copies(s, [pointer], size, 1, op):
            memory = MemRef(target, 0, (target.nbytes,), (1,), 1)
            s.m.store(memory, [np.full((1, 1), first)], np.full((1, 1, n), value, np.uint8), 1, s.m.one(b, t), op)

    return fill
