"""The producer's role: one thread fills the rings, for every block that its block computes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mlirc.dialects import rings
from mlirc.mlir import ir, scf
from mlirc.passes.distribute.copies.loop_places import LoopPlaces
from mlirc.passes.distribute.emit.emitter import IndexValue, Unsupported
from mlirc.passes.distribute.program import cluster_parts
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.rings.check import Site

_SCALAR = ("affine", "arith")


class Producer:
    """What the one thread does. Its `rank` is the block's number in its cluster."""

    def __init__(self, scope: Scope):
        assert scope.program.roles is not None
        self.em, self.roles, self.rings = scope.em, scope.program.roles, scope.program.rings
        self.rank: IndexValue = cluster_parts.rank(self.em) if scope.program.cluster > 1 else 0

    def block(self, scope: Scope, body: ir.Block) -> None:
        """One block of the program: of what is in front of the roles it needs the numbers alone."""
        for op in body.operations:
            if op.operation == self.roles.op:
                for inner in self.roles.produce.operations:
                    self._op(scope, inner.operation)
            else:
                _number(scope, op.operation)

    def _op(self, scope: Scope, op: ir.Operation) -> None:
        if op.name == "scf.for":
            self._loop(scope, op)
        elif op.name == "scf.forall":
            inner = cluster_parts.bind(scope, op, scope.program.rank)
            for inside in list(op.regions[0].blocks[0].operations)[:-1]:
                self._op(inner, inside.operation)
        elif op.name == rings.PUT:
            self._put(op, self._first(op, scope), lambda: scope.slice_view(rings.slice_of(op), scope.scalar))
        elif op.name != rings.YIELD and not _number(scope, op):
            raise Unsupported(f"{op.name}: a producer copies slices, and computes numbers for that", op)

    def _site(self, put: ir.Operation) -> Site:
        return next(s for s in self.roles.flows[put.operands[0]].puts if put in s.ops.values())

    def _first(self, put: ir.Operation, scope: Scope) -> IndexValue:
        ring = self.rings[put.operands[0]]
        return ring.first(ring.flow.puts, self._site(put), scope)

    def _put(self, put: ir.Operation, number: IndexValue, place: Callable) -> None:
        """Copies the slice that `place` finds: it is asked behind the wait, so that the way to that is short."""
        ring = self.rings[put.operands[0]]
        if put == self._site(put).op:
            ring.claim(number)
        ring.copy(number, ir.IntegerAttr(put.attributes["tile"]).value, place()[0], self.rank)

    def _loop(self, scope: Scope, loop: ir.Operation) -> None:
        """A loop's puts; what else is in it is built where they ask for it."""
        em, places = self.em, LoopPlaces(scope, loop)
        puts = [o.operation for o in loop.regions[0].blocks[0].operations if o.operation.name == rings.PUT]
        firsts = [self._first(put, scope) for put in puts]
        body = scf.ForOp(*(em.value(v) for v in (places.lb, places.ub, places.step)), [])
        with ir.InsertionPoint(body.body):
            iv = em.known_multiple(body.induction_variable, min(em.divisor(places.lb), em.divisor(places.step)))
            for put, first in zip(puts, firsts, strict=True):
                number = em.add(first, places.number(iv))
                self._put(put, number, partial(places.at, rings.slice_of(put), iv))
            scf.YieldOp([])


class Rewriter(Producer):
    """What the warps beside the producer's do where tiles are written anew: they follow it from slot to slot."""

    def _put(self, put: ir.Operation, number: IndexValue, place: Callable) -> None:
        ring = self.rings[put.operands[0]]
        if ring.rewriters and put == self._site(put).op:
            ring.rewrite(number)


def _number(scope: Scope, op: ir.Operation) -> bool:
    """Lowers an op that makes numbers, or a window of global memory; False for any other."""
    tensor = any(isinstance(r.type, ir.RankedTensorType) for r in op.results)
    number = not tensor and op.name.split(".")[0] in _SCALAR or op.name in ("tensor.dim", "tensor.extract")
    window = op.name in ("tensor.extract_slice", "tensor.cast") and scope.view(op.operands[0]) is not None
    if number or window:
        scope.lower(op)
    return number or window
