"""The consumers' side of a loop whose operands a producer warp copies (`ring.py`): each channel of the ring is waited
for in front of the first product that reads it, and given back when the last one has."""

from __future__ import annotations

from contextlib import nullcontext

from mlirc.mlir import arith, ir
from mlirc.passes.distribute.emitter import IndexValue, Pipeline, Unsupported
from mlirc.passes.distribute.loop_operands import LoopOperands
from mlirc.passes.distribute.memory import predicated
from mlirc.passes.distribute.ring import Channel, Ring
from mlirc.passes.distribute.staging import Staged


class Consumer(Pipeline):
    """What `loop.lower` asks of a pipeline."""

    ahead = 1

    def __init__(self, outer, op: ir.Operation, ring: Ring):
        self.em, self.ring = outer.em, ring
        self.operands = operands = LoopOperands(outer, op)
        self.warpgroups = operands.warpgroups
        ring.open(operands)
        if not isinstance(operands.step, int):
            raise Unsupported("mlirc.producers: a loop whose step is not constant", op, "producers")
        self.first = ring.first_number(operands)
        groups = operands.groups()
        self.readers = dict(zip(ring.channels, map(operands.readers, groups), strict=True))
        self._by_result = {
            o.op.results[0]: (channel, tile)
            for channel, group in zip(ring.channels, groups, strict=True)
            for tile, o in zip(channel.tiles, group, strict=True)
        }
        self.number: IndexValue = 0  # of the iteration, and its slot, and the parity of that
        self.slot: IndexValue = 0
        self.parity: IndexValue = 0
        self._waited: set[Channel] = set()
        self._done: list[ir.Operation] = []  # products of this iteration that have been waited for
        self._back: list[Channel] = []  # channels that have been given back
        self._late: list[ir.Operation] = []  # products that are under way until the next iteration
        self._marker: ir.Operation | None = None  # where those of the iteration before are done

    def begin_loop(self) -> None:
        """The producer has begun on its own."""

    def begin_iteration(self, iv: ir.Value) -> None:
        """Waits for what others than products read."""
        self.number = self.em.add(self.first, self.operands.number(iv))
        self.slot, self.parity = self.ring.channels[0].place(self.number)
        for channel, readers in self.readers.items():
            if readers is None:
                self._wait(channel)

    def _wait(self, channel: Channel) -> None:
        if channel not in self._waited:
            self._waited.add(channel)
            channel.wait(channel.full(self.slot), self.parity)

    def bind(self, scope, slice_op) -> bool:
        """Makes a slice that the ring holds a tile in shared memory; False for other slices."""
        if slice_op.results[0] not in self._by_result:
            return False
        _, tile = self._by_result[slice_op.results[0]]
        _, shape, sizes = scope.slice_view(slice_op, scope.scalar)
        scope.tiles[slice_op.results[0]] = Staged(self.em, tile.element, shape, sizes, tile.view(self.slot))
        return True

    def before(self, product: ir.Operation) -> None:
        """What a product reads has arrived."""
        for value in product.operands:
            if value in self._by_result:
                self._wait(self._by_result[value][0])

    def waits(self, product: ir.Operation) -> bool:
        """Whether this iteration has waited for a product, and for all before it."""
        return product in self._done

    def issued(self, product: ir.Operation) -> None:
        """A product is under way until the next iteration."""
        self._late.append(product)

    def done(self, product: ir.Operation) -> None:
        """This product of warpgroups is done, and so are all before it, those of the iteration before among them."""
        if self._marker is None:
            self._marker = arith.ConstantOp(self.em.index, 0).operation
        self._done.append(product)
        for channel, readers in self.readers.items():
            if readers is not None and channel not in self._back and all(r in self._done for r in readers):
                self._back.append(channel)
                channel.release(self.number)

    def end_iteration(self, iv: ir.Value, deferred: bool) -> None:
        """Gives back what has been read, and what products read that the iteration before left under way."""
        em = self.em
        late = self._late_channels()
        rest = [c for c in self.ring.channels if c not in late and c not in self._back]
        if rest:
            em.warp_barrier()
        for channel in rest:
            channel.release(self.number)
        if late:
            with ir.InsertionPoint(self._marker) if self._marker is not None else nullcontext():
                with predicated(em.less(self.operands.lb, iv)):
                    for channel in late:
                        channel.release(em.sub(self.number, 1))

    def _late_channels(self) -> list[Channel]:
        return [c for c, readers in self.readers.items() if readers is None or any(r in self._late for r in readers)
                if self._late]  # fmt: skip

    def end_loop(self, deferred: bool) -> None:
        """Gives back the last slot where its products were still under way."""
        em, operands = self.em, self.operands
        late = self._late_channels()
        count = operands.count()
        if not late or count == 0:
            return
        last = em.sub(em.add(self.first, count), 1)
        with predicated(em.less(0, count)):
            for channel in late:
                channel.release(last)
