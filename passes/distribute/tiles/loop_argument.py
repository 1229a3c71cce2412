"""Tiles that a loop carries from iteration to iteration."""

from __future__ import annotations

from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.asynchronous import LATER, finish, pinned
from mlirc.passes.distribute.emit.emitter import Emitter, vec
from mlirc.passes.distribute.emit.pending import Carried, Group
from mlirc.passes.distribute.layouts.registers import Layout, row_layout
from mlirc.passes.distribute.tiles.accumulators import AccumulatorFragment, Grid
from mlirc.passes.distribute.tiles.values import Fragment, Tile


class LoopArgument(Tile):
    """A loop-carried tile; becomes block arguments of the loop when its first user asks for it in some layout, which is
    that of what it starts from (`init`) unless the user has to have another one."""

    def __init__(self, em: Emitter, element, shape, sizes, block: ir.Block, init: Tile):
        super().__init__(em, element, shape, sizes)
        self.block, self.init = block, init
        self.fragment: Fragment | None = None
        self.arguments: list[ir.Value] = []
        self.form: type[AccumulatorFragment] | None = None  # of a tensor core accumulator
        self.grid: Grid = (0, 0)

    def natural(self) -> Layout | None:
        return self.init.natural() if self.fragment is None else self.fragment.layout

    def take_form(self, tile: Tile) -> None:
        """Becomes what holds a tile that the loop yields, where nothing in it has asked for the argument."""
        layout = tile.natural() or row_layout(tuple(tile.shape), self.em.team.warps, 1)
        found = tile.get(layout)
        if isinstance(found, AccumulatorFragment):
            self.get_accumulator(layout, type(found), found.grid)
        self.get(layout)

    def get(self, layout: Layout) -> Fragment:
        if self.fragment is None and isinstance(self.init, AccumulatorFragment) and layout == self.init.layout:
            return self.get_accumulator(layout, type(self.init), self.init.grid)
        if self.fragment is None:
            p = layout.piece
            t = vec(self.element, p)
            self.arguments = self._add(t, layout.num_regs // p)
            self.fragment = Fragment(self.em, self.element, self.shape, self.sizes, layout, self.arguments, p)
        return self.fragment.get(layout)

    def get_accumulator(self, layout: Layout, form: type[AccumulatorFragment], grid: Grid) -> Fragment:
        """Like `get`, in the form of a tensor core instruction's accumulators."""
        if self.fragment is None:
            self.form, self.grid = form, grid
            self.arguments = [self._add(t, 1)[0] for t in form.types(self.element, grid)]
            pending = Carried(self.em.team.groups, self)
            self.fragment = form(self.em, self.element, self.shape, self.sizes, layout, self.arguments, grid, pending)
        return self.fragment.get(layout)

    def _add(self, t: ir.Type, n: int) -> list[ir.Value]:
        return [self.block.add_argument(t, ir.Location.current) for _ in range(n)]

    def values_of(self, tile: Tile) -> list[ir.Value]:
        """Another tile as this argument's block argument values."""
        assert self.fragment is not None
        frag = tile.get(self.fragment.layout)
        if self.form is None:
            pieces = list(frag.with_piece(self.fragment.piece).pieces)
            half = element_bytes(self.element) == 2 and self.em.team.groups.issued
            return [pinned(v) for v in pieces] if half else pieces  # LLVM would carry what they were rounded from
        return self.form.pack(self.em, frag, self.grid)

    def leaves(self, tile: Tile) -> Group | None:
        """The products of a tile that the loop yields for this argument, where they may run on into the next iteration:
        nobody needs the registers of the argument for anything else until it goes round. Others are done here."""
        assert self.fragment is not None
        frag = tile.get(self.fragment.layout)
        pending = frag.pending if isinstance(frag, AccumulatorFragment) else None
        if not isinstance(pending, Group) or pending not in pending.groups.under_way():
            return None
        if pending.product is not None and finish(pending.product) == LATER:
            return pending
        pending.settle()
        return None

    def result(self, values: list[ir.Value]) -> Fragment:
        assert self.fragment is not None
        f = self.fragment
        if self.form is not None:
            return self.form(self.em, self.element, self.shape, self.sizes, f.layout, values, self.grid)
        return Fragment(self.em, self.element, self.shape, self.sizes, f.layout, values, f.piece)
