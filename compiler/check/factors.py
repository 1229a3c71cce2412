"""Factors of matrices, of which PyTorch leaves open the signs of vectors, and bases of spaces of equal values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_EIGH, _SVD = aten._linalg_eigh.default, aten._linalg_svd.default
_REFLECTED = (aten.linalg_qr.default, aten.geqrf.default)  # as LAPACK's, but for what noise decides
_TIE = 1e-3  # relative to the larger: sizes that rounding may put in either order


class UniqueFactors(TorchDispatchMode):
    """Inside, the largest element of an eigenvector or singular vector is positive, as in a compiled model.

    `found` tells whether there was a factorization. With a `seed`, matrices have noise of their dtype's rounding, and
    signs that hang on a tie are the others: results that follow from a choice differ from those without it."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._noise = None if seed is None else torch.Generator().manual_seed(seed)
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (_EIGH, _SVD, *_REFLECTED) or args[0].is_complex():
            return func(*args, **(kwargs or {}))
        self.found = True
        a = args[0] if self._noise is None else _noisy(args[0], self._noise)
        out = func(a, *args[1:], **(kwargs or {}))
        if func in _REFLECTED or any(t.numel() == 0 for t in out):  # no vectors
            return out
        unknown = ~torch.isfinite(a).all(-1).all(-1)  # where PyTorch raises, or gives what it will
        out = tuple(
            t.masked_fill(unknown.reshape(*unknown.shape, *[1] * (t.dim() - unknown.dim())), math.nan) for t in out
        )
        if func is _EIGH:
            return out[0], out[1] * self._signs(out[1])
        u, s, vh = out
        if u.shape[-2] >= vh.shape[-1]:
            return self._signed(u, s, vh)
        u, s, vh = self._signed(vh.mT, s, u.mT)
        return vh.mT, s, u.mT

    def _signed(self, u: Tensor, s: Tensor, vh: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Signs by u [..., m, k], k >= n, for vh [..., n, n] too; where a value is 0 the two hang not together."""
        n = s.shape[-1]
        if self._noise is not None and u.shape[-1] > n:
            turned = torch.randn(u.shape[-1] - n, u.shape[-1] - n, generator=self._noise, dtype=u.dtype)
            u = torch.cat([u[..., :n], u[..., n:] @ torch.linalg.qr(turned)[0]], -1)
        sign = self._signs(u)
        both = sign[..., :n].mT
        if self._noise is not None:
            both = torch.where(s[..., None] <= _TIE * s[..., :1, None], -both, both)
        return u * sign, s, vh * both

    def _signs(self, vectors: Tensor) -> Tensor:
        """[..., 1, k] of 1 and -1 for the columns of [..., n, k]."""
        highest, lowest = vectors.amax(-2, keepdim=True), vectors.amin(-2, keepdim=True)
        is_positive = highest >= -lowest
        if self._noise is not None:
            is_positive ^= (highest + lowest).abs() <= _TIE * torch.maximum(highest, -lowest)
        return torch.where(is_positive, 1.0, -1.0).to(vectors.dtype)


def _noisy(a: Tensor, generator: torch.Generator) -> Tensor:
    """Matrices with noise of the rounding of their elements' root mean square, too little for a rank to rise."""
    info = torch.finfo(a.dtype)
    size = a.square().mean((-2, -1), keepdim=True).sqrt() * (info.eps / 4)
    noise = torch.rand(a.shape, generator=generator, dtype=a.dtype) - 0.5
    return a + noise * size.clamp_min(info.tiny * 1e4)


def following(run: Callable[[int], Sequence[Tensor] | None], results: Sequence[Tensor]) -> list[Tensor]:
    """Of each result the elements that follow from what is not unique, as masks. `run(seed)`: those with noise."""
    masks = [torch.zeros(r.shape, dtype=torch.bool) for r in results]
    for seed in range(3):
        others = run(seed)
        if others is None or any(o.shape != r.shape for o, r in zip(others, results, strict=True)):
            continue
        masks = [m | _differ(o, r) for m, o, r in zip(masks, others, results, strict=True)]
    return masks


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Where two differ by more than noise explains; of floats relative to the whole's root mean square."""
    if not one.is_floating_point() or not one.numel():
        return one != other
    info = torch.finfo(one.dtype)
    size = other.nan_to_num(0, 0, 0).square().mean().sqrt().clamp_min(info.tiny**0.5)
    near = (one - other).abs() <= info.eps**0.5 * size
    return ~(near | (one == other) | (one != one) & (other != other))
