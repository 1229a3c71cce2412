"""Values of affine expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlirc.mlir import ir


def affine_value(expr: ir.AffineExpr, dims: Sequence[Any], symbols: Sequence[Any]) -> Any:
    """An affine expression over numbers or arrays."""
    if isinstance(expr, ir.AffineConstantExpr):
        return expr.value
    if isinstance(expr, ir.AffineDimExpr):
        return dims[expr.position]
    if isinstance(expr, ir.AffineSymbolExpr):
        return symbols[expr.position]
    a, b = affine_value(expr.lhs, dims, symbols), affine_value(expr.rhs, dims, symbols)
    if isinstance(expr, ir.AffineAddExpr):
        return a + b
    if isinstance(expr, ir.AffineMulExpr):
        return a * b
    if isinstance(expr, ir.AffineModExpr):
        return a % b
    return a // b if isinstance(expr, ir.AffineFloorDivExpr) else -(-a // b)
