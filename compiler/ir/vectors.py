"""Vectors of several dimensions as LLVM has them, of one."""

from __future__ import annotations

from math import prod

from mlirc.mlir import ir, vector


def flat(value: ir.Value) -> ir.Value:
    """A vector of rank 2 or more as one of rank 1, in row-major order; anything else as it is."""
    if isinstance(value.type, ir.VectorType) and value.type.rank > 1:
        shape = [prod(value.type.shape)]
        return vector.ShapeCastOp(ir.VectorType.get(shape, value.type.element_type), value).result
    return value
