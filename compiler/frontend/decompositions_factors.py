"""Decompositions of factorizations of small matrices: QR by reflections, eigenvalues and singular values by rotations.

G. H. Golub, C. F. Van Loan, "Matrix Computations" (2013), sections 5.2 (Householder), 8.5 (Jacobi) and 8.6. The steps
are unrolled: larger matrices are refused. Signs and phases that are not unique:

- QR: those of LAPACK's reflections, so that results are PyTorch's;
- eigenvectors, and singular vectors of the larger side (left ones of a square matrix): the element of the largest size
  is positive. PyTorch's signs differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mlirc.errors import MlircError

aten = torch.ops.aten
Tensor = torch.Tensor

LARGEST_REFLECTED, LARGEST_ROTATED = 32, 16
FACTORS: dict[Any, Callable] = {}


def _require_small(op: Any, a: Tensor, largest: int) -> None:
    if not a.is_floating_point():
        raise MlircError(f"{op.name()} of {a.dtype} is not supported: only of real floating-point numbers")
    if max(a.shape[-2:]) > largest:
        raise MlircError(
            f"{op.name()} of {a.shape[-2]} rows and {a.shape[-1]} columns is not supported: it is unrolled, for "
            f"{largest} at most; compute it outside of the model and give the result as an input"
        )


def _reflections(a: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """(R [..., m, n], and of each step the reflection's vector [..., m - k, 1], whose first element is 1, and its
    factor [..., 1, 1])."""
    m, n = a.shape[-2:]
    rows: list[Tensor] = []
    vectors, factors = [], []
    for k in range(min(m, n)):
        first, below = a[..., :1, :1], a[..., 1:, :1]
        rest = (below * below).sum(-2, keepdim=True)
        size = torch.sqrt(first * first + rest)
        pivot = torch.where(rest == 0, first, torch.where(first < 0, size, -size))
        factor = torch.where(rest == 0, 0.0, (pivot - first) / pivot)
        vector = torch.cat([torch.ones_like(first), torch.where(rest == 0, 0.0, below / (first - pivot))], -2)
        right = a[..., 1:]
        right = right - factor * vector * (vector * right).sum(-2, keepdim=True)
        rows.append(torch.cat([a.new_zeros(*a.shape[:-2], 1, k), pivot, right[..., :1, :]], -1))
        vectors.append(vector)
        factors.append(factor)
        a = right[..., 1:, :]
    if m > n:
        rows.append(a.new_zeros(*a.shape[:-2], m - n, n))
    return torch.cat(rows, -2), vectors, factors


def _eye(like: Tensor, m: int, n: int) -> Tensor:
    """[..., m, n] for the matrices of a tensor, ones on the diagonal."""
    return torch.eye(m, n, dtype=like.dtype, device=like.device).expand(*like.shape[:-2], m, n)


def _reflected(vectors: list[Tensor], factors: list[Tensor], out: Tensor) -> Tensor:
    """The product of the reflections with a matrix [..., m, columns]."""
    for k in reversed(range(len(vectors))):
        part = out[..., k:, :]
        part = part - factors[k] * vectors[k] * (vectors[k] * part).sum(-2, keepdim=True)
        out = torch.cat([out[..., :k, :], part], -2) if k else part
    return out


def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    _require_small(aten.linalg_qr.default, a, LARGEST_REFLECTED)
    m, n = a.shape[-2:]
    kept = m if mode == "complete" else min(m, n)
    r, vectors, factors = _reflections(a) if a.numel() else (a, [], [])
    r = r[..., :kept, :]
    if mode == "r":
        return a.new_zeros(0), r
    eye = _eye(a, m, kept)
    return _reflected(vectors, factors, eye), r


FACTORS[aten.linalg_qr.default] = _qr


def _round_robin(n: int) -> list[int]:
    """Where the rows go after each round, so that n - 1 rounds (n even) make neighbours of all pairs: row 0 stays, the
    others walk round the table."""
    top, bottom = list(range(0, n, 2)), list(range(1, n, 2))
    if n > 2:
        top, bottom = [top[0], bottom[0], *top[1:-1]], [*bottom[1:], top[-1]]
    return [x for pair in zip(top, bottom, strict=True) for x in pair]


def _rotations(n: int, diagonal: Tensor, other: Tensor, beside: Tensor) -> Tensor:
    """The matrix [..., n, n] of rotations of neighbours that zero the elements `beside` of symmetric 2x2 matrices with
    the given diagonals, all [..., n / 2], and then of the round's exchange."""
    tau = (other - diagonal) / (2 * beside)
    tangent = torch.where(tau < 0, -1.0, 1.0) / (tau.abs() + torch.sqrt(1 + tau * tau))
    tangent = torch.where(beside == 0, 0.0, tangent)
    cos = 1 / torch.sqrt(1 + tangent * tangent)
    sin = tangent * cos
    twice = torch.repeat_interleave(torch.stack([cos, sin]), 2, -1)  # of each row
    at = torch.arange(n)
    order = torch.tensor(_round_robin(n))
    row, column = at[:, None], order[None, :]
    same, pair = row == column, (row ^ 1) == column
    sign = torch.where(row % 2 == 1, -1.0, 1.0).to(cos.dtype)
    return torch.where(same, twice[0][..., None], torch.where(pair, twice[1][..., None] * sign, 0.0))


def _sweeps(dtype: torch.dtype) -> int:
    return 10 if dtype == torch.float64 else 8


def _positive(vectors: Tensor) -> Tensor:
    """The sign [..., 1, n] by which the largest element of each column [..., m, n] becomes positive."""
    highest, lowest = aten.amax.default(vectors, [-2], True), aten.amin.default(vectors, [-2], True)
    return torch.where(highest >= -lowest, 1.0, -1.0).to(vectors.dtype)


def _columns(x: Tensor, order: Tensor) -> Tensor:
    return torch.gather(x, -1, order.unsqueeze(-2).expand(x.shape))


def _eigh(a: Tensor, uplo: str = "L", compute_v: bool = True) -> tuple[Tensor, Tensor]:
    """Jacobi's method, by rounds of rotations of all rows in pairs."""
    _require_small(aten._linalg_eigh.default, a, LARGEST_ROTATED)
    n = a.shape[-1]
    if not a.numel():
        return a.new_zeros(a.shape[:-1]), a.clone()
    half = a.tril() if uplo.upper() == "L" else a.triu().mT
    a = half + half.tril(-1).mT
    size = max(n + n % 2, 2)
    a = torch.nn.functional.pad(a, (0, size - n, 0, size - n))  # a row of zeros is never rotated
    vectors = _eye(a, size, size)
    for _ in range(_sweeps(a.dtype) * (size - 1) if n > 1 else 0):
        pairs = a.diagonal(dim1=-2, dim2=-1)
        beside = a.diagonal(1, -2, -1)[..., ::2]
        turn = _rotations(size, pairs[..., ::2], pairs[..., 1::2], beside)
        both = torch.matmul(torch.cat([a, vectors], -2) if compute_v else a, turn)
        a, vectors = torch.matmul(turn.mT, both[..., :size, :]), both[..., size:, :]
        a = (a + a.mT) * 0.5
    values, order = torch.sort(a.diagonal(dim1=-2, dim2=-1)[..., :n], -1)
    if not compute_v:
        return values, a.new_zeros(0)
    vectors = _columns(vectors[..., :n, :n], order)
    return values, vectors * _positive(vectors)


FACTORS[aten._linalg_eigh.default] = _eigh


def _svd(
    a: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The one-sided Jacobi method of Hestenes: rotations of columns until they are orthogonal."""
    m, n = a.shape[-2:]
    if m < n:
        u, s, vh = _svd(a.mT, full_matrices, compute_uv)
        return vh.mT, s, u.mT
    if not a.numel():
        values = a.new_zeros(*a.shape[:-2], n)
        return (_eye(a, m, m if full_matrices else n), values, _eye(a, n, n)) if compute_uv else (a, values, a)
    op = aten._linalg_svd.default
    _require_small(op, a, LARGEST_REFLECTED)
    _require_small(op, a[..., :n, :], LARGEST_ROTATED)
    size = max(n + n % 2, 2)
    columns = torch.nn.functional.pad(a, (0, size - n))
    both = columns
    if compute_uv:
        both = torch.cat([columns, _eye(a, size, size)], -2)
    for _ in range(_sweeps(a.dtype) * (size - 1) if n > 1 else 0):
        left, right = both[..., :m, ::2], both[..., :m, 1::2]
        turn = _rotations(size, (left * left).sum(-2), (right * right).sum(-2), (left * right).sum(-2))
        both = torch.matmul(both, turn)
    columns = both[..., :m, :n]
    values, order = torch.sort(torch.sqrt((columns * columns).sum(-2)), -1, True)
    if not compute_uv:
        return a.new_zeros(0), values, a.new_zeros(0)
    columns, v = _columns(columns, order), _columns(both[..., m : m + n, :n], order)
    row = values.unsqueeze(-2)
    none = row <= row[..., :1] * torch.finfo(a.dtype).tiny
    u = torch.where(none, 0.0, columns / torch.where(none, 1.0, row))
    whole = _qr(u, "complete" if full_matrices else "reduced")[0]  # columns for values of 0, and the rest of the space
    u = torch.cat([torch.where(none, whole[..., :n], u), whole[..., n:]], -1)
    sign = _positive(u)
    return u * sign, values, (v * sign[..., :n]).mT


FACTORS[aten._linalg_svd.default] = _svd


def _pinv(a: Tensor, *, atol: Tensor | None = None, rtol: Tensor | None = None, hermitian: bool = False) -> Tensor:
    if hermitian:  # the lower triangle tells all
        a = a.tril() + a.tril(-1).mT
    if not a.numel():
        return a.mT.clone()
    u, s, vh = _svd(a)
    largest = s[..., :1]
    bound = torch.zeros_like(largest) if atol is None else atol.unsqueeze(-1)
    if rtol is None:
        relative = torch.finfo(a.dtype).eps * max(a.shape[-2:])
        by_size = largest * relative if atol is None else torch.where(bound > 0, 0.0, largest * relative)
    else:
        by_size = largest * rtol.unsqueeze(-1)
    kept = s > torch.maximum(bound, by_size)
    inverse = torch.where(kept, 1 / torch.where(kept, s, 1.0), 0.0)
    return torch.matmul(vh.mT * inverse.unsqueeze(-2), u.mT)


FACTORS[aten.linalg_pinv.atol_rtol_tensor] = _pinv


def _product_of_reflections(a: Tensor, factors: Tensor) -> Tensor:
    _require_small(aten.linalg_householder_product.default, a, LARGEST_REFLECTED)
    m, n = a.shape[-2:]
    count = factors.shape[-1]
    one = a.new_ones(*a.shape[:-2], 1, 1)
    vectors = [torch.cat([one, a[..., k + 1 :, k : k + 1]], -2) for k in range(count)]
    taken = [factors[..., k : k + 1].unsqueeze(-1) for k in range(count)]
    return _reflected(vectors, taken, _eye(a, m, n))


FACTORS[aten.linalg_householder_product.default] = _product_of_reflections


def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    _require_small(aten.geqrf.default, a, LARGEST_REFLECTED)
    m, n = a.shape[-2:]
    if not a.numel():
        return a.clone(), a.new_zeros(*a.shape[:-2], min(m, n))
    r, vectors, factors = _reflections(a)
    below = [torch.nn.functional.pad(v[..., 1:, :], (0, 0, k + 1, 0)) for k, v in enumerate(vectors)]
    below += [a.new_zeros(*a.shape[:-2], m, n - len(below))] if n > len(below) else []
    return r + torch.cat(below, -1), torch.cat(factors, -1)[..., 0, :]


FACTORS[aten.geqrf.default] = _geqrf
