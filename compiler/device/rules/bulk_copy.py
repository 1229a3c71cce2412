"""Bulk copies of bytes, without tensor maps (PTX ISA, "Data Movement and Conversion Instructions": cp.async.bulk,
st.bulk), and the groups of bulk and tensor copies."""

from __future__ import annotations

import numpy as np

from mlirc.device.attributes import number
from mlirc.device.bulk_copies import begin_transfer, multicast_to, note_transfers, read_for_store
from mlirc.device.declare import stateful
from mlirc.device.engine import engine_of
from mlirc.device.global_copies import Runs, read_global, write_global
from mlirc.device.machine import State
from mlirc.device.memory import MemRef
from mlirc.device.translate import Translator


def _copies(s: State, pointers: list[MemRef], length: np.ndarray, ends: int, op):
    """Yields (block, thread, bytes, place of each pointer ...) for every active thread whose copy fits: the first
    `ends` pointers are where it begins and ends."""
    barriers = engine_of(s).barriers
    tables = [{(b, t): byte for b, t, byte in barriers.each(s, p)} for p in pointers]
    for b, t in tables[0]:
        n, at = s.m.number(length, b, t), [table[b, t] for table in tables]
        if all(_fits(s, p.buffer, byte, n, b, t, op) for p, byte in zip(pointers[:ends], at, strict=False)):
            yield (b, t, n, *at)


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


@stateful("nvvm.cp.async.bulk.prefetch")
def _bulk_prefetch(tr: Translator, op):
    """Moves nothing that a thread can see; the bytes must be there all the same."""

    def look(s: State, source: MemRef, size: np.ndarray, *_: np.ndarray) -> None:
        for _ in _copies(s, [source], size, 1, op):
            pass

    return look


@stateful("nvvm.cp.async.bulk.shared.cluster.global", segments=True)
def _bulk_load(tr: Translator, op):
    tr.proxies = tr.clocks = tr.bulk_sources = True

    def load(s: State, to: list, at: list, signal: list, size: list, many: list, *_: list) -> None:
        (target,), (source,), (barrier,) = to, at, signal
        for b, t, n, first, start, bar in _copies(s, [target, source, barrier], size[0], 2, op):
            raw = source.buffer.data[start : start + n].copy()
            shadow = read_global(s.m, Runs(source.buffer, np.array([start]), n), (b, t), op)
            ranks: list[int | None] = [engine_of(s).barriers.rank(target, b, t)]
            if many:
                ranks = multicast_to(s.m, s.m.number(many[0], b, t), (b, t), op)
            for rank in ranks:
                whole, read = (target.buffer, first + np.arange(n)), (source.buffer, start, start + n)
                begin_transfer(s, raw, whole, (b, t), rank, (barrier, bar), op, read, shadow)
        note_transfers(s, op)

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
        note_transfers(s, op)

    return copy


@stateful("nvvm.cp.async.bulk.global.shared.cta", segments=True)
def _bulk_store(tr: Translator, op):
    tr.proxies = True

    def store(s: State, to: list, at: list, size: list, *_: list) -> None:
        target, source = to[0].buffer, at[0].buffer
        for b, t, n, first, start in _copies(s, [to[0], at[0]], size[0], 2, op):
            cells = b * source.stride + start + np.arange(n)
            runs = Runs(target, np.array([first]), n)
            read_for_store(s, source, cells, (b, t), op, targets=(runs,))
            write_global(s.m, runs, (b, t), op)
            target.data[first : first + n] = source.data[cells]

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


@stateful("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(tr: Translator, op):
    return lambda s: engine_of(s).commit_bulk(s)


@stateful("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(tr: Translator, op):
    pending, read = number(op, "group"), "read" in op.attributes
    return lambda s: engine_of(s).wait_bulk(s, pending, read)
