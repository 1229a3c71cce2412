"""Random inputs that a kernel's computation makes sense on: indices inside of tables, positive variances."""

from __future__ import annotations

from typing import Any

from mlirc.dialects.mlirc_dialect import CACHED_ATTENTION, AttentionInfo
from mlirc.mlir import ir
from mlirc.repro.torch_source import DTYPES


def input_source(type_: Any, integer_bound: int, positive: bool = False) -> str:
    """An expression for a random tensor of that type, drawn from the generator `g`."""
    shape, dtype = tuple(type_.shape), DTYPES[str(type_.element_type)]
    if dtype == "torch.bool":
        return f"torch.rand({shape}, generator=g) < 0.5"
    if "int" in dtype:
        return f"torch.randint(0, {integer_bound}, {shape}, generator=g, dtype={dtype})"
    return f"torch.randn({shape}, generator=g){'.abs()' if positive else ''}.to({dtype})"


def positive_arguments(function: Any) -> set[int]:
    """The numbers of arguments, such as variances, whose values, maybe plus something, go into a root or logarithm."""
    block = function.regions[0].blocks[0]
    found: set[int] = set()

    def trace(value: ir.Value) -> None:
        owner = value.owner
        if isinstance(owner, ir.Block):
            if owner == block:
                found.add(list(block.arguments).index(value))
            elif owner.owner.name == "linalg.generic":
                trace(owner.owner.operands[list(owner.arguments).index(value)])
        elif owner.name in ("arith.addf", "arith.extf", "tensor.expand_shape", "tensor.collapse_shape"):
            for operand in owner.operands:
                trace(operand)

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in ("math.rsqrt", "math.sqrt", "math.log", "math.log2", "math.powf"):
            trace(op.operands[0])
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return found


def integer_bound(function: Any) -> int:
    """What random integers have to stay below: they may index any dimension of the tables that the kernel reads."""
    extents: list[int] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "tensor.extract":
            extents.extend(n for n in op.operands[0].type.shape if n > 1)
        if op.name == CACHED_ATTENTION:
            a = AttentionInfo.of(op)
            extents.extend([a.pages.pool, a.kv_len + 1] if a.pages else [])
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    return min(extents, default=8)
