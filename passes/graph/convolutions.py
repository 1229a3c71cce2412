"""Convolutions as contractions of their windows, on tensors that are stored channels last.

    image [N, *spatial, C]  ->  windows [M, K]  x  weights [Co, K]  ->  [M, Co]  =  [N, *out, Co]

where M is the number of pixels of all results, and K the taps of the kernel times the channels
(`mlirc.dialects.windows`).
Where each pixel is in one window, and they are in the image's order, the image is the left operand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from mlirc.dialects.windows import Windows
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes.graph import channels_first
from mlirc.passes.graph.channels_last import Layouts, channels_last, element_of, permuted
from mlirc.passes.graph.emit import filled, make_generic, reshape
from mlirc.passes.graph.evaluate import is_move, owner_of, static, zero_attribute
from mlirc.passes.graph.few_channels import few_channels, filled_up, whole_pixels, with_zeros
from mlirc.passes.graph.narrow import before_cast, is_zero, narrow_types, narrowed
from mlirc.passes.graph.space import affine_map
from mlirc.passes.graph.windows import gather_windows, is_view

LEAST_GROUP = 4  # channels of a group from which on groups are GEMMs of their own
EXACT_BYTES = 1 << 17  # so many products of bytes, and more, may have a sum of more than 32 bits
CHANNELS_LAST = {
    "linalg.depthwise_conv_1d_ncw_cw": linalg.depthwise_conv_1d_nwc_wc,
    "linalg.depthwise_conv_2d_nchw_chw": linalg.depthwise_conv_2d_nhwc_hwc,
    "linalg.depthwise_conv_3d_ncdhw_cdhw": linalg.depthwise_conv_3d_ndhwc_dhwc,
    "linalg.pooling_nchw_max": linalg.pooling_nhwc_max,
    "linalg.pooling_nchw_sum": linalg.pooling_nhwc_sum,
    "linalg.pooling_ncw_max": linalg.pooling_nwc_max,
    "linalg.pooling_ncw_sum": linalg.pooling_nwc_sum,
}


@dataclass(frozen=True)
class Shape:
    """A convolution's dimensions: their places in its image, weights and result, channels last, groups in front of
    those; and its strides and dilations."""

    image: tuple[int, ...]
    weights: tuple[int, ...]
    result: tuple[int, ...]
    grouped: bool
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    @classmethod
    def of(cls, op: ir.Operation) -> Shape | None:
        """What an op says, if it is a convolution of one batch dimension that sums over channels; None for others."""
        if not op.name.startswith("linalg.") or not linalg.isa_convolution_op(op):
            return None
        dims = linalg.infer_convolution_dimensions(op)
        names = ("batch", "output_image", "output_channel", "filter_loop", "input_channel", "depth")
        batch, pixels, outputs, taps, inputs, groups = (list(getattr(dims, name)) for name in names)
        if not (len(batch) == len(outputs) == len(inputs) == 1 >= len(groups)) or not 1 <= len(pixels) <= 3:
            return None
        image, weights, result = (_places(m) for m in linalg.get_indexing_maps(op))
        try:
            return cls(
                tuple(image.index(d) for d in (*batch, *pixels, *groups, *inputs)),
                tuple(weights.index(d) for d in (*groups, *outputs, *taps, *inputs)),
                tuple(result.index(d) for d in (*batch, *pixels, *groups, *outputs)),
                bool(groups),
                tuple(dims.strides),
                tuple(dims.dilations),
            )
        except ValueError:
            return None


def _places(map_: ir.AffineMap | ir.AffineMapAttr) -> list[int]:
    """For each result of an indexing map its loop; of a sum of loops the one of pixels, which comes first."""
    map_ = map_.value if isinstance(map_, ir.AffineMapAttr) else map_
    return [_first_loop(e) for e in map_.results]


def _first_loop(expr: ir.AffineExpr) -> int:
    while not isinstance(expr, ir.AffineDimExpr):
        expr = expr.lhs
    return expr.position


def is_channels_first(op: ir.Operation) -> bool:
    """Whether an op is a convolution over single channels, or a pooling, that has a form with channels last."""
    return op.name in CHANNELS_LAST


def convolution(op: ir.Operation, layouts: Layouts, whole: bool) -> bool:
    """Rewrites a convolution of floats, or of bytes, as a contraction; False for any other op. What widens its operands
    is left out: a contraction does it. With `whole`, rows of the windows have channels for whole tensor copies."""
    shape = Shape.of(op)
    types = None if shape is None else _types(op, shape)
    if shape is None or types is None:
        return False
    with ir.InsertionPoint(op), op.location:
        first = whole and _is_f32(types) and not shape.grouped and channels_first.pays(op, shape.result)
        if first and (result := _pointwise(op, shape, layouts)) is not None:
            _put_first(op, result, layouts)
            return True
        image, low = _image(op.operands[0], types[0], shape, layouts)
        weights = layouts.get(narrowed(op.operands[1], types[1]), shape.weights)
        groups = shape_of(weights)[0] if shape.grouped else 1
        out = permuted(shape_of(op.results[0]), shape.result)
        rank = len(shape.strides)
        kernel, pixels = tuple(shape_of(weights)[-1 - rank : -1]), tuple(out[1 : 1 + rank])
        channels = shape_of(weights)[-1]
        geometry = Windows(kernel, pixels, shape.strides, shape.dilations, low, channels, groups)
        is_image = is_view(image, geometry)
        if whole and not is_image and groups == 1:
            image, weights, geometry = few_channels(image, weights, geometry)
            is_image = is_view(image, geometry)
            image = image if is_image else whole_pixels(image)
        if is_image:
            columns = geometry.taps * geometry.channels
            left = reshape(image, [prod(out[: 1 + rank]), *([groups] if groups > 1 else []), columns])
        else:
            if whole and groups == 1:
                geometry = replace(geometry, channels=filled_up(geometry.channels, element_bytes(element_of(image))))
            left = gather_windows(image, geometry)
        if first:
            left = reshape(left, [out[0], prod(pixels), shape_of(left)[-1]])
            rows = reshape(_rows(weights, geometry), [out[-1], shape_of(left)[-1]])
            _put_first(op, channels_first.contract(rows, left, along_rows=False), layouts)
            return True
        result = reshape(_contract(left, _rows(weights, geometry), is_image), out)
        if element_of(result) != element_of(op.operands[2]):  # 64 bits, of which bytes need 32
            result = _map([result], element_of(op.operands[2]), arith.extsi)
        if not is_zero(op.operands[2]):
            add = arith.addi if isinstance(element_of(result), ir.IntegerType) else arith.addf
            result = _map([result, layouts.get(op.operands[2], shape.result)], element_of(result), add)
        layouts.put(op.results[0], shape.result, result)
    return True


def _is_f32(types: tuple[ir.Type, ir.Type]) -> bool:
    return all(isinstance(t, ir.F32Type) for t in types)


def _pointwise(op: ir.Operation, shape: Shape, layouts: Layouts) -> ir.Value | None:
    """A convolution of single pixels, of an image that lies channels first, as [N, Co, pixels]; None for another."""
    image, weights = op.operands[:2]
    extents, kernel = shape_of(image), shape_of(weights)
    plain = tuple(shape.image) == channels_last(len(extents)) and layouts.order(image) is None
    if not plain or prod(kernel[2:]) != 1 or set(shape.strides) != {1}:
        return None
    owner = owner_of(image)
    if owner is not None and owner.name == "tensor.pad":
        return None
    rows = reshape(layouts.get(weights, shape.weights), [kernel[0], kernel[1]])
    return channels_first.contract(rows, reshape(image, [*extents[:2], prod(extents[2:])]), along_rows=True)


def _put_first(op: ir.Operation, result: ir.Value, layouts: Layouts) -> None:
    """Makes [N, Co, pixels], with what the op adds to, the op's result."""
    result = reshape(result, shape_of(op.results[0]))
    if not is_zero(op.operands[2]):
        order = tuple(range(len(shape_of(result))))
        result = _map([result, layouts.get(op.operands[2], order)], element_of(result), arith.addf)
    layouts.put(op.results[0], tuple(range(len(shape_of(result)))), result)


def _types(op: ir.Operation, shape: Shape) -> tuple[ir.Type, ir.Type] | None:
    """The types of the image's and of the weights' elements as a contraction takes them; None where it takes none."""
    kinds = [element_of(v) for v in op.operands]
    taps = shape_of(op.operands[1])
    if any(0 in shape_of(v) for v in op.operands) or (shape.grouped and taps[shape.weights[-1]] < LEAST_GROUP):
        return None
    narrow = narrow_types(op.operands[0], op.operands[1])
    if str(kinds[2]) in ("i32", "i64"):
        summed = prod(taps[i] for i in shape.weights[-1 - len(shape.strides) :])
        return narrow if narrow is not None and str(narrow[0]) == "i8" and summed < EXACT_BYTES else None
    if str(kinds[2]) != "f32":
        return None
    if narrow is not None and str(narrow[0]) != "i8":
        return narrow
    return (kinds[0], kinds[1]) if kinds[0] == kinds[1] and str(kinds[0]) in ("f32", "bf16", "f16") else None


def _image(
    value: ir.Value, kind: ir.Type, shape: Shape, layouts: Layouts
) -> tuple[ir.Value, tuple[int, ...]]:  # fmt: skip
    """The image [N, *spatial, C] of elements of a type, and how many pixels in front of it the windows begin: those of
    zeros that the op pads it by."""
    order = shape.image
    op = owner_of(value)
    extents = shape_of(value)
    if shape.grouped and order == (
        0,
        *range(3, len(order)),
        1,
        2,
    ):  # the groups' channels are one dimension of the image
        whole = [extents[0], extents[1] * extents[2], *extents[3:]]
        is_split = op is not None and op.name == "tensor.expand_shape" and shape_of(op.operands[0]) == whole
        value = op.operands[0] if op is not None and is_split else reshape(value, whole)
        order = channels_last(len(whole))
    pixels = order[1 : 1 + len(shape.strides)]
    low = [0] * len(order)
    while True:
        before = before_cast(value) if element_of(value) != kind else None
        if before is not None:
            value = before
        elif (padding := _zeros_around(value, pixels)) is not None:
            value = value.owner.operands[0]
            low = [a + b for a, b in zip(low, padding, strict=True)]
        else:
            break
    stored = layouts.get(narrowed(value, kind), order)
    kept = 1 + len(pixels)
    image = reshape(stored, [*shape_of(stored)[:kept], prod(shape_of(stored)[kept:])])
    return image, tuple(low[d] for d in pixels)


def _zeros_around(value: ir.Value, pixels: Sequence[int]) -> list[int] | None:
    """By how many zeros a value pads another in front, along these dimensions alone; None where it does not."""
    op = owner_of(value)
    if op is None or op.name != "tensor.pad" or not is_move(op):
        return None
    low, high = static(op, "static_low") or [], static(op, "static_high") or []
    others = [n for i, n in enumerate(zip(low, high, strict=True)) if i not in pixels]
    fill = op.regions[0].blocks[0].operations[0].operands[0]
    return low if min((*low, *high)) >= 0 and not any(map(any, others)) and is_zero(fill) else None


def _rows(weights: ir.Value, windows: Windows) -> ir.Value:
    """The weights [groups, outputs, *kernel, C] as rows of a GEMM's operand: [groups, outputs, K]."""
    shape = list(shape_of(weights))
    more = windows.channels - shape[-1]
    if more:
        weights = with_zeros(weights, [0] * len(shape), [*[0] * (len(shape) - 1), more])
        shape[-1] += more
    leading = len(shape) - 1 - windows.rank
    return reshape(weights, [*shape[:leading], prod(shape[leading:])])


def _contract(left: ir.Value, right: ir.Value, groups_inside: bool) -> ir.Value:
    """[M, K] x [Co, K] -> [M, Co], or [G, M, K] x [G, Co, K] -> [M, G, Co], in f32, or i32; with `groups_inside` the
    left operand is [M, G, K]."""
    whole = isinstance(element_of(left), ir.IntegerType)
    wide = ir.IntegerType.get_signless(32) if whole else ir.F32Type.get()
    widen, multiply, add = (arith.extsi, arith.muli, arith.addi) if whole else (arith.extf, arith.mulf, arith.addf)
    outputs = shape_of(right)[-2]
    if len(shape_of(left)) == 2:
        right = reshape(right, shape_of(right)[-2:])
        loops, maps, out = 3, ([0, 2], [1, 2], [0, 1]), [shape_of(left)[0], outputs]
    else:
        first, rows = ([1, 0, 3], shape_of(left)[0]) if groups_inside else ([0, 1, 3], shape_of(left)[1])
        loops, maps, out = 4, (first, [0, 2, 3], [1, 0, 2]), [rows, shape_of(right)[0], outputs]
    start = filled(out, zero_attribute(wide))
    kinds = ["parallel"] * (loops - 1) + ["reduction"]
    op = make_generic([left, right], [start], [affine_map(range(loops), m) for m in maps], kinds)
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        a, b, total = block.arguments
        a, b = (v if v.type == wide else widen(wide, v) for v in (a, b))
        linalg.yield_([add(total, multiply(a, b))])
    return op.results[0]


def _map(values: list[ir.Value], kind: ir.Type, compute: Callable[..., ir.Value]) -> ir.Value:
    """Elements of a type: a cast of those of one tensor, or what an op makes of those of two of one shape."""
    rank = len(shape_of(values[0]))
    out = tensor.empty(shape_of(values[0]), kind)
    op = make_generic(values, [out], [ir.AffineMap.get_identity(rank)] * (len(values) + 1), ["parallel"] * rank)
    block = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        arguments = list(block.arguments)[:-1]
        linalg.yield_([compute(kind, *arguments) if len(values) == 1 else compute(*arguments)])
    return op.results[0]


def alone(op: ir.Operation, layouts: Layouts) -> bool:
    """Rewrites a depthwise convolution or a pooling for channels last, where its image is stored so; False where it
    stays."""
    make = CHANNELS_LAST[op.name]
    image, weights, init = op.operands
    depthwise = len(shape_of(weights)) == len(shape_of(image)) - 1
    order = channels_last(len(shape_of(image)))
    if layouts.order(image) is None:
        return False
    with ir.InsertionPoint(op), op.location:
        taps = layouts.get(weights, (*range(1, len(shape_of(weights))), 0)) if depthwise else weights
        outs = [layouts.get(init, order)]
        how = {name: op.attributes[name] for name in ("strides", "dilations")}
        made = make(layouts.get(image, order), taps, outs=outs, **how)
        layouts.put(op.results[0], order, made if isinstance(made, ir.Value) else made.results[0])
    return True
