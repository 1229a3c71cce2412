"""Which steps of K which block of a launch computes where work is divided by steps and not by tiles (stream-K: Osama,
Merrill, Cecka, Garland and Owens, "Stream-K", PPoPP 2023).

The first tiles are computed whole, a wave of one for each block at a time. The steps of those that are left are one
sequence, of which each block has a share that is as long as any other's, to one step; it may begin and end inside of a
tile. What a block has of one tile is a segment: a part of that tile's sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.mlir import affine, arith, ir


@dataclass(frozen=True)
class Stream:
    """`tiles` of `steps` steps each, on `blocks` blocks; what the last `waves` waves would compute is divided by
    steps."""

    tiles: int
    steps: int
    blocks: int
    waves: int

    @property
    def whole(self) -> int:
        """Waves of tiles that are computed whole."""
        return max(-(-self.tiles // self.blocks) - self.waves, 0)

    @property
    def first(self) -> int:
        """The first tile that is divided."""
        return self.whole * self.blocks

    @property
    def divided(self) -> int:
        """Tiles that are divided by steps."""
        return self.tiles - self.first

    @property
    def total(self) -> int:
        """Steps of all of these."""
        return self.divided * self.steps

    @property
    def sharing(self) -> int:
        """Blocks that have a share of them."""
        return min(self.blocks, self.total)

    def cut(self, block: int) -> int:
        """The step with which a block's share begins."""
        return block * self.total // self.sharing

    def owner(self, step: int) -> int:
        """The block whose share has a step."""
        return ((step + 1) * self.sharing - 1) // self.total

    def parts(self, tile: int) -> int:
        """Blocks that have steps of a divided tile."""
        return self.owner((tile + 1) * self.steps - 1) - self.owner(tile * self.steps) + 1

    @cached_property
    def most_parts(self) -> int:
        return max(map(self.parts, range(self.divided)))

    @cached_property
    def segments(self) -> int:
        """The most tiles that one block's share has steps of."""
        return max(
            (self.cut(b + 1) - 1) // self.steps - self.cut(b) // self.steps + 1 for b in range(self.sharing)
        )  # fmt: skip

    @property
    def turns(self) -> int:
        """The most tiles and segments that a block computes."""
        return self.segments + self.whole

    def _owner(self, step: ir.AffineExpr) -> ir.AffineExpr:
        return ir.AffineExpr.get_floor_div((step + 1) * self.sharing - 1, self.total)

    def parts_of(self, tile: ir.Value) -> ir.Value:
        """How many parts a divided tile has."""
        d = ir.AffineExpr.get_dim(0)
        last, first = self._owner((d + 1) * self.steps - 1), self._owner(d * self.steps)
        return _build.applied(last - first + 1, tile)

    def segment(self, turn: ir.Value, block: ir.Value) -> Segment:
        """What a block computes in a turn: its segments first, then whole tiles."""
        d, e = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
        begin = ir.AffineExpr.get_floor_div(d * self.total, self.sharing)
        end = ir.AffineExpr.get_floor_div((d + 1) * self.total, self.sharing)
        tile = _build.applied(ir.AffineExpr.get_floor_div(begin, self.steps) + e, block, turn)
        from_tile = [begin - e * self.steps, ir.AffineExpr.get_constant(0)]
        lower = affine.AffineMaxOp(ir.AffineMap.get(2, 0, from_tile), [block, tile]).result
        to_tile = [end - e * self.steps, ir.AffineExpr.get_constant(self.steps)]
        if self.sharing < self.blocks:  # the others have nothing, which begins behind the last step
            to_tile.append(e * -self.steps + self.total)
        upper = affine.AffineMinOp(ir.AffineMap.get(2, 0, to_tile), [block, tile]).result
        some = arith.CmpIOp(arith.CmpIPredicate.slt, lower, upper).result
        # What has no steps lies somewhere in the tensors, all the same.
        held = affine.AffineMinOp(
            ir.AffineMap.get(1, 0, [d, ir.AffineExpr.get_constant(self.divided - 1)]), [tile]
        ).result
        number = [d - self._owner(e * self.steps), ir.AffineExpr.get_constant(0)]
        part = affine.AffineMaxOp(ir.AffineMap.get(2, 0, number), [block, held]).result
        if not self.whole:
            return Segment(held, held, part, lower, upper, some)
        is_whole = arith.CmpIOp(arith.CmpIPredicate.sge, turn, _build.index(self.segments)).result
        own = _build.applied((d - self.segments) * self.blocks + e, turn, block)
        pick = arith.SelectOp
        return Segment(
            pick(is_whole, own, _build.applied(d + self.first, held)).result,
            held,
            part,
            pick(is_whole, _build.index(0), lower).result,
            pick(is_whole, _build.index(self.steps), upper).result,
            pick(is_whole, arith.ConstantOp(some.type, 0).result, some).result,
            is_whole,
        )


@dataclass(frozen=True)
class Segment:
    """Steps `lower` to `upper` of a tile, number `part` of those of tile number `divided` of the divided ones; `some`:
    whether this is a segment with steps; `whole`: whether it is all of a tile that is not divided, None for never."""

    tile: ir.Value
    divided: ir.Value
    part: ir.Value
    lower: ir.Value
    upper: ir.Value
    some: ir.Value
    whole: ir.Value | None = None


@dataclass(frozen=True)
class Tiles:
    """The blocks of a forall as one sequence, the last induction variable fastest, `group` rows of the second-last one
    at a time where that is more than 1 (`mlirc.group_rows`). `cluster` tiles that follow each other are one unit of
    it."""

    counts: Sequence[int]
    group: int
    cluster: int

    @property
    def grouped(self) -> bool:
        return self.group > 1 and len(self.counts) > 1

    @property
    def fastest(self) -> int:
        return len(self.counts) - (2 if self.grouped else 1)

    @property
    def units(self) -> list[int]:
        counts = list(self.counts)
        counts[self.fastest] //= self.cluster
        return counts

    def check(self, op: ir.Operation) -> None:
        if self.cluster > 1 and (
            self.counts[self.fastest] % self.cluster or self.grouped and self.group % self.cluster
        ):
            run = min(self.group, self.counts[-2]) if self.grouped else self.counts[-1]
            what = f"{self.counts[self.fastest]} tiles, {run} of which follow each other, are no whole number of them"
            raise PayloadError(f"cluster {self.cluster}: {what}", op)

    def indices(self, unit: ir.Value, rank: ir.Value | None) -> list[ir.Value]:
        """The induction variables of tile `rank` of a unit."""
        counts, d = self.units, ir.AffineExpr.get_dim(0)
        found: list[ir.Value] = []
        if self.grouped:
            rows, columns = counts[-2:]
            found = list(self._grouped(_build.applied(d % (rows * columns), unit), rows, columns))
            unit, counts = _build.applied(ir.AffineExpr.get_floor_div(d, rows * columns), unit), counts[:-2]
        for n in reversed(counts):
            found.insert(0, _build.applied(d % n, unit))
            unit = _build.applied(ir.AffineExpr.get_floor_div(d, n), unit)
        if rank is not None:
            e = ir.AffineExpr.get_dim(1)
            found[self.fastest] = _build.applied(d * self.cluster + e, found[self.fastest], rank)
        return found

    def _grouped(self, unit: ir.Value, rows: int, columns: int) -> tuple[ir.Value, ir.Value]:
        """(row, column) of a unit; the rows that are left over are a group of their own."""
        d, e = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
        group = min(self.group // self.cluster, rows)
        divided = ir.AffineExpr.get_floor_div
        band = _build.applied(divided(d, group * columns), unit)

        def place(height: int) -> tuple[ir.Value, ir.Value]:
            within = d % (group * columns)
            row = _build.applied(e * group + within % height, unit, band)
            return row, _build.applied(divided(within, height), unit)

        row, column = place(group)
        rest = rows % group
        if not rest:
            return row, column
        last = arith.CmpIOp(arith.CmpIPredicate.eq, band, _build.index(rows // group)).result
        others = place(rest)
        return arith.SelectOp(last, others[0], row).result, arith.SelectOp(last, others[1], column).result
