"""Decompositions of products with scales: a sum of products in f32, and the rest behind it; and of outer products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

PRODUCTS: dict[Any, Callable] = {}
_TENSOR, _ROWS = 0, 1  # of torch.nn.functional.ScalingType


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        PRODUCTS[op] = function
        return function

    return add


def _factor(scale: Tensor, side: str, rows: int, columns: int) -> Tensor:
    """A scale as it multiplies the product of [rows, columns]; raises ValueError for one of blocks along k."""
    if scale.dtype != torch.float32:
        raise ValueError(f"scale_{side} is {scale.dtype}: supported are scales in float32")
    if scale.numel() == 1:
        return scale.reshape(())
    wanted = [rows, 1] if side == "a" else [1, columns]
    if list(scale.shape) != wanted:
        raise ValueError(f"scale_{side} has shape {list(scale.shape)}: supported are one number and {wanted}")
    return scale


@_decomposes(aten.bmm.default)
def _bmm(a: Tensor, b: Tensor) -> Tensor:
    """[B, m, 1] x [B, 1, n] in f32, as the angles of rotary embeddings (frequencies times positions), is a map, which
    joins the kernel of who reads it. Others stay products."""
    inner = a.shape[2]
    if a.dtype != torch.float32 or not isinstance(inner, int) or inner != 1:
        return NotImplemented
    return a * b


@_decomposes(aten.addbmm.default)
def _addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The sum of the products of a [B, m, k] and b [B, k, n] is one product of [m, B k] and [B k, n]."""
    batch, m, k = a.shape
    side_by_side = a.transpose(0, 1).reshape(m, batch * k)
    return aten.addmm.default(x, side_by_side, b.reshape(batch * k, b.shape[2]), beta=beta, alpha=alpha)


@_decomposes(aten._scaled_mm.default)
def _scaled_mm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """[m, k] x [k, n]. `use_fast_accum` allows sums of fewer bits, and asks for none."""
    dtype = out_dtype or a.dtype
    out = aten.mm.default(a.float(), b.float())
    out = out * _factor(scale_a, "a", *out.shape) * _factor(scale_b, "b", *out.shape)
    out = out if bias is None else out + bias.float()
    if scale_result is not None and dtype.itemsize == 1:
        out = out * scale_result.reshape(())
    return out.to(dtype)


@_decomposes(aten._scaled_mm_v2.default)
def _scaled_mm_v2(
    a: Tensor, b: Tensor, scale_a: Sequence[Tensor], recipe_a: Sequence[int], swizzle_a: Sequence[int],
    scale_b: Sequence[Tensor], recipe_b: Sequence[int], swizzle_b: Sequence[int], bias: Tensor | None,
    out_dtype: torch.dtype | None, contraction_dim: Sequence[int] = (), use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """`torch.nn.functional.scaled_mm`, of scales of the tensor or of its rows."""
    if len(scale_a) != 1 or len(scale_b) != 1 or {*recipe_a, *recipe_b} - {_TENSOR, _ROWS} or any(swizzle_a):
        raise ValueError("scales of the tensor or of its rows are supported, not of blocks")
    if contraction_dim and list(contraction_dim) not in ([1, 0], [-1, -2], [-1, 0], [1, -2]):
        raise ValueError("contraction_dim: the last dimension of the first matrix and the first of the second")
    scales = [s if r == _TENSOR or s.dim() == 2 else s.reshape(shape)
              for s, r, shape in ((scale_a[0], recipe_a[0], (-1, 1)), (scale_b[0], recipe_b[0], (1, -1)))]  # fmt: skip
    return _scaled_mm(a, b, *scales, bias, None, out_dtype or torch.bfloat16, use_fast_accum)
