"""Convolutions of few channels with a stride, as ones of stride 1 on an image whose pixels are blocks of pixels.

    image [N, H, W, C] of stride s  ->  [N, H/s, W/s, s*s*C] of stride 1

Tensor copies bring rows of 32 bytes or more of a tap: a stem's 3 channels of 16 bits are 6 bytes. The image is written
anew in front of its first convolution anyway, channels last; its weights once, at load. Zeros around it are written,
too, and taps that fill the last block up have weights of zero."""

from __future__ import annotations

from math import prod

from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir
from mlirc.passes.graph.channels_last import padded, transposed
from mlirc.passes.graph.emit import reshape
from mlirc.passes.graph.evaluate import zero_attribute

COPY_BYTES = 16  # tensor copies take multiples of a pixel
MOST = 16  # channels of a block of pixels


def space_to_depth(image: ir.Value, weights: ir.Value, windows: Windows) -> tuple[ir.Value, ir.Value, Windows]:
    """The image [N, *spatial, C], the weights [outputs, *kernel, C] and the geometry that compute the same; as they
    are where that gains nothing."""
    strides, channels = windows.strides, windows.channels
    block = prod(strides)
    few = windows.groups == 1 and channels * block <= MOST and set(windows.dilations) == {1}
    if not few or block == 1:
        return image, weights, windows
    kernel = [-(-k // s) for k, s in zip(windows.kernel, strides, strict=True)]
    extents = [(n + k - 1) * s for n, k, s in zip(windows.out, kernel, strides, strict=True)]
    spatial = shape_of(image)[1:-1]
    high = [e - n - low for e, n, low in zip(extents, spatial, windows.low, strict=True)]
    if min(high) < 0:  # what no window reads: kept out of the blocks
        return image, weights, windows
    taps = [k * s for k, s in zip(kernel, strides, strict=True)]
    more = [t - k for t, k in zip(taps, windows.kernel, strict=True)]
    image = _blocks(_with_zeros(image, [0, *windows.low, 0], [0, *high, 0]), strides)
    weights = _blocks(_with_zeros(weights, [0] * (len(taps) + 2), [0, *more, 0]), strides)
    rank = windows.rank
    geometry = Windows(tuple(kernel), windows.out, (1,) * rank, (1,) * rank, (0,) * rank, channels * block)
    return image, weights, geometry


def whole_pixels(image: ir.Value) -> ir.Value:
    """The image with channels of zeros behind its own, so that a pixel is a multiple of 16 bytes."""
    channels = COPY_BYTES // element_bytes(ir.RankedTensorType(image.type).element_type)
    more = -shape_of(image)[-1] % channels
    return _with_zeros(image, [0] * len(shape_of(image)), [*[0] * (len(shape_of(image)) - 1), more]) if more else image


def _with_zeros(value: ir.Value, low: list[int], high: list[int]) -> ir.Value:
    element = ir.RankedTensorType(value.type).element_type
    return padded(value, low, high, arith.constant(element, zero_attribute(element)))


def _blocks(value: ir.Value, strides: tuple[int, ...]) -> ir.Value:
    """[N, spatial * stride, C] as [N, spatial, block * C]."""
    (first, *wide, channels), rank = shape_of(value), len(strides)
    spatial = [n // s for n, s in zip(wide, strides, strict=True)]
    apart = reshape(value, [first, *[n for pair in zip(spatial, strides, strict=True) for n in pair], channels])
    outer, inner = ([1 + 2 * i + k for i in range(rank)] for k in (0, 1))
    return reshape(transposed(apart, (0, *outer, *inner, 1 + 2 * rank)), [first, *spatial, prod(strides) * channels])
