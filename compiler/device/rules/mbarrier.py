"""mbarriers (PTX ISA, "Parallel Synchronization and Communication Instructions": mbarrier), which nvvm has by their
addresses and nvgpu by their numbers in a group."""

from __future__ import annotations

import numpy as np

from mlirc.device.attributes import flag
from mlirc.device.copies import active_threads, finish
from mlirc.device.declare import stateful, waiting
from mlirc.device.engine import engine_of
from mlirc.device.machine import State
from mlirc.device.mbarriers import SIZE
from mlirc.device.memory import MemRef
from mlirc.device.sync import Wait
from mlirc.device.translate import Translator
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


@stateful(*(f"nvvm.mbarrier.{arrival}{how}" for arrival in ("arrive", "arrive_drop")
            for how in ("", ".expect_tx", ".nocomplete")))  # fmt: skip
def _arrive(tr: Translator, op):
    expects, drops = op.name.endswith("expect_tx"), "drop" in op.name

    def arrive(s: State, where: MemRef, extra: np.ndarray | None = None) -> np.ndarray:
        barriers = engine_of(s).barriers
        count = 1 if expects or extra is None else extra
        if drops:  # later phases expect so many fewer
            for b, t, byte in barriers.each(s, where):
                less = s.m.number(count, b, t)
                barriers.find(b, t, where, byte, op, barriers.rank(where, b, t)).count -= less
        return barriers.arrive(s, where, extra if expects else None, op, count)

    return arrive


@stateful("nvvm.mbarrier.expect_tx", "nvvm.mbarrier.complete_tx")
def _expect(tr: Translator, op):
    sign = 1 if op.name.endswith("expect_tx") else -1
    return lambda s, pointer, nbytes: engine_of(s).barriers.expect(s, pointer, nbytes, op, sign)


@stateful("nvvm.mbarrier.try_wait.parity")
def _wait(tr: Translator, op):
    tr.waits = tr.clocks = True  # warpgroups may wait for each other
    return waiting(lambda s, pointer, parity, *_: wait_for(s, pointer, parity, op))


@stateful("nvvm.mbarrier.test.wait", "nvvm.mbarrier.try_wait")
def _test_wait(tr: Translator, op):
    tr.waits = tr.clocks = True
    return waiting(lambda s, pointer, token, *_: ask(s, pointer, token, op))


def wait_for(s: State, pointer: MemRef, parity: np.ndarray, op):
    """Waits until the phase of the given parity has ended: a generator of events."""
    barriers = engine_of(s).barriers
    for b, t, _ in barriers.each(s, pointer) if pointer.rank is not None else ():
        barriers.own(pointer, b, t, "waits for", op)
    passed = barriers.passed(s, pointer, parity, op)
    if not passed():
        yield Wait(
            passed,
            lambda k: barriers.describe(s, pointer, parity, op, k),
            s.m.everyone(s.mask), op,
            still=lambda: barriers.waiting(s, pointer, parity, op),
        )  # fmt: skip
    barriers.reached(s, pointer, op)


def ask(s: State, pointer: MemRef, parity: np.ndarray, op):
    """test_wait and try_wait: they may say no as long as the thread cannot know better, and do so the first time. Who
    asks again waits, as a loop around them would. Where nobody looks at the answer, there was no wait. A generator of
    events, which returns the answer."""
    if not list(op.results[0].uses):
        return np.zeros((1, 1), bool)
    m = s.m
    yes = m.everyone(s.mask) & ~engine_of(s).barriers.ask(s, pointer, parity, op)
    if yes.any():
        yield from wait_for(State(s.r, yes, m), pointer, parity, op)
    return yes


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

    return lambda s: MemRef(s.m.own_array(name, name, "shared", nbytes), 0, (), (), 1)


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
    def arrive(s: State, group: MemRef, nbytes: np.ndarray, at: np.ndarray, when: np.ndarray | None = None) -> None:
        engine_of(s).barriers.arrive(s.only(when), nth(group, at), nbytes, op)

    return arrive


@stateful("nvgpu.mbarrier.try_wait.parity", "nvgpu.mbarrier.test.wait")
def _group_wait(tr: Translator, op):
    tr.waits = tr.clocks = True
    how = ask if op.name.endswith("test.wait") else wait_for
    return waiting(lambda s, group, phase, *rest: how(s, nth(group, rest[-1]), phase.astype(np.int64), op))
