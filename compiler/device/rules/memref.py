"""memref on arrays: windows, their extents, memory of a kernel's own."""

from __future__ import annotations

import math

import numpy as np

from mlirc.device.addresses import fetch, indices_of
from mlirc.device.attributes import integers, number, segments_of
from mlirc.device.declare import pure, rule, stateful
from mlirc.device.machine import State
from mlirc.device.memory import MemRef
from mlirc.device.numbers import item_size
from mlirc.device.translate import Translator
from mlirc.errors import MlircError
from mlirc.ir.tensors import kept_dims
from mlirc.mlir import ir

_DYNAMIC = ir.ShapedType.get_dynamic_size()
_DYNAMIC_OFFSET = ir.ShapedType.get_dynamic_stride_or_offset()


def _mixed(tr: Translator, op, name: str, values: list) -> list:
    """Static numbers with dynamic operands filled in, as numbers or wrapped registers."""
    return [indices_of(tr, [values.pop(0)])[0] if n in (_DYNAMIC, _DYNAMIC_OFFSET) else n for n in integers(op, name)]


def _uniform(x, what: str) -> int:
    """An extent or a stride, which must be the same in all threads."""
    if isinstance(x, int):
        return x
    first = int(x.flat[0])
    if (x != first).any():
        raise MlircError(f"host device: {what} differs between threads")
    return first


@rule("memref.subview", "memref.reinterpret_cast")
def _window(tr: Translator, op):
    parts = segments_of(op)
    offsets, sizes, strides = (
        _mixed(tr, op, f"static_{n}", list(p)) for n, p in zip(("offsets", "sizes", "strides"), parts[1:], strict=True)
    )
    ref, out = tr.reg(op.operands[0]), tr.reg(op.results[0])
    subview = op.name == "memref.subview"
    rank = ir.MemRefType(op.results[0].type).rank
    kept = kept_dims(integers(op, "static_sizes"), ir.MemRefType(op.results[0].type).shape) if subview else range(rank)

    def step(s: State) -> None:
        source: MemRef = s.r[ref]
        where = fetch(s.r, offsets)
        shape = [_uniform(x, "a memref's extent") for x in fetch(s.r, sizes)]
        steps = [_uniform(x, "a memref's stride") for x in fetch(s.r, strides)]
        if subview:
            if s.m.check:
                _check_window(s, source, where, shape, steps, op)
            base = source.offset(where)
            steps = [a * b for a, b in zip(steps, source.strides, strict=True)]
        else:
            base = source.start + where[0]
        shape, steps = [shape[i] for i in kept], [steps[i] for i in kept]
        s.r[out] = MemRef(source.buffer, base, tuple(shape), tuple(steps), source.item, source.rank, start=source.start)

    return step


def _check_window(s: State, source: MemRef, where: list, shape: list[int], steps: list[int], op) -> None:
    for d, (o, n, st, extent) in enumerate(zip(where, shape, steps, source.shape, strict=True)):
        last = o + (n - 1) * st if n else o
        bad = np.asarray((np.asarray(last) >= extent) | (np.asarray(o) < 0)).reshape(
            np.shape(o) if np.ndim(o) else (1, 1)
        )
        found = s.m.active(s.mask, bad) if n else None
        if found is not None:
            first = s.m.first(found, o)
            what = f"takes elements {first} to {first + (n - 1) * st} of dimension {d} of {source.buffer.name}"
            s.m.complain("out of bounds", found, f"{what}, where there are {extent}", op)


@rule("memref.view")
def _view(tr: Translator, op):
    t = ir.MemRefType(op.results[0].type)
    ref, out, item = tr.reg(op.operands[0]), tr.reg(op.results[0]), item_size(op.results[0].type)
    (shift,) = indices_of(tr, [op.operands[1]])
    if not t.has_static_shape:
        raise tr.refused(op, "dynamic extents are not supported")
    strides, _ = t.get_strides_and_offset()
    shape = tuple(t.shape)
    nbytes = int(np.prod(shape)) * item

    def step(s: State) -> None:
        source: MemRef = s.r[ref]
        (byte,) = fetch(s.r, [shift])
        if s.m.check:
            at = np.asarray(byte).reshape(np.shape(byte) or (1, 1))
            bad = s.m.active(s.mask, (at < 0) | (at + nbytes > source.shape[0]))
            if bad is not None:
                _complain_of_view(s, source, bad, s.m.first(bad, at), nbytes, op)
        first = (source.base + byte) // item
        s.r[out] = MemRef(source.buffer, first, shape, tuple(strides), item, source.rank, start=first)

    return step


def _complain_of_view(s: State, source: MemRef, bad: np.ndarray, first: int, nbytes: int, op) -> None:
    what = f"takes bytes {first} to {first + nbytes - 1} of {source.buffer.name}, which has {source.shape[0]} bytes"
    if source.buffer is s.m.dynamic_shared and first >= 0:
        what += f": launch the kernel with {first + nbytes} or more"
    s.m.complain("out of bounds", bad, what, op)


@pure("memref.expand_shape", "memref.collapse_shape")
def _reshape(tr: Translator, op):
    t = ir.MemRefType(op.results[0].type)
    strides, _ = t.get_strides_and_offset()
    if not t.has_static_shape or _DYNAMIC_OFFSET in strides:
        raise tr.refused(op, f"to {t}: extents must be static")
    shape, steps = tuple(t.shape), tuple(strides)
    return lambda ref: MemRef(ref.buffer, ref.base, shape, steps, ref.item, ref.rank, ref.start)


@pure("memref.dim")
def _dim(tr: Translator, op):
    return lambda ref, d: np.full((1, 1), ref.shape[_uniform(d, "a dimension's number")], dtype=np.int64)


@pure("memref.extract_strided_metadata")
def _metadata(tr: Translator, op):
    def metadata(ref: MemRef) -> list:
        numbers = [ref.base - ref.start, *ref.shape, *ref.strides]
        arrays = [x if isinstance(x, np.ndarray) else np.full((1, 1), x, dtype=np.int64) for x in numbers]
        return [MemRef(ref.buffer, ref.start, (), (), ref.item, ref.rank, ref.start), *arrays]

    return metadata


@stateful("memref.alloca", "memref.alloc")
def _alloca(tr: Translator, op):
    t, item = ir.MemRefType(op.results[0].type), item_size(op.results[0].type)
    if not t.has_static_shape:
        raise tr.refused(op, "dynamic extents are not supported")
    strides, _ = t.get_strides_and_offset()
    nbytes, align = math.prod(t.shape) * item, number(op, "alignment", item)
    space = "shared" if "workgroup" in str(t.memory_space) or str(t.memory_space).startswith("3") else "local"
    tr.owned[space] += nbytes

    def allocate(s: State, *_: np.ndarray) -> MemRef:
        buffer = s.m.own_array(hash(op), f"{space} memory", space, nbytes, align)
        return MemRef(buffer, 0, tuple(t.shape), tuple(strides), item)

    return allocate


@stateful("gpu.dynamic_shared_memory")
def _dynamic_shared(tr: Translator, op):
    def window(s: State) -> MemRef:
        buffer = s.m.dynamic_shared
        assert buffer is not None  # a launch without dynamic shared memory has an empty one
        return MemRef(buffer, 0, (buffer.nbytes,), (1,), 1)

    return window


_PIECE = 1 << 20  # elements of all threads that one step of a copy moves


@stateful("memref.copy")
def _copy(tr: Translator, op):
    item = item_size(op.operands[0].type)
    tr.accesses.append(item)

    def copy(s: State, a: MemRef, b: MemRef) -> None:
        if a.shape != b.shape:
            raise MlircError(f"host device: copies a memref of {list(a.shape)} to one of {list(b.shape)}")
        if not math.prod(a.shape):
            return
        a, b = (_flat(x) for x in (a, b)) if _dense(a) and _dense(b) else (a, b)
        wide = bool(a.shape) and a.strides[-1] == 1 and b.strides[-1] == 1
        last = a.shape[-1] if wide else 1
        per = max(1, min(last, _PIECE // (s.m.nb * s.m.nt)))
        for outer in np.ndindex(*(a.shape[:-1] if wide else a.shape)):
            for first in range(0, last, per):
                s.m.deadline.check(s.m, s.mask, op)
                index = [*outer, first] if wide else list(outer)
                words = s.m.load(a, index, min(per, last - first), item, s.mask, op)
                s.m.store(b, index, words, item, s.mask, op)

    return copy


def _dense(ref: MemRef) -> bool:
    """Whether a memref's elements follow each other."""
    extents = [math.prod(ref.shape[i + 1 :]) for i in range(len(ref.shape))]
    return all(n == 1 or s == e for n, s, e in zip(ref.shape, ref.strides, extents, strict=True))


def _flat(ref: MemRef) -> MemRef:
    return MemRef(ref.buffer, ref.base, (math.prod(ref.shape),), (1,), ref.item, ref.rank)
