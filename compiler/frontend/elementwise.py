"""Elementwise linalg ops in place of ops of the torch level: what torch-mlir lacks, or computes otherwise than PyTorch.

`mlirc::bitcast` is the bits of elements as another dtype, `mlirc::erfc` is PyTorch's; `maximum` and `minimum` are NaN
where an operand is; `fmod` is exact, and not the difference to a rounded quotient. Comparisons of floats are in the
operands' type, where torch-mlir takes a scalar's FP64, and none is folded: `x == x` is false of a NaN. `trunc` and
`relu` keep a zero's sign.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from mlirc.frontend.amax import builtin_tensor
from mlirc.mlir import arith, ir, linalg, math, tensor

BITCAST = "torch.mlirc.bitcast"
ERFC = "torch.mlirc.erfc"
_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}  # of arith.cmpf, false of a NaN but for `ne`
COMPARISONS = {f"torch.aten.{name}.{kind}": p for name, p in _PREDICATES.items() for kind in ("Tensor", "Scalar")}
OF_FLOATS = {
    "torch.aten.maximum": arith.maximumf,
    "torch.aten.minimum": arith.minimumf,
    "torch.aten.fmod.Tensor": arith.remf,
    "torch.aten.trunc": lambda x: math.TruncOp(x).result,
    "torch.aten.relu": lambda x: _relu(x),
    **{name: functools.partial(arith.cmpf, predicate) for name, predicate in COMPARISONS.items()},
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
    combine, tensors = OF_FLOATS[op.name], [v for v in op.operands if "tensor<[" in str(v.type)]
    types = {_element(v) for v in (*tensors, *([] if op.name in COMPARISONS else op.results))}
    if len(types) != 1 or next(iter(types)).startswith(("s", "u", "i", "complex", "!")):
        return
    with op.location, ir.InsertionPoint(op):
        to = ir.Type.parse(next(iter(types)))
        numbers = [filled_with(v) if v in tensors else constant_of(v) for v in op.operands]
        if any(n is None and v not in tensors for v, n in zip(op.operands, numbers, strict=True)):
            return
        read = [builtin_tensor(v) for v, n in zip(op.operands, numbers, strict=True) if n is None]

        def body(*given: ir.Value) -> ir.Value:
            values = iter(given[:-1])
            return combine(*[next(values) if n is None else _constant(to, n) for n in numbers])

        replace_op(op, read, body)


def _relu(x: ir.Value) -> ir.Value:
    zero = _constant(x.type, 0.0)
    return arith.select(arith.cmpf(_PREDICATES["lt"], x, zero), zero, x)


def _element(value: ir.Value) -> str:
    """The element type of a tensor of the torch level."""
    return str(value.type).removesuffix(">").split("],")[-1]


def _constant(to: ir.Type, number: float | int) -> ir.Value:
    """A scalar as PyTorch makes it an element: to 16 bits by way of f32."""
    narrow = float(np.float32(number)) if isinstance(to, ir.F16Type | ir.BF16Type) else float(number)
    return arith.constant(to, ir.FloatAttr.get(to, narrow))


def broadcast_map(shape: Sequence[int], every: list[ir.AffineExpr]) -> ir.AffineMap:
    """From the dimensions `every` of a result to those of an operand that is broadcast to it."""
    first = len(every) - len(shape)
    results = [ir.AffineConstantExpr.get(0) if n == 1 else every[first + d] for d, n in enumerate(shape)]
    return ir.AffineMap.get(len(every), 0, results)


def filled_with(value: ir.Value) -> float | int | None:
    """The number that a tensor of the torch level is filled with by `aten.full`, or None."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) or owner.name != "torch.aten.full" else constant_of(owner.operands[1])


def constant_of(value: ir.Value) -> float | int | None:
    """The number that a scalar of the torch level is, or None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name not in ("torch.constant.int", "torch.constant.float"):
        return None
    return owner.attributes["value"].value


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
