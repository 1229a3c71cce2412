"""Numbers in a kernel's host function: scalars that it loads from its arguments, and what it makes of them for grids.

    %n = memref.load %count[] : memref<i32>               // an argument of one element
    %i = arith.index_cast %n : i32 to index
    %g = arith.ceildivsi %i, %c64 : index                 // rounded up
    %x = arith.muli %g, %c2 : index
    gpu.launch_func @k_gpu::@k_0 blocks in (%x, %c1, %c1) threads in (...) args(%n : i32, ...)
        {mlirc.most_blocks = array<i64: 128, 1, 1>}

The launch has the number itself, and no address; `mlirc.most_blocks` is how large its grid may be.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.runtime.plan import Dim3, Extent

MOST_BLOCKS = "mlirc.most_blocks"
_SAME = {"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"}
_CEILDIV = {"arith.ceildivsi", "arith.ceildivui"}
OPERATIONS = {"memref.load", "arith.muli", *_SAME, *_CEILDIV}


class HostScalars:
    """The scalars of a host function by value: `loaded` has the number of the argument that each is loaded from,
    `extents` what it is as an extent of a grid."""

    def __init__(self) -> None:
        self.loaded: dict[ir.Value, int] = {}
        self.extents: dict[ir.Value, Extent] = {}

    def read(self, op: ir.Operation, constants: dict[ir.Value, int]) -> str:
        """Takes one of OPERATIONS; returns what is wrong with it, or nothing."""
        if op.name == "memref.load":
            source = op.operands[0]
            if not isinstance(source.owner, ir.Block) or math.prod(ir.MemRefType(source.type).shape) != 1:
                return "loads no argument of one element: a host function knows no other numbers"
            self.loaded[op.results[0]] = ir.BlockArgument(source).arg_number
            self.extents[op.results[0]] = Extent(self.loaded[op.results[0]])
            return ""
        values = [v for v in op.operands if v in self.extents]
        numbers = [constants[v] for v in op.operands if v in constants]
        if len(values) != 1 or len(values) + len(numbers) != len(op.operands) or any(n < 1 for n in numbers):
            return "computes something else than a scalar divided, rounded up, and multiplied by numbers above 0"
        known = self.extents[values[0]]
        if op.name in _CEILDIV:
            if known.factor != 1 or op.operands[0] != values[0]:
                return "divides a product, or by a scalar: divide the scalar first"
            known = replace(known, divisor=known.divisor * numbers[0])
        elif op.name == "arith.muli":
            known = replace(known, factor=known.factor * numbers[0])
        self.extents[op.results[0]] = known
        return ""

    def grid(
        self, op: ir.Operation, sizes: list[ir.Value], constants: dict[ir.Value, int]
    ) -> tuple[Dim3, dict[int, Extent]]:
        """The grid of a launch, at most, and the dimensions of it that scalars decide. Raises MlircError for one that
        is not known, and one without a bound."""
        most = list(ir.DenseI64ArrayAttr(op.attributes[MOST_BLOCKS])) if MOST_BLOCKS in op.attributes else None
        extents = {d: self.extents[v] for d, v in enumerate(sizes) if v in self.extents}
        if most is None or len(most) != 3 or any(v not in self.extents and v not in constants for v in sizes):
            raise MlircError(
                f"host operation {op.name}: a scalar decides its grid: it needs {MOST_BLOCKS}, three numbers, and no "
                "other number may decide it"
            )
        x, y, z = (most[d] if d in extents else constants[v] for d, v in enumerate(sizes))
        return (x, y, z), extents
