"""Bulk and tensor copies on their way: what they write and read, from when to when (PTX ISA, "Data Movement and
Conversion Instructions: Asynchronous copy").

Copies into shared memory tell an mbarrier when their bytes have come: whoever has waited for its phase sees them.
Copies out of it belong to groups of their thread: wait_group.read is the end of the reads, wait_group of the writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mlirc.device.global_copies import Runs, end_global_write
from mlirc.device.machine import Machine, State
from mlirc.device.mbarriers import Barrier
from mlirc.device.memory import Buffer, MemRef
from mlirc.device.order.proxies import KIND
from mlirc.device.order.tensor_order import TensorOrder

Target: TypeAlias = Runs | tuple[TensorOrder, tuple]  # bytes of a buffer, or elements of a tensor


@dataclass
class Store:
    """A copy out of shared memory, by thread (block of the batch, thread). `targets`: what it writes, as far as
    somebody looks at that; `reduces`: it is combined with what is there."""

    who: tuple[int, int]
    group: int
    buffer: Buffer
    cells: np.ndarray
    op: Any
    targets: tuple[Target, ...] = ()
    reduces: bool = False
    reading: bool = True


@dataclass
class Sent:
    """The last copy of an operation to one mbarrier: the phase that ends with it, whose shared memory it writes, and
    whose it reads (blocks of the batch; None: nobody's)."""

    op: object
    who: tuple[int, int]
    barrier: Barrier
    phase: int
    owner: int
    source: int | None


def begin_transfer(s: State, raw: np.ndarray, to: tuple[Buffer, np.ndarray], who: tuple[int, int], rank: int | None,
                   told: tuple[MemRef, int], op, source: tuple[Buffer, int, int] | None = None,
                   shadow: np.ndarray | None = None) -> tuple[int, int] | None:  # fmt: skip
    """Starts a copy of `raw` to some bytes of the shared memory of a block (the thread's own, or number `rank` of its
    cluster), which tells an mbarrier there (`told`: a pointer, and its byte) when it is done; `note_transfers` must
    follow. `source`: the bytes of a
    buffer's storage that it reads until then (first, and behind the last). `shadow`: which of its bytes are undefined,
    as of `Machine.fetched`. Returns what its end is known by: (column, epoch) of the clocks, if there are any."""
    m, engine, (b, t), (buffer, byte) = s.m, s.m.engine, who, to
    owner = engine.barriers.owner(b, rank)
    address = owner * buffer.stride + byte
    lone, size = m.one(b, t), len(raw)
    pending = buffer.mark("pending").pending
    assert pending is not None
    overlaps = bool((busy := pending[address] != 0).any())
    if overlaps:
        at = f"byte {buffer.within(int(address[busy][0]))} of {buffer.name}"
        m.complain("overlapping copies", lone, f"copies to {at}, where another copy is under way", op)
    engine.check_overwrite(b, t, buffer, address, op)
    pending[address] = 0xFF
    barrier = engine.barriers.find(b, t, *told, op, rank, copy=True)
    engine.sent[hash(op), id(barrier), owner, b] = Sent(
        op, who, barrier, barrier.phase + 1, owner, b if source is not None and source[0].space == "shared" else None
    )
    agent = None
    if m.clocks is not None:
        thread = np.array([b * m.nt + t])
        cells = np.unique(address // m.races.granule)  # type: ignore[union-attr]
        first, granule = cells * m.races.granule, m.races.granule  # type: ignore[union-attr]
        engine.barriers.check_access(buffer, first, granule, thread, "copies to", op)
        m.clocks.async_reads.check(buffer, first, granule, thread, op)
        m.races.check_lanes(buffer, cells, b * m.nt + t, op)  # type: ignore[union-attr]
        if owner != b:
            m.clocks.lives.check_started(b, t, owner, op)
        if m.clocks.proxies.unfenced(buffer, cells, owner, b, t):
            m.complain(KIND, lone, f"overwrites {buffer.name} that threads wrote, with no fence.proxy", op)
        agent = (barrier.column, barrier.phase + 1)
        engine.begun.append((buffer, cells, (m.clocks.unit(b), m.clocks.row(b, t), *agent, b * m.nt + t), overlaps))
        if source is not None:
            m.clocks.async_reads.note(*source, m.clocks.unit(b), agent, op)

    def finish() -> None:
        buffer.data[address] = raw
        if buffer.written is not None:
            buffer.written[address] = 0xFF if shadow is None else shadow
        pending[address] = 0
        barrier.nbytes -= size
        barrier.settle()

    engine.start(finish)
    return agent


def note_transfers(s: State, op) -> None:
    """What the copies that an operation has begun write, for the clocks: of all threads at once, so that what is the
    same in every block is seen to be."""
    engine, clocks = s.m.engine, s.m.clocks
    parts = [[x] for x in engine.begun]
    if not any(overlaps for *_, overlaps in engine.begun):  # else each by itself: they may be to the same bytes
        parts = [[x for x in engine.begun if id(x[0]) == key] for key in {id(x[0]): None for x in engine.begun}]
    for mine in parts:
        buffer = mine[0][0]
        cells = np.concatenate([x[1] for x in mine])
        who = np.repeat(np.array([x[2] for x in mine]), [len(x[1]) for x in mine], axis=0)
        unit, row, column, epoch, thread = who.T
        clocks.touch(buffer, cells[:, None], (unit, row), (column, epoch), True, op, thread)
    engine.begun.clear()


def multicast_to(m: Machine, mask: int, who: tuple[int, int], op) -> list[int | None]:
    """The blocks of the cluster that the bits of a multicast's mask name (16 bits); complains about others."""
    size, bits = m.cluster_size, mask & 0xFFFF
    if bits >> size or not bits:
        message = f"copies to the blocks {bits:#b}, of a cluster of {size}"
        m.complain("out of bounds", m.one(*who), message, op)
    return [k for k in range(size) if bits >> k & 1]


def check_proxy(m: Machine, buffer: Buffer, cells: np.ndarray, who: tuple[int, int], op, warps: int = 1) -> None:
    """What threads wrote to the shared memory of their block (granules) is read through the asynchronous proxy by a
    thread (or `warps` warps from it on): there must be a fence in between."""
    b, t = who
    if m.clocks.proxies.unfenced(buffer, cells, b, b, t, warps):
        message = f"reads {buffer.name} that threads wrote, with no fence.proxy of it (async, async.shared)"
        m.complain(KIND, m.one(b, t), message, op)


def read_for_store(s: State, buffer: Buffer, address: np.ndarray, who: tuple[int, int], op, group: bool = True,
                   targets: tuple[Target, ...] = (), reduces: bool = False) -> None:  # fmt: skip
    """A bulk copy's read of shared memory (cells of the storage), which ends when its group is waited for. `targets`:
    what it writes in global memory; `reduces`: combined with what is there."""
    m, (b, t), engine = s.m, who, s.m.engine
    lone = m.one(b, t)
    if m.check and buffer.written is not None and not buffer.written[address].all():
        m.complain("uninitialized read", lone, f"reads {buffer.name}, where nobody wrote", op)
    m.sent(buffer, address, lone, op)
    if m.clocks is not None:
        check_proxy(m, buffer, np.unique(address // m.races.granule), (b, t), op)  # type: ignore[union-attr]
        note_read(m, buffer, address, who, op)
    if group:
        engine.store(Store(who, engine.bulk.get(who, 0), buffer, address, op, targets, reduces))


def note_read(m: Machine, buffer: Buffer, address: np.ndarray, who: tuple[int, int], op) -> None:
    """Logs that a bulk copy of a thread reads cells of the storage, of its block's shared memory."""
    granule = m.races.granule  # type: ignore[union-attr]
    first = np.unique(address // granule) * granule
    m.races.note_bytes(buffer, first, granule, np.full(len(first), who[0] * m.nt + who[1], np.int32), False, op)  # type: ignore[union-attr]


def end_write(m: Machine, store: Store) -> None:
    """A bulk store has written: for its thread, which tells others."""
    if not m.check:
        return
    for target in store.targets:
        if isinstance(target, Runs):
            end_global_write(m, target, store.who, store.op, store.reduces)
        else:
            order, at = target
            order.end_write(m, at, store.who)
