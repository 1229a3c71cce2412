"""The block program that is being emitted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mlirc.mlir import ir
from mlirc.passes.distribute.copies.multistage import Copies
from mlirc.passes.distribute.copies.ring import Ring
from mlirc.passes.distribute.copies.tensor_stores import TensorStores
from mlirc.passes.distribute.emit.builder import IndexValue
from mlirc.passes.distribute.emit.team import Warps
from mlirc.passes.distribute.program.chain import Chain
from mlirc.passes.distribute.program.parts import Sharing
from mlirc.passes.rings.check import Roles


@dataclass
class Program:
    """What is known of a block program. `teams`: of its warps, in order; `roles`: what these do, None where all do the
    same, and the `rings` between them; `copies`: the rings that those fill who compute; `cluster`: blocks that copy
    together; `turn`: how many blocks of the forall this block has computed before; `started`: how many slots of a
    ring it has used, where that differs; `later`: ops that are built where results are stored; `tensor_stores`: where
    results leave by tensor copies; `whole_rows`: whether they change threads, so that each one stores what lies
    together; `chain`: of blocks that take a step each of a scan's loop.

    Of one with loops over parts (`cluster_parts.py`): `parts` blocks compute one block of the forall, and this is
    number `rank`; `sharing` says who has parts; they meet so many times (`meetings`); of the results `stored` each has
    stored its share."""

    teams: tuple[Warps, ...]
    roles: Roles | None = None
    rings: dict[ir.Value, Ring] = field(default_factory=dict)
    copies: Copies = field(default_factory=Copies)
    cluster: int = 1
    turn: IndexValue = 0
    started: dict[ir.Value, IndexValue] = field(default_factory=dict)
    later: set[ir.Operation] = field(default_factory=set)
    tensor_stores: TensorStores | None = None
    whole_rows: bool = False
    chain: Chain | None = None
    parts: int = 1
    sharing: Sharing = field(default_factory=Sharing)
    rank: IndexValue = 0
    meetings: int = 0
    stored: set[ir.Value] = field(default_factory=set)

    def of_team(self) -> Program:
        """The program of one of several teams: rings and copies of its own."""
        return replace(self, rings={}, copies=Copies(self.copies.found), stored=set())
