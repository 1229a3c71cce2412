"""`mlirc.im2col`: the windows of a convolution as a view of its image, of which tensor copies bring slices.

    %a = "mlirc.im2col"(%image) {mlirc.gather_windows = {...}} : (tensor<NxHxWxCxbf16>) -> tensor<MxKxbf16>

has the elements of the map that `windows.py` describes, and its attribute; the same of each image, tensor<NxPxKxbf16>
with P pixels of its result, is another form of it. A schedule makes it of that map
(`schedule.read_windows`) where all who read it are slices that im2col copies move; on the CPU it becomes the map again
(`passes/loops/windows.py`).
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc, checked
from mlirc.dialects.windows import GATHER_WINDOWS, Windows
from mlirc.mlir import ext, ir

IM2COL = "mlirc.im2col"


class Im2colOp(Mlirc.Operation, name="im2col", traits=[ext.Pure]):  # type: ignore
    """The windows of an image; see the module's docstring."""

    image: ext.Operand[Any]
    result: ext.Result[Any]

    verify_invariants = checked(lambda op: check(op.operation))


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
    if shape not in (windows.shape(image[0]), windows.shape_of_each(image[0])) or str(
        ir.RankedTensorType(source).element_type
    ) not in str(made):
        raise ValueError(f"makes {windows.shape(image[0])} of the image's elements, not {made}")
    return windows


def im2col(image: ir.Value, windows: Windows, each: bool = False, loc: ir.Location | None = None) -> ir.Value:
    """Builds `mlirc.im2col` at the current insertion point and returns its result; with `each` the images are its first
    dimension."""
    t = ir.RankedTensorType(image.type)
    shape = windows.shape_of_each(t.shape[0]) if each else windows.shape(t.shape[0])
    result = ir.RankedTensorType.get(shape, t.element_type)
    attributes = {GATHER_WINDOWS: windows.attribute()}
    return ir.Operation.create(IM2COL, [result], [image], attributes, loc=loc).results[0]
