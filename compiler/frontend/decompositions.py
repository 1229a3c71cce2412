"""How aten ops are taken apart before the import: torch-mlir's table, with our own entries where its are poor.

The rules of our own entries: what PyTorch computes in f32 for 16-bit inputs is computed in f32 here (and rounded once);
nothing is computed in f64 for f32; a reduction carries no index that nobody reads; attention stays whole.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from mlirc.frontend.attention import scaled_dot_product_attention
from mlirc.frontend.attention_ops import FUSED
from mlirc.frontend.decompositions_activations import ACTIVATIONS
from mlirc.frontend.decompositions_batch_norm import BATCH_NORMS, saved_statistics
from mlirc.frontend.decompositions_convolutions import CONVOLUTIONS
from mlirc.frontend.decompositions_copies import COPIES
from mlirc.frontend.decompositions_factors import FACTORS
from mlirc.frontend.decompositions_fake_quantize import FAKE_QUANTIZATIONS
from mlirc.frontend.decompositions_grid import GRIDS
from mlirc.frontend.decompositions_linalg import LINALG
from mlirc.frontend.decompositions_losses import LOSSES
from mlirc.frontend.decompositions_moves import MOVES
from mlirc.frontend.decompositions_nans import NANS
from mlirc.frontend.decompositions_numbers import NUMBERS
from mlirc.frontend.decompositions_pooling import POOLING
from mlirc.frontend.decompositions_products import PRODUCTS
from mlirc.frontend.decompositions_resize import RESIZES
from mlirc.frontend.decompositions_rounding import ROUNDING
from mlirc.frontend.decompositions_scans import SCANS
from mlirc.frontend.decompositions_scatters import SCATTERS
from mlirc.frontend.decompositions_search import SEARCH
from mlirc.frontend.decompositions_segments import SEGMENTS
from mlirc.frontend.decompositions_special import SPECIAL
from mlirc.frontend.decompositions_spectra import SPECTRA
from mlirc.frontend.decompositions_window_gradients import WINDOW_GRADIENTS
from mlirc.frontend.moments import LONGEST_ROW, average, moments, rounded_moments, wide_moments
from mlirc.frontend.opmath import HALF, OPMATH, with_opmath
from mlirc.frontend.random.dropouts import DROPOUTS
from mlirc.frontend.random.graph import is_random
from mlirc.frontend.recurrent import RECURRENT
from mlirc.frontend.sorting import SORTS

aten = torch.ops.aten
Tensor = torch.Tensor

_own: dict[Any, Callable] = {}


def _decomposes(*ops: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        for op in ops:
            _own[op] = function
        return function

    return add


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in HALF else x


_own[aten.scaled_dot_product_attention.default] = scaled_dot_product_attention
_own |= FUSED


@_decomposes(aten.native_layer_norm.default)
def _native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = _wide(x)
    if math.prod(shape) > LONGEST_ROW:  # no kernel holds it
        mean, square = rounded_moments(wide, dims)
        centered = (wide[..., None] - mean[..., None])[..., 0]  # in another shape: no difference for both
    else:
        mean, centered, square = moments(wide, dims)
    rstd = torch.rsqrt(square + eps)
    out = centered * rstd
    out = out * weight if weight is not None else out
    out = out + bias if bias is not None else out
    return out.to(x.dtype), *saved_statistics(x, weight, mean, rstd)


@_decomposes(aten.native_group_norm.default)
def _native_group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Groups are rows. Weights by channel are for another kernel, which reads the rows' moments."""
    rows = _wide(x).reshape(n, groups, c // groups, hw)
    if weight is None and bias is None:
        mean, centered, square = moments(rows, [2, 3])
        rstd = torch.rsqrt(square + eps)
        out = (centered * rstd).reshape(x.shape)
    else:
        mean, square = rounded_moments(rows, [2, 3], pixels=True)
        rstd = torch.rsqrt(square + eps)
        # In another shape: one difference for both would be written to memory.
        out = (rows[..., None] - mean[..., None]) * rstd[..., None]
        out = out.reshape(n, c, hw)
        out = out * weight.reshape(1, c, 1) if weight is not None else out
        out = out + bias.reshape(1, c, 1) if bias is not None else out
    return out.to(x.dtype).reshape(x.shape), mean.reshape(n, groups), rstd.reshape(n, groups)


def _all_dims(x: Tensor, dims: list[int] | None) -> list[int]:
    return list(dims) if dims else list(range(x.dim()))


@_decomposes(aten.rms_norm.default)
def _rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    wide = _wide(x)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    dims = list(range(x.dim() - len(shape), x.dim()))
    out = wide * torch.rsqrt(average(wide * wide, dims) + eps)
    return (out * weight if weight is not None else out).to(x.dtype)


@_decomposes(aten._fused_rms_norm.default)
def _fused_rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    return _rms_norm(x, shape, weight, eps), x.new_empty(())


@_decomposes(aten._softmax.default)
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = _wide(x)
    if not x.numel():  # no elements, and so no maximum
        return wide.clone() if half_to_float else x.clone()
    e = torch.exp(wide - aten.amax.default(wide, [dim], True))
    out = e / aten.sum.dim_IntList(e, [dim], True)
    return out if half_to_float else out.to(x.dtype)


@_decomposes(aten._log_softmax.default)
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide = _wide(x)
    if not x.numel():
        return wide.clone() if half_to_float else x.clone()
    shifted = wide - aten.amax.default(wide, [dim], True)
    out = shifted - torch.log(aten.sum.dim_IntList(torch.exp(shifted), [dim], True))
    return out if half_to_float else out.to(x.dtype)


@_decomposes(aten.mean.dim)
def _mean_dim(x: Tensor, dim: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    out = dtype or x.dtype
    return average(_wide(x.to(out)), _all_dims(x, dim), keepdim).to(out)


@_decomposes(aten.mean.default)
def _mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _mean_dim(x, None, dtype=dtype)


@_decomposes(aten.sum.dim_IntList)
def _sum(x: Tensor, dim: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    if (dtype or x.dtype) not in HALF:
        return NotImplemented
    return aten.sum.dim_IntList(x.float(), dim, keepdim).to(dtype or x.dtype)


@_decomposes(aten.var_mean.correction)
def _var_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = _all_dims(x, dim)
    mean, _, square = moments(_wide(x), dims)
    count = math.prod(x.shape[d] for d in dims)
    found = (square * count / _degrees(count, correction), mean)
    return tuple((t if keepdim else t.squeeze(dims)).to(x.dtype) for t in found)  # type: ignore[return-value]


def _degrees(count: int, correction: float | None) -> float:
    return max(count - (1 if correction is None else correction), 0)


@_decomposes(aten.var.correction)
def _var(x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


@_decomposes(aten.std_mean.correction)
def _std_mean(
    x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = _all_dims(x, dim)
    mean, square = wide_moments(_wide(x), dims)
    count = math.prod(x.shape[d] for d in dims)
    found = (torch.sqrt(square * count / _degrees(count, correction)), mean)
    return tuple((t if keepdim else t.squeeze(dims)).to(x.dtype) for t in found)  # type: ignore[return-value]


@_decomposes(aten.std.correction)
def _std(x: Tensor, dim: list[int] | None = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    return _std_mean(x, dim, correction=correction, keepdim=keepdim)[0]


@_decomposes(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Tensor, ord: float = 2, dim: list[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    if x.is_complex():
        x, dtype = x.abs(), dtype and dtype.to_real()
    out = dtype or x.dtype
    wide = _wide(x.to(out))
    dims = _all_dims(x, dim)
    if abs(ord) == math.inf:
        return (aten.amax if ord > 0 else aten.amin).default(wide.abs(), dims, keepdim).to(out)
    if ord == 0:
        return aten.sum.dim_IntList((wide != 0).to(wide.dtype), dims, keepdim).to(out)
    powers = wide * wide if ord == 2 else wide.abs() if ord == 1 else torch.pow(wide.abs(), ord)
    total = aten.sum.dim_IntList(powers, dims, keepdim)
    return (torch.sqrt(total) if ord == 2 else total if ord == 1 else torch.pow(total, 1 / ord)).to(out)


@_decomposes(aten.pow.Tensor_Scalar)
def _pow(x: Tensor, exponent: float) -> Tensor:
    if x.is_complex():
        return NotImplemented
    if not x.is_floating_point():
        if isinstance(exponent, int):
            dtype = torch.result_type(x, exponent)  # of a bool to the power of an integer: int64
            return _integer_power(x.to(torch.uint8 if dtype == torch.bool else dtype), exponent).to(dtype)
        return _in_floats(x.to(torch.get_default_dtype()), exponent)
    wide = _wide(x)
    if exponent in (1, 2, 3, 4):
        square = wide * wide
        out = {1: wide, 2: square, 3: square * wide, 4: square * square}[int(exponent)]
    elif exponent in (0.5, -0.5, -1):
        out = {0.5: torch.sqrt, -0.5: torch.rsqrt, -1: torch.reciprocal}[exponent](wide)
    elif x.dtype in HALF:
        out = aten.pow.Tensor_Scalar(wide, exponent)
    else:
        return NotImplemented
    return out.to(x.dtype)


def _in_floats(x: Tensor, exponent: float) -> Tensor:
    out = _pow(x, exponent)
    return aten.pow.Tensor_Scalar(x, exponent) if out is NotImplemented else out


def _integer_power(x: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        raise ValueError("integers to negative integer powers are not allowed: use floats")
    out, square = None, x
    while exponent:
        if exponent & 1:
            out = square if out is None else out * square
        exponent >>= 1
        square = square * square if exponent else square
    return torch.ones_like(x) if out is None else out.clone() if out is x else out


@_decomposes(aten.aminmax.default)
def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = _all_dims(x, None if dim is None else [dim])
    return aten.amin.default(x, dims, keepdim), aten.amax.default(x, dims, keepdim)


@_decomposes(aten.gelu.default)
def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    wide = _wide(x)
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        return (0.5 * wide * (1.0 + torch.tanh(inner))).to(x.dtype)
    return (0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)


@_decomposes(aten.linear.default)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if x.dtype != weight.dtype:  # shapes alone are traced, and they would fit
        raise ValueError(f"its input is {x.dtype} and its weight {weight.dtype}: give an input of the weight's dtype")
    if weight.dim() == 1:
        return _linear(x, weight[None, :], bias).squeeze(-1)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out = aten.mm.default(rows, weight.t())
    out = out if bias is None else out + bias
    return out.reshape(*x.shape[:-1], weight.shape[0])


@_decomposes(aten.log_sigmoid.default)
def _log_sigmoid(x: Tensor) -> Tensor:
    wide = _wide(x)
    return (aten.clamp.default(wide, None, 0.0) - torch.log1p(torch.exp(-torch.abs(wide)))).to(x.dtype)


@_decomposes(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """The second result is what PyTorch's backward on a CPU takes; on a GPU it has no elements."""
    kept = torch.exp(-torch.abs(_wide(x))).to(x.dtype) if x.device.type == "cpu" else x.new_empty((0,))
    return _log_sigmoid(x), kept


# Ops that torch-mlir lowers better whole than decomposed.
_KEPT = (aten.max_pool2d.default, aten.silu.default, aten.max_pool1d.default)


def is_kept(op: Any) -> bool:
    """Whether an op stays whole in spite of a decomposition that PyTorch has for it."""
    return (op in _KEPT or is_random(op)) and op not in _own and op not in OPMATH


def decompose_by(op: Any, function: Callable) -> None:
    """Has an op of ours, which the export takes for one operation, computed by the ops of a function in PyTorch. It is
    traced once in a process for all graphs with calls of one kind."""
    _own[op] = function
    TRACED_ONCE.add(op)
    decomposition_table.cache_clear()


TRACED_ONCE: set[Any] = set()


@functools.cache
def decomposition_table() -> dict[Any, Callable]:
    """The table for `ExportedProgram.run_decompositions`."""
    from mlirc.mlir import fx_decompositions

    table = fx_decompositions()
    table = {op: function for op, function in table.items() if op not in _KEPT and not is_random(op)}
    ours = (
        ACTIVATIONS,
        BATCH_NORMS,
        CONVOLUTIONS,
        COPIES,
        DROPOUTS,
        FACTORS,
        FAKE_QUANTIZATIONS,
        GRIDS,
        LINALG,
        LOSSES,
        MOVES,
        NANS,
        NUMBERS,
        POOLING,
        PRODUCTS,
        RECURRENT,
        RESIZES,
        ROUNDING,
        SCANS,
        SCATTERS,
        SEARCH,
        SEGMENTS,
        SORTS,
        SPECIAL,
        SPECTRA,
        WINDOW_GRADIENTS,
    )
    return with_opmath(functools.reduce(operator.or_, ours, table | _own))
