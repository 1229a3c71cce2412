"""`mlirc.sort`: the first elements of sorted rows, as one op that stays whole until a schedule takes it apart.

    %values, %places = "mlirc.sort"(%x) {descending = false} : (tensor<RxNxT>) -> (tensor<RxKxT>, tensor<RxKxi64>)

The K elements of each row that a stable sort has first, in its order, and where they are in the row. T is a float of
16, 32 or 64 bits, whose NaNs are all equal and the largest, as in PyTorch, and -0 equal to 0; or i32 or i64. K is 1 to
N.
"""

# No `from __future__ import annotations` here: the bindings read the op class's annotations as types.
from dataclasses import dataclass
from typing import Any

from mlirc.dialects.mlirc_dialect import Mlirc, checked
from mlirc.mlir import ext, ir

SORT = "mlirc.sort"
ELEMENTS = ("f16", "bf16", "f32", "f64", "i32", "i64")


@dataclass(frozen=True)
class SortInfo:
    """What a sort says: `rows` of `length` elements, of which it gives the first `count`."""

    rows: int
    length: int
    count: int
    element: ir.Type
    descending: bool

    @classmethod
    def of(cls, op: Any) -> "SortInfo":
        """Reads and checks the op; raises ValueError naming the broken rule."""
        op = op.operation
        x, values, places = (ir.RankedTensorType(v.type) for v in (op.operands[0], *op.results))
        if x.rank != 2 or not x.has_static_shape or str(x.element_type) not in ELEMENTS:
            raise ValueError(f"it sorts rows [R, N] of {', '.join(ELEMENTS)}, not {x}")
        rows, length = x.shape
        count = values.shape[1] if values.rank == 2 else 0
        right = values.rank == 2 and list(values.shape) == [rows, count] and values.element_type == x.element_type
        if not right or not 1 <= count <= length:
            raise ValueError(f"its values are [{rows}, K] of {x.element_type}, K from 1 to {length}, not {values}")
        if list(places.shape) != [rows, count] or str(places.element_type) != "i64":
            raise ValueError(f"its places are [{rows}, {count}] of i64, not {places}")
        if not isinstance(op.attributes["descending"], ir.BoolAttr):
            raise ValueError("descending is a boolean")
        return cls(rows, length, count, x.element_type, op.attributes["descending"].value)


class SortOp(Mlirc.Operation, name="sort", traits=[ext.Pure]):  # type: ignore
    """The first elements of sorted rows; see the module's docstring."""

    x: ext.Operand[Any]
    descending: Any
    values_: ext.Result[Any]
    places: ext.Result[Any]

    verify_invariants = checked(lambda op: SortInfo.of(op))
