"""Epilogues: the maps after a contraction that its kernel computes before it writes its result."""

from __future__ import annotations

from math import prod

from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import ir, nested
from mlirc.passes.graph import classify
from mlirc.passes.graph.evaluate import Evaluator, sources
from mlirc.passes.graph.facts import is_map, is_widening_cast, owner_through_views
from mlirc.passes.graph.index import dim, linearize
from mlirc.passes.graph.scalar import Scalars


class Uses:
    """Who reads each tensor of a function's body, and the order of the ops."""

    def __init__(self, ops: list[ir.Operation]) -> None:
        self.order = {op: i for i, op in enumerate(ops)}
        self._users = self._collect(ops)

    def _collect(self, ops: list[ir.Operation]) -> dict[ir.Value, list[ir.Operation]]:
        users: dict[ir.Value, list[ir.Operation]] = {}
        for op in ops:
            read = list(op.operands)
            for inner in nested(op):
                read.extend(inner.operands)
            for value in dict.fromkeys(read):
                if isinstance(value.type, ir.RankedTensorType):
                    users.setdefault(value, []).append(op)
        return users

    def of(self, value: ir.Value) -> list[ir.Operation]:
        """The ops that read a value, through views."""
        found = []
        for user in self._users.get(value, ()):
            found.extend(self.of(user.results[0]) if user.name in VIEWS else [user])
        return found


class Epilogues:
    """Which maps belong to which contraction. Claimed forward from each contraction, the last one first.

    `root_of[contraction]` is the last op of its epilogue, `last_of[map]` that of the epilogue that the map is in.
    """

    def __init__(self, uses: Uses, ops: list[ir.Operation], siblings: bool) -> None:
        self.root_of: dict[ir.Operation, ir.Operation] = {}
        self.last_of: dict[ir.Operation, ir.Operation] = {}
        self._uses = uses
        self._siblings = siblings
        self._claims: dict[ir.Operation, ir.Operation] = {}  # map -> the first contraction that claimed it
        for op in reversed(ops):
            if classify.is_contraction(op):
                self._claim(op)

    def _claim(self, contraction: ir.Operation) -> None:
        region, candidates = self._grow(contraction)
        evaluator = Evaluator(Scalars(), lambda op: op in region)
        while candidates:
            last = candidates.pop()
            owner = self._claims.get(last)
            if is_widening_cast(last) or (owner is not None and last is not self.root_of[owner]):
                continue
            value = last.results[0]
            indices = tuple(dim(i, n) for i, n in enumerate(shape_of(value)))
            loads = [s for s in evaluator.element(value, indices).walk() if s.kind == "load"]
            if all(all(i.is_linear() for i in s.data[1]) for s in loads):
                break
        else:
            return
        self.root_of[contraction] = last
        for op in region:
            if op is not contraction and self._uses.order[op] <= self._uses.order[last]:
                self._claims.setdefault(op, contraction)
                self.last_of[op] = last

    def _grow(self, contraction: ir.Operation) -> tuple[set[ir.Operation], list[ir.Operation]]:
        """Maps after the contraction that compute element by element on its result, and those among them that all of
        the result flows through, in order."""
        region, candidates = {contraction}, []
        waiting = set(self._uses.of(contraction.results[0]))
        while waiting:
            op = min(waiting, key=self._uses.order.__getitem__)
            if not self._continues(op, region, contraction):
                break
            waiting.remove(op)
            region.add(op)
            if not waiting:
                candidates.append(op)
            waiting |= set(self._uses.of(op.results[0]))
        return region, candidates

    def _continues(self, op: ir.Operation, region: set[ir.Operation], contraction: ir.Operation) -> bool:
        if not is_map(op) or len(op.results) != 1 or not self._uses.of(op.results[0]):
            return False
        owner = self._claims.get(op)
        if owner is not None and not (self._siblings and self._are_siblings(owner, contraction)):
            return False
        indices = tuple(dim(i, n) for i, n in enumerate(shape_of(op.results[0])))
        here = linearize(indices, shape_of(op.results[0]))
        for value, read in sources(op, indices):
            if owner_through_views(value) in region and (read is None or linearize(read, shape_of(value)) != here):
                return False
        return prod(shape_of(op.results[0])) == prod(shape_of(contraction.results[0]))

    def _are_siblings(self, first: ir.Operation, second: ir.Operation) -> bool:
        """Whether two contractions read the same left operand in the same way, and make results of one shape; no more
        than two share a kernel."""
        others = [c for c in self.root_of if self.root_of[c] is self.root_of.get(first)]
        return (
            len(others) == 1
            and first.name == second.name
            and first.operands[0] == second.operands[0]
            and all(a.type == b.type for a, b in zip(first.operands, second.operands, strict=True))
            and (first.name != "linalg.generic" or classify.maps(first) == classify.maps(second))
        )
