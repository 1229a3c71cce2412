"""vector on arrays: a vector's dimensions follow those of blocks and threads."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from mlirc.device.attributes import integers, word
from mlirc.device.declare import pure
from mlirc.device.numbers import dtype_of, inserted, together, vector_shape
from mlirc.device.rules.floating_point import FLOAT
from mlirc.device.translate import Translator
from mlirc.mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()


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


@pure("vector.extract")
def _extract(tr: Translator, op):
    static = integers(op, "static_position")
    if len(op.operands) == 1:
        where = (slice(None), slice(None), *static)
        return lambda v: v[where]

    def extract(v, *dynamic):
        rest = list(dynamic)
        return _pick(v, [rest.pop(0) if p == _DYNAMIC else p for p in static])

    return extract


@pure("vector.insert")
def _insert(tr: Translator, op):
    static = integers(op, "static_position")
    if _DYNAMIC in static:
        raise tr.refused(op, "a dynamic position is not supported")
    return inserted((slice(None), slice(None), *static))


@pure("vector.from_elements")
def _from_elements(tr: Translator, op):
    shape, dtype = vector_shape(op.results[0].type), dtype_of(op.results[0].type)

    def gather(*values):  # faster than np.stack
        lead = np.broadcast_shapes(*{v.shape for v in values})
        flat = np.empty((*lead, len(values)), dtype)
        for i, v in enumerate(values):
            flat[..., i] = v
        return flat.reshape((*lead, *shape))

    return gather


@pure("vector.to_elements")
def _to_elements(tr: Translator, op):
    count = len(op.results)

    def elements(v):
        flat = v.reshape((*v.shape[:2], -1))
        return flat[..., 0] if count == 1 else [flat[..., i] for i in range(count)]

    return elements


@pure("vector.broadcast", "vector.splat")
def _broadcast(tr: Translator, op):
    shape = vector_shape(op.results[0].type)
    rank = len(vector_shape(op.operands[0].type))

    def f(a):
        inner = a.reshape(a.shape[:2] + (1,) * (len(shape) - rank) + a.shape[2:])
        return np.broadcast_to(inner, (*a.shape[:2], *shape))

    return f


@pure("vector.shape_cast")
def _shape_cast(tr: Translator, op):
    shape = vector_shape(op.results[0].type)
    return lambda a: a.reshape((*a.shape[:2], *shape))


@pure("vector.bitcast")
def _bitcast(tr: Translator, op):
    dtype, shape = dtype_of(op.results[0].type), vector_shape(op.results[0].type)
    return lambda a: np.ascontiguousarray(a).view(dtype).reshape((*a.shape[:2], *shape))


@pure("vector.extract_strided_slice")
def _extract_slice(tr: Translator, op):
    offsets, sizes, strides = (integers(op, n) for n in ("offsets", "sizes", "strides"))
    where = (slice(None), slice(None)) + tuple(
        slice(o, o + (n - 1) * st + 1, st) for o, n, st in zip(offsets, sizes, strides, strict=True)
    )
    return lambda a: a[where]


@pure("vector.insert_strided_slice")
def _insert_slice(tr: Translator, op):
    offsets, shape = integers(op, "offsets"), vector_shape(op.operands[0].type)
    lead = len(offsets) - len(shape)
    inner = (slice(o, o + n) for o, n in zip(offsets[lead:], shape, strict=True))
    return inserted((slice(None), slice(None), *offsets[:lead], *inner))


@pure("vector.shuffle")
def _shuffle(tr: Translator, op):
    order = np.array(integers(op, "mask"))
    return lambda a, b: np.concatenate(together(a, b), axis=2)[:, :, order]


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


@pure("vector.reduction")
def _reduction(tr: Translator, op):
    kind = word(op, "kind")
    if kind not in _REDUCTIONS:
        raise tr.refused(op, f"<{kind}> is not supported")
    f, dtype = _REDUCTIONS[kind], dtype_of(op.results[0].type)
    # LLVM's sum of floats starts from 0, which a sum of -0 shows.
    start = [np.zeros((1, 1), dtype)] if kind == "add" and dtype.kind not in "iub" else []

    def reduce(v, *first):
        return functools.reduce(f, [*(first or start), *(v[:, :, i] for i in range(v.shape[2]))]).astype(dtype)

    return reduce


@pure("vector.interleave")
def _interleave(tr: Translator, op):
    def interleave(a, b):
        pairs = np.stack(together(a, b), axis=-1)
        return pairs.reshape((*pairs.shape[:-2], -1))

    return interleave


@pure("vector.step")
def _step(tr: Translator, op):
    numbers = np.arange(vector_shape(op.results[0].type)[0], dtype=np.int64).reshape(1, 1, -1)
    return lambda: numbers
