"""How FP32 products may be made (`--fp32`): a choice of the user's for a whole model, which scripts read as
`kernel.fp32` and gates follow. Only products of f32 operands ask; everything else that is f32 is computed in FP32."""

from __future__ import annotations

from mlirc.errors import MlircError

DEFAULT_FP32 = "tf32x3"
FP32 = {
    "ieee": "FP32 products and sums",
    "tf32x3": "as exact as FP32: three TF32 products on tensor cores where that was measured as faster, else FP32",
    "tf32": "one TF32 product (10 bits of mantissa) on tensor cores, wherever a script has it",
}


def check_fp32(name: str) -> str:
    """The name of a way; raises MlircError for any other."""
    if name not in FP32:
        raise MlircError(f"fp32 = {name!r}: choose {', '.join(FP32)}")
    return name
