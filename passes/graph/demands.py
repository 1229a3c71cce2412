"""Kernels while ops are given to them, and which elements of a value they read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import prod

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.classify import generic_inits
from mlirc.passes.graph.evaluate import Indices
from mlirc.passes.graph.index import Index

LONGEST_ROW = 1 << 19  # elements of a row that the blocks of a cluster hold
FEW_ROWS, LONG_ROW = 16, 1 << 14  # rows, and elements of each, that few multiprocessors reduce


@dataclass(eq=False)
class Kernel:
    """One kernel: its root, its loops (those of the root's result first), and the ops computed in it."""

    number: int
    root: ir.Operation
    dims: list[Index]
    rows: frozenset | None = None  # loop numbers of the rows, once a reduction is in
    cols: list[Index] = field(default_factory=list)
    reduction_sizes: list[int] = field(default_factory=list)
    contractions: list[ir.Operation] = field(default_factory=list)
    scan: ir.Operation | None = None
    members: list[ir.Operation] = field(default_factory=list)
    opaque: bool = False

    @property
    def size(self) -> int:
        return prod(d.range()[1] + 1 for d in self.dims)

    @property
    def row_count(self) -> int:
        """How many rows it reduces; 0 where it reduces none."""
        rows = self.rows
        return 0 if rows is None else prod(d.range()[1] + 1 for d in self.dims if {a[1] for a in d.atoms()} <= rows)

    @property
    def has_few_long_rows(self) -> bool:
        """Whether it reduces rows that few blocks take."""
        return 0 < self.row_count <= FEW_ROWS and prod(self.reduction_sizes) >= LONG_ROW


@dataclass
class Demand:
    """Which elements of a value each kernel reads.

    `indices` per kernel, None among them where they depend on data; `plain` where the read must be a plain one;
    `ordered` where it must walk the tensor in the order of the loops; `whole` when the value itself must exist.
    """

    indices: dict[Kernel, set[Indices | None]] = field(default_factory=dict)
    plain: set[Kernel] = field(default_factory=set)
    ordered: set[Kernel] = field(default_factory=set)
    whole: bool = False


def reads_again(op: ir.Operation, kernels: Collection[Kernel]) -> bool:
    """Whether the readers of a map read what it is made of as fast as its result, of rows that none of them holds: it
    has no more elements."""
    if any(k.contractions or k.opaque for k in kernels):
        return False
    size = prod(shape_of(op.results[0]))
    inputs = list(op.operands)[: len(op.operands) - generic_inits(op)]
    read = sum(prod(shape_of(v)) for v in inputs)
    return read <= size + size // 16 and any(prod(k.reduction_sizes) > LONGEST_ROW for k in kernels)
