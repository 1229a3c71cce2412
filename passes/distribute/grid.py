"""Which block of a launch computes which block of an `scf.forall`."""

from __future__ import annotations

import math

from mlirc.mlir import ir
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.slices import DYNAMIC
from mlirc.schedule.attributes import Taken

MAX_GRID = (1 << 31) - 1


class Grid:
    """The blocks of a forall: one launch dimension over all its induction variables, the last one fastest. The
    attribute `mlirc.group_rows` visits that many rows of a two-dimensional grid before moving on along columns, for
    reuse in L2. `launched` are the blocks of the launch, fewer than `total` where each computes several
    (`mlirc.persist`); `cluster` of them that follow each other form a cluster (`mlirc.cluster`), and differ in the
    induction variable number `fastest` alone."""

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
        if self.total > MAX_GRID:
            raise Unsupported(f"{self.total} blocks, more than a launch takes; use larger tiles")
        group = taken.take(forall, "group_rows", 1)
        grouped = group > 1 and self.rank > 1 and self.counts[-2] % group == 0
        self.fastest = self.rank - 2 if grouped else self.rank - 1
        run = group if grouped else self.counts[-1] if self.counts else 1
        self.cluster = taken.take(forall, "cluster", 1)
        if run % self.cluster:
            what = f"mlirc.cluster = {self.cluster}: it must divide the {run} blocks that follow each other"
            raise Unsupported(what, forall, "cluster")
        self.launched = min(taken.take(forall, "persist", self.total), self.total)
        if self.launched % self.cluster:
            what = f"mlirc.persist = {self.launched}: a whole number of clusters of {self.cluster}"
            raise Unsupported(what, forall, "persist")

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
            if rows % group:
                em.taken.refuse(self.forall, "group_rows", f"it must divide the {rows} steps of the second-last loop")
            else:
                inner = em.rem(block, rows * columns)
                outer = em.div(block, rows * columns)
                band, within = em.div(inner, group * columns), em.rem(inner, group * columns)
                row = em.add(em.mul(band, group), em.rem(within, group))
                return [*self._mixed(em, outer, counts[:-2]), row, em.div(within, group)]
        return self._mixed(em, block, counts)

    @staticmethod
    def _mixed(em: Emitter, block: IndexValue, counts: list[int]) -> list[IndexValue]:
        out: list[IndexValue] = []
        for i, n in enumerate(reversed(counts)):
            last = i == len(counts) - 1
            out.append(0 if n == 1 else block if last else em.rem(block, n))
            block = em.div(block, n)
        return out[::-1]
