"""MLIR types as NumPy ones, and constants. A value of a kernel is an array [blocks or 1, threads or 1, *vector shape]:
what does not depend on the block, or on the thread, is kept once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from mlirc.errors import MlircError
from mlirc.mlir import ir

_DTYPES = {
    "f64": np.float64,
    "f32": np.float32,
    "tf32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "index": np.int64,
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def dtype_of(t: ir.Type) -> np.dtype:
    """The NumPy dtype of a scalar type, or of a vector's or memref's elements."""
    if isinstance(t, ir.VectorType | ir.MemRefType):
        t = t.element_type
    name = str(t)
    if name == "!llvm.ptr" or name == "!llvm.ptr<1>":
        return np.dtype(np.int64)  # in memory
    if name not in _DTYPES:
        raise MlircError(f"host device: values of type {t} are not supported")
    return np.dtype(_DTYPES[name])


def vector_shape(t: ir.Type) -> tuple[int, ...]:
    """The shape of a vector type, () for a scalar."""
    return tuple(t.shape) if isinstance(t, ir.VectorType) else ()


def constant_array(attr: ir.Attribute, t: ir.Type) -> np.ndarray:
    """A constant as an array [1, 1, *vector shape]."""
    dtype, shape = dtype_of(t), vector_shape(t)
    if isinstance(attr, ir.DenseElementsAttr):
        if attr.is_splat:
            splat = constant_array(attr.get_splat_value(), attr.type.element_type)
            return np.broadcast_to(splat.reshape((1, 1) + (1,) * len(shape)), (1, 1, *shape))
        return _elements(attr, dtype).reshape((1, 1, *shape))
    value = ir.FloatAttr(attr).value if isinstance(attr, ir.FloatAttr) else ir.IntegerAttr(attr).value
    if dtype == np.bool_:
        value = bool(value)
    return np.full((1, 1), value).astype(dtype) if dtype.kind not in "iub" else np.array([[value]], dtype=dtype)


def _elements(attr: ir.DenseElementsAttr, dtype: np.dtype) -> np.ndarray:
    """The elements of a dense attribute that is no splat."""
    if dtype.kind in "iub" or dtype in (np.float32, np.float64):
        if isinstance(attr, ir.DenseIntElementsAttr | ir.DenseFPElementsAttr):
            unsigned = isinstance(attr.type.element_type, ir.IndexType)  # as the bindings read those
            return np.array(list(attr), dtype=np.uint64 if unsigned else None).astype(dtype)
    else:  # the bindings read no floats of 16 and 8 bits
        listed = re.fullmatch(r'dense<(\[.*\]|"0x[0-9A-Fa-f]*")> : .*', str(attr), re.DOTALL)
        if listed:
            return _floats(listed[1], dtype)
    raise MlircError(f"host device: constant {attr} is not supported")


def _floats(text: str, dtype: np.dtype) -> np.ndarray:
    """Floats as MLIR prints them: all bytes in hexadecimal, or numbers, of which some may be bits."""
    if text.startswith('"0x'):
        return np.frombuffer(bytes.fromhex(text[3:-1]), dtype)
    word = UNSIGNED[dtype.itemsize]
    found = [np.array(int(n, 16), word).view(dtype) if n.startswith("0x") else np.array(float(n)).astype(dtype)
             for n in re.findall(r"[^][, \n]+", text)]  # fmt: skip
    return np.array(found, dtype)


def item_size(t: ir.Type) -> int:
    """Bytes of one element of a memref or vector in memory."""
    return dtype_of(t).itemsize


def unsigned(a: np.ndarray) -> np.ndarray:
    """An integer array seen as unsigned."""
    return a if a.dtype == np.bool_ else a.view(UNSIGNED[a.dtype.itemsize])


def signed_from(a: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return a if a.dtype == np.bool_ else a.view(dtype)


def toward_zero(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Floats as a narrower type, cut."""
    near = np.ascontiguousarray(x.astype(dtype))
    words = near.view(f"i{near.itemsize}")
    words[...] -= np.abs(near.astype(x.dtype)) > np.abs(x)  # the word before is the number nearer to zero
    return near


def round_once(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """f64 as a narrower float type, rounded to nearest even once (ml_dtypes' own way leads through f32, which rounds
    twice). The number in between is rounded to odd (Boldo, Melquiond: "Emulation of FMA and correctly rounded sums").
    """
    if dtype.itemsize >= 4 or dtype == np.float16:
        return x.astype(dtype)
    cut = toward_zero(x, np.float32)
    cut.view(np.int32)[...] |= np.isfinite(cut) & (cut.astype(np.float64) != x)
    return cut.astype(dtype)


def integers_as(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Integers, of any width, as floats, rounded once (ml_dtypes' own way leads through f32)."""
    if dtype.itemsize >= 4:
        return x.astype(dtype)
    if x.dtype.itemsize == 8:  # to 53 bits by rounding to odd, where it has more
        low = x & x.dtype.type(0x7FF)
        odd = (x - low) | ((low != 0) * 0x800).astype(x.dtype)
        x = np.where(np.abs(x.astype(np.float64)) < 2.0**52, x, odd)
    return round_once(x.astype(np.float64), dtype)


def spread(c: np.ndarray, rank: int) -> np.ndarray:
    """A per-thread array with `rank` vector dimensions of size 1 added, to go with a vector."""
    return c.reshape(c.shape + (1,) * rank) if rank else c


def together(*values: np.ndarray) -> list[np.ndarray]:
    """Values with the same leading dimensions [blocks or 1, threads or 1], each with its own vector dimensions."""
    leads = {v.shape[:2] for v in values}
    if len(leads) == 1:
        return list(values)
    lead = np.broadcast_shapes(*leads)
    return [np.broadcast_to(v, (*lead, *v.shape[2:])) for v in values]


def same_type(f: Callable, dtype: np.dtype) -> Callable:
    """f with its result rounded to the type (ml_dtypes and bool functions may widen)."""

    def g(*args: np.ndarray) -> np.ndarray:
        out = f(*args)
        return out if out.dtype == dtype else out.astype(dtype)

    return g


def through_f64(f: Callable) -> Callable:
    """f computed in f64, and rounded to the type of its operands."""
    return lambda *args: f(*(a.astype(np.float64) for a in args)).astype(args[0].dtype)


def bits_of(a: np.ndarray) -> bytes:
    """An array's bytes, with every NaN as the same one: which of them an operation gives is nobody's promise (IEEE 754,
    6.2.3; PTX gives its own)."""
    return a.tobytes() if a.dtype.kind in "iub" else np.where(a != a, np.array(np.nan, a.dtype), a).tobytes()


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements of two arrays of one type differ in a bit: bool, of their shape; NaNs are all alike."""
    words = UNSIGNED[a.dtype.itemsize]
    differ = np.ascontiguousarray(a).view(words) != np.ascontiguousarray(b).view(words)
    return (differ & ~((a != a) & (b != b))).reshape(a.shape)


def flushed(x: np.ndarray) -> np.ndarray:
    """Subnormal f32 numbers as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def inserted(where: tuple) -> Callable:
    """A function of two values: the second one with the first one at a place, which has all threads in front."""

    def insert(value: np.ndarray, target: np.ndarray) -> np.ndarray:
        result = together(target, value)[0].copy()
        result[where] = value
        return result

    return insert


def type_bytes(t: ir.Type) -> int:
    """The size of an llvm type in memory."""
    array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", str(t))
    if array:
        return int(array[1]) * type_bytes(ir.Type.parse(array[2], t.context))
    return dtype_of(t).itemsize * int(np.prod(vector_shape(t)))


def natural_alignment(t: ir.Type) -> int:
    """The alignment, in bytes, of a global of a type that says nothing of it: its elements'."""
    array = re.fullmatch(r"!llvm\.array<(\d+) x (.*)>", str(t))
    return natural_alignment(ir.Type.parse(array[2], t.context)) if array else type_bytes(t)
