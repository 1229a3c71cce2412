"""`schedule.read_windows`: what a convolution's GEMM reads becomes slices that im2col copies bring."""

from __future__ import annotations

from mlirc.dialects.im2col import im2col
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import body_of
from mlirc.dialects.windows import Windows, image_of
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir, nested


def _image(op: ir.Operation) -> ir.Value:
    """The image whose windows a map gathers; raises PayloadError for a map that computes more than that."""
    reads = [o.operation for o in body_of(op).operations if o.operation.name == "tensor.extract"]
    if len(reads) != 1 or len(op.operands) != 1:
        raise PayloadError("it gathers windows of what it computes itself: read an image that is in memory", op)
    return image_of(op)


def copied(op: ir.Operation) -> str:
    """Why im2col copies cannot bring the windows that a map gathers; "" where they can."""
    windows = Windows.of(op)
    assert windows is not None
    image = ir.RankedTensorType(_image(op).type)
    return windows.copied(list(image.shape), element_bytes(image.element_type))


@transform_op("read_windows", takes="func.func")
def read_windows(rewriter, functions):
    """Makes views of the maps that gather a convolution's windows (`mlirc.gather_windows`), whose slices im2col copies
    bring: copy the slices by `stage(copy="tma")`. Left alone, the map is computed where the contraction reads it."""
    for function in functions:
        maps = [op for op in nested(function.operation) if Windows.of(op) is not None]
        if not maps:
            raise PayloadError("no map of a convolution's windows is in it", function)
        for op in maps:
            if problem := copied(op):
                raise PayloadError(problem, op)
            with ir.InsertionPoint(op), op.location:
                windows = Windows.of(op)
                assert windows is not None
                view = im2col(_image(op), windows, each=len(ir.RankedTensorType(op.results[0].type).shape) == 3)
            op.results[0].replace_all_uses_with(view)
            op.erase()
