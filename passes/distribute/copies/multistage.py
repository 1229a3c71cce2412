"""Rings that the warps that compute fill themselves, by `cp.async` or through registers, some iterations ahead of the
products that read them. One barrier per iteration suffices: it comes after the wait for this iteration's tiles and
before the copies into the slot that the previous iteration read (the multistage scheme of CUTLASS's sm80 mainloop).
Which gets wait for how many copies, and which puts take a barrier of their own, `check_multistage.py` has found."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.dialects import rings
from mlirc.mlir import ir
from mlirc.passes.distribute.copies.loop_operands import product_of
from mlirc.passes.distribute.emit import asynchronous
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pending import Pending
from mlirc.passes.distribute.memory import alignment
from mlirc.passes.distribute.products.staging import AsyncTile, StoredTile
from mlirc.passes.rings.check import Flow, Site, check_products
from mlirc.passes.rings.check_multistage import Multistage


class Copied(Pending):
    """Tiles that have been got: all of them that are under way arrive together."""

    def __init__(self, em: Emitter, copies: Copies):
        super().__init__()
        self.em, self.copies = em, copies

    def settle(self) -> None:
        self.copies.arrive(self.em)


class Copies:
    """The copies of a block program's multistage rings: what is under way is counted for all of them together."""

    def __init__(self, found: Multistage | None = None):
        self.found = found or Multistage()
        self.rings: dict[ir.Value, MultistageRing] = {}  # that are in use
        self.waiting: list[Site] = []  # gets whose tiles have not arrived
        self.warpgroups = False  # whether an asynchronous instruction reads one of them

    def arrive(self, em: Emitter) -> None:
        """What has been got is there, for everybody; and whoever was there before is done with what it released."""
        if not self.waiting:
            return
        pending = [self.found.pending[site.op] for site in self.waiting if site.op in self.found.pending]
        self.waiting = []
        if pending:
            wait_groups(min(pending))
        if self.warpgroups:
            asynchronous.proxy_fence()
        self.warpgroups = False
        em.team.meet()

    def end(self, em: Emitter, op: ir.Operation) -> None:
        """Behind an op: of the rings that it uses last all copies have arrived and been read, and their memory is
        free."""
        done = [ring for ring, last in self.found.ends.items() if last == op and ring in self.rings]
        if not done:
            return
        if any(self.found.flows[ring].spec.copy == "cp_async" for ring in done):
            wait_groups(0)
        em.team.meet()
        for ring in done:
            for tile in self.rings.pop(ring).tiles:
                em.free_smem(tile.buffer)


class MultistageRing:
    """What such a `mlirc.make_ring` becomes: buffers for its slots. A slot's number counts the gets (or puts)."""

    def __init__(self, em: Emitter, copies: Copies, flow: Flow):
        self.em, self.copies, self.flow, self.depth = em, copies, flow, flow.spec.depth
        check_products(em, flow)
        self.tiles: list[AsyncTile] | list[StoredTile]
        if flow.spec.copy == "cp_async":
            self.tiles = [AsyncTile(em, s, self._width(i), self.depth) for i, s in enumerate(flow.spec.slots)]
        else:
            self.tiles = [StoredTile(em, s, self._zeros(i), self.depth) for i, s in enumerate(flow.spec.slots)]
        self.in_front = [site for site in flow.puts if site.loop is None]
        if flow.ring in copies.found.clears:
            em.team.meet()  # earlier readers of shared memory are done

    def _width(self, tile: int) -> int:
        """Elements of each copy of a tile: what all of its slices allow."""
        widths = []
        for site in self.flow.puts:
            put = site.ops[tile]
            width = alignment.copy_width(rings.slice_of(put))
            if width is None:
                what = 'rows of which no four bytes are aligned: copy = "registers" takes any'
                raise Unsupported(f"{put.name}: {what}", put)
            widths.append(width)
        return min(widths)

    def _zeros(self, tile: int) -> list[int]:
        """The dimensions of a tile along which products read zeros beyond its sizes."""
        found: set[int] = set()
        for get in [site.ops[tile] for site in self.flow.gets if tile in site.ops]:
            for reader in [use.owner.operation for use in get.results[0].uses]:
                product = product_of(self.em, reader)
                if product is None:
                    continue
                info, geometry = product
                for which, value in enumerate(info.arrange(list(reader.operands))[:2]):
                    if value == get.results[0]:
                        whole = geometry.instruction.reads_padding
                        found |= {d for d, i in enumerate(info.maps[which]) if whole or i == info.k}
        return sorted(found)

    def first(self, sites: list[Site], site: Site, scope) -> IndexValue:
        """The number of the slot that a site uses first."""
        return sites.index(site)

    def place(self, number: IndexValue) -> tuple[IndexValue, IndexValue]:
        """(slot, nothing that anybody waits for by it) of a number."""
        return self.em.rem(number, self.depth), 0

    def under_way(self, site: Site, asynchronous: bool) -> Pending:
        """The tiles of a get, which arrive when they are read, or when the next ones are put."""
        self.copies.waiting.append(site)
        self.copies.warpgroups |= asynchronous
        return Copied(self.em, self.copies)

    def put(self, scope, op: ir.Operation, iteration: Callable[[], IndexValue]) -> None:
        """Copies one tile of a slot. `iteration` gives the number of the loop's, where the put stands in it."""
        em, copies = self.em, self.copies
        site = next(s for s in self.flow.puts if op in s.ops.values())
        if op == site.op:
            copies.arrive(em)
            if op in copies.found.meets:
                em.team.meet()
            ahead = len(self.in_front)
            self.number = em.add(iteration(), ahead) if site.loop is not None else self.in_front.index(site)
        slot = em.rem(self.number, self.depth)
        tile = self.tiles[ir.IntegerAttr(op.attributes["tile"]).value]
        if isinstance(tile, AsyncTile):
            enabled = self._condition(scope, op.operands[2]) if len(op.operands) > 2 else True
            view, _, sizes = scope.slice_view(rings.slice_of(op), lambda v: self._number(scope, v))
            tile.copy(view, sizes, slot, enabled)
            if op == list(site.ops.values())[-1]:
                # Not nvgpu.device_async_create_group: what it prints without operands takes the next line for them.
                ir.Operation.create("nvvm.cp.async.commit.group")
        else:
            tile.store(scope.tile(op.operands[1]), slot)

    def _number(self, scope, value: ir.Value) -> IndexValue:
        """A number, computed here where only puts ask for it."""
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if op is not None and op in self.copies.found.on_demand and value not in scope.scalars:
            if op.name.startswith("affine."):
                scope.scalars[value] = scope.affine(op, lambda v: self._number(scope, v))
            else:
                found = scope.scalar_of(op, lambda v: self._number(scope, v))
                scope.scalars.update(zip(op.results, found, strict=True))
        return scope.scalar(value)

    def _condition(self, scope, value: ir.Value) -> bool | ir.Value:
        """A put's condition, where it can be as one that is known."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            return scope.em.value(scope.scalar(value))
        if owner.name == "arith.constant":
            return bool(ir.IntegerAttr(owner.attributes["value"]).value)
        index = owner.name == "arith.cmpi" and isinstance(owner.operands[0].type, ir.IndexType)
        if index and ir.IntegerAttr(owner.attributes["predicate"]).value == _LESS:
            return scope.em.less(*(self._number(scope, v) for v in owner.operands))
        return scope.em.value(self._number(scope, value))


_LESS = 2  # arith.cmpi's predicate slt


def wait_groups(pending: int) -> None:
    """cp.async.wait_group: at most `pending` of the latest groups are still under way."""
    attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), pending)
    ir.Operation.create("nvvm.cp.async.wait.group", attributes={"n": attr})
