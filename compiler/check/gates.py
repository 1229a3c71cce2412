"""How near a result must be to the reference in FP64, as the relative error in the Frobenius norm, and that error."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

GATES = {"f64": 1e-10, "f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # by the model's dtype
_NAMES = {"torch.float64": "f64", "torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}


def gate_of(kind: dtype, default: float) -> float:
    """The gate of a torch dtype; `default` for one that has none."""
    return GATES.get(_NAMES.get(str(kind), ""), default)


def relative_error(out: Tensor, ref: Tensor) -> float:
    """||out - ref|| / ||ref|| (Frobenius) over the finite entries of `ref`; infinite where shapes, NaN or infinities
    differ."""
    import torch

    if out.shape != ref.shape:
        return float("inf")
    out, ref = out.double(), ref.double()
    finite = torch.isfinite(ref)
    if not bool(finite.all()):
        same = torch.isnan(out) & torch.isnan(ref) | (out == ref) | finite
        if not bool(same.all()):
            return float("inf")
        out, ref = out[finite], ref[finite]
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    norm = torch.linalg.vector_norm(ref).item()
    difference = torch.linalg.vector_norm(out - ref).item()
    return difference / norm if norm else difference
