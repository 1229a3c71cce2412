"""Copies that run ahead of a K loop by `cp.async`, issued by the threads that compute: a ring of buffers, filled
`mlirc.stages` - 1 iterations ahead.

One barrier per iteration suffices: it comes after the wait for this iteration's tile and before the copies into the
buffer that the previous iteration read (the multistage scheme of CUTLASS's sm80 mainloop)."""

from __future__ import annotations

from mlirc.mlir import arith, ir
from mlirc.passes.distribute import staging, wgmma
from mlirc.passes.distribute.emitter import IndexValue, Pipeline, Unsupported
from mlirc.passes.distribute.loop_operands import LoopOperands
from mlirc.passes.distribute.staging import AsyncTile, Staged


class Multistage(Pipeline):
    """The asynchronous copies of one loop. `ahead`: how many iterations they run ahead."""

    def __init__(self, outer, op):
        self.em = em = outer.em
        self.stages = stages = em.taken.take(op, "stages", 1)
        self.operands = operands = LoopOperands(outer, op)
        self.lb, self.ub, self.step = operands.lb, operands.ub, operands.step
        self.warpgroups = operands.warpgroups
        if self.warpgroups and stages < 3:
            what = f"wgmma needs mlirc.stages >= 3, not {stages}: it reads a buffer one iteration longer"
            raise Unsupported(what, op, "stages")
        # wgmma may still read the previous iteration's buffer when a copy is issued: copies go one buffer less far.
        self.ahead = stages - (2 if self.warpgroups else 1)
        self.stage: IndexValue = 0
        self._done: list[ir.Operation] = []
        for o in operands.found.values():
            if em.taken.take(o.product, "copy") == "tma":
                raise Unsupported('mlirc.copy = "tma" takes a producer warp: specialize(loop)', o.product, "copy")
        self.tiles: list[tuple[ir.Operation, AsyncTile]] = []
        self._by_result: dict[ir.Value, AsyncTile] = {}
        for value, o in operands.found.items():
            view, shape, sizes = o.first
            width = staging.async_vector(em, view, o.element, shape, sizes)
            if width is None:
                continue
            tile = AsyncTile(em, o.element, o.extents, width, stages, o.panels)
            self._by_result[value] = tile
            self.tiles.append((o.op, tile))
        if stages > 1 and not self.tiles:
            why = "no product in this loop reads a slice that can be copied asynchronously (4 aligned bytes at least)"
            em.taken.refuse(op, "stages", f"{why}: leave it out")

    def _issue(self, iv: IndexValue, stage: IndexValue) -> None:
        enabled = self.em.less(iv, self.ub)
        for op, tile in self.tiles:
            view, _, sizes = self.operands.at(op, iv)
            tile.copy(view, sizes, stage, enabled)
        # Not nvgpu.device_async_create_group: what it prints without operands takes the next line for them.
        ir.Operation.create("nvvm.cp.async.commit.group")

    def begin_loop(self) -> None:
        """Copies for the first iterations."""
        if not self.tiles:
            return
        self.em.barrier()  # earlier readers of shared memory are done
        for s in range(self.ahead):
            self._issue(self.operands.iv_after(self.lb, s), s)

    def begin_iteration(self, iv: ir.Value) -> None:
        """Start of an iteration: its tile has arrived for everybody, and the copy of a later one is on its way."""
        if not self.tiles:
            return
        em = self.em
        if self.stages == 1:
            em.barrier()
            self._issue(iv, 0)
            wait_groups(0)
            em.barrier()
            return
        number = em.sub(iv, self.lb)
        if isinstance(self.step, int):
            number = em.div(number, self.step)
        else:
            number = arith.DivUIOp(em.value(number), em.value(self.step)).result
        self.stage = em.rem(number, self.stages)
        wait_groups(self.ahead - 1)
        if self.warpgroups:
            wgmma.proxy_fence()
        em.barrier()
        ahead = em.rem(em.add(number, self.ahead), self.stages)
        self._issue(self.operands.iv_after(iv, self.ahead), ahead)

    def bind(self, scope, slice_op) -> bool:
        """Makes a staged slice a tile in shared memory; False for other slices."""
        tile = self._by_result.get(slice_op.results[0])
        if tile is None:
            return False
        _, shape, sizes = scope.slice_view(slice_op, scope.scalar)
        scope.tiles[slice_op.results[0]] = Staged(self.em, tile.element, shape, sizes, tile.view(self.stage))
        return True

    def done(self, product: ir.Operation) -> None:
        self._done.append(product)

    def waits(self, product: ir.Operation) -> bool:
        return product in self._done

    def end_iteration(self, iv: ir.Value, deferred: bool) -> None:
        """End of an iteration, whose products may still be under way (`deferred`)."""

    def end_loop(self, deferred: bool) -> None:
        """All copies have arrived and been read."""
        if self.tiles:
            wait_groups(0)
            self.em.barrier()
            for _, tile in self.tiles:
                self.em.free_smem(tile.buffer)


def wait_groups(pending: int) -> None:
    """cp.async.wait_group: at most `pending` of the latest groups are still under way."""
    attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), pending)
    ir.Operation.create("nvvm.cp.async.wait.group", attributes={"n": attr})
