"""How the files in rules/ say what an operation does. All of them are found: a new file there is enough.

A rule is a function f(tr, op) that is called once, when a kernel is translated. What it returns depends on what the
operation is:

- `@pure("math.fma")`: g(*operands) -> result, on arrays [blocks or 1, threads or 1, *vector shape], where the results
  depend on the operands alone; a tuple of several results.
- `@stateful("nvvm.vote.sync")`: g(s, *operands) -> result, where they depend on other threads or memory, too, or where
  there is no result and something else is done. One that may wait for other threads is a generator of events, marked
  by `waiting`.
- `@rule("scf.if")`: step(s), which reads and writes `s.r[tr.reg(value)]` itself: control flow, operands that may be
  constants."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from mlirc.device import rules
from mlirc.device.attributes import segments_of
from mlirc.device.machine import State

_rules: dict[str, Callable] = {}


def rule(*names: str) -> Callable:
    """Registers the translation of operations."""

    def add(function: Callable) -> Callable:
        for name in names:
            if name in _rules:
                raise ValueError(f"two rules for {name}: {_rules[name].__module__} and {function.__module__}")
            _rules[name] = function
        return function

    return add


def pure(*names: str) -> Callable:
    """Declares operations by functions of their operands; see above."""

    def add(function: Callable) -> Callable:
        @functools.wraps(function)
        def translation(tr: Any, op: Any) -> Callable:
            return applied(tr, op, function(tr, op))

        rule(*names)(translation)
        return function

    return add


def stateful(*names: str, segments: bool = False) -> Callable:
    """Declares operations by functions of the state of the threads and their operands; see above. `segments`: of an
    operation with several variadic operands, each is a list."""

    def add(function: Callable) -> Callable:
        @functools.wraps(function)
        def translation(tr: Any, op: Any) -> Callable:
            f = function(tr, op)
            return applied_to_segments(tr, op, f) if segments else applied_to_state(tr, op, f)

        rule(*names)(translation)
        return function

    return add


def applied(tr: Any, op: Any, f: Callable) -> Callable:
    """The step that applies f to the operands. Most of a kernel's operations are such: it does no more than it must."""
    ins, outs = [tr.reg(v) for v in op.operands], [tr.reg(v) for v in op.results]
    if len(outs) != 1:

        def several(s: State) -> None:
            for out, value in zip(outs, f(*[s.r[x] for x in ins]), strict=True):
                s.r[out] = value

        return several
    (out,) = outs
    if len(ins) == 1:
        (a,) = ins

        def unary(s: State) -> None:
            s.r[out] = f(s.r[a])

        return unary
    if len(ins) == 2:
        a, b = ins

        def binary(s: State) -> None:
            r = s.r
            r[out] = f(r[a], r[b])

        return binary
    if len(ins) == 3:
        a, b, c = ins

        def ternary(s: State) -> None:
            r = s.r
            r[out] = f(r[a], r[b], r[c])

        return ternary

    def step(s: State) -> None:
        s.r[out] = f(*[s.r[x] for x in ins])

    return step


def applied_to_state(tr: Any, op: Any, f: Callable) -> Callable:
    """The step that applies f to the state and the operands."""
    ins, outs = [tr.reg(v) for v in op.operands], [tr.reg(v) for v in op.results]
    if hasattr(f, "waits"):

        def wait(s: State):
            result = yield from f(s, *[s.r[x] for x in ins])
            for out in outs:
                s.r[out] = result

        return waiting(wait)
    if not outs:
        return lambda s: f(s, *[s.r[x] for x in ins])
    if len(outs) == 1:
        (out,) = outs

        def step(s: State) -> None:
            s.r[out] = f(s, *[s.r[x] for x in ins])

        return step

    def several(s: State) -> None:
        for out, value in zip(outs, f(s, *[s.r[x] for x in ins]), strict=True):
            s.r[out] = value

    return several


def applied_to_segments(tr: Any, op: Any, f: Callable) -> Callable:
    """The step that applies f to the state and a list of the operands of each segment."""
    parts = [[tr.reg(v) for v in part] for part in segments_of(op)]
    outs = [tr.reg(v) for v in op.results]

    def step(s: State) -> None:
        result = f(s, *[[s.r[x] for x in part] for part in parts])
        if outs:
            s.r[outs[0]] = result

    return step


def waiting(step: Callable) -> Callable:
    """Marks a step, or a function of the state, as a generator: it may wait for other threads."""
    step.waits = True  # type: ignore[attr-defined]
    return step


@functools.cache
def all_rules() -> dict[str, Callable]:
    """Every operation's translation, from all files in rules/."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    return _rules
