"""The consumers' role: tiles that come through rings. A `get` gives its tiles at once: the first product that reads
them waits for the copies. A `release` waits for the products that read the slot, and gives it back."""

from __future__ import annotations

from mlirc.dialects import rings
from mlirc.mlir import ir
from mlirc.passes.distribute.copies.loop_operands import product_of
from mlirc.passes.distribute.copies.loop_places import LoopPlaces
from mlirc.passes.distribute.copies.multistage import MultistageRing
from mlirc.passes.distribute.copies.ring import Ring
from mlirc.passes.distribute.copies.tensor_copies import TensorTile
from mlirc.passes.distribute.emit import asynchronous
from mlirc.passes.distribute.emit.asynchronous import AT_END
from mlirc.passes.distribute.emit.emitter import IndexValue
from mlirc.passes.distribute.emit.pending import Arrival, Pending
from mlirc.passes.distribute.emit.pipeline import Pipeline
from mlirc.passes.distribute.memory.access import predicated
from mlirc.passes.distribute.products.staging import Staged
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.rings.check import Site
from mlirc.passes.rings.check_multistage import waits_for_product


class Consumer(Pipeline):
    """The gets and releases of a loop's body, or of the ones that stand in no loop."""

    def __init__(self, outer: Scope, block: ir.Block, loop: ir.Operation | None = None):
        self.em, self.rings, self.block, self.loop = outer.em, outer.program.rings, block, loop
        self.copies = outer.program.copies
        self.places = LoopPlaces(outer, loop) if loop is not None else None
        ops = [o.operation for o in block.operations]
        if loop is None:
            ops += [o.operation for op in ops if op.name == "scf.forall" for o in op.regions[0].blocks[0].operations]
        self.gets = [op for op in ops if op.name == rings.GET]
        geometries = {op: p[1] for op in ops if self.gets and (p := product_of(self.em, op))}
        self.by_itself = {op for op, g in geometries.items() if g.finishes != "by lanes"}  # not by the warps' lanes
        self.warpgroups = any(g.instruction.asynchronous for g in geometries.values())
        self.sites = {op: self._site(op) for op in self.gets}
        in_order = dict.fromkeys(self.sites.values())
        of_loop = [site for site in in_order if site.loop is not None and loop is not None]
        self.firsts = {site: self._first(site, outer) for site in of_loop}
        self.numbers: dict[Site, IndexValue] = {}  # of the slot that gets take in this iteration
        self.places_of: dict[Site, tuple[IndexValue, IndexValue]] = {}  # the slot, and its phase's parity
        self.iv: ir.Value | None = None
        # A slot's copies, and that they are written anew.
        self._pending: dict[Site, tuple[Pending, Pending | None]] = {}
        self._met: ir.Operation | None = None  # the last release whose warps met in front of it
        self._settled: list[ir.Operation] = []  # releases whose products have been waited for

    def _ring(self, op: ir.Operation) -> Ring | MultistageRing:
        return self.copies.rings.get(op.operands[0]) or self.rings[op.operands[0]]

    def _site(self, get: ir.Operation) -> Site:
        flow = self.copies.found.flows.get(get.operands[0])  # whose ring may be made in this block
        flow = flow or self._ring(get).flow
        return next(s for s in flow.gets if get in s.ops.values())

    def _first(self, site: Site, scope: Scope) -> IndexValue:
        ring = self._ring(site.op)
        return ring.first(ring.flow.gets, site, scope)

    def _take(self, site: Site, number: IndexValue) -> None:
        self.numbers[site], self.places_of[site] = number, self._ring(site.op).place(number)

    # -- the loop

    def begin_iteration(self, iv: ir.Value) -> None:
        """The numbers of this iteration's slots."""
        assert self.places is not None
        for site, first in self.firsts.items():
            self._take(site, self.em.add(first, self.places.number(iv)))
        self.iv = iv

    # -- ops

    def lower(self, scope: Scope, op: ir.Operation) -> bool:
        """Lowers a put, a get or a release of this block; False for other ops. What puts alone ask for, they lower."""
        if op in self.copies.found.on_demand:
            return True
        if op.name == rings.GET:
            self._get(scope, op)
        elif op.name == rings.RELEASE:
            self._release(scope, op)
        elif op.name == rings.PUT:
            self._put(scope, op)
        else:
            return False
        self.copies.end(self.em, op)
        return True

    def _put(self, scope: Scope, op: ir.Operation) -> None:
        ring = self._ring(op)
        assert isinstance(ring, MultistageRing)  # others are put by producers

        def iteration() -> IndexValue:
            assert self.places is not None and self.iv is not None
            return self.places.number(self.iv)

        ring.put(scope, op, iteration)

    def _get(self, scope: Scope, get: ir.Operation) -> None:
        site, result = self.sites[get], get.results[0]
        if site not in self.numbers:
            self._take(site, self._first(site, scope))
        ring = self._ring(get)
        tile = ring.tiles[ir.IntegerAttr(get.attributes["tile"]).value]
        shape, exact = scope.shape_of(ir.RankedTensorType(result.type), list(get.operands)[1:])
        slot = self.places_of[site][0]
        anew = tile.anew(slot, self.numbers[site]) if isinstance(tile, TensorTile) and tile.rewriting else None
        if site not in self._pending:
            if isinstance(ring, MultistageRing):
                self._pending[site] = ring.under_way(site, self.warpgroups), None
            else:
                self._pending[site] = self._under_way(ring, *self.places_of[site])
        view = tile.view(slot)
        scope.tiles[result] = Staged(self.em, tile.element, shape, exact, view, anew, *self._pending[site])
        if isinstance(ring, MultistageRing) and not waits_for_product(get):
            self._pending[site][0].settle()

    @staticmethod
    def _under_way(ring: Ring, slot: IndexValue, parity: IndexValue) -> tuple[Pending, Pending | None]:
        """The copies of a slot, and that its tiles are written anew."""
        arrival = Arrival(lambda: ring.wait(ring.full(slot), parity))
        return arrival, Arrival(lambda: ring.wait(ring.ready(slot), parity)) if ring.rewriters else None

    def _release(self, scope: Scope, op: ir.Operation) -> None:
        em, ring = self.em, self._ring(op)
        site, lag = ring.flow.released[op], ir.IntegerAttr(op.attributes["lag"]).value
        if isinstance(ring, MultistageRing):
            if site in self.numbers:  # and not behind a loop, which has waited for its products
                self._settle(op)
            return
        if self.loop is None:
            if site.loop is not None:
                self._release_behind(scope, ring, site, lag)
            elif lag == 0:
                self._settle(op)
                ring.release(self.numbers[site])
            return
        assert self.places is not None and self.iv is not None
        self._settle(op)
        number = self.numbers[site]
        if lag == 0:
            ring.release(number)
            return
        skipped = em.add(self.places.lb, em.mul(self.places.step, lag - 1))
        with predicated(em.less(skipped, self.iv)):
            ring.release(em.sub(number, lag))

    def _release_behind(self, scope: Scope, ring: Ring, site: Site, lag: int) -> None:
        """Gives back one of the last slots of a loop, whose products are done behind it."""
        em, count = self.em, LoopPlaces(scope, site.loop).count()
        if isinstance(count, int) and count <= lag:
            return
        last = em.sub(em.add(self._first(site, scope), count), 1 + lag)
        with predicated(em.less(lag, count)):
            ring.release(last)

    def _settle(self, release: ir.Operation) -> None:
        """Waits for those that read a slot: lanes of this warp, or products under way. Releases that follow each other
        meet, and wait, once."""
        by_lanes = not self._readers(release) <= self.by_itself
        if by_lanes and isinstance(self._ring(release), Ring):  # or else all meet anyway
            if self._met is None or self._before(release) != self._met:
                self.em.warp_barrier()
            self._met = release
        if release in self._settled:
            return
        run, groups = [release], self.em.team.groups
        while (behind := self._behind(run[-1])) is not None and behind.name == rings.RELEASE:
            run.append(behind)
        self._settled += run
        lags = {op: ir.IntegerAttr(op.attributes["lag"]).value for op in run}
        read = [r for op in run if not lags[op] for r in self._readers(op) & self.by_itself]
        if any(asynchronous.finish(reader) == AT_END for reader in read):
            # ptxas would move the wait for products in front of what is to run meanwhile.
            # Across one for copies it moves nothing.
            for arrival, _ in self._pending.values():
                arrival.settle()
        for group in reversed(groups.of(read)):
            group.settle()  # the last one's wait covers those in front of it
        for op in run:
            # What an iteration leaves under way, the next one does not: a longer lag has nothing to wait for.
            for reader in self._readers(op) & self.by_itself if lags[op] == 1 else ():
                groups.ask_for(reader)

    def _readers(self, release: ir.Operation) -> set[ir.Operation]:
        """Who reads the slots that a release gives back."""
        site = self._ring(release).flow.released[release]
        return {u.owner.operation for get in site.ops.values() for u in get.results[0].uses}

    @staticmethod
    def _before(op: ir.Operation) -> ir.Operation | None:
        ops = [o.operation for o in op.block.operations]
        return ops[ops.index(op) - 1] if ops.index(op) else None

    @staticmethod
    def _behind(op: ir.Operation) -> ir.Operation | None:
        ops = [o.operation for o in op.block.operations]
        at = ops.index(op) + 1
        return ops[at] if at < len(ops) else None
