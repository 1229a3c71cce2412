"""Tensor copies (TMA) between global and shared memory (PTX ISA, "Data Movement and Conversion Instructions":
cp.async.bulk.tensor, cp.reduce.async.bulk.tensor)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc.device.attributes import segments_of, word
from mlirc.device.bulk_copies import begin_transfer, multicast_to, note_transfers, read_for_store
from mlirc.device.declare import stateful
from mlirc.device.engine import engine_of
from mlirc.device.global_copies import count_copy, read_global, write_global
from mlirc.device.launch_maps import OfBuffer
from mlirc.device.machine import State
from mlirc.device.memory import Buffer, MemRef
from mlirc.device.rules.mbarrier import nth
from mlirc.device.tensor_maps import REDUCTIONS, AnyMap, Combine, swizzled
from mlirc.device.translate import Translator


@stateful("nvvm.cp.async.bulk.tensor.shared.cluster.global", segments=True)
def _tensor_load(tr: Translator, op):
    tr.proxies = tr.clocks = True
    tr.bulk_sources = tr.bulk_sources or of_buffers(tr)
    _, _, coordinates, _, offsets, *_ = segments_of(op)
    mode = _mode(tr, op, ("tile", "im2col"))
    if mode == "im2col" and len(offsets) != len(coordinates) - 2:
        raise tr.refused(op, "im2col takes an offset per spatial dimension")

    def load(s: State, to: list, tensor: list, at: list, signal: list, shifts: list, many: list, _: list, when: list):
        if _same_mode(s, tensor[0], mode, op):
            start_box(s.only(*when), tensor[0], to[0], at, signal[0], op, many, shifts)

    return load


@stateful("nvgpu.tma.async.load", segments=True)
def _group_load(tr: Translator, op):
    tr.proxies = tr.clocks = True

    def load(s: State, to: list, group: list, tensor: list, at: list, number: list, many: list, when: list) -> None:
        start_box(s.only(*when), tensor[0], _address(to[0]), at, nth(group[0], number[0]), op, many)

    return load


def of_buffers(tr: Translator) -> bool:
    """Whether the kernel's tensor maps may be of buffers that threads write, too: of a host function's launches."""
    return tr.function is not None and tr.function.name == "gpu.func"


def _address(ref: MemRef) -> MemRef:
    """Where a memref begins, in bytes."""
    return MemRef(ref.buffer, ref.base * ref.item, (), (), 1, ref.rank)


def _mode(tr: Translator, op, known: tuple[str, ...]) -> str:
    """The mode of a tensor copy; raises MlircError for one that is not known."""
    mode = word(op, "mode")
    if mode not in known:
        raise tr.refused(op, f"mode {mode} is not supported: one of {list(known)}")
    return mode


def _same_mode(s: State, tensor: AnyMap, mode: str, op) -> bool:
    """Whether a tensor map was made for a copy's mode; complains if not."""
    if tensor.mode == mode:
        return True
    everyone = s.m.everyone(s.mask)
    s.m.complain("bad tensor map", everyone, f"copies in mode {mode}, and the map was made for {tensor.mode}", op)
    return False


def _fits(s: State, tensor: AnyMap, buffer: Buffer, byte: int, size: int, lone: np.ndarray, op) -> bool:
    """Whether a box lies inside shared memory, and where tensor copies can reach it; complains if not."""
    if byte < 0 or byte + size > buffer.nbytes:
        s.m.complain(
            "out of bounds", lone, f"copies {size} bytes at byte {byte} of {buffer.name}, which has {buffer.nbytes}", op
        )
        return False
    if byte % 128:
        s.m.complain(
            "misaligned", lone, f"copies a box at byte {byte} of {buffer.name}, which is no multiple of 128", op
        )
        return False
    s.m.placed(buffer, tensor.shared_align, lone, op)
    return True


def start_box(s: State, source: AnyMap, to: MemRef, coordinates: list, barrier: MemRef, op, multicast: list,
              offsets: Sequence[np.ndarray] = ()) -> None:  # fmt: skip
    """Starts a tensor copy by every active thread. `multicast`: to the blocks of the cluster that its bits name, each
    of whose mbarriers at the same place is told."""
    m, engine = s.m, engine_of(s)
    bars = {(b, t): byte for b, t, byte in engine.barriers.each(s, barrier)}
    for b, t, byte in engine.barriers.each(s, to):
        start = [m.number(c, b, t) for c in coordinates][::-1]
        shifts = [m.number(o, b, t) & 0xFFFF for o in offsets][::-1]
        ranks: list[int | None] = [engine.barriers.rank(to, b, t)]
        if multicast:
            ranks = multicast_to(m, m.number(multicast[0], b, t), (b, t), op)
        box = source.read(start, shifts)
        lone = m.one(b, t)
        if not _fits(s, source, to.buffer, byte, box.nbytes, lone, op):
            continue
        place = source.place(start, shifts)
        _between_blocks(s, source, place, (b, t), "read", op)
        runs = source.runs(place) if isinstance(source, OfBuffer) else None
        shadow = None
        if isinstance(source, OfBuffer) and runs is not None:
            shadow = source.shadow(start, read_global(m, runs, (b, t), op), shifts)
            count_copy(m, runs, False, op)
        address = swizzled(byte + np.arange(box.nbytes), source.swizzle)
        for rank in ranks:
            told = barrier, bars[b, t]
            raw = box.reshape(-1).view(np.uint8)
            agent = begin_transfer(s, raw, (to.buffer, address), (b, t), rank, told, op, shadow=shadow)
            if agent is not None and m.tensor_stores:
                source.writers.within(source.array.shape).begin_read(m, place, b, agent)
            if agent is not None and runs is not None and runs.buffer.tracked:
                for first in runs.first.tolist():
                    unit = m.clocks.unit(b)
                    m.clocks.async_reads.note(runs.buffer, first, first + runs.nbytes, unit, agent, op)
    note_transfers(s, op)


@stateful("nvvm.cp.async.bulk.tensor.global.shared.cta", "nvvm.cp.async.bulk.tensor.reduce", segments=True)
def _tensor_store(tr: Translator, op):
    tr.proxies = tr.tensor_stores = True
    tr.bulk_sources = tr.bulk_sources or of_buffers(tr)
    mode, kind = _mode(tr, op, ("tile", "im2col")), word(op, "redKind")

    def store(s: State, tensor: list, source: list, at: list, *rest: list) -> None:
        target = tensor[0]
        if not _same_mode(s, target, mode, op) or kind and not _reducible(s, kind, target.array.dtype, op):
            return
        store_boxes(s.only(*([] if kind else rest[-1])), target, source[0], at, op, REDUCTIONS.get(kind))

    return store


@stateful("nvgpu.tma.async.store", segments=True)
def _group_store(tr: Translator, op):
    tr.proxies = tr.tensor_stores = True

    def store(s: State, source: list, tensor: list, at: list, when: list) -> None:
        store_boxes(s.only(*when), tensor[0], _address(source[0]), at, op)

    return store


def store_boxes(s: State, target: AnyMap, source: MemRef, coordinates: list, op, combine: Combine | None = None
                ) -> None:  # fmt: skip
    """A tensor copy to global memory by every active thread."""
    for b, t, byte in engine_of(s).barriers.each(s, source):
        start = [s.m.number(c, b, t) for c in coordinates][::-1]
        store_box(s, target, source.buffer, (b, t, byte), start, op, combine)


def _reducible(s: State, kind: str, dtype: np.dtype, op) -> bool:
    """Whether a tensor copy can reduce elements of a type so; complains if not (PTX ISA, "cp.reduce.async.bulk.tensor",
    whose elements are 32 or 64 bits wide, or 16-bit floats)."""
    whole, wide = dtype.kind in "iu", dtype.itemsize >= 4
    if kind in ("inc", "dec"):
        fits = dtype == np.uint32
    elif kind in ("and", "or", "xor"):
        fits = whole and wide
    elif kind in ("min", "max"):
        fits = wide if whole else dtype.itemsize == 2
    else:
        fits = wide if whole else dtype.itemsize in (2, 4)
    if not fits:
        everyone = s.m.everyone(s.mask)
        s.m.complain("bad tensor map", everyone, f"reduces elements of type {dtype} by {kind}, which it cannot", op)
    return fits


def store_box(s: State, target: AnyMap, buffer: Buffer, where, start: list[int], op, combine: Combine | None = None
              ) -> None:  # fmt: skip
    """Writes the part of a box that lies inside the array (`combine`: with what is there). The source counts as being
    read until its group is waited for."""
    m, (b, t, byte) = s.m, where
    lone = m.one(b, t)
    if not _fits(s, target, buffer, byte, target.nbytes, lone, op):
        return
    address = b * buffer.stride + swizzled(byte + np.arange(target.nbytes), target.swizzle)
    at, kind = target.place(start), "write" if combine is None else "reduce"
    order = target.writers.within(target.array.shape) if m.clocks is not None else None
    targets: tuple = () if order is None else ((order, at),)
    runs = target.runs(at) if isinstance(target, OfBuffer) else None
    if runs is not None:
        targets = (*targets, runs)
    read_for_store(s, buffer, address, (b, t), op, targets=targets, reduces=combine is not None)
    _between_blocks(s, target, at, (b, t), kind, op)
    if runs is not None:
        write_global(m, runs, (b, t), op, combine is not None)
        count_copy(m, runs, True, op)
    if order is not None:
        order.begin_write(m, at, b, kind)
    if not target.array.flags.writeable:
        message = f"writes elements {start} and on of a tensor map's array, which is read-only: an input"
        m.complain("overwritten input", lone, message, op)
        return
    target.write(start, buffer.data[address], combine)


def _between_blocks(s: State, tensor: AnyMap, at: tuple, who: tuple[int, int], kind: str, op) -> None:
    """Complains about elements that other copies of the block are writing or reading, and about those that another
    block of the launch writes, and notes who writes them; in kernels whose blocks order each other, tensor copies of
    other blocks are not followed."""
    if s.m.clocks is not None:
        tensor.writers.within(tensor.array.shape).access(s.m, at, who, kind, op)
    if not s.m.check or (s.m.order is not None and s.m.order.ordered):
        return
    block = int(s.m.blocks[who[0]])
    other = tensor.writers.clash(tensor.array.shape, at, block, kind)
    if other is not None:
        lone = s.m.one(*who)
        message = f"{kind}s elements of a tensor, which block {other} writes in the same launch"
        s.m.complain("race between blocks", lone, message, op)
