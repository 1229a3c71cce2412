"""Which loops of a block program are over parts, of which each block of a cluster takes one (`cluster_parts.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from mlirc.dialects import rings
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.builder import Unsupported
from mlirc.schedule.attributes import Taken


def loops_over_parts(forall) -> Iterator[ir.Operation]:
    """The loops over parts in the body of a forall, or in the roles there."""
    for op in forall.regions[0].blocks[0].operations:
        inside = [o for region in op.operation.regions for o in region.blocks[0].operations]
        for found in inside if op.operation.name == rings.ROLES else [op]:
            if found.operation.name == "scf.forall":
                yield found.operation


def count(forall, taken: Taken) -> int:
    """How many blocks compute one block of a forall. Raises Unsupported where they cannot."""
    found = list(loops_over_parts(forall))
    if not found:
        return 1
    bounds = {
        tuple(
            tuple(ir.DenseI64ArrayAttr(op.attributes[n]))
            for n in ("staticLowerBound", "staticUpperBound", "staticStep")
        )
        for op in found
    }
    lower, upper, step = bounds.pop()
    if bounds or len(upper) != 1 or lower != (0,) or step != (1,) or upper[0] not in (2, 4, 8):
        raise Unsupported(
            "an scf.forall in a block program: it is over 2, 4 or 8 parts, each loop over as many", found[-1]
        )
    for name, what in (("cluster", "its blocks form clusters already"), ("persist", "each block computes one tile")):
        if taken.take(forall, name, 1) != 1:
            raise Unsupported(f"mlirc.{name}: K is split among blocks: {what}: leave it out", forall, name)
    return upper[0]
