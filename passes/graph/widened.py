"""Reductions that cast what they reduce, as PyTorch's sums of integers, become a map, which casts, and a reduction."""

from __future__ import annotations

from mlirc.dialects.schedule import _build
from mlirc.ir.combiners import COMBINERS
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, linalg, tensor
from mlirc.passes.graph.classify import body, is_contraction, iterators, maps
from mlirc.passes.graph.emit import make_generic
from mlirc.passes.graph.facts import WIDENING


def part_casts(block: ir.Block) -> None:
    """Rewrites every such op of the block."""
    for op in [o.operation for o in block.operations]:
        if op.name == "linalg.generic" and _casts(op):
            with op.location, ir.InsertionPoint(op):
                _part(op)


def _casts(op: ir.Operation) -> bool:
    if len(op.operands) != 2 or "reduction" not in iterators(op) or is_contraction(op):
        return False
    inner, arguments = body(op), list(op.regions[0].blocks[0].arguments)
    return (
        len(inner) == 3
        and inner[0].name in WIDENING
        and inner[0].operands[0] == arguments[0]
        and inner[1].name in COMBINERS
        and set(inner[1].operands) == {inner[0].results[0], arguments[1]}
        and maps(op)[0].is_permutation
    )


def _part(op: ir.Operation) -> None:
    source, init = op.operands
    inner = body(op)
    wide = tensor.empty(list(shape_of(source)), inner[0].results[0].type)
    identity = ir.AffineMap.get_identity(len(shape_of(source)))
    cast = make_generic([source], [wide], [identity, identity], ["parallel"] * len(shape_of(source)))
    with ir.InsertionPoint(cast.regions[0].blocks[0]):
        value = _build.clone(inner[0], {inner[0].operands[0]: cast.regions[0].blocks[0].arguments[0]})
        linalg.yield_([value.results[0]])
    reduced = make_generic([cast.results[0]], [init], maps(op), iterators(op))
    block = reduced.regions[0].blocks[0]
    places = {inner[0].results[0]: block.arguments[0], op.regions[0].blocks[0].arguments[1]: block.arguments[1]}
    with ir.InsertionPoint(block):
        value = _build.clone(inner[1], places)
        linalg.yield_([value.results[0]])
    op.results[0].replace_all_uses_with(reduced.results[0])
    op.erase()
