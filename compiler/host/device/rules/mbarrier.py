"""The rest of mbarriers: waits by token, arrivals that drop out or follow cp.async; and nvgpu's mbarriers and tensor
copies, which name an mbarrier by its number in a group."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import segments_of
from mlirc.host.device.copies import active_threads, finish
from mlirc.host.device.declare import rule, waiting
from mlirc.host.device.engine import Engine
from mlirc.host.device.machine import State
from mlirc.host.device.mbarriers import SIZE
from mlirc.host.device.memory import MemRef
from mlirc.host.device.rules.hopper import engine_of, wait_for
from mlirc.host.device.rules.tensor_copy import start_box, store_box
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


def _ask(s: State, pointer: MemRef, parity: np.ndarray, out: int, op):
    """test_wait and try_wait: they may say no as long as the thread cannot know better, and do so the first time. Who
    asks again waits, as a loop around them would. A generator of events."""
    m = s.m
    no = engine_of(s).barriers.ask(s, pointer, parity, op)
    yes = m.everyone(s.mask) & ~no
    if yes.any():
        yield from wait_for(State(s.r, yes, m), pointer, parity, op)
    s.r[out] = yes


@rule("nvvm.mbarrier.test.wait", "nvvm.mbarrier.try_wait")
def _test_wait(tr: Translator, op):
    tr.waits = tr.clocks = True
    pointer, token, out = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.results[0])
    return waiting(lambda s: _heard(s, s.r[pointer], s.r[token], out, op))


def _heard(s: State, pointer: MemRef, parity: np.ndarray, out: int, op):
    """The answer, where somebody looks at it: else there was no wait. A generator of events."""
    if any(True for _ in op.results[0].uses):
        yield from _ask(s, pointer, parity, out, op)
    else:
        s.r[out] = np.zeros((1, 1), bool)


@rule("nvvm.mbarrier.expect_tx", "nvvm.mbarrier.complete_tx")
def _expect(tr: Translator, op):
    pointer, nbytes = (tr.reg(v) for v in op.operands)
    sign = 1 if op.name.endswith("expect_tx") else -1
    return lambda s: engine_of(s).barriers.expect(s, s.r[pointer], s.r[nbytes], op, sign)


@rule("nvvm.mbarrier.arrive.nocomplete", "nvvm.mbarrier.arrive_drop", "nvvm.mbarrier.arrive_drop.expect_tx",
      "nvvm.mbarrier.arrive_drop.nocomplete")  # fmt: skip
def _arrive(tr: Translator, op):
    pointer, out = tr.reg(op.operands[0]), tr.reg(op.results[0]) if len(op.results) else None
    extra = tr.reg(op.operands[1]) if len(op.operands) > 1 else None
    expects, drops = op.name.endswith("expect_tx"), "drop" in op.name

    def step(s: State) -> None:
        barriers, where = engine_of(s).barriers, s.r[pointer]
        nbytes = s.r[extra] if expects and extra is not None else None
        count = s.r[extra] if not expects and extra is not None else np.ones((1, 1), np.int32)
        if drops:  # later phases expect so many fewer
            counts = s.m.full(count)
            for b, t, byte in barriers.each(s, where):
                barriers.find(b, t, where, byte, op, barriers.rank(where, b, t)).count -= int(counts[b, t])
        tokens = barriers.arrive(s, where, nbytes, op, count)
        if out is not None:
            s.r[out] = tokens

    return step


@rule("nvvm.cp.async.mbarrier.arrive")
def _after_copies(tr: Translator, op):
    """Arrives once the cp.asyncs issued so far are done. Without `noinc` the phase waits for this arrival on top of
    those that the mbarrier was made for."""
    pointer = tr.reg(op.operands[0])
    extra = not ir.BoolAttr(op.attributes["noinc"]).value

    def step(s: State) -> None:
        engine, m, where, mask = engine_of(s), s.m, s.r[pointer], s.mask
        so_far, active = m.copies.issued, active_threads(s)
        if extra:
            for b, t, byte in engine.barriers.each(s, where):
                engine.barriers.find(b, t, where, byte, op).pending += 1

        def arrive() -> None:
            finish(m, m.copies.take(active, lambda c: c.number < so_far))
            engine.barriers.arrive(State(s.r, mask, m), where, None, op)

        engine.start(arrive)

    return step


# -- nvgpu: groups of mbarriers


def _group_bytes(t: ir.Type) -> int:
    return 8 * int(str(t).split("num_barriers =")[1].split(">")[0].split(",")[0])


@rule("nvgpu.mbarrier.create")
def _create(tr: Translator, op):
    out, nbytes, name = tr.reg(op.results[0]), _group_bytes(op.results[0].type), f"mbarriers {len(tr.numbers)}"
    tr.clocks = True

    def step(s: State) -> None:
        m = s.m
        if name not in m.named:
            m.named[name] = m.allocate(name, "shared", nbytes)
        s.r[out] = MemRef(m.named[name], 0, (), (), 1)

    return step


def _nth(s: State, group: int, number: int) -> MemRef:
    """The n-th mbarrier of a group."""
    base = s.r[group]
    return MemRef(base.buffer, base.base + 8 * s.r[number].astype(np.int64), (), (), 1)


@rule("nvgpu.mbarrier.init")
def _init(tr: Translator, op):
    tr.clocks = True
    tr.accesses.append(SIZE)
    group, count, number = (tr.reg(v) for v in list(op.operands)[:3])
    when = tr.reg(op.operands[3]) if len(op.operands) > 3 else None
    return lambda s: engine_of(s).barriers.init(_if(s, when), _nth(s, group, number), s.r[count], op)


def _if(s: State, predicate: int | None) -> State:
    """The state with only those threads active for which a predicate holds."""
    if predicate is None:
        return s
    c = s.r[predicate].astype(bool)
    return State(s.r, c if s.mask is None else c & s.mask, s.m)


@rule("nvgpu.mbarrier.arrive", "nvgpu.mbarrier.arrive.nocomplete")
def _group_arrive(tr: Translator, op):
    group, number = tr.reg(op.operands[0]), tr.reg(op.operands[1])
    count = tr.reg(op.operands[2]) if len(op.operands) > 2 else None
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        many = 1 if count is None else s.r[count]
        s.r[out] = engine_of(s).barriers.arrive(s, _nth(s, group, number), None, op, many)

    return step


@rule("nvgpu.mbarrier.arrive.expect_tx")
def _group_expect(tr: Translator, op):
    group, nbytes, number = (tr.reg(v) for v in list(op.operands)[:3])
    when = tr.reg(op.operands[3]) if len(op.operands) > 3 else None

    def step(s: State) -> None:
        engine_of(s).barriers.arrive(_if(s, when), _nth(s, group, number), s.r[nbytes], op)

    return step


@rule("nvgpu.mbarrier.try_wait.parity", "nvgpu.mbarrier.test.wait")
def _group_wait(tr: Translator, op):
    tr.waits = tr.clocks = True
    by_token = op.name.endswith("test.wait")
    group, phase, number = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.operands[2 if by_token else 3])
    out = tr.reg(op.results[0]) if len(op.results) else None

    def run(s: State):
        where, parity = _nth(s, group, number), s.r[phase].astype(np.int64)
        yield from wait_for(s, where, parity, op) if out is None else _heard(s, where, parity, out, op)

    return waiting(run)


def _address(ref: MemRef) -> MemRef:
    """Where a memref begins, in bytes."""
    return MemRef(ref.buffer, ref.base * ref.item, (), (), 1, ref.rank)


@rule("nvgpu.tma.async.load")
def _tma_load(tr: Translator, op):
    tr.proxies = tr.clocks = True
    (dst,), (group,), (tensor,), coordinates, (number,), multicast, predicate = segments_of(op)
    to, what, at = tr.reg(dst), tr.reg(tensor), [tr.reg(c) for c in coordinates]
    bars, n = tr.reg(group), tr.reg(number)
    mask, when = (tr.reg(x[0]) if x else None for x in (multicast, predicate))
    return lambda s: start_box(
        _if(s, when), s.r[what], _address(s.r[to]), [s.r[c] for c in at], _nth(s, bars, n), op,
        None if mask is None else s.r[mask],
    )  # fmt: skip


@rule("nvgpu.tma.async.store")
def _tma_store(tr: Translator, op):
    tr.proxies = tr.tensor_stores = True
    (src,), (tensor,), coordinates, predicate = segments_of(op)
    at, what, coords = tr.reg(src), tr.reg(tensor), [tr.reg(c) for c in coordinates]
    when = tr.reg(predicate[0]) if predicate else None

    def step(s: State) -> None:
        m, inner, target = s.m, _if(s, when), s.r[what]
        engine: Engine = engine_of(s)
        source = _address(s.r[at])
        for b, t, byte in engine.barriers.each(inner, source):
            start = [m.number(s.r[c], b, t) for c in coords][::-1]
            store_box(s, target, source.buffer, (b, t, byte), start, op)

    return step
