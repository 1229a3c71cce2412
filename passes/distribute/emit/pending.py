"""Values that are under way: what copies bring and what asynchronous products compute. Who reads one waits for it; the
first reader's wait is the only one.

A wait stands in the block where its value began, in front of what reads it there. Tiles are lazy, so that a reader may
be built in front of one that was built before: the wait moves there then."""

from __future__ import annotations

from collections.abc import Callable, Collection

from mlirc.mlir import ir, nvvm


def _within(block: ir.Block) -> ir.InsertionPoint:
    """The place in a block at which something is being built, or in front of what it is being built in."""
    point = ir.InsertionPoint.current
    here, op = point.block, point.ref_operation
    while here != block:
        op = here.owner.operation
        assert op is not None and op.parent is not None, "a value is read where it is not known"
        here = op.block
    return ir.InsertionPoint(op) if op is not None else ir.InsertionPoint(block)


def _precedes(op: ir.Operation, place: ir.InsertionPoint) -> bool:
    """Whether an op of a block stands in front of a place in it."""
    return place.ref_operation is None or op.is_before_in_block(place.ref_operation.operation)


def reaches(value: ir.Value) -> bool:
    """Whether a value that an op made is known where something is being built."""
    op, point = value.owner.operation, ir.InsertionPoint.current
    here, ref = point.block, point.ref_operation
    while here != op.block:
        ref = here.owner.operation
        if ref.parent is None or ref.name == "gpu.func":
            return False
        here = ref.block
    return ref is None or op.is_before_in_block(ref.operation)


class Pending:
    """Something under way since this place of the program."""

    def __init__(self) -> None:
        self.block = ir.InsertionPoint.current.block

    def settle(self) -> None:
        """Whoever is built next finds it done."""
        raise NotImplementedError  # every subclass overrides it


class Arrival(Pending):
    """Copies that are under way. `wait` emits one op that waits for them."""

    def __init__(self, wait: Callable[[], ir.Operation]):
        super().__init__()
        self._wait = wait
        self._waited: ir.Operation | None = None

    def settle(self) -> None:
        place = _within(self.block)
        if self._waited is not None:
            if _precedes(self._waited, place):
                return
            self._waited.erase()
        with place:
            self._waited = self._wait()

    def fence(self) -> None:
        """Waits here once more for what has come: ptxas moves nothing across a wait for copies, which is a loop."""
        self._wait()


class Group(Pending):
    """Products by wgmma that were committed together (PTX ISA, "wgmma.commit_group"). Where they are all of one of
    the tile program's products, `product` is that."""

    def __init__(self, groups: Groups, commit: ir.Operation):
        super().__init__()
        self.groups, self.commit = groups, commit
        self.product: ir.Operation | None = None

    def settle(self) -> None:
        self.groups.settle(self, _within(self.block))


class Carried(Pending):
    """What a loop carries from the iteration before, where it may be under way: whether it is, the loop's end tells."""

    def __init__(self, groups: Groups, what: object):
        super().__init__()
        self.groups, self.what = groups, what

    def settle(self) -> None:
        self.groups.ask(self.what, _within(self.block))


class Groups:
    """The groups of a team in one run of a block: an iteration of a loop, or a role. They are done in the order in
    which they were committed, and a wait leaves the latest so many."""

    def __init__(self) -> None:
        self.issued: list[Group] = []
        self._waits: list[ir.Operation] = []  # in no order
        # Waits for the iteration before: for what a loop carries, and for products that releases name.
        self._asked: list[tuple[ir.Operation, object]] = []
        self._asked_for: list[tuple[ir.Operation, ir.Operation]] = []

    def commit(self) -> Group:
        """Makes the wgmma since the last commit a group."""
        self.issued.append(Group(self, nvvm.WgmmaGroupSyncAlignedOp().operation))
        return self.issued[-1]

    def latest(self) -> Group:
        """The group that was committed last."""
        return self.issued[-1]

    def of(self, products: Collection[ir.Operation]) -> list[Group]:
        """The groups of some products, of those that do not wait for themselves, in order."""
        return [g for g in self.issued if g.product is not None and g.product in products]

    # -- this run's

    def settle(self, group: Group, place: ir.InsertionPoint) -> None:
        """A group is done at a place of its block."""
        if self._done(group, place):
            return
        left = self._behind(group, place)
        with place:
            wait = nvvm.WgmmaWaitGroupSyncOp(left).operation
        self._waits.append(wait)
        beside = [g.commit for g in self.issued if g.block == group.block]
        for late in [w for w in self._waits if w.block == group.block and wait.is_before_in_block(w)]:
            between = [c for c in beside if wait.is_before_in_block(c) and c.is_before_in_block(late)]
            if not between and _left(late) >= left:  # of a reader that was built before this one
                self._waits.remove(late)
                late.erase()

    def _behind(self, group: Group, place: ir.InsertionPoint) -> int:
        """How many groups were committed behind one, in front of a place in its block."""
        later = self.issued[self.issued.index(group) + 1 :]
        return sum(g.block == group.block and _precedes(g.commit, place) for g in later)

    def _done(self, group: Group, place: ir.InsertionPoint) -> bool:
        beside = [w for w in self._waits if w.block == group.block]
        found = [w for w in beside if group.commit.is_before_in_block(w) and _precedes(w, place)]
        return any(_left(w) <= self._behind(group, ir.InsertionPoint(w)) for w in found)

    def under_way(self) -> list[Group]:
        """Those that nobody has waited for at this place."""
        return [g for g in self.issued if not self._done(g, _within(g.block))]

    def finish(self) -> None:
        """All are done: nobody waits for them from here on, or memory that they read is used for something else."""
        if self.under_way():
            self.latest().settle()

    # -- the run before: an iteration's

    def ask(self, what: object, place: ir.InsertionPoint) -> None:
        """What a loop carries is done at a place, if the iteration before left it under way. All is done then: behind a
        wait that leaves some, ptxas takes sums of the iteration before for unfinished, and makes all products wait for
        each other (its advisory C7514)."""
        if any(known is what and _precedes(wait, place) for wait, known in self._asked):
            return
        with place:
            self._asked.append((nvvm.WgmmaWaitGroupSyncOp(0).operation, what))

    def ask_for(self, product: ir.Operation) -> None:
        """A product of the iteration before is done; those of this one may go on."""
        self._asked_for.append((nvvm.WgmmaWaitGroupSyncOp(len(self.issued)).operation, product))

    def end_iteration(self, carried: dict[object, Group]) -> bool:
        """Ends an iteration that leaves under way what the loop carries (`carried`: by what asks for it), and of the
        iterations before nothing. Returns whether it leaves anything."""
        place, left = ir.InsertionPoint.current, self.under_way()
        asked = [(wait, carried.get(what)) for wait, what in self._asked]
        asked += [(wait, next(iter(self.of([product])), None)) for wait, product in self._asked_for]
        for wait, group in sorted(asked, key=lambda found: _Order(found[0])):
            if group is None or group not in left or self._covered(group, wait):
                wait.erase()
            else:
                self._waits.append(wait)
        if left and not any(left[-1].commit.is_before_in_block(w) and _left(w) == len(left) for w in self._waits):
            with place:
                self._waits.append(nvvm.WgmmaWaitGroupSyncOp(len(left)).operation)
        return bool(left)

    def _covered(self, group: Group, wait: ir.Operation) -> bool:
        """Whether a group of the iteration before is done at a wait of this one, without it."""
        behind = len(self.issued) - 1 - self.issued.index(group)
        for other in self._waits:
            committed = sum(g.commit.is_before_in_block(other) for g in self.issued)
            if other.is_before_in_block(wait) and _left(other) <= behind + committed:
                return True
        return False


class _Order:
    """Sorts ops of a block as they stand there."""

    def __init__(self, op: ir.Operation):
        self.op = op

    def __lt__(self, other: _Order) -> bool:
        return self.op != other.op and self.op.is_before_in_block(other.op)


def _left(wait: ir.Operation) -> int:
    """How many groups a wait leaves under way."""
    return ir.IntegerAttr(wait.attributes["group"]).value


def wait_for_all() -> None:
    """No products by wgmma are under way."""
    nvvm.WgmmaWaitGroupSyncOp(0)
