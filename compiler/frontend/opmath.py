"""Elementwise ops on 16-bit floats as eager PyTorch computes them: in f32, rounded once at the end.

torch-mlir rounds every step of such an op, and its scalars, to 16 bits. What PyTorch does with a scalar depends on the
op (as measured on a CPU, PyTorch 2.13):

- `OPMATH`: f32 numbers (`leaky_relu(x, 1e-8)`, `addcmul`'s value), whatever 16 bits can hold;
- `ROUNDED`: a scalar is a tensor's element first, and so rounded to the tensor's dtype (`x ** 0.1`, `x % 0.1`).

add, sub, mul and div of two tensors are in neither: f32 has more than twice the bits of f16 and bf16, so that one
rounding of an f32 result is that of the exact one, which a 16-bit op gives. Their scalars: `operands.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
Tensor = torch.Tensor

HALF = (torch.float16, torch.bfloat16)

OPMATH = [
    getattr(aten, name).default
    for name in (
        "acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 "
        "reciprocal rsqrt sigmoid silu sin sinc sinh sqrt tan tanh special_log_ndtr "
        "hardsigmoid hardswish mish softplus "
        "elu leaky_relu softshrink addcmul addcdiv atan2 hypot logaddexp logaddexp2 "
        "avg_pool1d avg_pool2d avg_pool3d"
    ).split()
] + [aten.lerp.Scalar, aten.lerp.Tensor]

ROUNDED = [
    aten.fmod.Scalar, aten.fmod.Tensor, aten.remainder.Scalar, aten.remainder.Tensor, aten.remainder.Scalar_Tensor,
    aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor,
]  # fmt: skip


def rounded(value: Any, dtype: torch.dtype) -> Any:
    """A Python number as the element of a tensor of floats that PyTorch makes of it: by way of f32 to 16 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not dtype.is_floating_point:
        return value
    if dtype == torch.float64:
        return float(value)
    with np.errstate(over="ignore"):  # tensors would be constants of the graph that is traced
        single = np.float32(value)
        if dtype == torch.float16:
            return float(np.float16(single))
    if dtype != torch.bfloat16 or not np.isfinite(single):
        return float(single)
    bits = int(single.view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


def promoted(*operands: Any) -> torch.dtype:
    """The dtype to which an elementwise op of PyTorch brings tensors and Python numbers."""
    return elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]


def filled(value: float, dtype: torch.dtype, like: Tensor) -> Tensor:
    """A number as a tensor of no dimension, where `like` is."""
    return torch.full((), rounded(value, dtype), dtype=dtype, device=like.device)


def with_opmath(table: Mapping[Any, Callable]) -> dict[Any, Callable]:
    """A table of decompositions in which the ops above are computed in f32 where all they take has 16 bits."""
    made = {op: _in_f32(op, table.get(op), rounds=False) for op in OPMATH}
    made |= {op: _in_f32(op, table.get(op), rounds=True) for op in ROUNDED}
    return {**table, **made}


def _in_f32(op: Any, other: Callable | None, rounds: bool) -> Callable:
    """`op` in f32 where PyTorch promotes its tensors to 16-bit floats; `other`, its decomposition, elsewhere."""

    @functools.wraps(other or op)
    def decomposed(*args: Any, **kwargs: Any) -> Any:
        tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
        dtype = promoted(*tensors) if tensors else torch.float32
        if dtype not in HALF:
            return other(*args, **kwargs) if other is not None else NotImplemented

        def widened(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(dtype).to(torch.float32)
            return rounded(value, dtype) if rounds and isinstance(value, (int, float)) else value

        args, kwargs = tree_map(widened, (args, kwargs))
        return tree_map(lambda out: out.to(dtype), op(*args, **kwargs))

    return decomposed
