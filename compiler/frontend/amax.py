"""`aten.amax` as a linalg reduction: torch-mlir has only a maximum that tracks its index."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.mlir import arith, ir, linalg, tensor


def lower_amax(op: ir.Operation) -> None:
    """Replaces one `torch.aten.amax` of a float or integer tensor of static shape, with constant dimensions."""
    with op.location, ir.InsertionPoint(op):
        keep = bool(op.operands[2].owner.attributes["value"].value)
        listed = [d.owner.attributes["value"].value for d in op.operands[1].owner.operands]
        source = builtin_tensor(op.operands[0])
        rank = len(source.type.shape)
        dims = sorted({d % rank for d in listed}) or list(range(rank))
        value = _reduce(source, dims)
        if keep:
            value = _with_ones(value, source.type.shape, dims)
        made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [value])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()


def builtin_tensor(value: ir.Value) -> ir.Value:
    """The builtin tensor of a `!torch.vtensor<[..],f32>`."""
    shape, element = str(value.type).removeprefix("!torch.vtensor<[").removesuffix(">").split("],")
    element = element[1:] if element.startswith("si") else element  # builtin integers have no sign
    extents = [int(n) for n in shape.split(",")] if shape else []
    type_ = ir.RankedTensorType.get(extents, ir.Type.parse(element))
    return ir.Operation.create("torch_c.to_builtin_tensor", [type_], [value]).results[0]


def _reduce(source: ir.Value, dims: Sequence[int]) -> ir.Value:
    element, shape = source.type.element_type, source.type.shape
    is_float = isinstance(element, ir.FloatType)
    lowest = (
        ir.FloatAttr.get(element, float("-inf"))
        if is_float
        else ir.IntegerAttr.get(element, -(2 ** (element.width - 1)))
    )
    kept = [d for d in range(len(shape)) if d not in dims]
    empty = tensor.empty([shape[d] for d in kept], element)
    init = linalg.fill(arith.constant(element, lowest), outs=[empty])
    every = [ir.AffineDimExpr.get(d) for d in range(len(shape))]
    maps = [ir.AffineMap.get(len(shape), 0, every), ir.AffineMap.get(len(shape), 0, [every[d] for d in kept])]
    kinds = ["reduction" if d in dims else "parallel" for d in range(len(shape))]
    generic = linalg.GenericOp(
        [init.type],
        [source],
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
    )
    block = generic.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block):
        combine = arith.maximumf if is_float else arith.maxsi
        linalg.YieldOp([combine(*block.arguments)])
    return generic.results[0]


def _with_ones(value: ir.Value, shape: Sequence[int], dims: Sequence[int]) -> ir.Value:
    """Gives the reduced dimensions back, with extent one."""
    extents = [1 if d in dims else n for d, n in enumerate(shape)]
    groups: list[list[int]] = []
    if len(dims) < len(shape):
        for d in range(len(shape)):
            if d not in dims and (not groups or any(g not in dims for g in groups[-1])):
                groups.append([])
            elif not groups:
                groups.append([])
            groups[-1].append(d)
    type_ = ir.RankedTensorType.get(extents, value.type.element_type)
    return tensor.expand_shape(type_, value, groups, [], extents)
