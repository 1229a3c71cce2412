"""Elements that rounding alone takes across a singularity: 1 / x or log(x) where x is 0 but for rounding."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_TWICE = 2  # PyTorch's own error, as in `compare.EAGER`
_FAR = 16  # times the output's median, or times 1 of an output of one element


def undecided(out: torch.Tensor, wide: torch.Tensor, runs: Sequence[torch.Tensor]) -> torch.Tensor:
    """A mask of the elements of `out` that are right whatever their value: PyTorch's own results do not decide it.

    `wide` is PyTorch's result in FP64, `runs` are those in the model's dtype, the first one of unchanged numbers.
    An element is undecided
    - where `wide` is finite and the first run is not: an overflow;
    - where the results are not all finite, or not the same infinity, or not all NaN, and `out` is as one of them;
    - near a pole: where the reciprocals of the results are 0 but for their own errors, and that of `out`, too.
    """
    out, wide, runs = out.double(), wide.double(), [r.double() for r in runs]
    overflow = torch.isfinite(wide) & ~torch.isfinite(runs[0])
    kinds = [_kind(r) for r in (wide, *runs)]
    differ, known = torch.zeros_like(overflow), torch.zeros_like(overflow)
    for kind in kinds:
        differ |= kind != kinds[0]
        known |= _kind(out) == kind
    return overflow | differ & known | ~differ & torch.isfinite(wide) & _near_pole(out, wide, runs)


def _near_pole(out: torch.Tensor, wide: torch.Tensor, runs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where errors are those of the reciprocals: of elements that are far larger than most of the output."""
    inverse = wide.reciprocal()
    error = torch.stack([(r.reciprocal() - inverse).abs() for r in runs]).amax(0) * _TWICE
    smallest = torch.stack([wide, *runs]).abs().amin(0)
    typical = smallest.nan_to_num(0, 0, 0).median() if wide.numel() > 1 else 1.0
    far = (smallest > 0) & (smallest >= _FAR * typical)
    return far & (inverse.abs() <= error) & ((out.reciprocal() - inverse).abs() <= error)


def _kind(x: torch.Tensor) -> torch.Tensor:
    """0 of a number, 1 and -1 of the infinities, 2 of NaN."""
    return torch.where(torch.isnan(x), 2.0, torch.where(torch.isinf(x), torch.sign(x), 0.0))
