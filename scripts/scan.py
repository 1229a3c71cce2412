"""Scans: cumulative sums, products, maxima. A block walks along its rows, or each of its threads along its columns."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    generalize,
    match,
    match_root,
    power_of_two,
    product,
    script,
    tidy,
    tile_scan,
    tile_to_blocks,
)
from mlirc.scripts.elementwise import vector_width
from mlirc.targets import Target

LOADS = 4  # of a thread in one step along a row
WIDE = 32  # of a thread in a step that a block has for itself
AHEAD = 16  # elements of a thread in one step along a column; twice as many of few columns
LONG = 1 << 16  # elements of a row that blocks share
LEAST = 512  # blocks of columns
ENOUGH, PLENTY = 1 << 14, 1 << 16  # columns of which a thread for each keeps an H200 busy, and does so by itself


def is_tileable_scan(kernel: KernelInfo) -> bool:
    return kernel.scan is not None and not kernel.obstacle and len(kernel.dims) > 1


def row_tiles(
    kernel: KernelInfo, vector: int, warps: int | None, step: int | None, sms: int
) -> tuple[list[int], int, int]:
    """(tile sizes, elements of a step, warps) of scans along the last dimension: a row for each block, or several short
    ones."""
    assert kernel.scan is not None
    extents, length = [d.extent for d in kernel.dims], kernel.scan.length
    most = 32 if product(extents[:-1]) < 2 * sms else 16  # blocks that have a multiprocessor to themselves
    warps = warps or min(max(power_of_two(ceil_div(length, 32 * vector * LOADS)), 1), most)
    step = step or min(32 * vector * LOADS * warps, length)
    rows = max(min(power_of_two(128 * vector // step), extents[-2]), 1)
    return [*[1] * (len(extents) - 2), rows, 0], step, max(warps, 4) if rows > 1 else warps


def column_tiles(
    kernel: KernelInfo, vector: int, warps: int | None, step: int | None, sms: int
) -> tuple[list[int], int, int]:
    """The same of scans along another dimension: a thread for each of `vector` columns that are neighbours, or where
    these are few, the warps of a block one behind the other along them."""
    assert kernel.scan is not None
    extents, dim, length = [d.extent for d in kernel.dims], kernel.scan.dim, kernel.scan.length
    columns = product(extents) // length
    many = kernel.scan.linear or columns >= ENOUGH
    warps = warps or (max(min(power_of_two(columns // (32 * vector * LEAST)), 4), 1) if many else 8)
    left = 32 * vector * (warps if many else 1)
    sizes = [1] * len(extents)
    for d in reversed(range(len(extents))):
        if d != dim:
            sizes[d] = extents[d] if kernel.dims[d].whole else max(min(left, extents[d]), 1)
            left //= 1 << (sizes[d] - 1).bit_length()
    lanes = 1 if many else max(warps * 32 * vector // (1 << (product(sizes) - 1).bit_length()), 1)
    sizes = [0 if d.whole else n for d, n in zip(kernel.dims, sizes, strict=True)]
    ahead = AHEAD if columns >= PLENTY or not many else 2 * AHEAD
    return sizes, step or min(ahead * lanes, length), warps


def is_chainable(kernel: KernelInfo, sms: int) -> bool:
    """Whether a scan along the last dimension has too few rows to keep a GPU busy, and steps for several blocks."""
    assert kernel.scan is not None
    rows = product([d.extent for d in kernel.dims]) // kernel.scan.length
    return not kernel.scan.linear and not kernel.scan.ends and 2 * rows <= sms and kernel.scan.length >= LONG


def chained_tiles(
    kernel: KernelInfo, vector: int, warps: int | None, step: int | None, sms: int
) -> tuple[list[int], int, int]:
    """The same of scans whose steps have a block each."""
    assert kernel.scan is not None
    single = kernel.scan.count == 1 and kernel.element_bytes <= 4  # of which a thread has room for more
    elements = product([d.extent for d in kernel.dims])
    large = single and elements >= sms * 32 * WIDE * 16
    warps, own = warps or (16 if large else 8), WIDE if large else vector * LOADS
    return [1] * (len(kernel.dims) - 1) + [0], step or 32 * own * warps, warps


@register(matches=is_tileable_scan, priority=20)
def scan(
    kernel: KernelInfo,
    target: Target,
    *,
    step: int | None = None,
    warps: int | None = None,
    vector: int | None = None,
    chain: bool | None = None,
    min_blocks: int | None = None,
) -> ir.Module:
    """Each block takes rows, or columns, and walks along them `step` elements at a time with the carry in registers, so
    that every operand is read once.

    Knobs:
      step: elements along the scan that a block takes at a time.
      warps: warps of a block.
      vector: elements of a thread's access.
      chain: a block for each step (default: of few long rows), which hand on the carry through memory.
      min_blocks: blocks that a multiprocessor should hold.
    """
    assert kernel.scan is not None
    last = len(kernel.dims) - 1
    along = kernel.scan.dim == last
    if vector is None:
        vector = vector_width(kernel, kernel.dims[last].extent)
        columns = product([d.extent for d in kernel.dims]) // kernel.scan.length
        if kernel.scan.linear or not along:
            most = 1 if kernel.scan.linear else max(min(power_of_two(columns // PLENTY), 2 * kernel.element_bytes), 1)
            vector = min(vector, most, 4)
    tiles = row_tiles if along and not kernel.scan.linear else column_tiles
    chain = along and is_chainable(kernel, target.sms) if chain is None else chain
    tiles = chained_tiles if chain else tiles
    sizes, step, warps = tiles(kernel, vector, warps, step, target.sms)
    neighbours = last - 1 if along else last
    with script(step=step, warps=warps, vector=vector, chain=chain, min_blocks=min_blocks) as (module, function):
        generalize(function)
        forall = tile_to_blocks(match_root(function), sizes=sizes, keep=[neighbours], order=[])
        if step < kernel.scan.length:
            tile_scan(forall, size=step)
            annotate(forall, chain=ceil_div(kernel.scan.length, step) if chain else None)
        annotate(match(forall, "linalg.generic"), vector=vector)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
    return module
