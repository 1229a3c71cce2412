"""`mlirc::scatter` and `mlirc::scatter_elements` as MLIR: `tm_tensor.scatter` of whole slices.

torch-mlir's own lowerings scatter element by element, and crash on some indices; see `scatter.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mlirc.errors import MlircError
from mlirc.frontend.amax import builtin_tensor
from mlirc.mlir import arith, ir, linalg, tensor

SLICES, ELEMENTS = "torch.mlirc.scatter", "torch.mlirc.scatter_elements"
# torch-mlir's lowerings of these are not PyTorch's, or end the process.
REFUSED = (
    "torch.aten.index_put", "torch.aten._index_put_impl", "torch.aten.index_put.hacked_twin", "torch.aten.scatter.src",
    "torch.aten.scatter.value", "torch.aten.scatter.reduce", "torch.aten.scatter_add", "torch.aten.scatter_reduce.two",
    "torch.aten.masked_scatter", "torch.aten._embedding_bag", "torch.aten.embedding_bag.padding_idx",
    "torch.aten.bincount",
)  # fmt: skip


def lower_scatter(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name SLICES, whose shapes are static and not empty."""
    dims = [v.owner.attributes["value"].value for v in op.operands[3].owner.operands]
    combine = ir.StringAttr(op.operands[4].owner.attributes["value"]).value
    with op.location, ir.InsertionPoint(op):
        target, indices, updates = (builtin_tensor(v) for v in op.operands[:3])
        _replace(op, scatter_slices(target, updates, indices, dims, combine))


def lower_scatter_elements(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name ELEMENTS, whose shapes are static and not empty."""
    dim = op.operands[3].owner.attributes["value"].value
    combine = ir.StringAttr(op.operands[4].owner.attributes["value"]).value
    with op.location, ir.InsertionPoint(op):
        target, index, updates = (builtin_tensor(v) for v in op.operands[:3])
        rank, count = len(target.type.shape), math.prod(index.type.shape)
        indices = reshaped(_places(index, dim), [count, rank])
        slices = reshaped(updates, [count, *[1] * rank])
        _replace(op, scatter_slices(target, slices, indices, range(rank), combine))


def _replace(op: ir.Operation, value: ir.Value) -> None:
    made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [value])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def _places(index: ir.Value, dim: int) -> ir.Value:
    """The indices [*shape of the index, rank] of each of its elements, with what it says for `dim`."""
    shape, element = list(index.type.shape), index.type.element_type
    rank = len(shape)
    init = tensor.empty([*shape, rank], element)
    every = [ir.AffineDimExpr.get(d) for d in range(rank + 1)]
    maps = [ir.AffineMap.get(rank + 1, 0, every[:rank]), ir.AffineMap.get_identity(rank + 1)]
    generic = linalg.GenericOp(
        [init.type],
        [index],
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * (rank + 1)),
    )
    block = generic.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        column, found = linalg.IndexOp(rank).result, block.arguments[0]
        for d in range(rank):
            if d != dim:
                own = arith.index_cast(element, linalg.IndexOp(d).result)
                chosen = arith.cmpi(arith.CmpIPredicate.eq, column, arith.constant(ir.IndexType.get(), d))
                found = arith.select(chosen, own, found)
        linalg.YieldOp([found])
    return generic.results[0]


def refuse_scatter(op: ir.Operation, where: str) -> None:
    """Raises MlircError for an op of REFUSED: all that can be lowered were taken apart before."""
    name = op.name.removeprefix("torch.aten.").split(".")[0]
    raise MlircError(
        f"op aten::{name} in {where} is not supported in this form: write it with index_put or torch.where"
    )


def reshaped(value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A tensor with another shape of as many elements: all dimensions as one, and that taken apart."""
    type_ = value.type
    flat = ir.RankedTensorType.get([math.prod(shape)], type_.element_type)
    if list(type_.shape) == list(shape):
        return value
    if len(type_.shape) > 1:
        value = tensor.collapse_shape(flat, value, [list(range(len(type_.shape)))])
    if list(value.type.shape) == list(shape):
        return value
    result = ir.RankedTensorType.get(list(shape), type_.element_type)
    groups = [list(range(len(shape)))] if type_.shape else []
    return tensor.expand_shape(result, value, groups, [], list(shape))


def scatter_slices(
    target: ir.Value,
    updates: ir.Value,
    indices: ir.Value,
    dims: Sequence[int],
    combine: str = "set",
    unique: bool = False,
) -> ir.Value:
    """`target` with the slices `updates` at `indices` [N,K] of the dimensions `dims`.

    `unique`: no two slices are for one place, and those with a negative index are for none."""
    made = ir.Operation.create(
        "tm_tensor.scatter",
        [target.type],
        [updates, indices, target],
        attributes={
            "dimension_map": ir.DenseI64ArrayAttr.get(list(dims)),
            "unique_indices": ir.BoolAttr.get(unique),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
        },
        regions=1,
    )
    element = target.type.element_type
    block = made.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        new, old = block.arguments
        value = new if combine == "set" else _combiner(combine, element)(old, new)
        ir.Operation.create("tm_tensor.yield", [], [value])
    return made.results[0]


def _combiner(combine: str, element: ir.Type) -> Callable[[ir.Value, ir.Value], ir.Value]:
    floats, integers = {
        "add": (arith.addf, arith.addi),
        "mul": (arith.mulf, arith.muli),
        "max": (arith.maximumf, arith.maxsi),
        "min": (arith.minimumf, arith.minsi),
    }[combine]
    return floats if isinstance(element, ir.FloatType) else integers
