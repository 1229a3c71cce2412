"""`index_put` at positions along one dimension, as a scatter of whole slices.

torch-mlir scatters element by element, one thread for all of them. Here the slices' elements are written in parallel,
and the slices one after the other, so that of two for one position the last one stays, as on PyTorch's CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlirc.frontend.amax import builtin_tensor
from mlirc.frontend.elementwise import broadcast_map
from mlirc.mlir import ir, linalg, tensor


def lower_index_put(op: ir.Operation) -> None:
    """Replaces one `torch.aten.index_put` that has one index, a tensor of integers of at most one dimension, and that
    does not accumulate; leaves any other one alone. All shapes are static."""
    found = _position(op)
    if found is None:
        return
    dim, index = found
    with op.location, ir.InsertionPoint(op):
        target, places, values = (builtin_tensor(v) for v in (op.operands[0], index, op.operands[2]))
        shape, count = list(target.type.shape), math.prod(places.type.shape)
        if 0 in (*shape, count):
            return
        rows = _rows(values, shape, dim, places.type.shape)
        indices = reshaped(places, [count, 1])
        made = scatter(target, rows, indices, dim)
        result = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [made])
    op.results[0].replace_all_uses_with(result.results[0])
    op.erase()


def _position(op: ir.Operation) -> tuple[int, ir.Value] | None:
    """The dimension that is indexed, and its index."""
    accumulate = op.operands[3].owner
    listed = op.operands[1].owner
    if isinstance(accumulate, ir.Block) or accumulate.name != "torch.constant.bool" or isinstance(listed, ir.Block):
        return None
    given = [(d, v) for d, v in enumerate(listed.operands) if "none" not in str(v.type)]
    if bool(accumulate.attributes["value"].value) or len(given) != 1:
        return None
    sizes, _, element = str(given[0][1].type).removeprefix("!torch.vtensor<[").removesuffix(">").partition("],")
    return given[0] if element in ("si64", "si32") and sizes.count(",") == 0 else None


def _rows(values: ir.Value, shape: Sequence[int], dim: int, index: Sequence[int]) -> ir.Value:
    """The values, which broadcast to `shape` with the index's shape in place of `dim`, as [positions, *shape with 1 in
    place of `dim`]."""
    count = math.prod(index)
    whole = [*shape[:dim], *index, *shape[dim + 1 :]]
    wanted = [count, *shape[:dim], 1, *shape[dim + 1 :]]
    if math.prod(values.type.shape) == math.prod(whole) and (count == 1 or math.prod(shape[:dim]) == 1):
        return reshaped(values, wanted)  # the same order in memory
    element = values.type.element_type
    init = tensor.empty(wanted, element)
    every = [ir.AffineDimExpr.get(d) for d in range(len(wanted))]
    places = [*every[1 : dim + 1], *([every[0]] if index else []), *every[dim + 2 :]]
    read = broadcast_map(values.type.shape, places)
    read = ir.AffineMap.get(len(wanted), 0, list(read.results))
    generic = linalg.GenericOp(
        [init.type],
        [values],
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in (read, ir.AffineMap.get(len(wanted), 0, every))]),
        ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * len(wanted)),
    )
    block = generic.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return generic.results[0]


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


def scatter(target: ir.Value, rows: ir.Value, indices: ir.Value, dim: int, unique: bool = False) -> ir.Value:
    """`target` with `rows` at `indices` [positions,1] of a dimension. `unique`: no two rows are for one place, and rows
    with a negative index are for none."""
    made = ir.Operation.create(
        "tm_tensor.scatter",
        [target.type],
        [rows, indices, target],
        attributes={
            "dimension_map": ir.DenseI64ArrayAttr.get([dim]),
            "unique_indices": ir.BoolAttr.get(unique),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
        },
        regions=1,
    )
    element = target.type.element_type
    block = made.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        ir.Operation.create("tm_tensor.yield", [], [block.arguments[0]])
    return made.results[0]
