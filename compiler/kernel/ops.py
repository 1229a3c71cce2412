"""What a kernel is written with: operations on its tensors.

    c = ops.matmul(a, b)                              # f32 accumulators
    y = ops.softmax(c * 0.125 + bias, dim=-1)
    z = ops.map(lambda x, m: ops.exp(x - m), c, ops.max(c, dim=-1, keepdim=True))

`exp` and its like take tensors, and elements inside of `map`. What is not here can be built with MLIR's own builders:
`x.value` is a tensor's value, and `tensor(value)` makes a tensor of a result.
"""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Sequence
from typing import Any

from mlirc.dialects.mlirc_dialect import attention as attention_op
from mlirc.ir.levels import INDEX_BELOW
from mlirc.kernel.places import error
from mlirc.kernel.scalar import (
    INTEGERS,
    LOWEST,
    Scalar,
    chosen,
    computed,
    dtype_named,
    is_float,
    larger,
    smaller,
    unary,
)
from mlirc.kernel.tensor import (
    Tensor,
    accumulated,
    apply,
    axes_of,
    collapsed,
    described,
    filled,
    full,
    generic,
    is_input,
    matmul,
    place,
    reduced,
    tensor_of,
)
from mlirc.mlir import arith, ir
from mlirc.mlir import tensor as tensor_dialect

__all__ = [
    "abs", "arange", "attention", "cos", "erf", "exp", "exp2", "floor", "full_of", "gelu", "log", "log2", "map",
    "matmul", "max", "maximum", "mean", "min", "minimum", "relu", "rows", "rsqrt", "sigmoid", "silu", "sin", "softmax",
    "sqrt", "sum", "tanh", "tensor", "where", "ceil",
]  # fmt: skip

Dims = int | Sequence[int]


def map(function: Callable[..., Any], *operands: Any, dtype: Any = None) -> Tensor:  # noqa: A001
    """`function` of one element of each operand, for every element: one operation, whatever it computes. Operands
    broadcast; the result has `dtype`, or the type that the function computes."""
    return apply(function, *operands, dtype=None if dtype is None else dtype_named(dtype))


def _each(function: Callable[..., Any], *operands: Any) -> Any:
    """`function` of elements: at once inside of `map`, else of every element of tensors."""
    if any(isinstance(x, Scalar) for x in operands):
        return function(*operands)
    if not any(isinstance(x, Tensor) for x in operands):
        raise error(f"takes tensors, or elements inside of map, not {type(operands[0]).__name__}")
    return apply(function, *operands)


def exp(x: Any) -> Any:
    """e to the power of x."""
    return _each(lambda a: unary("exp", a), x)


def exp2(x: Any) -> Any:
    """2 to the power of x."""
    return _each(lambda a: unary("exp2", a), x)


def log(x: Any) -> Any:
    """The natural logarithm."""
    return _each(lambda a: unary("log", a), x)


def log2(x: Any) -> Any:
    """The logarithm to base 2."""
    return _each(lambda a: unary("log2", a), x)


def sqrt(x: Any) -> Any:
    """The square root."""
    return _each(lambda a: unary("sqrt", a), x)


def rsqrt(x: Any) -> Any:
    """One over the square root."""
    return _each(lambda a: unary("rsqrt", a), x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return _each(lambda a: unary("tanh", a), x)


def erf(x: Any) -> Any:
    """The error function."""
    return _each(lambda a: unary("erf", a), x)


def sin(x: Any) -> Any:
    """The sine."""
    return _each(lambda a: unary("sin", a), x)


def cos(x: Any) -> Any:
    """The cosine."""
    return _each(lambda a: unary("cos", a), x)


def floor(x: Any) -> Any:
    """The largest whole number that is not above."""
    return _each(lambda a: unary("floor", a), x)


def ceil(x: Any) -> Any:
    """The smallest whole number that is not below."""
    return _each(lambda a: unary("ceil", a), x)


def abs(x: Any) -> Any:  # noqa: A001
    """The absolute value."""
    return x.__abs__()


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _each(lambda a: 1.0 / (unary("exp", -a) + 1.0), x)


def relu(x: Any) -> Any:
    """The larger of x and 0; NaN of NaN."""
    return _each(lambda a: larger(a, 0), x)


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return _each(lambda a: a / (unary("exp", -a) + 1.0), x)


def gelu(x: Any) -> Any:
    """x * Phi(x), by the error function."""
    return _each(lambda a: 0.5 * a * (unary("erf", a * python_math.sqrt(0.5)) + 1.0), x)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two, element by element; NaN where one is."""
    return _each(larger, a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two, element by element; NaN where one is."""
    return _each(smaller, a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`, element by element."""
    return _each(chosen, condition, a, b)


# Reductions


def _dims(x: Tensor, dim: Dims | None) -> Sequence[int]:
    return range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)


def sum(x: Any, dim: Dims | None = None, keepdim: bool = False) -> Tensor:  # noqa: A001
    """The sum along dimensions (None: all), in f32 of floats of 32 bits or fewer."""
    x = tensor_of(x, "sum")
    dtype = computed(accumulated(x.dtype))
    return reduced(x, _dims(x, dim), keepdim, 0, lambda a, b: a + b, dtype)


def mean(x: Any, dim: Dims | None = None, keepdim: bool = False) -> Tensor:
    """The mean along dimensions (None: all) of floats, in f32 of those of 32 bits or fewer."""
    x = tensor_of(x, "mean")
    if not is_float(x.dtype):
        raise error(f"mean takes floats, not {described(x)}: convert them with to('f32')")
    count = python_math.prod(x.shape[d] for d in _dims(x, dim))
    return sum(x, dim, keepdim) / float(count)


def max(x: Any, dim: Dims | None = None, keepdim: bool = False) -> Tensor:  # noqa: A001
    """The largest element along dimensions (None: all); NaN where one is."""
    x = tensor_of(x, "max")
    return reduced(x, _dims(x, dim), keepdim, _end(x.dtype, -1), larger, computed(x.dtype))


def min(x: Any, dim: Dims | None = None, keepdim: bool = False) -> Tensor:  # noqa: A001
    """The smallest element along dimensions (None: all); NaN where one is."""
    x = tensor_of(x, "min")
    return reduced(x, _dims(x, dim), keepdim, _end(x.dtype, 1), smaller, computed(x.dtype))


def _end(dtype: str, sign: int) -> float | int:
    """What no element of a type is beyond, below (-1) or above (1)."""
    if is_float(dtype):
        return sign * -LOWEST
    if dtype == "i1":
        return int(sign > 0)
    half = 2 ** (INTEGERS[dtype] - 1)
    return half - 1 if sign > 0 else -half


def softmax(x: Any, dim: int = -1) -> Tensor:
    """exp(x - max) over its sum along a dimension, in f32 of floats of 32 bits or fewer."""
    x = tensor_of(x, "softmax")
    weights = apply(lambda a, m: unary("exp", a - m), x, max(x, dim, keepdim=True))
    return weights / sum(weights, dim, keepdim=True)


# Tensors of numbers and of places


def full_of(number: float, *shape: int, dtype: Any = "f32") -> Tensor:
    """A tensor of one number."""
    return filled(number, shape, dtype_named(dtype))


def arange(extent: int) -> Tensor:
    """0, 1, ..., as i64 [extent]: with unsqueeze and expand, places along any dimension."""
    if not isinstance(extent, int) or extent < 0:
        raise error(f"arange takes an extent, not {extent!r}")
    if extent == 1:
        return filled(0, (1,), "i64")
    return generic([], (extent,), (0,), None, lambda: Scalar(place(0)).to("i64"))


def rows(table: Any, index: Any) -> Tensor:
    """`table[index]`: for each number of `index` that row of a table, which is an input of the kernel. Numbers outside
    of the table read its nearest row; runs on the CPU report them."""
    table, index = tensor_of(table, "rows"), tensor_of(index, "rows")
    if is_float(index.dtype) or index.dtype == "i1":
        raise error(f"rows takes a table and integers, not {described(index)}")
    if table.ndim < 1 or not is_input(table):
        raise error(f"rows takes an input of the kernel as its table, which {described(table)} is not")
    shape = (*index.shape, *table.shape[1:])
    loops = [d for d, n in enumerate(shape) if n != 1]

    def body(number: Scalar) -> Scalar:
        index_type = ir.IndexType.get()
        at = arith.index_cast(index_type, number.to("i64").value)
        low = arith.MaxSIOp(at, arith.constant(index_type, 0))
        inside = arith.MinSIOp(low.result, arith.constant(index_type, table.shape[0] - 1))
        for op in (low, inside):
            op.attributes[INDEX_BELOW] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), table.shape[0])
        first = [inside.result] if table.shape[0] != 1 else []
        rest = [place(loops.index(d)) for d in range(index.ndim, len(shape)) if shape[d] != 1]
        return Scalar(tensor_dialect.extract(table.held, [*first, *rest]))

    places = [d if n != 1 else None for d, n in enumerate(index.shape)]
    return generic([(index, places)], shape, range(len(shape)), None, body)


def tensor(value: ir.Value) -> Tensor:
    """A value of MLIR, a ranked tensor of static shape, as a Tensor."""
    if not isinstance(value, ir.Value) or not isinstance(value.type, ir.RankedTensorType):
        raise error(f"tensor takes a ranked tensor of MLIR, not {getattr(value, 'type', type(value).__name__)}")
    shape = list(ir.RankedTensorType(value.type).shape)
    return Tensor(collapsed(value), shape, axes_of(shape))


def attention(
    q: Any, k: Any, v: Any, *, scale: float | None = None, causal: bool = False, window: int = 0, softcap: float = 0.0,
    mask: Any = None,
) -> Tensor:  # fmt: skip
    """softmax(softcap(q k^T scale) + mask) v of q [B,Hq,Sq,D], k [B,Hkv,Sk,D] and v [B,Hkv,Sk,Dv], with no scores in
    memory. The scale is 1/sqrt(D) where none is given; `mask` is boolean (true: visible) or added to the scores, and
    each of its dimensions is 1 or full."""
    q, k, v = (tensor_of(x, "attention") for x in (q, k, v))
    if any(x.ndim != 4 for x in (q, k, v)):
        raise error(f"attention takes [B,H,S,D], not {described(q)}, {described(k)} and {described(v)}")
    fits = q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3] and k.shape[1:3] == v.shape[1:3]
    if not fits or q.shape[1] % k.shape[1] or len({q.dtype, k.dtype, v.dtype}) > 1:
        raise error(f"attention: {described(q)}, {described(k)} and {described(v)} do not fit each other")
    more = [] if mask is None else [full(tensor_of(mask, "attention"))]
    scale = q.shape[3] ** -0.5 if scale is None else scale
    made = attention_op(
        full(q), full(k), full(v), *more, scale=float(scale), causal=causal, window=window, softcap=float(softcap)
    )
    return tensor(made)
