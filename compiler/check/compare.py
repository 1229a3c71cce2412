"""How far a result is from PyTorch's, and whether that is too far.

Two errors of each output: of the whole, ||out - ref|| / ||ref||, and of its worst element, |out - ref| over the root
mean square of the element's row, so that one wrong row or element among many does not hide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from mlirc.check.gates import GATES, gate_of
from mlirc.check.singular import undecided
from mlirc.precision import DEFAULT_FP32

PEAK = 16  # times the gate: what rounding does to the worst element of many
EAGER = 2  # times PyTorch's own error in the model's dtype, where that is above the gate, as in deep models
_FLOOR = 0.1  # of the output's root mean square: rows that cancel to less are measured against this


@dataclass(frozen=True)
class Difference:
    """One output beside its reference. `error` is infinite where NaN, infinities, integers or shapes differ."""

    error: float = 0.0
    peak: float = 0.0
    wrong: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Reference:
    """What PyTorch gives for one output: in the model's dtype, and in FP64 (the same tensor where it cannot)."""

    eager: torch.Tensor
    wide: torch.Tensor
    moved: tuple[torch.Tensor, ...] = ()  # eager's with every weight and input moved by up to half a unit
    unseen: torch.Tensor | None = None  # as `wide`, where keys that a mask hides take no part (`unseen_keys.py`)
    undefined: torch.Tensor | None = None  # a mask of elements that PyTorch leaves undefined (`undefined.py`)


def compare(
    out: torch.Tensor, reference: Reference, rows: torch.Tensor | None = None, fp32: str = DEFAULT_FP32,
    tolerance: float = 0.0,
) -> Difference:  # fmt: skip
    """One output beside PyTorch's. `rows`: a bool mask of the leading dimensions, the positions to look at (None: all).
    `fp32`: how its FP32 products may be made. `tolerance`: a relative error that is stated to be right, where it is
    more than the gate.

    Floats pass within the gate of their dtype, or within twice PyTorch's own error against FP64, the largest that it
    has there or where its numbers were `moved`. Integers and booleans must equal PyTorch's. NaN and infinities must be
    where FP64 has them, but where PyTorch's own results leave that `undecided`. Each element
    may be that of attention without `unseen` keys, and anything where it depends on what PyTorch leaves `undefined`.
    """
    eager, wide, moved, unseen = reference.eager, reference.wide, reference.moved, reference.unseen
    if tuple(out.shape) != tuple(eager.shape):
        return Difference(math.inf, math.inf, True, f"has shape {list(out.shape)}, PyTorch's has {list(eager.shape)}")
    if reference.undefined is not None and bool(reference.undefined.any()):
        out, eager, wide = (t.masked_fill(reference.undefined, 0) for t in (out, eager, wide))
        moved = tuple(m.masked_fill(reference.undefined, 0) for m in moved)
        unseen = unseen.masked_fill(reference.undefined, 0) if unseen is not None else None
    if rows is not None:
        out, eager, wide, moved = out[rows], eager[rows], wide[rows], tuple(m[rows] for m in moved)
        unseen = unseen[rows] if unseen is not None else None
    if out.numel() == 0:
        return Difference()
    if not eager.is_floating_point():
        return _integers(out, eager, wide)
    gate, info = max(gate_of(eager.dtype, GATES["f32"], fp32), tolerance), torch.finfo(eager.dtype)
    out, eager, wide = (t.float() if t.element_size() == 1 else t for t in (out, eager, wide))
    moved = tuple(t.float() if t.element_size() == 1 else t for t in moved)
    # The largest number of FP64, say, where the model asks for that of its dtype.
    beyond = torch.isfinite(eager) & torch.isfinite(wide) & (wide.abs() > info.max)
    wide = torch.where(beyond, eager.to(wide.dtype), wide)
    wide = torch.where(wide.abs() < info.smallest_normal * info.eps / 2, 0, wide)
    skip = undecided(out, wide, (eager, *moved))
    if bool(skip.any()):
        out, eager, wide = (torch.where(skip, 0, t) for t in (out, eager, wide))
        moved = tuple(torch.where(skip, 0, m) for m in moved)
        unseen = torch.where(skip, 0, unseen) if unseen is not None else None
    # Where all cancels but for what is rounded on the way, sizes are those of PyTorch's own rounding.
    size = None
    if not bool(wide.nan_to_num(0, 0, 0).any()):
        size = eager.double().nan_to_num(0, 0, 0).square().mean().sqrt().expand(wide.shape)
    own = [_errors(x, wide, size)[:2] for x in (eager, *moved)]
    if unseen is not None:
        wide = torch.where(_off(out, unseen) < _off(out, wide), unseen.to(wide.dtype), wide)
    error, peak, reason = _errors(out, wide, size)
    own_error, own_peak = (max(x for x in (0.0, *column) if math.isfinite(x)) for column in zip(*own, strict=True))
    bad_whole = not error <= max(gate, EAGER * own_error)
    bad_peak = not peak <= max(PEAK * gate, EAGER * own_peak)
    if reason or not (bad_whole or bad_peak):
        return Difference(error, peak, bool(reason), reason)
    limit = max(gate, EAGER * own_error) if bad_whole else max(PEAK * gate, EAGER * own_peak)
    what = f"relative error {error:.1e}" if bad_whole else f"one element is off by {peak:.1e} of its row's size"
    return Difference(error, peak, True, f"{what}, allowed is {limit:.1e}{_worst(out, wide)}")


def _integers(out: torch.Tensor, eager: torch.Tensor, wide: torch.Tensor) -> Difference:
    # An index chosen among ties that rounding makes or breaks may be FP64's choice or eager's.
    different = (out.long() != eager.long()) & (out.long() != wide.long())
    count = int(different.sum())
    if not count:
        return Difference()
    at = tuple(int(i) for i in torch.nonzero(different)[0]) if different.dim() else ()
    reason = (
        f"{count} of {different.numel()} integers differ, first at {list(at)}: {out[at].item()} for {eager[at].item()}"
    )
    return Difference(math.inf, math.inf, True, reason)


def _off(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """How far each element is off; infinite where only one of both is NaN or they are not the same infinity."""
    out, ref = out.double(), ref.double()
    off = (out - ref).abs().nan_to_num(nan=math.inf)
    return off.masked_fill((out == ref) | torch.isnan(out) & torch.isnan(ref), 0.0)


def _errors(out: torch.Tensor, ref: torch.Tensor, size: torch.Tensor | None) -> tuple[float, float, str]:
    """Error of the whole and of the worst element, relative to `size`, or to `ref`; a reason where NaN or infinities
    differ."""
    out, ref = out.double(), ref.double()
    size = ref if size is None else size.double()
    finite = torch.isfinite(ref)
    same = torch.where(finite, torch.isfinite(out), torch.isnan(out) & torch.isnan(ref) | (out == ref))
    if not bool(same.all()):
        at = [int(i) for i in torch.nonzero(~same)[0]] if ref.dim() else []
        here = tuple(at)
        reason = (
            f"{int((~same).sum())} of {ref.numel()} elements: {out[here].item():g} for {ref[here].item():g} at {at}"
        )
        return math.inf, math.inf, reason
    zero = torch.zeros_like(ref)
    out, ref, size = torch.where(finite, out, zero), torch.where(finite, ref, zero), torch.where(finite, size, zero)
    off = (out - ref).abs()
    if not bool(off.any()):
        return 0.0, 0.0, ""
    norm = torch.linalg.vector_norm(size).item()
    whole = torch.linalg.vector_norm(off).item()
    return whole / norm if norm else math.inf, float((off / _scale(size)).max()), ""


def _scale(ref: torch.Tensor) -> torch.Tensor:
    """The size of each element's row (the last dimension), of the shape [..., 1]; never 0."""
    whole = ref.square().mean().sqrt()
    rows = ref.square().mean(-1, keepdim=True).sqrt() if ref.dim() else ref.abs()
    return torch.maximum(rows, _FLOOR * whole).clamp_min(torch.finfo(ref.dtype).tiny)


def _worst(out: torch.Tensor, wide: torch.Tensor) -> str:
    off = (out.double() - wide.double()).abs().nan_to_num() / _scale(wide.double().nan_to_num())
    at = [int(i) for i in torch.unravel_index(off.argmax(), off.shape)] if off.dim() else []
    here: Any = tuple(at)
    return f"; worst at {at}: {out[here].item():.6g} for {wide[here].item():.6g}"
