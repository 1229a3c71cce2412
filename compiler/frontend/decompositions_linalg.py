"""Decompositions of linear algebra over small matrices: elimination with partial pivoting, one step per column.

The steps are unrolled, since sizes are static: matrices of more than `LARGEST` rows are refused. Where PyTorch raises
an error for a singular matrix, the results have infinities or NaNs, as a compiled model cannot raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError

aten = torch.ops.aten
Tensor = torch.Tensor

LARGEST = 32
LINALG: dict[Any, Callable] = {}


def _decomposes(op: Any) -> Callable[[Callable], Callable]:
    def add(function: Callable) -> Callable:
        def checked(a: Tensor, *args: Any, **kwargs: Any) -> Any:
            _require_small(op, a, *args)
            return function(a, *args, **kwargs)

        LINALG[op] = checked
        return checked

    return add


def _require_small(op: Any, *operands: Any) -> None:
    for x in operands:
        if not isinstance(x, Tensor):
            continue
        if not x.is_floating_point():
            raise MlircError(f"{op.name()} of {x.dtype} is not supported: only of real floating-point numbers")
        if x.dim() > 1 and x.shape[-1] == x.shape[-2] and x.shape[-1] > LARGEST:
            raise MlircError(
                f"{op.name()} of matrices of {x.shape[-1]} rows is not supported: it is unrolled, for {LARGEST} at "
                "most; compute it outside of the model and give the result as an input"
            )


def _pivoted(a: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of a [..., n, m] from row k on, with the one of the largest |element| of column k put first.

    Returns that row [..., 1, m], the others [..., n-k-1, m], and the place it had [..., 1, 1].
    """
    rows = a[..., k:, :]
    size = rows[..., k : k + 1].abs()
    place = torch.arange(rows.shape[-2], device=a.device)[:, None]
    largest = aten.amax.default(size, [-2], True)
    taken = aten.amin.default(torch.where((size == largest) | (size != size), place, rows.shape[-2]), [-2], True)
    is_taken = place == taken
    zero = torch.zeros((), dtype=a.dtype, device=a.device)
    pivot_row = torch.where(is_taken, rows, zero).sum(-2, keepdim=True)
    others = torch.where(is_taken, rows[..., :1, :], rows)[..., 1:, :]
    return pivot_row, others, taken


def _pivots(a: Tensor) -> tuple[list[Tensor], Tensor]:
    """The pivots [...] of the elimination of a [..., n, n], and the sign of the exchanges [...]."""
    n = a.shape[-1]
    sign = torch.ones(a.shape[:-2], dtype=a.dtype, device=a.device)
    found = []
    for _ in range(n):
        row, rest, taken = _pivoted(a, 0)
        pivot = row[..., :1]
        sign = torch.where((taken == 0)[..., 0, 0], sign, -sign)
        found.append(pivot[..., 0, 0])
        divisor = torch.where(pivot == 0, 1.0, pivot)  # then the whole column is zero
        a = rest[..., 1:] - rest[..., :1] / divisor * row[..., 1:]
    return found, sign


def _wide(a: Tensor) -> Tensor:
    return a.float() if a.dtype in (torch.float16, torch.bfloat16) else a


@_decomposes(aten._linalg_det.default)
def _det(a: Tensor) -> tuple[Any, ...]:
    found, out = _pivots(_wide(a))
    for pivot in found:
        out = out * pivot
    return out.to(a.dtype), None, None  # nobody but a gradient reads the factors


@_decomposes(aten._linalg_slogdet.default)
def _slogdet(a: Tensor) -> tuple[Any, ...]:
    found, sign = _pivots(_wide(a))
    size = torch.zeros_like(sign)
    for pivot in found:
        sign, size = sign * torch.sign(pivot), size + torch.log(pivot.abs())
    return sign.to(a.dtype), size.to(a.dtype), None, None


def _solve(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """x [..., n, m] with a x = b by Gauss-Jordan elimination, and the first step whose pivot was 0, from 1, or 0."""
    n = a.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    both = torch.cat([a.expand(*batch, n, n), b.expand(*batch, n, b.shape[-1])], -1)
    info = torch.zeros(batch, dtype=torch.int32, device=a.device)
    for k in range(n):
        row, rest, _ = _pivoted(both, k)
        pivot = row[..., k : k + 1]
        info = torch.where((info == 0) & (pivot == 0)[..., 0, 0], k + 1, info).to(torch.int32)
        row = row / pivot
        above = both[..., :k, :]
        above, below = (x - x[..., k : k + 1] * row for x in (above, rest))
        both = torch.cat([above, row, below], -2)
    return both[..., n:], info


@_decomposes(aten.linalg_inv_ex.default)
def _inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    return _solve(a, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device))


@_decomposes(aten._linalg_solve_ex.default)
def _solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> tuple[Any, ...]:
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    if vector:
        b = b.unsqueeze(-1)
    x, info = _solve(a, b) if left else _solve(a.mT, b.mT)
    x = x if left else x.mT
    return x.squeeze(-1) if vector else x, None, None, info


@_decomposes(aten.linalg_cholesky_ex.default)
def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    n = a.shape[-1]
    a = a.mT if upper else a
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    columns = []
    for k in range(n):
        pivot = a[..., :1, :1]
        info = torch.where((info == 0) & ~(pivot > 0)[..., 0, 0], k + 1, info).to(torch.int32)
        column = a[..., :, :1] / torch.sqrt(pivot)
        columns.append(torch.cat([column.new_zeros([*a.shape[:-2], k, 1]), column], -2))
        below = column[..., 1:, :]
        a = a[..., 1:, 1:] - below * below.mT
    factor = torch.cat(columns, -1) if columns else a.clone()
    return factor.mT.contiguous() if upper else factor, info


@_decomposes(aten.cholesky.default)
def _old_cholesky(a: Tensor, upper: bool = False) -> Tensor:
    return _cholesky(a, upper=upper)[0]


@_decomposes(aten.linalg_solve_triangular.default)
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    n = a.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    rest = b.expand(*batch, *b.shape[-2:])
    rows: list[Tensor] = []
    for k in reversed(range(n)) if upper else range(n):
        # `rest` holds the rows that are still to be solved: those before k if `upper`, else those after it
        row = rest[..., -1:, :] if upper else rest[..., :1, :]
        row = row if unitriangular else row / a[..., k : k + 1, k : k + 1]
        rows.insert(0 if upper else len(rows), row)
        if upper:
            rest = rest[..., :-1, :] - a[..., :k, k : k + 1] * row
        else:
            rest = rest[..., 1:, :] - a[..., k + 1 :, k : k + 1] * row
    return torch.cat(rows, -2) if rows else rest.clone()


@_decomposes(aten.triangular_solve.default)
def _old_solve_triangular(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Tensor, Tensor]:
    a_, upper = (a.mT, not upper) if transpose else (a, upper)
    return _solve_triangular(a_, b, upper=upper, unitriangular=unitriangular), a.clone()


@_decomposes(aten.cholesky_solve.default)
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    lower = factor.mT if upper else factor
    half = _solve_triangular(lower, b, upper=False)
    return _solve_triangular(lower.mT, half, upper=True)


def _checked(*_: Any, **__: Any) -> None:
    """PyTorch raises here for a singular matrix; a compiled model goes on."""


LINALG[aten._linalg_check_errors.default] = _checked
