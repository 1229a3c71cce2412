"""Scans (cumulative sums, products, maxima) as one op each, which stays whole until a schedule takes it apart:
`mlirc::prefix_scan`; `mlirc::prefix_extremum`, which keeps places as well; and `mlirc::linear_scan`."""

from __future__ import annotations

from collections.abc import Callable

import torch

SCANS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": torch.cumsum,
    "mul": torch.cumprod,
    "logaddexp": torch.logcumsumexp,
}
JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "logaddexp": torch.logaddexp,
}


@torch.library.custom_op("mlirc::prefix_scan", mutates_args=())
def prefix_scan_op(x: torch.Tensor, dim: int, combine: str, start: torch.Tensor | None = None) -> torch.Tensor:
    """What `combine`, a key of SCANS, makes of the elements of `x` up to each one along `dim`, and of what is before
    them, `start`, which has the other dimensions (no "logaddexp" has one). All are of one dtype: f32, f64 or int64. `x`
    has a dimension, and none is empty."""
    scanned = SCANS[combine](x, dim)
    return scanned if start is None else JOINS[combine](scanned, start.unsqueeze(dim))


@prefix_scan_op.register_fake
def _(x, dim, combine, start=None):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("mlirc::prefix_extremum", mutates_args=())
def prefix_extremum_op(x: torch.Tensor, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest (or smallest) element up to each one along `dim`, and its place (int64): the last of equal ones, and
    from a NaN on the last NaN. Dtypes and shapes as of `prefix_scan_op`."""
    return (torch.cummax if largest else torch.cummin)(x, dim)


@prefix_extremum_op.register_fake
def _(x, dim, largest):
    values = torch.empty_like(x, memory_format=torch.contiguous_format)
    return values, torch.empty_like(values, dtype=torch.int64)


@torch.library.custom_op("mlirc::linear_scan", mutates_args=())
def linear_scan_op(a: torch.Tensor, b: torch.Tensor, start: torch.Tensor, dim: int) -> torch.Tensor:
    """The linear recurrence h = a h + b along `dim` of `a` and `b`, which have one shape, from `start`, which lacks
    that dimension; all of one dtype of floats. Every h, in the shape of `a`."""
    h, rows = start, []
    for factor, term in zip(a.unbind(dim), b.unbind(dim), strict=True):
        h = factor * h + term
        rows.append(h)
    return torch.stack(rows, dim)


@linear_scan_op.register_fake
def _(a, b, start, dim):
    return torch.empty_like(a, memory_format=torch.contiguous_format)
