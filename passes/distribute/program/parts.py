"""Which loops of a block program are over parts, of which each block of a cluster, or each of several teams of its
warps, takes one (`cluster_parts.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Sharing:
    """How many `blocks` of a cluster compute one block of a forall, and how many `teams` each of them has for the loop
    over parts: part number p is that of team p / blocks of block p % blocks."""

    blocks: int = 1
    teams: int = 1


def _extent(op: ir.Operation) -> int | None:
    """Over how many parts a loop is."""
    names = ("staticLowerBound", "staticUpperBound", "staticStep")
    lower, upper, step = (tuple(ir.DenseI64ArrayAttr(op.attributes[n])) for n in names)
    return upper[0] if len(upper) == 1 and lower == (0,) and step == (1,) else None


def sharing(forall, taken: Taken) -> Sharing:
    """Who computes one block of a forall. Raises Unsupported where they cannot."""
    found = list(loops_over_parts(forall))
    if not found:
        return Sharing()
    teams = {taken.take(op, "teams", 1) for op in found if "mlirc.teams" in op.attributes} or {1}
    counts = {n // max(teams) if n and "mlirc.teams" in op.attributes else n for op in found if (n := _extent(op))}
    bad = len(counts) != 1 or len(teams) > 1 or any(_extent(op) is None for op in found)
    blocks, each = min(counts, default=0), max(teams)
    if bad or blocks not in ((1, 2, 4, 8) if each > 1 else (2, 4, 8)):
        raise Unsupported(
            "an scf.forall in a block program: it is over 2, 4 or 8 parts, each loop over as many", found[-1]
        )
    if any((_extent(op) or 0) % each for op in found if "mlirc.teams" in op.attributes):
        raise Unsupported(f"mlirc.teams = {each}: they do not divide the parts", found[0], "teams")
    if blocks == 1:
        return Sharing(1, each)
    for name, what in (("cluster", "its blocks form clusters already"), ("persist", "each block computes one tile")):
        if taken.take(forall, name, 1) != 1:
            raise Unsupported(f"mlirc.{name}: K is split among blocks: {what}: leave it out", forall, name)
    return Sharing(blocks, each)
