"""What operations do to shadows. A shadow is an array like the value that it belongs to: origins (uint8, 0: defined).

Arithmetic on an undefined operand is undefined. What moves values around, or reads them from memory, runs again with
other bits in the undefined places: what then differs depends on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirc.device.inline_asm import tied, whole_struct
from mlirc.device.machine import State
from mlirc.device.memory import MemRef
from mlirc.device.numbers import spread
from mlirc.device.shadows.origins import DEFINED, Shadows

_PATTERNS = (0x3C, 0x7F, 0xFE, 0xFF)  # bytes: small numbers, large ones, large negative ones, NaN
_POISON = ("ub.poison", "llvm.mlir.poison", "llvm.mlir.undef")
_DECIDING = {"scf.if": 1, "scf.for": 3, "scf.index_switch": 1, "scf.while": 0, "scf.execute_region": 0}
_VALUES: dict[str, tuple[int, ...]] = {  # of what touches memory, the operands that are no addresses
    "memref.store": (0,), "vector.store": (0,), "llvm.store": (0,), "memref.atomic_rmw": (0,), "llvm.atomicrmw": (1,),
    "llvm.cmpxchg": (1, 2), "nvvm.stmatrix": (1, 2, 3, 4), "memref.load": (), "vector.load": (), "llvm.load": (),
    "memref.generic_atomic_rmw": (), "nvgpu.device_async_copy": (), "nvvm.cp.async.shared.global": (),
    "nvgpu.ldmatrix": (), "nvvm.ldmatrix": (), "memref.copy": (),
}  # fmt: skip
_COPIES = ("nvgpu.device_async_copy", "nvvm.cp.async.shared.global")
_ATOMIC = ("memref.atomic_rmw", "memref.generic_atomic_rmw", "llvm.atomicrmw", "llvm.cmpxchg")
_MATRICES = ("nvgpu.ldmatrix", "nvvm.ldmatrix")
_PRODUCTS = ("nvvm.wgmma.mma_async", "llvm.inline_asm")
_ONCE = ("nvvm.mbarrier.", "nvgpu.device_async", "memref.alloc")  # what cannot run again
_DOMINANT = {"arith.andi": 0, "arith.ori": -1}  # the operand that decides alone


def shadowed(tr: Any, op, step: Callable) -> Callable:
    """The step, with the shadows of its results."""
    shadows: Shadows = tr.shadows
    ins, outs = [tr.reg(v) for v in op.operands], [tr.reg(v) for v in op.results]
    name = op.name
    if name in _DECIDING:
        return _wrapped(step, _decides(shadows, ins[: _DECIDING[name]], op), None)
    if name in _POISON:
        return _wrapped(step, None, _makes(shadows, outs[0], op)) if outs else step
    if name in _VALUES:
        return _access(shadows, step, op, ins, outs)
    if name in _PRODUCTS:
        return _product(shadows, step, op, ins, outs)
    if not outs or name.startswith(_ONCE):
        return _wrapped(step, _decides(shadows, ins, op), _mixes(ins, outs)) if ins else step
    if name == "arith.select":
        return _wrapped(step, None, lambda s: _put(s.r, outs[0], _selected(s.r, ins)))
    if name in _DOMINANT:
        return _wrapped(step, None, lambda s: _put(s.r, outs[0], _decided(s.r, ins, _DOMINANT[name])))
    if name.split(".")[0] in ("arith", "affine"):
        return _wrapped(step, _forget, _notes(_mixes(ins, outs), shadows, outs[-1], op))
    if name.startswith("math.") or name in ("vector.fma", "vector.reduction"):
        return _wrapped(step, None, _mixes(ins, outs))
    if hasattr(step, "waits"):
        return _wrapped(step, None, _mixes(ins, outs))
    return _wrapped(step, None, _moves(step, ins, outs))


def _wrapped(step: Callable, before: Callable | None, after: Callable | None, anew: bool = False) -> Callable:
    """A step with what is to be done before it and after it; `anew`: before it goes on, too, where others may have run
    since."""

    def run(s: State) -> None:
        if before is not None:
            before(s)
        step(s)
        if after is not None:
            after(s)

    def wait(s: State):
        if before is not None:
            before(s)
        for event in step(s):  # type: ignore[attr-defined]
            yield event
            if before is not None and anew:
                before(s)
        if after is not None:
            after(s)

    if hasattr(step, "waits"):
        wait.waits = True  # type: ignore[attr-defined]
        return wait
    return run


def _put(r: list, register: int, shadow: np.ndarray) -> None:
    r[register + 1] = shadow if shadow is not DEFINED and shadow.any() else DEFINED


def _flat(shadow: np.ndarray) -> np.ndarray:
    """A shadow per thread."""
    return shadow if shadow.ndim == 2 else shadow.reshape(*shadow.shape[:2], -1).max(axis=2)


def _like(value: Any, shadow: np.ndarray) -> np.ndarray:
    """A shadow per thread, for a value that may be a vector."""
    return spread(shadow, value.ndim - 2) if isinstance(value, np.ndarray) else shadow


def decides(s: State, shadows: Shadows, register: int, what: str, op) -> None:
    """A finding if a value that decides what threads do next is undefined."""
    shadow = s.r[register + 1]
    if shadow is DEFINED:
        return
    flat = _flat(shadow)
    bad = s.m.active(s.mask, flat != 0)
    if bad is not None:
        shadows.complain(s.m, bad, flat, what, op)


def _decides(shadows: Shadows, registers: list[int], op) -> Callable:
    what = {"scf.for": "runs a loop whose bounds are a value", "scf.if": "takes a branch by a value",
            "scf.index_switch": "takes a branch by a value"}.get(op.name, "takes an operand")  # fmt: skip

    def before(s: State) -> None:
        for x in registers:
            decides(s, shadows, x, what, op)

    return before


def _makes(shadows: Shadows, out: int, op) -> Callable:
    number = shadows.number(op)

    def after(s: State) -> None:
        s.r[out + 1] = np.full(s.r[out].shape, number, np.uint8)

    return after


# -- values


def _selected(r: list, ins: list[int]) -> np.ndarray:
    c, a, b = ins
    shadows = [r[x + 1] for x in ins]
    if all(x is DEFINED for x in shadows):
        return DEFINED
    if isinstance(r[a], MemRef):
        return np.maximum(shadows[0], np.maximum(shadows[1], shadows[2]))
    rank = max(r[a].ndim, r[b].ndim) - 2
    decision, shadow = (spread(x, rank) if x.ndim == 2 else x for x in (r[c], shadows[0]))
    return np.where(shadow, shadow, np.where(decision, shadows[1], shadows[2]))


def _decided(r: list, ins: list[int], dominant: int) -> np.ndarray:
    """Of `and` and `or`: defined where one operand decides alone."""
    (a, b), (x, y) = (r[i] for i in ins), (r[i + 1] for i in ins)
    if x is DEFINED and y is DEFINED:
        return DEFINED
    top = np.array(dominant).astype(a.dtype)
    alone = ((a == top) & (x == 0)) | ((b == top) & (y == 0))
    return np.where(alone, 0, np.maximum(x, y))


def _mixes(ins: list[int], outs: list[int]) -> Callable:
    def after(s: State) -> None:
        found = [x for x in (s.r[i + 1] for i in ins) if x is not DEFINED]
        for out in outs:
            if not found:
                s.r[out + 1] = DEFINED
                continue
            value, total = s.r[out], DEFINED
            for x in found:
                rank = value.ndim if isinstance(value, np.ndarray) else 2
                total = np.maximum(total, x if x.ndim == rank else _like(value, _flat(x)))
            _put(s.r, out, total)

    return after


def _forget(s: State) -> None:
    s.m.undefined = None


def _notes(mixes: Callable, shadows: Shadows, out: int, op) -> Callable:
    """Besides, arithmetic without a meaning makes an undefined value."""

    def after(s: State) -> None:
        mixes(s)
        bad = s.m.undefined
        if bad is not None:
            bad = bad if s.mask is None else bad & _like(bad, np.asarray(s.mask))
            _put(s.r, out, np.where(bad, np.uint8(shadows.number(op)), s.r[out + 1]).astype(np.uint8))

    return after


def _moves(step: Callable, ins: list[int], outs: list[int]) -> Callable:
    def after(s: State) -> None:
        _again(s, step, ins, outs)

    return after


def _again(s: State, step: Callable, ins: list[int], outs: list[int]) -> None:
    """The shadows of results, by running the step again with other bits in what is undefined."""
    m: Any = s.m
    r = s.r
    shades = {i: r[i + 1] for i in dict.fromkeys(ins) if r[i + 1] is not DEFINED}
    seen = m.seen
    if not shades and seen is None:
        for out in outs:
            r[out + 1] = DEFINED
        return
    number = max([int(x.max()) for x in shades.values()] + ([int(seen.max())] if seen is not None else []))
    values, results = {i: r[i] for i in shades}, []
    if any(isinstance(v, MemRef) for v in [*values.values(), *(r[o] for o in outs)]):
        return _mixes(ins, outs)(s)
    try:
        for pattern in _PATTERNS:
            m.pattern = pattern
            for i, shade in shades.items():
                r[i] = _other(values[i], shade, pattern)
            step(s)
            results.append([r[o] for o in outs])
    finally:
        m.pattern = None
        for i, value in values.items():
            r[i] = value
        step(s)
        m.seen = None
    for k, out in enumerate(outs):
        differs = np.logical_or.reduce([_differ(results[0][k], x[k]) for x in results[1:]])
        _put(r, out, np.where(differs, np.uint8(number), np.uint8(0)))


def _other(value: Any, shadow: np.ndarray, pattern: int) -> Any:
    """A value with other bits where it has a shadow."""
    if isinstance(value, tuple):
        return tuple(_other(v, shadow, pattern) for v in value)
    flags = (shadow if shadow.ndim == value.ndim else _like(value, _flat(shadow))) != 0
    if value.dtype == np.bool_:
        fill: Any = pattern in (0x3C, 0xFE)
    else:
        fill = np.frombuffer(bytes([pattern]) * value.dtype.itemsize, dtype=value.dtype)[0]
    return np.where(flags, fill, value).astype(value.dtype, copy=False)


def _differ(a: Any, b: Any) -> np.ndarray:
    """Where two values have other bits; of tuples, per thread."""
    if isinstance(a, tuple):
        return np.logical_or.reduce(np.broadcast_arrays(*(_differ(x, y) for x, y in zip(a, b, strict=True))))
    x, y = (np.ascontiguousarray(v) for v in np.broadcast_arrays(a, b))
    if x.dtype == np.bool_:
        return x != y
    return x.view(f"u{x.dtype.itemsize}") != y.view(f"u{x.dtype.itemsize}")


# -- memory


def _access(shadows: Shadows, step: Callable, op, ins: list[int], outs: list[int]) -> Callable:
    name, values = op.name, [ins[k] for k in _VALUES[op.name] if k < len(ins)]
    addresses = [x for x in ins if x not in values]

    def before(s: State) -> None:
        m: Any = s.m
        r = s.r
        for x in addresses:
            decides(s, shadows, x, "takes an address from a value", op)
        m.seen, m.storing, m.through = None, None, name == "memref.copy"
        marked = [r[x + 1] for x in values if r[x + 1] is not DEFINED]
        if marked and name in _ATOMIC:
            m.storing = _most(marked)
        elif marked:
            m.storing = _each(marked[0]) if len(marked) == 1 else _most(marked)

    def after(s: State) -> None:
        m: Any = s.m
        r = s.r
        if name in _ATOMIC and m.storing is not None:
            m.changed(m.storing[..., 0], op)
        m.storing, m.through = None, False
        if name in _COPIES and m.copies.under_way:
            m.copied(m.copies.under_way[-1])
        if name in _MATRICES:
            _again(s, step, ins, outs)
        elif outs:
            seen, total = m.seen, DEFINED
            if seen is not None:
                value = r[outs[0]]
                total = seen if isinstance(value, np.ndarray) and value.ndim == 3 else _flat(seen)
            for x in values:
                if r[x + 1] is not DEFINED and name in _ATOMIC:
                    total = np.maximum(total, r[x + 1])
            _put(r, outs[0], total if name not in _COPIES else DEFINED)
        m.seen = None

    return _wrapped(step, before, after, anew=True)


def _each(shadow: np.ndarray) -> np.ndarray:
    """A shadow with a dimension for the elements of an access."""
    return shadow[..., None] if shadow.ndim == 2 else shadow.reshape(*shadow.shape[:2], -1)


def _most(shadows: list[np.ndarray]) -> np.ndarray:
    """One shadow per thread of several values."""
    total = DEFINED
    for x in shadows:
        total = np.maximum(total, _flat(x))
    return total[..., None]


# -- products of warpgroups


def _product(shadows: Shadows, step: Callable, op, ins: list[int], outs: list[int]) -> Callable:
    if op.name == "nvvm.wgmma.mma_async":
        registers, whole = ins[:1], True
    else:
        order = {result: operand for operand, result in tied(op).items()}
        registers, whole = [ins[order[k]] for k in sorted(order)], whole_struct(op)
    given = _decides(shadows, [x for x in ins if x not in registers], op)

    def before(s: State) -> None:
        m: Any = s.m
        given(s)
        shades = [s.r[x + 1] for x in registers]
        m.product, m.accumulator = None, DEFINED
        if any(x is not DEFINED for x in shades):
            m.accumulator = shades[0] if whole else np.stack(np.broadcast_arrays(*map(_flat, shades)), axis=-1)

    def after(s: State) -> None:
        m: Any = s.m
        _put(s.r, outs[0], DEFINED if m.product is None else m.product)

    return _wrapped(step, before, after)
