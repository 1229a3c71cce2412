"""Elementwise linalg ops in place of ops of the torch level: what torch-mlir lacks, or computes otherwise than PyTorch.

`mlirc::bitcast` is the bits of elements as another dtype, `mlirc::erfc` is PyTorch's; `maximum` and `minimum` are NaN
where an operand is; `fmod` is exact, and not the difference to a rounded quotient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mlirc.frontend.amax import builtin_tensor
from mlirc.mlir import arith, ir, linalg, math, tensor

BITCAST = "torch.mlirc.bitcast"
ERFC = "torch.mlirc.erfc"
OF_FLOATS = {
    "torch.aten.maximum": arith.maximumf,
    "torch.aten.minimum": arith.minimumf,
    "torch.aten.fmod.Tensor": arith.remf,
}


@torch.library.custom_op("mlirc::bitcast", mutates_args=())
def bitcast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x as `dtype`, a float for an integer or the other way round, of the same width."""
    return x.view(dtype).clone()


@bitcast.register_fake
def _(x, dtype):
    return x.new_empty(x.shape, dtype=dtype)


def lower_bitcast(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name BITCAST, whose shape is static."""
    with op.location, ir.InsertionPoint(op):
        replace_op(op, [builtin_tensor(op.operands[0])], lambda x, to: arith.bitcast(to, x))


@torch.library.custom_op("mlirc::erfc", mutates_args=())
def erfc(x: torch.Tensor) -> torch.Tensor:
    """1 - erf(x) of f32 or f64 x."""
    return torch.special.erfc(x)


@erfc.register_fake
def _(x):
    return torch.empty_like(x)


def lower_erfc(op: ir.Operation) -> None:
    """Replaces one `torch.operator` of the name ERFC, whose shape is static."""
    with op.location, ir.InsertionPoint(op):
        replace_op(op, [builtin_tensor(op.operands[0])], lambda x, _: math.erfc(x))


def lower_floats(op: ir.Operation) -> None:
    """Replaces one of OF_FLOATS where all is floats of one dtype and static shapes; leaves the others alone."""
    with op.location, ir.InsertionPoint(op):
        types = {str(v.type).removesuffix(">").split("],")[-1] for v in (*op.operands, *op.results)}
        if len(types) == 1 and not next(iter(types)).startswith(("s", "u", "i")):
            combine = OF_FLOATS[op.name]
            numbers = [filled_with(v) for v in op.operands]
            read = [builtin_tensor(v) for v, n in zip(op.operands, numbers, strict=True) if n is None]

            def body(*given: ir.Value) -> ir.Value:
                values, to = iter(given[:-1]), given[-1]
                constants = (None if n is None else ir.FloatAttr.get(to, float(n)) for n in numbers)
                return combine(*[next(values) if c is None else arith.constant(to, c) for c in constants])

            replace_op(op, read, body)


def broadcast_map(shape: Sequence[int], every: list[ir.AffineExpr]) -> ir.AffineMap:
    """From the dimensions `every` of a result to those of an operand that is broadcast to it."""
    first = len(every) - len(shape)
    results = [ir.AffineConstantExpr.get(0) if n == 1 else every[first + d] for d, n in enumerate(shape)]
    return ir.AffineMap.get(len(every), 0, results)


def filled_with(value: ir.Value) -> float | int | None:
    """The number that a tensor of the torch level is filled with by `aten.full`, or None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "torch.aten.full":
        return None
    filled = owner.operands[1].owner
    if isinstance(filled, ir.Block) or filled.name not in ("torch.constant.int", "torch.constant.float"):
        return None
    return filled.attributes["value"].value


def replace_op(op: ir.Operation, sources: list[ir.Value], body: Callable[..., ir.Value]) -> None:
    """Replaces an op of one result by a map: `body` gets an element of each source, and the result's element type."""
    sizes, element = str(op.results[0].type).removeprefix("!torch.vtensor<[").removesuffix(">").split("],")
    shape, element = [int(n) for n in sizes.split(",") if n], ir.Type.parse(element.removeprefix("s"))
    init = tensor.empty(shape, element)
    every = [ir.AffineDimExpr.get(d) for d in range(len(shape))]
    maps = [broadcast_map(s.type.shape, every) for s in sources] + [ir.AffineMap.get(len(shape), 0, every)]
    generic = linalg.GenericOp(
        [init.type],
        sources,
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse("#linalg.iterator_type<parallel>")] * len(shape)),
    )
    block = generic.regions[0].blocks.append(*[s.type.element_type for s in sources], element)
    with ir.InsertionPoint(block):
        linalg.YieldOp([body(*list(block.arguments)[:-1], element)])
    made = ir.Operation.create("torch_c.from_builtin_tensor", [op.results[0].type], [generic.results[0]])
    op.results[0].replace_all_uses_with(made.results[0])
    op.erase()
