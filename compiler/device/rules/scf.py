"""Structured control flow on masks: a branch that only some threads take runs with the others inactive, a loop goes on
until its last thread is done. Where the two sides of a branch can wait for each other (barriers inside), they run as
separate groups of threads."""

from __future__ import annotations

import numpy as np

from mlirc.device.attributes import integers
from mlirc.device.declare import rule, waiting
from mlirc.device.events import Fork
from mlirc.device.limits import Stop, most_turns
from mlirc.device.loop_ends import Ending, ending, too_many, turns_left, unchanged
from mlirc.device.machine import State
from mlirc.device.memory import MemRef, merge_windows
from mlirc.device.numbers import spread
from mlirc.device.shadows.rules import decides
from mlirc.device.spins import give_way, is_spin
from mlirc.device.translate import Code, Translator
from mlirc.errors import MlircError


def endless(s: State, op, why: str, who=None) -> Stop:
    """Reports a loop that does not end for `who` (None: the active threads); the launch cannot go on."""
    everyone = s.m.everyone(s.mask)
    s.m.complain("endless loop", everyone if who is None else who, why, op)
    return Stop()


def _as_step(run, waits: bool):
    """A generator function as a step: kept as it is when it may wait, else driven to its end."""
    if waits:
        return waiting(run)

    def step(s: State) -> None:
        for _ in run(s):
            pass

    return step


def _inside(code: Code, s: State):
    if code.waits:
        yield from code.start(s)
    else:
        code.run(s)


def merge(c: np.ndarray, a, b):
    """Per thread a where c, else b; None is what threads have that never got there. Raises MlircError for memrefs that
    are no windows of one buffer."""
    if a is b:
        return a
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(merge(c, x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a if b is None else b
    if isinstance(a, MemRef) and isinstance(b, MemRef):
        return merge_windows(c, a, b)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        raise MlircError("host device: threads that took two ways have values that cannot be put together")
    return np.where(spread(c, max(a.ndim, b.ndim) - 2), a, b)


def _hand(r: list, given: list[int], taken: list[int]) -> None:
    """Puts what some registers hold into others, all at once."""
    for x, value in zip(taken, [r[i] for i in given], strict=True):
        r[x] = value


@rule("scf.if")
def _if(tr: Translator, op):
    condition, outs = tr.reg(op.operands[0]), tr.handed(op.results)
    then, then_values = tr.block(op.regions[0].blocks[0])
    has_else = len(op.regions[1].blocks) > 0
    other, other_values = tr.block(op.regions[1].blocks[0]) if has_else else (Code(), [])
    waits = then.waits or other.waits
    then_values, other_values = tr.moved(then_values), tr.moved(other_values)

    def run(s: State):
        r, mask, c = s.r, s.mask, s.r[condition]
        yes, no = (c, ~c) if mask is None else (c & mask, ~c & mask)
        some, rest = yes.any(), no.any()
        if not rest or not some:
            yield from _inside(then if some else other, s)
            _hand(r, then_values if some else other_values, outs)
            return
        if waits:
            yield Fork([(then, State(r, yes, s.m, s.watch)), (other, State(r, no, s.m, s.watch))])
        else:
            s.mask = yes
            then.run(s)
            if other.steps:
                s.mask = no
                other.run(s)
            s.mask = mask
        for out, a, b in zip(outs, then_values, other_values, strict=False):
            r[out] = merge(c, r[a], r[b])

    return _as_step(run, waits)


def _number(x: np.ndarray, mask) -> int | None:
    """The value that all active threads share, or None."""
    if x.size == 1:
        return int(x.flat[0])
    if mask is not None:
        x, active = np.broadcast_arrays(x, mask)
        x = x[active]
    first = x.flat[0]
    return int(first) if (x == first).all() else None


@rule("scf.for")
def _for(tr: Translator, op):
    lo, hi, stride = (tr.reg(v) for v in list(op.operands)[:3])
    block = op.regions[0].blocks[0]
    inits, iv = tr.handed(list(op.operands)[3:]), tr.reg(block.arguments[0])
    carried, (body, yielded) = tr.handed(list(block.arguments)[1:]), tr.block(block)
    yielded, outs = tr.moved(yielded), tr.handed(op.results)
    dtype = np.int64 if str(block.arguments[0].type) == "index" else np.dtype(f"i{block.arguments[0].type.width // 8}")

    def run(s: State):
        r = s.r
        _hand(r, inits, carried)
        bounds = [_number(r[x], s.mask) for x in (lo, hi, stride)]
        if None in bounds:
            yield from masked(s)
        else:
            first, last, by = bounds
            check_range(s, first, last, by)  # type: ignore[arg-type]
            for i in range(first, last, by):  # type: ignore[arg-type]
                r[iv] = np.full((1, 1), i, dtype=dtype)
                s.m.deadline.check(s.m, s.mask, op)
                yield from _inside(body, s)
                _hand(r, yielded, carried)
        _hand(r, carried, outs)

    def check_range(s: State, first: int, last: int, by: int) -> None:
        what = f"would run from {first} to {last} by {by}"
        if by <= 0:
            raise endless(s, op, f"{what}: make the step a positive number")
        turns = -(-max(last - first, 0) // by)
        if why := too_many(turns, s.m.deadline.seconds):
            raise endless(s, op, f"{what}: {why}")
        if turns and first + turns * by > np.iinfo(dtype).max:
            raise endless(
                s, op, f"{what}: its counter, of {np.dtype(dtype).itemsize * 8} bits, overflows before the end"
            )

    def masked(s: State):
        r, outer = s.r, s.mask
        i, top, by = r[lo], r[hi], r[stride]
        active = i < top if outer is None else (i < top) & outer
        turns = (top.astype(np.float64) - i) / np.maximum(by, 1)
        bad = s.m.active(outer, (i < top) & ((by <= 0) | (turns > most_turns(s.m.deadline.seconds))))
        if bad is not None:
            s.mask = bad
            check_range(s, *(int(s.m.compress(x, s.m.lanes(bad))[0]) for x in (i, top, by)))
        while active.any():
            s.mask = None if active.all() else active
            s.m.deadline.check(s.m, s.mask, op)
            r[iv] = i
            old = [r[a] for a in carried]
            yield from _inside(body, s)
            new = [r[y] for y in yielded]
            for a, o, v in zip(carried, old, new, strict=True):
                r[a] = merge(active, v, o)
            i = i + by
            active = active & (i < top)
        s.mask = outer

    return _as_step(run, body.waits)


def _equal(a, b, mask) -> bool:
    """Whether two values are the same for all active threads."""
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return a is b
    same = a == b
    while same.ndim > 2:
        same = same.all(axis=-1)
    return bool((same if mask is None else same | ~mask).all())


@rule("scf.while")
def _while(tr: Translator, op):
    before, after = op.regions[0].blocks[0], op.regions[1].blocks[0]
    before_args, after_args = tr.handed(before.arguments), tr.handed(after.arguments)
    test, (condition, *passed) = tr.block(before)
    body, yielded = tr.block(after)
    inits, outs = tr.handed(op.operands), tr.handed(op.results)
    passed, yielded = tr.moved(passed), tr.moved(yielded)
    spins = is_spin(op)
    waits = test.waits or body.waits or spins
    end = Ending(None) if spins else ending(op)
    goal = tr.reg(end.counter[2]) if end.counter else 0

    def check_end(s: State, before: list, now: list, first: bool) -> None:
        """Stops at a turn that shows that no other one will be the last. `before`: the loop's values at an earlier
        turn; what the condition depends on goes round in a circle if it comes back to them."""
        if end.carried is None:
            return
        same = unchanged([before[i] for i in end.carried], [now[i] for i in end.carried])
        never = s.m.active(s.mask, np.asarray(same).reshape(np.shape(same) or (1, 1)))
        if never is not None:
            raise endless(
                s, op, "never leaves this loop: what its condition depends on comes back to what it was", never
            )
        if first and end.counter:
            number, predicate, _ = end.counter
            left = turns_left(predicate, before[number], now[number], s.r[goal], s.mask)
            if left == np.inf:
                raise endless(s, op, "never leaves this loop: its counter goes away from its end")
            if why := too_many(left, s.m.deadline.seconds):
                raise endless(s, op, f"stays in this loop for {why}")

    def run(s: State):
        r, outer, watch = s.r, s.mask, s.watch
        _hand(r, inits, before_args)
        active, final, turns = outer, [None] * len(outs), 0
        earlier: list = []
        while True:
            turns += 1
            s.watch = [] if spins else watch
            s.m.deadline.check(s.m, s.mask, op)
            given = [r[a] for a in before_args]
            yield from _inside(test, s)
            if tr.shadows is not None:
                decides(s, tr.shadows, condition, "goes on with a loop by a value", op)
            c = r[condition] if active is None else r[condition] & active
            values = [r[p] for p in passed]
            if active is None:
                final = values
            else:
                final = [v if f is None else merge(active, v, f) for f, v in zip(final, values, strict=True)]
            if not c.any():
                break
            active = None if active is None and c.all() else c
            s.mask = active
            for a, v in zip(after_args, values, strict=True):
                r[a] = v
            yield from _inside(body, s)
            fresh = [r[y] for y in yielded]
            earlier = given if turns == 1 else earlier
            check_end(s, earlier, fresh, turns == 1)
            if turns & (turns - 1) == 0:  # R. P. Brent, "An improved Monte Carlo factorization algorithm", section 3
                earlier = fresh
            if spins:
                still = all(_equal(was, v, active) for was, v in zip(given, fresh, strict=True))
                yield from give_way(s, outer, still, tr.signals, op)
            for a, v in zip(before_args, fresh, strict=True):
                r[a] = v
        s.mask, s.watch = outer, watch
        for out, v in zip(outs, final, strict=True):
            r[out] = v

    return _as_step(run, waits)


@rule("scf.execute_region")
def _execute_region(tr: Translator, op):
    body, yielded = tr.block(op.regions[0].blocks[0])
    yielded, outs = tr.moved(yielded), tr.handed(op.results)

    def run(s: State):
        yield from _inside(body, s)
        _hand(s.r, yielded, outs)

    return _as_step(run, body.waits)


@rule("scf.index_switch")
def _switch(tr: Translator, op):
    selector, outs = tr.reg(op.operands[0]), tr.handed(op.results)
    cases = integers(op, "cases")
    found = [tr.block(region.blocks[0]) for region in op.regions]
    default, *regions = [(code, tr.moved(values)) for code, values in found]
    waits = any(code.waits for code, _ in [default, *regions])

    def run(s: State):
        r, mask, x = s.r, s.mask, s.r[selector]
        rest = np.ones((1, 1), bool) if mask is None else mask
        chosen = []
        for value, (code, values) in zip(cases, regions, strict=True):
            chosen.append((rest & (x == value), code, values))
            rest = rest & (x != value)
        chosen.append((rest, *default))
        chosen = [c for c in chosen if c[0].any()]
        if waits and len(chosen) > 1:
            yield Fork([(code, State(r, m, s.m, s.watch)) for m, code, _ in chosen])
        else:
            for m, code, _ in chosen:
                s.mask = m if len(chosen) > 1 else mask
                yield from _inside(code, s)
            s.mask = mask
        for i, out in enumerate(outs):
            total = r[chosen[0][2][i]]
            for m, _, values in chosen[1:]:
                total = merge(m, r[values[i]], total)
            r[out] = total

    return _as_step(run, waits)
