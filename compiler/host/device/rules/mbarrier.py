"""mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions": mbarrier), which nvvm has by their
addresses and nvgpu by their numbers in a group."""

from __future__ import annotations

import numpy as np

from mlirc.host.device.attributes import flag
from mlirc.host.device.copies import active_threads, finish
from mlirc.host.device.declare import rule, stateful, waiting
from mlirc.host.device.engine import engine_of
from mlirc.host.device.machine import State
from mlirc.host.device.mbarriers import SIZE
from mlirc.host.device.memory import MemRef
from mlirc.host.device.sync import Wait
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir


@stateful("nvvm.mbarrier.init")
def _init(tr: Translator, op):
    tr.clocks = True
    tr.accesses.append(SIZE)
    return lambda s, pointer, count, *_: engine_of(s).barriers.init(s, pointer, count, op)


@stateful("nvvm.mbarrier.inval")
def _inval(tr: Translator, op):
    tr.accesses.append(SIZE)
    return lambda s, pointer: engine_of(s).barriers.inval(s, pointer, op)


@stateful("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx")
def _arrive(tr: Translator, op):
    if op.name.endswith("expect_tx"):
        return lambda s, pointer, nbytes, *_: engine_of(s).barriers.arrive(s, pointer, nbytes, op)
    return lambda s, pointer, count=1: engine_of(s).barriers.arrive(s, pointer, None, op, count)


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


@stateful("nvvm.mbarrier.expect_tx", "nvvm.mbarrier.complete_tx")
def _expect(tr: Translator, op):
    sign = 1 if op.name.endswith("expect_tx") else -1
    return lambda s, pointer, nbytes: engine_of(s).barriers.expect(s, pointer, nbytes, op, sign)


@stateful("nvvm.mbarrier.arrive.nocomplete", "nvvm.mbarrier.arrive_drop", "nvvm.mbarrier.arrive_drop.expect_tx",
          "nvvm.mbarrier.arrive_drop.nocomplete")  # fmt: skip
def _arrive_otherwise(tr: Translator, op):
    expects, drops = op.name.endswith("expect_tx"), "drop" in op.name

    def arrive(s: State, where: MemRef, extra: np.ndarray | None = None) -> np.ndarray:
        barriers = engine_of(s).barriers
        count = extra if not expects and extra is not None else np.ones((1, 1), np.int32)
        if drops:  # later phases expect so many fewer
            for b, t, byte in barriers.each(s, where):
                less = s.m.number(count, b, t)
                barriers.find(b, t, where, byte, op, barriers.rank(where, b, t)).count -= less
        return barriers.arrive(s, where, extra if expects else None, op, count)

    return arrive


@stateful("nvvm.cp.async.mbarrier.arrive")
def _after_copies(tr: Translator, op):
    """Arrives once the cp.asyncs issued so far are done. Without `noinc` the phase waits for this arrival on top of
    those that the mbarrier was made for."""
    extra = not flag(op, "noinc")

    def note(s: State, where: MemRef) -> None:
        engine, m, mask = engine_of(s), s.m, s.mask
        so_far, active = m.copies.issued, active_threads(s)
        if extra:
            for b, t, byte in engine.barriers.each(s, where):
                engine.barriers.find(b, t, where, byte, op).pending += 1

        def arrive() -> None:
            finish(m, m.copies.take(active, lambda c: c.number < so_far))
            engine.barriers.arrive(State(s.r, mask, m), where, None, op)

        engine.start(arrive)

    return note


# -- nvgpu: groups of mbarriers


def _group_bytes(t: ir.Type) -> int:
    return 8 * int(str(t).split("num_barriers =")[1].split(">")[0].split(",")[0])


@stateful("nvgpu.mbarrier.create")
def _create(tr: Translator, op):
    nbytes, name = _group_bytes(op.results[0].type), f"mbarriers {len(tr.numbers) + 1}"
    tr.clocks = True

    def group(s: State) -> MemRef:
        m = s.m
        if name not in m.named:
            m.named[name] = m.allocate(name, "shared", nbytes)
        return MemRef(m.named[name], 0, (), (), 1)

    return group


def nth(group: MemRef, number: np.ndarray) -> MemRef:
    """The n-th mbarrier of a group."""
    return MemRef(group.buffer, group.base + 8 * number.astype(np.int64), (), (), 1)


@stateful("nvgpu.mbarrier.init")
def _group_init(tr: Translator, op):
    tr.clocks = True
    tr.accesses.append(SIZE)

    def init(s: State, group: MemRef, count: np.ndarray, number: np.ndarray, when: np.ndarray | None = None) -> None:
        engine_of(s).barriers.init(s.only(when), nth(group, number), count, op)

    return init


@stateful("nvgpu.mbarrier.arrive", "nvgpu.mbarrier.arrive.nocomplete")
def _group_arrive(tr: Translator, op):
    return lambda s, group, at, count=1: engine_of(s).barriers.arrive(s, nth(group, at), None, op, count)


@stateful("nvgpu.mbarrier.arrive.expect_tx")
def _group_expect(tr: Translator, op):
    return lambda s, group, nbytes, at, when=None: engine_of(s).barriers.arrive(
        s.only(when), nth(group, at), nbytes, op
    )


@rule("nvgpu.mbarrier.try_wait.parity", "nvgpu.mbarrier.test.wait")
def _group_wait(tr: Translator, op):
    tr.waits = tr.clocks = True
    by_token = op.name.endswith("test.wait")
    group, phase, number = tr.reg(op.operands[0]), tr.reg(op.operands[1]), tr.reg(op.operands[2 if by_token else 3])
    out = tr.reg(op.results[0]) if len(op.results) else None

    def run(s: State):
        where, parity = nth(s.r[group], s.r[number]), s.r[phase].astype(np.int64)
        yield from wait_for(s, where, parity, op) if out is None else _heard(s, where, parity, out, op)

    return waiting(run)
