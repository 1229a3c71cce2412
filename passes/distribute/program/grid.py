"""Which block of a launch computes which block of an `scf.forall`."""

from __future__ import annotations

import math

from mlirc.mlir import arith, ir
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.memory.slices import DYNAMIC
from mlirc.passes.distribute.program import parts
from mlirc.schedule.attributes import Taken

MAX_GRID = (1 << 31) - 1


class Grid:
    """The blocks of a forall: one launch dimension over all its induction variables, the last one fastest. The
    attribute `mlirc.group_rows` visits that many rows of a two-dimensional grid before moving on along columns, for
    reuse in L2. `launched` are the blocks of the launch, fewer than `total` where each computes several
    (`mlirc.persist`), or each of a block's `teams` one (`mlirc.teams`); `cluster` of them that follow each other form a
    cluster (`mlirc.cluster`), and differ in the induction variable number `fastest` alone. Or `parts` of them, a
    cluster, compute one block of the forall: loops over parts (`cluster_parts.py`), or the rows of all its tiles, of
    which each has a part (`mlirc.spread`). Or `chain` blocks take a step each of its loop (`mlirc.chain`)."""

    def __init__(self, forall, taken: Taken):
        self.forall = forall
        segments = list(ir.DenseI32ArrayAttr(forall.attributes["operandSegmentSizes"]))
        if any(segments[:3]):
            raise Unsupported("an scf.forall with bounds that are not constant")
        self.lower, upper, self.step = (
            list(ir.DenseI64ArrayAttr(forall.attributes[n]))
            for n in ("staticLowerBound", "staticUpperBound", "staticStep")
        )
        if DYNAMIC in [*self.lower, *upper, *self.step]:
            raise Unsupported("an scf.forall with bounds that are not constant")
        self.counts = [max(0, -(-(u - lo) // s)) for lo, u, s in zip(self.lower, upper, self.step, strict=True)]
        self.rank = len(self.counts)
        self.total = math.prod(self.counts)
        self.spread = taken.take(forall, "spread", 1)
        self.sharing = parts.sharing(forall, taken)
        self.parts = self._blocks_together(self.sharing.blocks)
        if self.total * self.parts > MAX_GRID:
            raise Unsupported(f"{self.total * self.parts} blocks, more than a launch takes; use larger tiles")
        group = taken.take(forall, "group_rows", 1)
        grouped = group > 1 and self.rank > 1 and self.counts[-2] >= group
        self.fastest = self.rank - 2 if grouped else self.rank - 1
        run = math.gcd(group, self.counts[-2]) if grouped else self.counts[-1] if self.counts else 1
        self.cluster = taken.take(forall, "cluster", 1)
        if run % self.cluster:
            what = f"mlirc.cluster = {self.cluster}: it must divide the {run} blocks that follow each other"
            raise Unsupported(what, forall, "cluster")
        self.launched = min(taken.take(forall, "persist", self.total), self.total)
        if self.launched % self.cluster:
            what = f"mlirc.persist = {self.launched}: a whole number of clusters of {self.cluster}"
            raise Unsupported(what, forall, "persist")

        self.chain = taken.take(forall, "chain", 1)
        if self.chain > 1 and self.total * self.chain * 2 > MAX_GRID:
            raise Unsupported(f"mlirc.chain = {self.chain}: too many blocks: larger steps", forall, "chain")
        self.teams = taken.take(forall, "teams", 1)
        if self.teams > 1:
            shared = max(self.parts, self.sharing.teams)
            for what, several in (("blocks form clusters", self.cluster), ("K is split among blocks", shared)):
                if several > 1:
                    raise Unsupported(f"mlirc.teams = {self.teams}: {what}: leave it out", forall, "teams")
            self.launched = min(self.launched, -(-self.total // self.teams))

    def _blocks_together(self, parts: int) -> int:
        """How many blocks compute one block of the forall."""
        if self.spread == 1:
            return parts
        refused = [
            ("cluster", "its blocks form clusters already"),
            ("persist", "each block computes a part of one tile"),
        ]
        for name, what in [*refused, ("teams", "all warps of a cluster are one team")]:
            if f"mlirc.{name}" in self.forall.attributes:
                raise Unsupported(f"mlirc.spread = {self.spread}: {what}: leave {name} out", self.forall, "spread")
        if parts > 1:
            raise Unsupported(f"mlirc.spread = {self.spread}: K is split among blocks", self.forall, "spread")
        return self.spread

    @property
    def shape(self) -> tuple[int, int]:
        """(blocks of the launch, blocks of a cluster)."""
        return self.launched * self.parts * self.chain, self.cluster * self.parts

    def indices(self, em: Emitter, block: IndexValue) -> list[IndexValue]:
        """The forall's induction variables in its block number `block`."""
        order = self._split(em, block)
        return [em.add(lo, em.mul(i, s)) for lo, s, i in zip(self.lower, self.step, order, strict=True)]

    def _split(self, em: Emitter, block: IndexValue) -> list[IndexValue]:
        counts = self.counts
        group = em.taken.take(self.forall, "group_rows", 1)
        if group > 1 and self.rank < 2:
            em.taken.refuse(self.forall, "group_rows", "the blocks have one dimension: there is nothing to group")
        elif group > 1:
            rows, columns = counts[-2], counts[-1]
            if group > rows:
                em.taken.refuse(self.forall, "group_rows", f"the second-last loop has {rows} steps")
            else:
                inner = em.rem(block, rows * columns)
                outer = em.div(block, rows * columns)
                return [*self._mixed(em, outer, counts[:-2]), *self._grouped(em, inner, group)]
        return self._mixed(em, block, counts)

    def _grouped(self, em: Emitter, block: IndexValue, group: int) -> list[IndexValue]:
        """Row and column of a block, `group` rows at a time; the rows that are left over are a group of their own."""
        rows, columns = self.counts[-2:]
        band, within = em.div(block, group * columns), em.rem(block, group * columns)
        first = em.mul(band, group)
        row, column = em.add(first, em.rem(within, group)), em.div(within, group)
        rest = rows % group
        if not rest:
            return [row, column]
        last = em.condition(em.equal(band, rows // group))
        others = em.add(first, em.rem(within, rest)), em.div(within, rest)
        return [arith.SelectOp(last, em.value(a), em.value(b)).result
                for a, b in zip(others, (row, column), strict=True)]  # fmt: skip

    @staticmethod
    def _mixed(em: Emitter, block: IndexValue, counts: list[int]) -> list[IndexValue]:
        out: list[IndexValue] = []
        for i, n in enumerate(reversed(counts)):
            last = i == len(counts) - 1
            out.append(0 if n == 1 else block if last else em.rem(block, n))
            block = em.div(block, n)
        return out[::-1]
