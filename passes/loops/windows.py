"""mlirc.im2col as the map that computes a convolution's windows."""

from __future__ import annotations

from mlirc.dialects.im2col import IM2COL, check
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, nested
from mlirc.passes.graph.emit import reshape
from mlirc.passes.graph.windows import gather_windows


def expand_im2col(module: ir.Module) -> None:
    """Replaces every `mlirc.im2col`, which is a view of an image for tensor copies alone."""
    for op in [op for op in nested(module.operation) if op.name == IM2COL]:
        with ir.InsertionPoint(op), op.location:
            made = reshape(gather_windows(op.operands[0], check(op)), shape_of(op.results[0]))
        op.results[0].replace_all_uses_with(made)
        op.erase()
