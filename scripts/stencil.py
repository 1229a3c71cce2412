"""Stencils: maps that read several neighbours of each element, as depthwise convolutions and poolings of tensors that
are stored channels last do."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes.distribute.layouts.bands import Band
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
from mlirc.scripts import _bands
from mlirc.scripts.elementwise import is_elementwise, vector_width
from mlirc.targets import Target

LANES = 8  # along the channels: 128 bytes of a pixel
STRIPS = (8, 7, 6, 5, 4), (3, 2)  # lengths, by preference
WARPS = 16  # of a multiprocessor, of tensor cores' schedule: 128 registers for each thread
THREADS = 128  # of each multiprocessor, that long strips must leave


def is_stencil(kernel: KernelInfo) -> bool:
    return kernel.neighbors > 1 and is_elementwise(kernel) and not kernel.permuted


def _whole(n: int) -> int:
    """The largest power of two that divides n."""
    return n & -n


def strip_length(kernel: KernelInfo, target: Target, vector: int) -> int:
    """Neighbours along the last dimension but one that a thread computes: a length that divides the extent, of 4 to 8
    if there is one, for which the most neighbouring threads have whole strips; where that leaves threads enough."""
    extent, total = kernel.dims[-2].extent, product([d.extent for d in kernel.dims])
    for lengths in STRIPS:
        fits = [n for n in lengths if extent % n == 0 and total >= n * vector * THREADS * target.sms]
        if fits:
            return max(fits, key=lambda n: _whole(extent // n))
    return 1


def tile_sizes(kernel: KernelInfo, threads: int, vector: int, strip: int) -> list[int]:
    """A tile of which each thread has `strip` x `vector` elements: up to 128 bytes of a pixel, whole strips of a row,
    and rows; by powers of two that divide the extents, so that no thread is without a whole strip, while there are
    such."""
    *outer, width, channels = [d.extent for d in kernel.dims]
    chunks = channels // vector
    lanes = min(_whole(chunks), LANES)
    if lanes == 1 and chunks <= threads:
        lanes = chunks
    left = threads // power_of_two(2 * lanes - 1)
    taken = max(min(_whole(width // strip), left), 1)
    sizes, left = [taken * strip, lanes * vector], left // taken
    for extent in reversed(outer):
        rows = max(min(_whole(extent), left), 1)
        sizes, left = [rows, *sizes], left // rows
    for i, extent in reversed(list(enumerate(outer))):  # what is left goes where it wastes the least
        more = min(left, power_of_two(2 * ceil_div(extent, sizes[i]) - 1))
        sizes[i], left = min(sizes[i] * more, extent), left // more
    return sizes


@register(matches=is_stencil, priority=20)
def stencil(
    kernel: KernelInfo,
    target: Target,
    *,
    warps: int = 4,
    vector: int | None = None,
    strip: int | None = None,
    band: int | None = None,
    pairs: int | None = None,
    min_blocks: int | None = None,
) -> ir.Module:
    """A strip of neighbours for each thread: what their windows have in common is read and converted once. Or, where
    that takes less, windows' sums by tensor cores.

    Knobs:
      warps: warps of a block.
      vector: elements of a thread along the innermost dimension (default: 16 bytes).
      strip: neighbours of a thread along the dimension in front of it.
      band: rows of a lane, where tensor cores make the windows' sums. A strip asks for none of that.
      pairs: pairs of channels of a warp of these, one after the other.
      min_blocks: blocks that a multiprocessor should hold.
    """
    if not strip and (made := _bands.chosen(kernel, band, pairs, target)) is not None:
        return by_tensor_cores(made, len(kernel.dims), min_blocks=min_blocks)
    vector = vector or vector_width(kernel, kernel.dims[-1].extent)
    strip = strip or strip_length(kernel, target, vector)
    sizes = tile_sizes(kernel, 32 * warps, vector, strip)
    knobs = dict(warps=warps, vector=vector, strip=strip, min_blocks=min_blocks)
    with script(**knobs) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[len(sizes) - 1], order=[])
        annotate(match(forall, "linalg.generic"), vector=vector, strip=strip)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
    return module


def by_tensor_cores(tile: Band, rank: int, **knobs: int | None) -> ir.Module:
    """The schedule of a tile of images, rows, columns and channels: two channels of it for each warp."""
    sizes = [tile.images, tile.height, tile.width, tile.channels][4 - rank :]
    knobs = dict(band=tile.rows, pairs=tile.pairs, min_blocks=knobs["min_blocks"] or WARPS // tile.warps)
    with script(**knobs) as (module, function):
        generalize(function)
        collapse_dims(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[len(sizes) - 1], order=[])
        annotate(match(forall, "linalg.generic"), band=tile.rows)
        annotate(forall, store="rows")
        annotate(function, warps=tile.warps, min_blocks=knobs["min_blocks"])
        tidy(function, forall)
    return module
