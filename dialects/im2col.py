"""`mlirc.im2col`: the windows of a convolution as a view of its image, of which tensor copies bring slices.

    %a = "mlirc.im2col"(%image) {mlirc.gather_windows = {...}} : (tensor<NxHxWxCxbf16>) -> tensor<MxKxbf16>

has the elements of the map that `windows.py` describes, and its attribute. A schedule makes it of that map
(`schedule.read_windows`) where all who read it are slices that im2col copies move; on the CPU it becomes the map again
(`expand_im2col`).
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc
from mlirc.dialects.windows import GATHER_WINDOWS, Windows
from mlirc.mlir import arith, ext, ir, linalg, nested, tensor

IM2COL = "mlirc.im2col"


class Im2colOp(Mlirc.Operation, name="im2col", traits=[ext.Pure]):  # type: ignore
    """The windows of an image; see the module's docstring."""

    image: ext.Operand[Any]
    result: ext.Result[Any]

    @staticmethod
    def verify_invariants(op: ir.Operation) -> bool:
        """Called by MLIR's verifier; emits one error at the op's location for the first broken rule."""
        try:
            check(op.operation)
        except ValueError as e:
            op.operation.location.emit_error(f"'{IM2COL}' op {e}")
            return False
        return True


def check(op: ir.Operation) -> Windows:
    """The geometry of the windows; raises ValueError naming the rule that types and attribute break."""
    windows = Windows.of(op)
    if windows is None:
        raise ValueError(f"needs the attribute {GATHER_WINDOWS}")
    source, made = (v.type for v in (op.operands[0], op.results[0]))
    if not all(isinstance(t, ir.RankedTensorType) and t.has_static_shape for t in (source, made)):
        raise ValueError(f"takes a tensor of static shape and makes one, not {source} and {made}")
    image, shape = list(ir.RankedTensorType(source).shape), list(ir.RankedTensorType(made).shape)
    if windows.groups != 1 or len(image) != windows.rank + 2 or image[-1] > windows.channels:
        raise ValueError(f"of one group takes [N, {windows.rank} dimensions, up to {windows.channels}], not {source}")
    if shape != windows.shape(image[0]) or str(ir.RankedTensorType(source).element_type) not in str(made):
        raise ValueError(f"makes {windows.shape(image[0])} of the image's elements, not {made}")
    return windows


def im2col(image: ir.Value, windows: Windows, loc: ir.Location | None = None) -> ir.Value:
    """Builds `mlirc.im2col` at the current insertion point and returns its result."""
    t = ir.RankedTensorType(image.type)
    result = ir.RankedTensorType.get(windows.shape(t.shape[0]), t.element_type)
    attributes = {GATHER_WINDOWS: windows.attribute()}
    return ir.Operation.create(IM2COL, [result], [image], attributes, loc=loc).results[0]


def expand_im2col(module: ir.Module) -> None:
    """Replaces every `mlirc.im2col` by the map that computes its elements."""
    for op in [op for op in nested(module.operation) if op.name == IM2COL]:
        with ir.InsertionPoint(op), op.location:
            made = gathered(op.operands[0], check(op))
        op.results[0].replace_all_uses_with(made)
        op.erase()


def gathered(image: ir.Value, windows: Windows) -> ir.Value:
    """The windows of an image [N, *spatial, C] as a map (`linalg.generic`) at the current insertion point."""
    t = ir.RankedTensorType(image.type)
    made = ir.RankedTensorType.get(windows.shape(t.shape[0]), t.element_type)
    empty = tensor.empty(made.shape, made.element_type)
    identity = ir.AffineMapAttr.get(ir.AffineMap.get_identity(made.rank))
    parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
    generic = linalg.GenericOp(
        [made], [], [empty], ir.ArrayAttr.get([identity]), ir.ArrayAttr.get([parallel] * made.rank)
    )
    generic.operation.attributes[GATHER_WINDOWS] = windows.attribute()
    with ir.InsertionPoint(generic.regions[0].blocks.append(t.element_type)):
        place, inside = _place(windows, list(t.shape))
        element = tensor.ExtractOp(image, place).result
        if inside is not None:
            element = arith.SelectOp(inside, element, _zero(t.element_type)).result
        linalg.yield_([element])
    return generic.results[0]


def _zero(element: ir.Type) -> ir.Value:
    whole = isinstance(element, ir.IntegerType)
    return arith.ConstantOp(element, ir.IntegerAttr.get(element, 0) if whole else ir.FloatAttr.get(element, 0.0)).result


def _place(w: Windows, image: list[int]) -> tuple[list[ir.Value], ir.Value | None]:
    """Where an element of the windows lies in the image, kept inside of it, and whether it did (None: always)."""
    group, row, column = [_index(d) for d in range(3)] if w.groups > 1 else [None, _index(0), _index(1)]
    tap, channel = _divided(column, w.channels)
    pixels, taps = [], []
    for extent, kernel in zip(reversed(w.out), reversed(w.kernel), strict=True):
        row, at = _divided(row, extent)
        pixels.append(at)
        tap, of = _divided(tap, kernel)
        taps.append(of)
    spatial = zip(reversed(pixels), reversed(taps), w.strides, w.dilations, strict=True)
    wanted = [_sum(_times(p, s), _times(t, d)) for p, t, s, d in spatial]
    inside: ir.Value | None = None
    place: list[ir.Value] = [row]
    for d, (at, low) in enumerate(zip(wanted, w.low, strict=True)):
        extent, last = image[1 + d], (w.out[d] - 1) * w.strides[d] + (w.kernel[d] - 1) * w.dilations[d]
        at = _sum(at, _number(-low)) if low else at
        at, inside = _kept(at, extent, inside) if low or last - low >= extent else (at, inside)
        place.append(at)
    own = image[-1] // w.groups
    channel, inside = _kept(channel, own, inside) if w.channels > own else (channel, inside)
    return [*place, channel if group is None else _sum(channel, _times(group, own))], inside


def _kept(at: ir.Value, extent: int, inside: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """An index kept inside of an extent, and whether it was, and all the others were."""
    fits = arith.CmpIOp(arith.CmpIPredicate.ult, at, _number(extent)).result  # a negative one is a large one
    kept = arith.MinSIOp(arith.MaxSIOp(at, _number(0)).result, _number(extent - 1)).result
    return kept, fits if inside is None else arith.AndIOp(inside, fits).result


def _index(dim: int) -> ir.Value:
    return linalg.IndexOp(ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)).result


def _number(n: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), ir.IntegerAttr.get(ir.IndexType.get(), n)).result


def _divided(a: ir.Value, by: int) -> tuple[ir.Value, ir.Value]:
    if by == 1:
        return a, _number(0)
    return arith.DivUIOp(a, _number(by)).result, arith.RemUIOp(a, _number(by)).result


def _times(a: ir.Value, by: int) -> ir.Value:
    return a if by == 1 else arith.MulIOp(a, _number(by)).result


def _sum(a: ir.Value, b: ir.Value) -> ir.Value:
    return arith.AddIOp(a, b).result
