"""Clusters: who is who, barriers, the shared memory of the other blocks, and bulk copies without tensor maps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlirc.host.device.attributes import segments_of
from mlirc.host.device.bulk_copies import begin_transfer, multicast_to, read_source, write_target
from mlirc.host.device.deadlocks import never_reach
from mlirc.host.device.declare import rule, waiting
from mlirc.host.device.engine import Engine
from mlirc.host.device.machine import Machine, State
from mlirc.host.device.membermask import check_aligned
from mlirc.host.device.memory import MemRef
from mlirc.host.device.numbers import dtype_of
from mlirc.host.device.rules.hopper import engine_of
from mlirc.host.device.rules.tensor_copy import read_for_store
from mlirc.host.device.sync import Wait
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

_SREG = "nvvm.read.ptx.sreg."


def _coordinate(m: Machine, what: str, axis: int):
    """A number about clusters along one axis: within the cluster (`ctaid`), of the cluster (`clusterid`), extents."""
    d = "xyz"[axis]
    if what == "cluster.ctaid":
        return m.block_id[d] % m.cluster[axis]
    if what == "clusterid":
        return m.block_id[d] // m.cluster[axis]
    return np.full((1, 1), m.cluster[axis] if what == "cluster.nctaid" else m.grid[axis] // m.cluster[axis])


_WORDS = ("cluster.ctaid", "cluster.nctaid", "clusterid", "nclusterid")
_GPU = {
    "gpu.cluster_block_id": "cluster.ctaid", "gpu.cluster_dim_blocks": "cluster.nctaid", "gpu.cluster_id": "clusterid",
    "gpu.cluster_dim": "nclusterid",
}  # fmt: skip


@rule(*(f"{_SREG}{w}.{d}" for w in _WORDS for d in "xyz"), *_GPU)
def _ids(tr: Translator, op):
    out, dtype = tr.reg(op.results[0]), dtype_of(op.results[0].type)
    if op.name in _GPU:
        what, d = _GPU[op.name], str(op.attributes["dimension"]).split()[-1].rstrip(">")[-1]
    else:
        what, d = op.name.removeprefix(_SREG).rsplit(".", 1)
    axis = "xyz".index(d)

    def step(s: State) -> None:
        s.r[out] = _coordinate(s.m, what, axis).astype(dtype)

    return step


@rule(f"{_SREG}cluster.ctarank", f"{_SREG}cluster.nctarank")
def _rank(tr: Translator, op):
    out, size = tr.reg(op.results[0]), op.name.endswith("nctarank")

    def step(s: State) -> None:
        s.r[out] = (np.full((1, 1), s.m.cluster_size) if size else s.m.rank).astype(np.int32)

    return step


@rule("nvvm.mapa")
def _mapa(tr: Translator, op):
    pointer, rank = (tr.reg(v) for v in op.operands)
    out = tr.reg(op.results[0])
    tr.clocks = True

    def step(s: State) -> None:
        m, p, to = s.m, s.r[pointer], s.r[rank].astype(np.int64)
        bad = m.active(s.mask, (to < 0) | (to >= m.cluster_size))
        if bad is not None:
            m.complain("out of bounds", bad, f"names a block that a cluster of {m.cluster_size} does not have", op)
            to = np.clip(to, 0, m.cluster_size - 1)
        s.r[out] = MemRef(p.buffer, p.base, (), (), 1, to)

    return step


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


@rule("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed")
def _arrive(tr: Translator, op):
    tr.clocks = True
    orders, aligned = not op.name.endswith("relaxed"), "aligned" in op.attributes

    def step(s: State) -> None:
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

    return step


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


@rule("nvvm.cp.async.bulk.prefetch")
def _bulk_prefetch(tr: Translator, op):
    """Moves nothing that a thread can see; the bytes must be there all the same."""
    register, length = [tr.reg(op.operands[0])], tr.reg(op.operands[1])

    def step(s: State) -> None:
        for _ in _copies(s, register, length, 1, op):
            pass

    return step


@rule("nvvm.cp.async.bulk.tensor.prefetch", "nvvm.fence.proxy.acquire", "nvvm.fence.proxy.release",
      "nvgpu.tma.prefetch.descriptor", "nvgpu.tma.fence.descriptor")  # fmt: skip
def _nothing(tr: Translator, op):
    """Hints, and fences between proxies of tensor maps, that decide nothing here."""
    return lambda s: None


# -- bulk copies of bytes


def _copies(s: State, registers: list[int], length: int, ends: int, op):
    """Yields (block, thread, bytes, place of each pointer ...) for every active thread whose copy fits: the first
    `ends` pointers are where it begins and ends."""
    engine, r = engine_of(s), s.r
    tables = [{(b, t): byte for b, t, byte in engine.barriers.each(s, r[p])} for p in registers]
    for b, t in tables[0]:
        n, at = _number(s, length, b, t), [table[b, t] for table in tables]
        if all(_fits(s, r[p].buffer, byte, n, b, t, op) for p, byte in zip(registers[:ends], at, strict=False)):
            yield (b, t, n, *at)


def _number(s: State, register: int, b: int, t: int) -> int:
    return s.m.number(s.r[register], b, t)


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


@rule("nvvm.cp.async.bulk.shared.cluster.global")
def _bulk_load(tr: Translator, op):
    tr.proxies = tr.clocks = tr.bulk_sources = True
    (dst,), (src,), (barrier,), (size,), multicast, *_ = segments_of(op)
    registers, length = [tr.reg(v) for v in (dst, src, barrier)], tr.reg(size)
    mask = tr.reg(multicast[0]) if multicast else None

    def step(s: State) -> None:
        engine, r = engine_of(s), s.r
        target, source = r[registers[0]].buffer, r[registers[1]].buffer
        for b, t, n, to, at, bar in _copies(s, registers, length, 2, op):
            raw, told = source.data[at : at + n].copy(), (r[registers[2]], bar)
            read_source(s.m, source, at, n, (b, t), op)
            for rank in destinations(s, engine, r[registers[0]], mask, (b, t), op):
                whole = (target, to + np.arange(n))
                begin_transfer(s, raw, whole, (b, t), rank, told, op, (source, at, at + n))

    return step


def destinations(s: State, engine: Engine, pointer: MemRef, mask: int | None, who: tuple[int, int], op
                 ) -> list[int | None]:  # fmt: skip
    """The blocks of the cluster that a copy goes to: those of a multicast mask, or the pointer's."""
    if mask is None:
        return [engine.barriers.rank(pointer, *who)]
    return multicast_to(s.m, _number(s, mask, *who), who, op)


@rule("nvvm.cp.async.bulk.shared.cluster.shared.cta")
def _bulk_between(tr: Translator, op):
    tr.proxies = tr.clocks = True
    registers, length = [tr.reg(op.operands[i]) for i in (0, 1, 2)], tr.reg(op.operands[3])

    def step(s: State) -> None:
        engine, r = engine_of(s), s.r
        target, source = r[registers[0]].buffer, r[registers[1]].buffer
        for b, t, n, to, at, bar in _copies(s, registers, length, 2, op):
            cells = b * source.stride + at + np.arange(n)
            read_for_store(s, source, cells, (b, t), op, group=False)
            rank = engine.barriers.rank(r[registers[0]], b, t)
            if rank != engine.barriers.rank(r[registers[2]], b, t):
                lone = s.m.one(b, t)
                s.m.complain("bad mbarrier", lone, "tells an mbarrier of another block than it copies to", op)
            whole, read = (target, to + np.arange(n)), (source, int(cells[0]), int(cells[-1]) + 1)
            begin_transfer(s, source.data[cells], whole, (b, t), rank, (r[registers[2]], bar), op, read)

    return step


@rule("nvvm.cp.async.bulk.global.shared.cta")
def _bulk_store(tr: Translator, op):
    tr.proxies = True
    (dst,), (src,), (size,), *_ = segments_of(op)
    registers, length = [tr.reg(v) for v in (dst, src)], tr.reg(size)

    def step(s: State) -> None:
        r = s.r
        target, source = r[registers[0]].buffer, r[registers[1]].buffer
        for b, t, n, to, at in _copies(s, registers, length, 2, op):
            cells = b * source.stride + at + np.arange(n)
            read_for_store(s, source, cells, (b, t), op, target=(target, to, to + n))
            write_target(s.m, target, to, source.data[cells], (b, t), op)

    return step


@rule("nvvm.st.bulk")
def _zeros(tr: Translator, op):
    """Fills shared memory with zeros (sm_100 and later)."""
    registers, length = [tr.reg(op.operands[0])], tr.reg(op.operands[1])
    value = ir.IntegerAttr(op.attributes["initVal"]).value if "initVal" in op.attributes else 0

    def step(s: State) -> None:
        target = s.r[registers[0]].buffer
        for b, t, n, to in _copies(s, registers, length, 1, op):
            memory = MemRef(target, 0, (target.nbytes,), (1,), 1)
            s.m.store(memory, [np.full((1, 1), to)], np.full((1, 1, n), value, np.uint8), 1, s.m.one(b, t), op)

    return step
