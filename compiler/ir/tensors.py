"""Facts of tensor types that every level shares: shapes, sizes of elements, slices of less rank."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from mlirc.mlir import ir
from mlirc.runtime.plan import DTYPE_BYTES

# Bytes of an element in memory, of the types that kernels are made for.
ELEMENT_BYTES = {"index": 8, **{name: size for name, size in DTYPE_BYTES.items() if name != "u8"}}
VIEWS = ("tensor.expand_shape", "tensor.collapse_shape")  # the same elements in the same order


def shape_of(value: ir.Value) -> tuple[int, ...]:
    """The shape of a tensor; () of a scalar."""
    return _shape(value.type)


@cache  # of types, of which the context has one for equal ones
def _shape(of: ir.Type) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(of).shape) if isinstance(of, ir.RankedTensorType) else ()


def element_bytes(element: ir.Type) -> int:
    """Bytes of one element in memory, of any type: i1 takes a byte, and an index eight."""
    return 8 if isinstance(element, ir.IndexType) else max(element.width // 8, 1)


def kept_dims(sizes: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Which dimensions of a slice of these sizes stay in its rank-reduced type: of several of size 1 the last. Raises
    ValueError where the shape is none of such a slice."""
    kept, rest = [], list(shape)
    for i in reversed(range(len(sizes))):
        if rest and rest[-1] == sizes[i]:
            kept.append(i)
            rest.pop()
        elif sizes[i] != 1:
            raise ValueError(f"a slice of sizes {list(sizes)} is no tensor of shape {list(shape)}")
    if rest:
        raise ValueError(f"a slice of sizes {list(sizes)} is no tensor of shape {list(shape)}")
    return kept[::-1]


def through_views(value: ir.Value) -> ir.Value:
    """What a value is a view of (`VIEWS`); itself where it is none."""
    while not isinstance(value.owner, ir.Block) and value.owner.operation.name in VIEWS:
        value = value.owner.operation.operands[0]
    return value
