"""vector on arrays: a vector's dimensions follow those of blocks and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from mlirc.host.device.declare import rule
from mlirc.host.device.machine import State
from mlirc.host.device.numbers import dtype_of, vector_shape
from mlirc.host.device.rules.arith import FLOAT, unary
from mlirc.host.device.translate import Translator
from mlirc.mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()


def _position(op, what: str) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes[what]))


def _integers(op, what: str) -> list[int]:
    return [ir.IntegerAttr(a).value for a in ir.ArrayAttr(op.attributes[what])]


def _pick(v: np.ndarray, position: list) -> np.ndarray:
    """v at a position of its vector dimensions, some of which may be arrays per thread."""
    for p in position:
        if isinstance(p, int):
            v = v[:, :, p]
        else:
            blocks, threads = (max(a, b) for a, b in zip(v.shape[:2], p.shape, strict=True))
            full = np.broadcast_to(v, (blocks, threads, *v.shape[2:]))
            where = np.broadcast_to(p, (blocks, threads)).reshape((blocks, threads, 1) + (1,) * (v.ndim - 3))
            v = np.take_along_axis(full, where, axis=2)[:, :, 0]
    return v


@rule("vector.extract")
def _extract(tr: Translator, op):
    source, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    static, dynamic = _position(op, "static_position"), [tr.reg(v) for v in list(op.operands)[1:]]
    if not dynamic:
        where = (slice(None), slice(None), *static)

        def simple(s: State) -> None:
            s.r[out] = s.r[source][where]

        return simple

    def step(s: State) -> None:
        rest = [s.r[d] for d in dynamic]
        s.r[out] = _pick(s.r[source], [rest.pop(0) if p == _DYNAMIC else p for p in static])

    return step


@rule("vector.insert")
def _insert(tr: Translator, op):
    value, target = (tr.reg(v) for v in list(op.operands)[:2])
    out, static = tr.reg(op.results[0]), _position(op, "static_position")
    if _DYNAMIC in static:
        raise tr.refused(op, "a dynamic position is not supported")
    where: tuple = (slice(None), slice(None), *static)

    def step(s: State) -> None:
        v, t = s.r[value], s.r[target]
        lead = np.broadcast_shapes(v.shape[:2], t.shape[:2])
        result = np.broadcast_to(t, (*lead, *t.shape[2:])).copy()
        result[where] = v
        s.r[out] = result

    return step


@rule("vector.from_elements")
def _from_elements(tr: Translator, op):
    parts, out = [tr.reg(v) for v in op.operands], tr.reg(op.results[0])
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)

    def step(s: State) -> None:
        values = [s.r[p] for p in parts]
        lead = np.broadcast_shapes(*{v.shape for v in values})
        result = np.empty((*lead, len(values)), dtype=dtype)
        for i, v in enumerate(values):
            result[..., i] = v
        s.r[out] = result.reshape((*lead, *shape))

    return step


@rule("vector.to_elements")
def _to_elements(tr: Translator, op):
    source, outs = tr.reg(op.operands[0]), [tr.reg(v) for v in op.results]

    def step(s: State) -> None:
        flat = s.r[source].reshape((*s.r[source].shape[:2], -1))
        for i, o in enumerate(outs):
            s.r[o] = flat[..., i]

    return step


@rule("vector.broadcast", "vector.splat")
def _broadcast(tr: Translator, op):
    shape = vector_shape(op.results[0].type)
    rank = len(vector_shape(op.operands[0].type))

    def f(a: np.ndarray) -> np.ndarray:
        inner = a.reshape(a.shape[:2] + (1,) * (len(shape) - rank) + a.shape[2:])
        return np.broadcast_to(inner, (*a.shape[:2], *shape))

    return unary(tr, op, f)


@rule("vector.shape_cast")
def _shape_cast(tr: Translator, op):
    shape = vector_shape(op.results[0].type)
    return unary(tr, op, lambda a: a.reshape((*a.shape[:2], *shape)))


@rule("vector.bitcast")
def _bitcast(tr: Translator, op):
    dtype, shape = dtype_of(op.results[0].type), vector_shape(op.results[0].type)
    return unary(tr, op, lambda a: np.ascontiguousarray(a).view(dtype).reshape((*a.shape[:2], *shape)))


@rule("vector.extract_strided_slice")
def _extract_slice(tr: Translator, op):
    offsets, sizes, strides = (_integers(op, n) for n in ("offsets", "sizes", "strides"))
    where = (slice(None), slice(None)) + tuple(
        slice(o, o + (n - 1) * st + 1, st) for o, n, st in zip(offsets, sizes, strides, strict=True)
    )
    return unary(tr, op, lambda a: a[where])


@rule("vector.insert_strided_slice")
def _insert_slice(tr: Translator, op):
    value, target = (tr.reg(v) for v in op.operands)
    out, offsets = tr.reg(op.results[0]), _integers(op, "offsets")
    shape = vector_shape(op.operands[0].type)
    lead = len(offsets) - len(shape)
    where: tuple = (slice(None), slice(None), *offsets[:lead])
    where += tuple(slice(o, o + n) for o, n in zip(offsets[lead:], shape, strict=True))

    def step(s: State) -> None:
        v, t = s.r[value], s.r[target]
        result = np.broadcast_to(t, (*np.broadcast_shapes(v.shape[:2], t.shape[:2]), *t.shape[2:])).copy()
        result[where] = v
        s.r[out] = result

    return step


@rule("vector.shuffle")
def _shuffle(tr: Translator, op):
    a, b = (tr.reg(v) for v in op.operands)
    out, order = tr.reg(op.results[0]), np.array(_position(op, "mask"))

    def step(s: State) -> None:
        x, y = s.r[a], s.r[b]
        lead = np.broadcast_shapes(x.shape[:2], y.shape[:2])
        both = np.concatenate([np.broadcast_to(v, (*lead, *v.shape[2:])) for v in (x, y)], axis=2)
        s.r[out] = both[:, :, order]

    return step


_REDUCTIONS: dict[str, Callable] = {
    "add": np.add,
    "mul": np.multiply,
    "minnumf": FLOAT["arith.minnumf"],
    "maxnumf": FLOAT["arith.maxnumf"],
    "minimumf": FLOAT["arith.minimumf"],
    "maximumf": FLOAT["arith.maximumf"],
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@rule("vector.reduction")
def _reduction(tr: Translator, op):
    kind = str(op.attributes["kind"]).split("<")[-1].rstrip(">")
    if kind not in _REDUCTIONS:
        raise tr.refused(op, f"<{kind}> is not supported")
    f, dtype = _REDUCTIONS[kind], dtype_of(op.results[0].type)
    operands, out = [tr.reg(v) for v in op.operands], tr.reg(op.results[0])
    # LLVM's sum of floats starts from 0, which a sum of -0 shows.
    start = [np.zeros((1, 1), dtype)] if kind == "add" and dtype.kind not in "iub" else []

    def step(s: State) -> None:
        v = s.r[operands[0]]
        parts = [s.r[operands[1]]] if len(operands) > 1 else list(start)
        parts += [v[:, :, i] for i in range(v.shape[2])]
        total = functools.reduce(f, parts)
        s.r[out] = total.astype(dtype)

    return step


@rule("vector.interleave")
def _interleave(tr: Translator, op):
    a, b = (tr.reg(v) for v in op.operands)
    out = tr.reg(op.results[0])

    def step(s: State) -> None:
        x, y = np.broadcast_arrays(s.r[a], s.r[b])
        s.r[out] = np.stack([x, y], axis=-1).reshape((*x.shape[:-1], -1))

    return step


@rule("vector.step")
def _step(tr: Translator, op):
    out, n = tr.reg(op.results[0]), vector_shape(op.results[0].type)[0]

    def step(s: State) -> None:
        s.r[out] = np.arange(n, dtype=np.int64).reshape(1, 1, n)

    return step
