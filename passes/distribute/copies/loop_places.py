"""Where the slices of a loop lie in each of its iterations, and how many it has, as seen from the scope in front of
it."""

from __future__ import annotations

from mlirc.mlir import arith, ir
from mlirc.passes.distribute.emit.emitter import IndexValue


class LoopPlaces:
    """The iterations of an scf.for, in a scope of the program that it is in: lower and upper bound, and step."""

    def __init__(self, outer, op: ir.Operation):
        self.outer, self.em, self.op = outer, outer.em, op
        self.lb, self.ub, self.step = (outer.scalar(v) for v in list(op.operands)[:3])
        self.iv = op.regions[0].blocks[0].arguments[0]

    def count(self) -> IndexValue:
        """How many iterations the loop has."""
        if all(isinstance(x, int) for x in (self.lb, self.ub, self.step)):
            return len(range(self.lb, self.ub, self.step))
        em = self.em
        return em.div(em.add(em.max(em.sub(self.ub, self.lb), 0), self.step - 1), self.step)

    def number(self, iv: IndexValue) -> IndexValue:
        """How many iterations were before the one with an induction variable."""
        done = self.em.sub(iv, self.lb)
        if isinstance(self.step, int):
            return self.em.div(done, self.step)
        return arith.DivUIOp(self.em.value(done), self.step).result

    def at(self, slice_op: ir.Operation, iv: IndexValue):
        """The view, bounds and sizes of a slice in the iteration whose induction variable has the given value."""
        local: dict[ir.Value, IndexValue] = {self.iv: iv}

        def lookup(value: ir.Value) -> IndexValue:
            if value in local:
                return local[value]
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation.parent != self.op:
                return self.outer.scalar(value)
            if owner.name.startswith("affine."):
                local[value] = self.outer.affine(owner, lookup)
            else:
                for r, v in zip(owner.results, self.outer.scalar_of(owner, lookup), strict=True):
                    local[r] = v
            return local[value]

        return self.outer.slice_view(slice_op, lookup)

    def iv_after(self, base: IndexValue, iterations: int) -> IndexValue:
        """The induction variable so many iterations after `base`."""
        moved = self.em.add(base, self.em.mul(self.step, iterations))
        if isinstance(moved, ir.Value):
            self.em.known_multiple(
                moved, min(self.em.divisor(base), self.em.divisor(self.em.mul(self.step, iterations)))
            )
        return moved
