"""The speed of light: the shortest time that a GPU can take for some work. No MLIR, no GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Ceiling:
    """What one GPU reaches at best: bytes per second from memory, operations per second by dtype; `vector` is f32
    arithmetic outside of products."""

    name: str
    bandwidth: float
    flops: dict[str, float] = field(default_factory=dict)
    vector: float = 1e15


# Measured on an H200 with cuBLAS on random data (780 bf16, 400 TF32) and a 4 GiB reduction. f32 products may be made of
# three TF32 products, so that their ceiling is a third of TF32's and not the FMA pipe's 50.
H200 = Ceiling(
    "NVIDIA H200", 4.4e12,
    {"bf16": 780e12, "f16": 780e12, "f32": 400e12 / 3, "f64": 67e12, "i8": 1.5e15}, vector=60e12,
)  # fmt: skip


def bound_us(work: dict[str, Any], ceiling: Ceiling = H200) -> float:
    """Microseconds below which no program does the work (`count.Work.to_json()`): bytes, tensor-core operations and
    other operations overlap, so the longest of the three counts."""
    memory = (work["read"] + work["written"]) / ceiling.bandwidth
    tensor = sum(n / ceiling.flops.get(dtype, 1e15) for dtype, n in work["flops"].items())
    return 1e6 * max(memory, tensor, work["vector"] / ceiling.vector)


def limited_by(work: dict[str, Any], ceiling: Ceiling = H200) -> str:
    """`memory` or `compute`."""
    memory = (work["read"] + work["written"]) / ceiling.bandwidth
    return "memory" if memory * 1e6 >= bound_us(work, ceiling) else "compute"
