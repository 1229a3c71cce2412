"""Elementwise kernels: any group of parallel ops, with broadcasts, transposes and gathers in the bodies."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    collapse_dims,
    generalize,
    match,
    match_root,
    power_of_two,
    product,
    script,
    tidy,
    tile_to_blocks,
)
from mlirc.targets import Target


def is_elementwise(kernel: KernelInfo) -> bool:
    nothing_reduced = kernel.row_length == 0 and kernel.contraction is None
    computes = any(name.startswith("linalg.") and name != "linalg.fill" for name in kernel.ops)  # not a fill alone
    tileable = not kernel.obstacle and len(kernel.dims) > 0 and not any(d.whole for d in kernel.dims)
    return nothing_reduced and computes and tileable


def vector_width(kernel: KernelInfo, extent: int) -> int:
    """Elements per thread along the innermost dimension: 16 bytes of the widest type, if the rows stay aligned."""
    width = max(16 // kernel.element_bytes, 1)
    while extent % width:
        width //= 2
    return width


def tile_sizes(kernel: KernelInfo, block_elements: int) -> list[int]:
    """Sizes whose product is about `block_elements`, filled from the innermost dimension outwards.

    A transposed operand is contiguous along another dimension than the result: then the tile is made square in the two
    innermost dimensions, so that both are read in whole sectors.
    """
    extents = [d.extent for d in kernel.dims]
    sizes = [1] * len(extents)
    left = block_elements
    if kernel.permuted and len(extents) > 1:
        left = max(block_elements // 2 ** (power_of_two(block_elements).bit_length() // 2), 1)
    for d in reversed(range(len(extents))):
        sizes[d] = extents[d] if extents[d] <= left else power_of_two(left)
        spent = product(sizes)
        left = max(block_elements // (1 << (spent - 1).bit_length()), 1)
    return sizes


@register(matches=is_elementwise, priority=10)
def elementwise(
    kernel: KernelInfo,
    target: Target,
    *,
    warps: int = 4,
    vector: int | None = None,
    block_elements: int | None = None,
    min_blocks: int | None = None,
) -> ir.Module:
    """One tile of the result per block; `vector` elements per thread along the innermost dimension.

    Knobs:
      warps: warps of a block.
      vector: elements of a thread along the innermost dimension (default: 16 bytes).
      block_elements: elements of a block (default: one or two vectors a thread, four of a transpose, while every
        multiprocessor has several blocks).
      min_blocks: blocks that a multiprocessor should hold.
    """
    total = product([d.extent for d in kernel.dims])
    vector = vector or vector_width(kernel, kernel.dims[-1].extent)
    if block_elements is None:
        block_elements = 32 * warps * vector
        most = block_elements * (4 if kernel.permuted else 2)
        while block_elements < most and ceil_div(total, 2 * block_elements) >= 8 * target.sms:
            block_elements *= 2
    sizes = tile_sizes(kernel, block_elements)
    knobs = dict(warps=warps, vector=vector, block_elements=block_elements, min_blocks=min_blocks)
    with script(**knobs) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[len(sizes) - 1], order=[])
        annotate(match(forall, "linalg.generic"), vector=vector)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
    return module
