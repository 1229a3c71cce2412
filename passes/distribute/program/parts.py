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
    """The loops over parts in the body of a forall, or in the roles there; in front of each those in it."""
    for op in forall.regions[0].blocks[0].operations:
        inside = [o for region in op.operation.regions for o in region.blocks[0].operations]
        for found in inside if op.operation.name == rings.ROLES else [op]:
            if found.operation.name == "scf.forall":
                yield from loops_over_parts(found)
                yield found.operation


@dataclass(frozen=True)
class Sharing:
    """How many `blocks` of a cluster compute one block of a forall, and how many `teams` of warps each of them has for
    loops over parts of its own."""

    blocks: int = 1
    teams: int = 1


def is_of_teams(op: ir.Operation) -> bool:
    """Whether the parts of a loop are those of a block's teams."""
    return "mlirc.teams" in op.attributes


def _extent(op: ir.Operation) -> int:
    """Over how many parts a loop is; 0 for one that does not count from 0 by 1."""
    names = ("staticLowerBound", "staticUpperBound", "staticStep")
    lower, upper, step = (tuple(ir.DenseI64ArrayAttr(op.attributes[n])) for n in names)
    return upper[0] if len(upper) == 1 and lower == (0,) and step == (1,) else 0


def sharing(forall, taken: Taken) -> Sharing:
    """Who computes one block of a forall. Raises Unsupported where they cannot."""
    found = list(loops_over_parts(forall))
    of_teams = [op for op in found if is_of_teams(op)]
    of_blocks = [op for op in found if not is_of_teams(op)]
    for op in of_teams:
        if _extent(op) != taken.take(op, "teams", 1):
            raise Unsupported("mlirc.teams: the loop is over as many parts", op, "teams")
    teams = {_extent(op) for op in of_teams} or {1}
    blocks = {_extent(op) for op in of_blocks} or {1}
    if len(teams) > 1 or len(blocks) > 1 or of_blocks and not blocks <= {2, 4, 8}:
        raise Unsupported(
            "an scf.forall in a block program: it is over 2, 4 or 8 parts, each loop over as many", found[-1]
        )
    if not of_blocks:
        return Sharing(1, max(teams))
    for name, what in (("cluster", "its blocks form clusters already"), ("persist", "each block computes one tile")):
        if taken.take(forall, name, 1) != 1:
            raise Unsupported(f"mlirc.{name}: K is split among blocks: {what}: leave it out", forall, name)
    return Sharing(max(blocks), max(teams))
