"""One product of tiles while it is emitted: where its operands come from, and what it is added to."""

from __future__ import annotations

from dataclasses import replace

from mlirc.mlir import ir
from mlirc.passes.distribute.emit.asynchronous import AT_END, finish
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.emit.pending import Arrival, Group
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.products import staging
from mlirc.passes.distribute.products.geometry import Geometry, place
from mlirc.passes.distribute.tiles.elementwise import Elementwise
from mlirc.passes.distribute.tiles.loop_argument import LoopArgument
from mlirc.passes.distribute.tiles.values import Fragment, Marked, Tile, elementwise_op, load


class Product:
    """One contraction, as its instruction lowers it: operands `a` and `b`, and `c`, which it is added to. `spread` says
    how it is laid over warps (`layout`: the sums', over the dimensions of `c`)."""

    def __init__(self, em: Emitter, op, geometry: Geometry, operands: list[Tile]):
        self.em, self.op, self.geometry, self.info = em, op, geometry, geometry.info
        self.a, self.b, self.c = operands
        self.spread, self.layout = self.geometry.spread, self.geometry.layout
        self.warps_m, self.warps_n = self.geometry.block.grid
        self.views: dict[int, access.View] = {}  # of operands that lie in shared memory

    def begin(self) -> None:
        """What is copied for it has to have arrived."""
        for tile in (self.a, self.b):
            staged = staging.staged(tile)
            if staged is not None and staged.pending is not None:
                staged.pending.settle()

    def rewritten(self, which: int) -> None:
        """An operand has to have been written anew."""
        staged = staging.staged(self.operand(which))
        if staged is not None and staged.pending_rewritten is not None:
            staged.pending_rewritten.settle()

    def under_way(self) -> Group:
        """The latest group of products by wgmma is all of this one: its first reader waits for it."""
        group = self.em.team.groups.latest()
        group.product = self.op
        if finish(self.op) == AT_END:
            # All of it is issued in front of what is to run meanwhile: ptxas would issue it bit by bit, or behind that.
            arrivals = [t.pending for t in (self.a, self.b) if isinstance(t, staging.Staged)]
            for arrival in [a for a in arrivals if isinstance(a, Arrival)][:1]:
                arrival.fence()
        return group

    # -- operands

    def operand(self, which: int) -> Tile:
        """A (0) or B (1)."""
        return (self.a, self.b)[which]

    def in_shared(self, which: int) -> staging.Staged:
        """Operand 0 or 1 in shared memory: where its loop copied it, or else stored there now."""
        tile, instruction = self.operand(which), self.geometry.instruction
        staged = staging.staged(tile)
        if staged is None:
            zero = list(range(len(tile.shape))) if instruction.reads_padding else self.k_dims(which)
            form = self.geometry.panels[which], instruction.asynchronous
            staged = self._store(tile, zero, self.geometry.operand_extents(which, tile.shape), form)
        self.views[which] = staged.view
        return staged

    def shared(self, which: int) -> tuple[access.View, bool]:
        """Operand 0 or 1 in shared memory as a view with tile dimensions (outer, k), and whether k runs along rows."""
        dims, view = self.info.maps[which], self.in_shared(which).view
        outer = self.info.m if which == 0 else self.info.n
        positions = [i for i, d in enumerate(dims) if d in (outer, self.info.k) and d is not None]
        if len(positions) < 2:
            raise Unsupported("an operand of a product without an own dimension")
        k_last = dims[positions[-1]] == self.info.k
        ordered = [view.dims[positions[0]], view.dims[positions[1]]]
        return replace(view, dims=ordered if k_last else ordered[::-1]), k_last

    def load(self, which: int, layout: Layout) -> Fragment:
        """Operand 0 or 1 from shared memory, in a layout of (m, k) or (n, k); zeros past its end along k."""
        staged, target = self.in_shared(which), self.placed(which, layout)
        shape = list(target.shape)
        return load(self.em, staged.view, staged.element, shape, shape, target, whole=True)

    def _store(self, tile: Tile, zero_dims: list[int], extents: list[int], form: tuple[bool, bool]) -> staging.Staged:
        """Copies a tile to shared memory; a lazy one where it is defined, so once if that is outside of a loop.
        `form`: whether in panels, and for an asynchronous instruction."""
        if not isinstance(tile, Marked):
            return staging.store_to_shared(self.em, tile, zero_dims, extents, *form)
        key = ("shared", *zero_dims, *extents, *form)
        return tile.keep(key, lambda: staging.store_to_shared(self.em, tile, zero_dims, extents, *form))

    def k_dims(self, which: int) -> list[int]:
        """The positions of k among the dimensions of operand 0 (A) or 1 (B)."""
        return [i for i, d in enumerate(self.info.maps[which]) if d == self.info.k]

    def placed(self, which: int, layout: Layout) -> Layout:
        """A layout of (m, k) over A's dimensions, or of (n, k) over B's."""
        return place(self.info.maps[which], self.info.m if which == 0 else self.info.n, self.info.k, layout)

    def place(self, which: int, outer: int, k: int) -> tuple[int, ...]:
        """The coordinates of an element of A (row, k) or of B (column, k)."""
        at = {self.info.m if which == 0 else self.info.n: outer, self.info.k: k}
        return tuple(0 if d is None else at.get(d, 0) for d in self.info.maps[which])

    # -- sums

    def accumulator(self) -> Fragment:
        """What the product is added to. A loop carries it as the instruction takes it, also where it is rescaled."""
        form, rescaled = self.spread.form, self.geometry.instruction.asynchronous
        source: Tile | None = self.c
        while rescaled and isinstance(source, Elementwise):
            source = source.scaled()
        if form is not None and isinstance(source, LoopArgument):
            found = source.get_accumulator(self.layout, form, self.spread.tiles)
            return found if source is self.c else self.c.get(self.layout)
        return self.c.get(self.layout)

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The sum of two sums."""
        return elementwise_op(self.info.add, [a.type], [a, b], {})[0]
