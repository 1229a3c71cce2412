"""Convolutions of few channels as ones of more, on an image that is written for them.

    blocks: image [N, H, W, C] of stride s  ->  [N, H/s, W/s, s*s*C] of stride 1
    folds:  image [N, H, W, C] of stride s  ->  [N, H, W/s, S*C], the taps of a row of the kernel as channels

Tensor copies bring rows of 32 bytes or more of a tap: a stem's 3 channels of 16 bits are 6 bytes, and what
fills a row up is multiplied. The image is written anew in front of its first convolution anyway, channels last; its
weights once, at load. Zeros around it are written, too."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph.channels_last import element_of, padded, transposed
from mlirc.passes.graph.emit import make_generic, reshape
from mlirc.passes.graph.evaluate import zero_attribute
from mlirc.passes.graph.space import tensor_type

COPY_BYTES, SECTOR = 16, 32  # what tensor copies take of a pixel: multiples; and what memory is read by
MOST = 16  # channels of a block of pixels, or of what is folded
SAVES = 0.4
# By an element's bytes and those of a tap in a row of shared memory, what an element costs: narrower rows take more
# copies. FP32 products take longer than those; wider elements come in the widest rows alone.
_ROW_COSTS = {32: 1.4, 64: 1.1, 128: 1.0}
ROW_COSTS = {1: _ROW_COSTS, 2: _ROW_COSTS, 4: {32: 1.1, 64: 1.04, 128: 1.0}, 8: {128: 1.0}}


def few_channels(image: ir.Value, weights: ir.Value, windows: Windows) -> tuple[ir.Value, ir.Value, Windows]:
    """The image [N, *spatial, C], the weights [outputs, *kernel, C] and the geometry that compute the same; as they are
    where that gains nothing."""
    blocks = space_to_depth(image, weights, windows)
    size = element_bytes(element_of(image))
    anew = blocks[2] != windows or windows.channels * size % COPY_BYTES != 0  # written for the convolution in any case
    return fold_taps(*blocks) if anew else blocks


def space_to_depth(image: ir.Value, weights: ir.Value, windows: Windows) -> tuple[ir.Value, ir.Value, Windows]:
    """The same, with blocks of pixels as pixels where the stride divides the image so."""
    strides, channels = windows.strides, windows.channels
    block = prod(strides)
    few = windows.groups == 1 and channels * block <= MOST and set(windows.dilations) == {1}
    # A tap of zeros beside the kernel's own would make NaNs of an infinity that no window of the convolution has.
    whole = not any(k % s for k, s in zip(windows.kernel, strides, strict=True))
    if not few or block == 1 or not whole:
        return image, weights, windows
    kernel = [k // s for k, s in zip(windows.kernel, strides, strict=True)]
    extents = [(n + k - 1) * s for n, k, s in zip(windows.out, kernel, strides, strict=True)]
    spatial = shape_of(image)[1:-1]
    high = [e - n - low for e, n, low in zip(extents, spatial, windows.low, strict=True)]
    if min(high) < 0:  # what no window reads: kept out of the blocks
        return image, weights, windows
    image = _blocks(with_zeros(image, [0, *windows.low, 0], [0, *high, 0]), strides)
    weights = _blocks(weights, strides)
    rank = windows.rank
    geometry = Windows(tuple(kernel), windows.out, (1,) * rank, (1,) * rank, (0,) * rank, channels * block)
    return image, weights, geometry


def fold_taps(image: ir.Value, weights: ir.Value, windows: Windows) -> tuple[ir.Value, ir.Value, Windows]:
    """The same, with a row's taps as channels where that saves `SAVES` of what is multiplied."""
    channels, taps = windows.channels, windows.kernel[-1]
    size = element_bytes(element_of(image))
    apart, together = taps * filled_up(channels, size), filled_up(taps * channels, size)
    saved = together <= (1 - SAVES) * apart or size == 4 and together <= apart and _halves(windows, together, size)
    if windows.groups != 1 or channels > MOST or not saved:
        return image, weights, windows
    out, step, dilation, low = windows.out[-1], windows.strides[-1], windows.dilations[-1], windows.low[-1]
    shape = list(shape_of(image))
    high = max((out - 1) * step + (taps - 1) * dilation + 1 - shape[-2] - low, 0)
    lead = [0] * (len(shape) - 2)
    image = with_zeros(image, [*lead, low, 0], [*lead, high, 0])
    image = _runs(image, out, step * channels, taps * channels) if dilation == 1 else _joined(image, out, windows)
    rows = list(shape_of(weights))
    weights = reshape(weights, [*rows[:-2], 1, taps * channels])
    *before, _ = zip(windows.kernel, windows.strides, windows.dilations, windows.low, strict=True)
    kernel, strides, dilations, begins = (tuple(n) for n in zip(*before, (1, 1, 1, 0), strict=True))
    geometry = Windows(kernel, windows.out, strides, dilations, begins, taps * channels)
    return image, weights, geometry


def _runs(image: ir.Value, out: int, step: int, length: int) -> ir.Value:
    """Of each row of an image [..., W, C], as [..., out, length]: so many elements from every `step`th on."""
    *lead, width, channels = shape_of(image)
    rows = reshape(image, [*lead, width * channels])
    shape = [*lead, out, length]
    init = tensor.EmptyOp(shape, element_of(image)).result
    op = make_generic([], [init], [ir.AffineMap.get_identity(len(shape))], ["parallel"] * len(shape))
    with ir.InsertionPoint(op.regions[0].blocks[0]):
        *places, window, element = (linalg.IndexOp(d).result for d in range(len(shape)))
        first = arith.muli(window, arith.constant(ir.IndexType.get(), step))
        linalg.yield_([tensor.ExtractOp(rows, [*places, arith.addi(first, element)]).result])
    return op.results[0]


def _joined(image: ir.Value, out: int, windows: Windows) -> ir.Value:
    """The taps of each window in a row of an image [..., W, C], one behind the other: [..., out, taps * C]."""
    *lead, _, channels = shape_of(image)
    taps, step, dilation = windows.kernel[-1], windows.strides[-1], windows.dilations[-1]
    size, steps = [*lead, out, channels], [*[1] * len(lead), step, 1]
    kind, zeros = tensor_type(size, element_of(image)), [0] * len(lead)
    parts = [
        tensor.ExtractSliceOp(kind, image, [], [], [], [*zeros, t * dilation, 0], size, steps).result
        for t in range(taps)
    ]
    folded = tensor_type([*lead, out, taps * channels], element_of(image))
    return tensor.ConcatOp(folded, len(lead) + 1, parts).result


def _halves(windows: Windows, together: int, size: int) -> bool:
    """Whether a row's taps together come in half as many rows of tensor copies, or fewer: of f32 each costs a copy 1.7
    clocks of a multiprocessor, however short it is, and 27 taps of 3 channels took twice as long as nine of 16."""

    def rows(channels: int) -> int:
        return channels * size // replace(windows, channels=channels).row_bytes(size)

    return 2 * rows(together) <= windows.kernel[-1] * rows(filled_up(windows.channels, size))


def whole_pixels(image: ir.Value) -> ir.Value:
    """The image with channels of zeros behind its own, so that a pixel is whole sectors of memory, or what a copy takes
    at the least."""
    size = element_bytes(element_of(image))
    whole = COPY_BYTES if shape_of(image)[-1] * size <= SECTOR else SECTOR
    more = -shape_of(image)[-1] % (whole // size)
    return with_zeros(image, [0] * len(shape_of(image)), [*[0] * (len(shape_of(image)) - 1), more]) if more else image


def filled_up(channels: int, size: int) -> int:
    """Channels of a tap, of so many bytes each, filled up to rows of tensor copies, which take the fewest clocks."""
    rows = {n // size: cost for n, cost in ROW_COSTS[size].items()}
    found = {-(-channels // row) * row: cost for row, cost in rows.items()}
    return min(found, key=lambda n: n * found[n])


def with_zeros(value: ir.Value, low: list[int], high: list[int]) -> ir.Value:
    """The value with so many zeros in front of and after each dimension."""
    if not any((*low, *high)):
        return value
    return padded(value, low, high, arith.constant(element_of(value), zero_attribute(element_of(value))))


def _blocks(value: ir.Value, strides: tuple[int, ...]) -> ir.Value:
    """[N, spatial * stride, C] as [N, spatial, block * C]."""
    (first, *wide, channels), rank = shape_of(value), len(strides)
    spatial = [n // s for n, s in zip(wide, strides, strict=True)]
    apart = reshape(value, [first, *[n for pair in zip(spatial, strides, strict=True) for n in pair], channels])
    outer, inner = ([1 + 2 * i + k for i in range(rank)] for k in (0, 1))
    return reshape(transposed(apart, (0, *outer, *inner, 1 + 2 * rank)), [first, *spatial, prod(strides) * channels])
