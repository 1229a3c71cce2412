"""Which products copy operands whose rows are no multiple of 16 bytes into rows that are, in front of the product
(`schedule.align_rows`): those that take fewer clocks so, the copies among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlirc.dialects.schedule.align_rows import ROW_BYTES, longer
from mlirc.errors import MlircError
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.scripts import _fp32_warpgroup_tiles
from mlirc.scripts._block_shape import BlockShape, Sizes
from mlirc.scripts._matmul_tiles import choose
from mlirc.scripts._split_k_clocks import clocks
from mlirc.targets import Target

# Of a launch that copies an operand, in clocks, and its bytes in one.
COPY, COPY_BYTES = 3000, 2150
LEAST = 1 << 18  # elements of both operands: the launches take longer than less
FEW = 16  # rows or columns: bound by reading the other operand, which is not read twice
DIRECT = (
    0.8  # of the count for slices of 16 bits that are copied 4 bytes at a time, which it takes for slower than they are
)
LEAST_AT_ONCE, MOST_AT_ONCE = 1024, 8192  # numbers of a block that copies rows


def with_aligned_rows(
    kernel: KernelInfo, target: Target, given: Mapping[str, Any], wanted: bool | None
) -> tuple[KernelInfo, BlockShape]:
    """How to cut a product, and the kernel as the product then sees it: with aligned rows (`alignable` and `boxes`)
    where that is `wanted`, or where no knob is given and it is faster. Raises MlircError where it cannot be."""
    c = kernel.contraction
    assert c is not None
    if wanted and not c.alignable:
        what = "its operands are computed, or their rows are multiples of 16 bytes already"
        raise MlircError(f"kernel '{kernel.name}': align_rows=true: {what}: leave it out")
    if wanted:
        return _aligned(kernel), choose(_aligned(kernel), target, given)
    plain = choose(kernel, target, given)
    asked = wanted is not None or any(v is not None for v in given.values())
    size = Sizes.of(kernel, c)
    small = min(size.m, size.n) <= FEW or size.batch * c.k * (size.m + size.n) < LEAST
    if asked or small or not c.alignable or not target.has_wgmma:
        return kernel, plain
    aligned = _aligned(kernel)
    copied = choose(aligned, target, given)
    most = clocks_of(plain, kernel, target) * (DIRECT if c.direct and c.element_bytes < 4 else 1)
    if copied.copy != "tma" or copy_clocks(kernel) + clocks_of(copied, aligned, target) >= most:
        return kernel, plain
    return aligned, copied


def clocks_of(shape: BlockShape, kernel: KernelInfo, target: Target) -> float:
    """How long a product takes, by the counts that choose tiles, in clocks."""
    c = kernel.contraction
    assert c is not None
    size = Sizes.of(kernel, c)
    if shape.mma in _fp32_warpgroup_tiles.INSTRUCTIONS:
        tensor_copies = shape.copy == "tma"
        return _fp32_warpgroup_tiles.candidates(size, c, target, tensor_copies, shape.mma)[0][0]
    return clocks(shape, size, c, target)


def copy_clocks(kernel: KernelInfo) -> float:
    """How long the copies take: a launch for each operand, which reads and writes it."""
    c, aligned = kernel.contraction, _aligned(kernel).contraction
    assert c is not None and aligned is not None
    size, total = Sizes.of(kernel, c), 0.0
    for extent, along, t in zip((size.m, size.n), c.along_k, (c.a_type, c.b_type), strict=True):
        element = ELEMENT_BYTES.get(t, 4)
        if (c.k if along else extent) * element % ROW_BYTES or c.k != aligned.k:
            total += COPY + 2 * size.batch * extent * c.k * element / COPY_BYTES
    return total


def copied_at_once(size: Sizes, c: ContractionInfo, target: Target) -> int:
    """Numbers of a block that copies rows: so many that each multiprocessor has two blocks or more."""
    numbers = size.batch * c.k * min(size.m, size.n) // (2 * target.sms)
    return min(max(1 << max(numbers.bit_length() - 1, 0), LEAST_AT_ONCE), MOST_AT_ONCE)


def _aligned(kernel: KernelInfo) -> KernelInfo:
    c = kernel.contraction
    assert c is not None
    rows = [(c.k, ELEMENT_BYTES.get(t, 4)) for t, along in zip((c.a_type, c.b_type), c.along_k, strict=True) if along]
    panels = not c.along_k[1]
    return replace(kernel, contraction=replace(c, k=longer(rows, c.k), direct=True, boxes=True, panels=panels))
