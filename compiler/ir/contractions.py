"""Which `linalg.generic` adds products to its result, whatever casts stand between: products of matrices and tiles."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.mlir import ir

PRODUCTS = {"arith.addf": "arith.mulf", "arith.addi": "arith.muli"}
CASTS = ("arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")


@dataclass(frozen=True)
class MultiplyAccumulate:
    """The body `out + cast(first) * cast(second)`: the operations' names, and the casts of each input, first applied
    first."""

    add: str
    multiply: str
    casts: tuple[list[ir.OpView], list[ir.OpView]]


def multiply_accumulate(op: ir.Operation) -> MultiplyAccumulate | None:
    """What the body of a `linalg.generic` of two inputs does, if it adds their product to its result and does nothing
    else; None otherwise."""
    block = op.operation.regions[0].blocks[0]
    if len(block.arguments) != 3:
        return None
    first, second, out = block.arguments
    results = list(block.operations[len(block.operations) - 1].operands)
    if len(results) != 1:
        return None
    total = results[0].owner
    if isinstance(total, ir.Block) or total.name not in PRODUCTS or out not in list(total.operands):
        return None
    product = next((v for v in total.operands if v != out), None)
    if product is None or isinstance(product.owner, ir.Block) or product.owner.name != PRODUCTS[total.name]:
        return None
    for one, other in (tuple(product.owner.operands), tuple(product.owner.operands)[::-1]):
        casts = _casts(one, first), _casts(other, second)
        if casts[0] is not None and casts[1] is not None:
            return MultiplyAccumulate(total.name, product.owner.name, casts)  # type: ignore[arg-type]
    return None


def _casts(value: ir.Value, argument: ir.Value) -> list[ir.OpView] | None:
    """The casts between a block argument and its use as a factor, first applied first; None where it is none."""
    chain: list = []
    while value != argument:
        owner = value.owner
        if isinstance(owner, ir.Block) or owner.name not in CASTS:
            return None
        chain.append(owner)
        value = owner.operands[0]
    return chain[::-1]
