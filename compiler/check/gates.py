"""How near a result must be to the reference in FP64, as the relative error in the Frobenius norm, and that error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlirc.precision import DEFAULT_FP32

if TYPE_CHECKING:
    from torch import Tensor, dtype

GATES = {"f64": 1e-10, "f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # by the model's dtype
GATES |= {"tf32": 1e-3}  # f32 whose products may be TF32's
GATES |= {"f8E4M3FN": 0.05, "f8E5M2": 0.1}
GATES |= {"13-bit sums": 0.1}  # of 8-bit floats (`levels.CUT_SUMS`): 3 % of 2048 products of one sign
_NAMES = {"torch.float64": "f64", "torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16"}
_NAMES |= {"torch.float8_e4m3fn": "f8E4M3FN", "torch.float8_e5m2": "f8E5M2"}


def gate_of(kind: dtype, default: float, fp32: str = DEFAULT_FP32) -> float:
    """The gate of a torch dtype; `default` for one that has none. `fp32`: how FP32 products may be made."""
    return GATES.get(gate_name(_NAMES.get(str(kind), ""), fp32), default)


def gate_name(dtype: str, fp32: str) -> str:
    """Which of `GATES` holds for results of a dtype."""
    return "tf32" if (dtype, fp32) == ("f32", "tf32") else dtype


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
