"""Hopper's instructions: mbarriers, tensor copies (TMA), fences, named barriers.

Shared-memory layouts follow the PTX ISA, "Tensor copies: swizzling modes"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlirc.errors import MlircError
from mlirc.host.device.engine import Engine
from mlirc.host.device.machine import State
from mlirc.host.device.memory import Buffer, MemRef
from mlirc.host.device.nvgpu_rules import segments_of
from mlirc.host.device.sync import Wait, block_barrier
from mlirc.host.device.translate import Translator, rule, waiting
from mlirc.mlir import ir

WARPGROUP = 128
_SWIZZLE_BITS = {128: 7, 64: 3, 32: 1}  # bytes of the pattern's rows -> which 16-byte chunks are exchanged


@dataclass
class TensorMap:
    """What cuTensorMapEncodeTiled makes: a global array, the box that one copy moves (innermost dimension last, as in
    the array), and the swizzle in bytes (0: none). Elements outside the array are zeros."""

    array: np.ndarray
    box: tuple[int, ...]
    swizzle: int = 0


def swizzled(byte: np.ndarray, swizzle: int) -> np.ndarray:
    """Shared memory addresses under a swizzling mode: bits 4.. are exchanged with bits 7.. of the address."""
    if not swizzle:
        return byte
    return byte ^ ((byte >> 7 & _SWIZZLE_BITS[swizzle]) << 4)


def engine_of(s: State) -> Engine:
    if s.m.engine is None:
        s.m.engine = Engine(s.m)
    return s.m.engine


# -- mbarriers


@rule("nvvm.mbarrier.init")
def _init(tr: Translator, op):
    tr.clocks = True
    pointer, count = (tr.reg(v) for v in list(op.operands)[:2])
    return lambda s: engine_of(s).init(s, s.r[pointer], s.r[count], op)


@rule("nvvm.mbarrier.inval")
def _inval(tr: Translator, op):
    pointer = tr.reg(op.operands[0])

    def step(s: State) -> None:
        engine = engine_of(s)
        for b, _, byte in engine.each(s, s.r[pointer]):
            engine.barriers.pop((b, byte), None)

    return step


@rule("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx")
def _arrive(tr: Translator, op):
    pointer = tr.reg(op.operands[0])
    extra = tr.reg(op.operands[1]) if len(op.operands) > 1 else None
    expects = op.name.endswith("expect_tx")
    out = tr.reg(op.results[0]) if len(op.results) else None

    def step(s: State) -> None:
        given = None if extra is None else s.r[extra]
        count = 1 if expects or given is None else given
        tokens = engine_of(s).arrive(s, s.r[pointer], given if expects else None, op, count)
        if out is not None:
            s.r[out] = tokens

    return step


@rule("nvvm.mbarrier.try_wait.parity")
def _wait_parity(tr: Translator, op):
    pointer, parity = (tr.reg(v) for v in list(op.operands)[:2])
    tr.group, tr.clocks = WARPGROUP, True  # warpgroups may wait for each other

    def run(s: State):
        engine, where, want = engine_of(s), s.r[pointer], s.r[parity]
        while not engine.passed(s, where, want, op):
            m = s.m
            who = np.ones((m.nb, m.nt), bool) if s.mask is None else np.broadcast_to(s.mask, (m.nb, m.nt))
            yield Wait(lambda: engine.passed(s, where, want, op), lambda: engine.describe(s, where), who, op)
        engine.reached(s, where, op)

    return waiting(run)


# -- barriers by number, fences


@rule("nvvm.barrier")
def _named_barrier(tr: Translator, op):
    number, count = segments_of(op)[:2]
    identifier = (tr.known(number[0]) if number else 0) or 0
    threads = tr.known(count[0]) if count else None
    if (number and tr.known(number[0]) is None) or (count and threads is None):
        raise MlircError(f"host device: {tr.where}: nvvm.barrier with a number that is not constant at {op.location}")
    tr.clocks = tr.clocks or identifier != 0 or threads is not None
    return waiting(lambda s: block_barrier(s, op, identifier, threads))


@rule("nvvm.barrier.arrive")
def _barrier_arrive(tr: Translator, op):
    *number, many = op.operands
    count = [many]
    identifier, threads = tr.known(number[0]) if number else 0, tr.known(count[0])
    if identifier is None or threads is None:
        raise MlircError(f"host device: {tr.where}: nvvm.barrier.arrive with a number not constant at {op.location}")

    tr.clocks = True

    def step(s: State) -> None:
        next(block_barrier(s, op, identifier, threads), None)

    return step


@rule(
    "nvvm.fence.mbarrier.init", "nvvm.setmaxregister",
    "nvvm.griddepcontrol", "nvvm.griddepcontrol.wait", "nvvm.griddepcontrol.launch.dependents", "nvvm.prefetch",
)  # fmt: skip
def _nothing(tr: Translator, op):
    return lambda s: None


@rule("nvvm.fence.proxy")
def _fence_proxy(tr: Translator, op):
    def step(s: State) -> None:
        clocks = s.m.clocks
        for buffer in s.m.shared:
            if buffer.generic is not None and clocks is not None:
                clocks.fenced(buffer, clocks.active(s.mask))
            elif buffer.generic is not None:
                buffer.generic.fill(0)

    return step


def check_proxy(s: State, buffer: Buffer, address: np.ndarray, lone: np.ndarray, op) -> None:
    """What threads wrote is read through the asynchronous proxy: there must be a fence in between."""
    if s.m.check and buffer.generic is not None and buffer.generic[address].any():
        s.m.complain("missing proxy fence", lone, f"reads {buffer.name} that threads wrote, with no fence.proxy", op)


# -- tensor copies


@rule("nvvm.cp.async.bulk.tensor.shared.cluster.global")
def _tensor_load(tr: Translator, op):
    tr.proxies = tr.clocks = True
    (dst,), (tensor,), coordinates, (barrier,), offsets, multicast, _, predicate = segments_of(op)
    if offsets or "tile" not in str(op.attributes["mode"]):
        raise MlircError(f"host device: {tr.where}: {op.name} with im2col at {op.location}")
    to, what, at = tr.reg(dst), tr.reg(tensor), [tr.reg(c) for c in coordinates]
    signal, when = tr.reg(barrier), tr.reg(predicate[0]) if predicate else None
    mask = tr.reg(multicast[0]) if multicast else None

    def step(s: State) -> None:
        r = s.r
        inner = s if when is None else State(r, r[when] if s.mask is None else r[when] & s.mask, s.m)
        start_box(inner, r[what], r[to], [r[c] for c in at], r[signal], op, None if mask is None else r[mask])

    return step


def start_box(s: State, source: TensorMap, to: MemRef, coordinates: list, barrier: MemRef, op, multicast=None) -> None:
    """Starts a tensor copy by every active thread. `multicast`: to the blocks of the cluster that its bits name, each
    of whose mbarriers at the same place is told."""
    m, engine = s.m, engine_of(s)
    bars = {(b, t): byte for b, t, byte in engine.each(s, barrier)}
    for b, t, byte in engine.each(s, to):
        start = [int(np.broadcast_to(c, (m.nb, m.nt))[b, t]) for c in coordinates][::-1]
        ranks: list[int | None] = [engine.rank(to, b, t)]
        if multicast is not None:
            bits = int(np.broadcast_to(multicast, (m.nb, m.nt))[b, t])
            ranks = [k for k in range(m.cluster_size) if bits >> k & 1]
        box = _box(source, start)
        lone = np.zeros((m.nb, m.nt), bool)
        lone[b, t] = True
        if byte % 128 or byte + box.nbytes > to.buffer.nbytes:
            m.complain("out of bounds", lone, f"copies {box.nbytes} bytes to byte {byte} of {to.buffer.name}", op)
            continue
        address = swizzled(byte + np.arange(box.nbytes), source.swizzle)
        for rank in ranks:
            begin_transfer(engine, box.reshape(-1).view(np.uint8), to.buffer, address, (b, t), rank, bars[b, t], op)


def begin_transfer(engine: Engine, raw: np.ndarray, buffer: Buffer, byte: np.ndarray, who, rank, bar: int, op) -> None:
    """Starts a copy of `raw` to the given bytes of the shared memory of a block (the thread's own, or number `rank` of
    its cluster), which tells the mbarrier at byte `bar` there when it is done."""
    m, (b, t), size = engine.machine, who, len(raw)
    owner = b if rank is None else b // m.cluster_size * m.cluster_size + rank
    address = owner * buffer.stride + byte
    buffer.mark("pending")
    assert buffer.pending is not None
    lone = np.zeros((m.nb, m.nt), bool)
    lone[b, t] = True
    if buffer.pending[address].any():
        m.complain("overlapping copies", lone, f"copies to {buffer.name} where another copy is under way", op)
    engine.check_overwrite(b, t, buffer, address, op)
    buffer.pending[address] = 0xFF
    barrier = engine.find(b, t, bar, op, rank)
    if m.clocks is not None:
        cells = np.unique(address // m.races.granule)[:, None]  # type: ignore[union-attr]
        agent = (barrier.column, barrier.phase + 1)
        m.clocks.touch(buffer, cells, (m.clocks.unit(b), m.clocks.row(b, t)), agent, True, op, b * m.nt + t)

    def finish() -> None:
        buffer.data[address] = raw
        if buffer.written is not None:
            buffer.written[address] = 0xFF
        assert buffer.pending is not None
        buffer.pending[address] = 0
        if buffer.generic is not None:
            buffer.generic[address] = 0
        barrier.nbytes -= size
        barrier.settle()

    engine.start(finish)


def read_for_store(s: State, buffer: Buffer, address: np.ndarray, who: tuple[int, int], op, group: bool = True) -> None:
    """A bulk copy's read of shared memory (cells of the storage), which ends when its group is waited for."""
    m, (b, t), engine = s.m, who, engine_of(s)
    lone = np.zeros((m.nb, m.nt), bool)
    lone[b, t] = True
    check_proxy(s, buffer, address, lone, op)
    if m.check and buffer.written is not None and not buffer.written[address].all():
        m.complain("uninitialized read", lone, f"reads {buffer.name}, where nobody wrote", op)
    if m.clocks is not None:
        m.clocks.access(buffer, np.unique(address // m.races.granule), 1, np.array([b * m.nt + t]), False, op)  # type: ignore[union-attr]
    if group:
        engine.store(b, t, buffer, address, op)


@rule("nvvm.cp.async.bulk.tensor.global.shared.cta")
def _tensor_store(tr: Translator, op):
    tr.proxies = True
    if "tile" not in str(op.attributes["mode"]):
        raise MlircError(f"host device: {tr.where}: {op.name} with im2col at {op.location}")
    (tensor,), (src,), coordinates, _, predicate = segments_of(op)
    what, at, coords = tr.reg(tensor), tr.reg(src), [tr.reg(c) for c in coordinates]
    when = tr.reg(predicate[0]) if predicate else None

    def step(s: State) -> None:
        r, m = s.r, s.m
        target: TensorMap = r[what]
        inner = s if when is None else State(r, r[when] if s.mask is None else r[when] & s.mask, m)
        for b, t, byte in engine_of(s).each(inner, r[at]):
            start = [int(np.broadcast_to(r[c], (m.nb, m.nt))[b, t]) for c in coords][::-1]
            store_box(s, target, r[at].buffer, (b, t, byte), start, op)

    return step


def store_box(s: State, target: TensorMap, buffer: Buffer, where, start: list[int], op) -> None:
    """Writes the part of a box that lies inside the array. The source counts as being read until its group is waited
    for."""
    m, (b, t, byte) = s.m, where
    lone = np.zeros((m.nb, m.nt), bool)
    lone[b, t] = True
    item = target.array.dtype.itemsize
    size = int(np.prod(target.box)) * item
    if byte % 128 or byte + size > buffer.nbytes:
        m.complain("out of bounds", lone, f"copies {size} bytes from byte {byte} of {buffer.name}", op)
        return
    address = b * buffer.stride + swizzled(byte + np.arange(size), target.swizzle)
    read_for_store(s, buffer, address, (b, t), op)
    box = buffer.data[address].view(target.array.dtype).reshape(target.box)
    to, at = _overlap(target, start)
    target.array[at] = box[to]


@rule("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(tr: Translator, op):
    return lambda s: engine_of(s).commit_bulk(s)


@rule("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(tr: Translator, op):
    pending = ir.IntegerAttr(op.attributes["group"]).value
    return lambda s: engine_of(s).wait_bulk(s, pending)


def _box(source: TensorMap, start: list[int]) -> np.ndarray:
    """The elements of a box, zeros outside the array."""
    out = np.zeros(source.box, dtype=source.array.dtype)
    to, at = _overlap(source, start)
    out[to] = source.array[at]
    return out


def _overlap(source: TensorMap, start: list[int]) -> tuple[tuple, tuple]:
    """Where a box and the array overlap: slices of the box, and of the array."""
    to, at = [], []
    for o, n, extent in zip(start, source.box, source.array.shape, strict=True):
        low, high = max(o, 0), min(o + n, extent)
        to.append(slice(low - o, max(high, low) - o))
        at.append(slice(low, max(high, low)))
    return tuple(to), tuple(at)
