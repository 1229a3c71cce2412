"""The map of a convolution's windows (`mlirc.dialects.windows`), of which rows and columns are those of a GEMM."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.dialects.windows import GATHER_WINDOWS, Windows
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.emit import BodyEmitter
from mlirc.passes.graph.evaluate import owner_of, zero_attribute
from mlirc.passes.graph.index import Index, delinearize, dim
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.scalar import Scalar, Scalars
from mlirc.passes.graph.space import Space


def is_windows(op: ir.Operation | None) -> bool:
    """Whether an op is the map of a convolution's windows."""
    return op is not None and GATHER_WINDOWS in op.attributes


def reads_windows(op: ir.Operation) -> bool:
    """Whether an op reads the windows of a convolution."""
    return any(is_windows(owner_of(v)) for v in op.operands)


def geometry_of(op: ir.Operation | None) -> Windows:
    """The geometry of a map of windows."""
    geometry = None if op is None else Windows.of(op)
    assert geometry is not None, "the op is marked"
    return geometry


def element(scalars: Scalars, image: ir.Value, windows: Windows, place: Sequence[Index]) -> Scalar:
    """What the map has at an index of its shape: an element of the image, or 0."""
    shape = shape_of(image)
    group = place[0] if windows.groups != 1 else Index()
    channels = shape[-1] // windows.groups
    batch, *pixel = delinearize(place[-2], [shape[0], *windows.out])
    *tap, channel = delinearize(place[-1], [*windows.kernel, windows.channels])
    geometry = zip(pixel, tap, windows.strides, windows.dilations, windows.low, strict=True)
    found = [p * stride + t * dilation - low for p, t, stride, dilation, low in geometry]
    inside = [scalars.in_range(i, 0, n) for i, n in zip((*found, channel), (*shape[1:-1], channels), strict=True)]
    at = [i.clamp(n) for i, n in zip(found, shape[1:-1], strict=True)]
    value = scalars.load(image, [batch, *at, group * channels + channel.clamp(channels)])
    test = None
    for condition in inside:
        if condition is not None:
            test = condition if test is None else scalars.op("arith.andi", (), (test, condition), condition.type)
    return scalars.select(test, value, scalars.constant(zero_attribute(value.type)))


def emit(emitter: BodyEmitter, image: ir.Value, windows: Windows, node: Scalar, loops: list[int]) -> ir.Value:
    """The map of which `node` is an element, as an op over `loops`, marked with its geometry."""
    emitter.whole.add(image)
    (value,) = emitter.generic([node], loops)
    value.owner.attributes[GATHER_WINDOWS] = windows.attribute()
    return value


def is_view(image: ir.Value, windows: Windows) -> bool:
    """Whether the windows are the image itself, in another shape: each pixel is in one of them, in their order. Those
    of groups are [M, G, K] then."""
    place = [dim(i, n) for i, n in enumerate(windows.shape(shape_of(image)[0]))]
    node = element(Scalars(), image, windows, place)
    found = plain_dims(node.data[1], shape_of(node.data[0])) if node.kind == "load" else None
    order = [1, 0, 2] if windows.groups != 1 else [0, 1]
    return found is not None and [n for n, _ in found] == [i for i in order if place[i].terms]


class _Themselves:
    """The tensors that an op of `@main` reads: what they are."""

    def get(self, value: ir.Value, shape: object) -> ir.Value:
        return value

    def seen_shapes(self, value: ir.Value) -> None:
        return None


def gather_windows(image: ir.Value, windows: Windows) -> ir.Value:
    """The map of an image's windows, at the insertion point."""
    shape = windows.shape(shape_of(image)[0])
    place = [dim(i, n) for i, n in enumerate(shape)]
    node = element(Scalars(), image, windows, place)
    emitter = BodyEmitter(Space([[(i, n)] for i, n in enumerate(shape)], [node]), _Themselves())  # type: ignore[arg-type]
    return emit(emitter, image, windows, node, list(range(len(shape))))
