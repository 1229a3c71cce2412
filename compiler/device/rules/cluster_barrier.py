"""The barrier of the cluster (PTX ISA, "Parallel Synchronization and Communication Instructions": barrier.cluster)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlirc.device.deadlocks import never_reach
from mlirc.device.declare import stateful, waiting
from mlirc.device.machine import Machine, State
from mlirc.device.membermask import check_aligned
from mlirc.device.sync import Wait
from mlirc.device.translate import Translator


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


@stateful("nvvm.cluster.wait")
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
        if m.races is not None:
            m.races.met(s.mask)
        for k, row in m.clocks.active(s.mask):
            left = b.left.get((m.clocks.unit(k), goal[k]))
            if left is not None:
                m.clocks.lanes.meet(k, row % m.clocks.warps)
                m.clocks.acquire(k, row, left)

    return waiting(run)
