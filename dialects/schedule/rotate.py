"""`schedule.rotate`: software pipelining of a loop: what its iterations need first is computed some iterations ahead.

    ahead = for i = lower to min(lower + step, upper)              the first iteration's, where there is one
    main  = for i = lower to upper - step, carrying `ahead`:
                next = the ops at i + step
                the rest of the body at i, with what is carried
    last  = for i = the last iteration, where there is one: the rest of the body, with what main carried at its end

Nothing is computed that the loop did not compute, nothing more often, and a loop of no iterations stays one: the loops
in front of and behind the main one have one iteration or none. Moved so, the scores of the next keys are there when the
softmax of the last ones is done, and slices that no copy brings to shared memory ahead are on their way to registers.

With `behind` the same is said from the other end (`_behind.py`): the ops, and what reads their results, stay where
they are, and all the rest runs ahead, with what the loop carries of it. In the main loop they stand behind the products
of the rest and in front of what is computed of those: attention's values are multiplied while the softmax of the next
scores is computed (FlashAttention-3's overlap within a warpgroup: Shah et al., 2024, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._behind import Behind, behind_of, is_product, reads
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.ir.tensors import shape_of
from mlirc.mlir import affine, ir, scf, tensor

PURE = ("linalg", "tensor", "affine", "arith", "math")
MOST_AHEAD = 4
COPIES = ("mlirc.stages", "mlirc.producers", "mlirc.registers")  # of a loop whose products read slices


@dataclass(frozen=True)
class _Carried:
    """A result that the loop is to carry. `sizes`: the extents of what it carries: those that change from iteration to
    iteration are their bounds there; `own`: the extents in the iteration that it is for, as they stand in the body."""

    value: ir.Value
    sizes: tuple[Size, ...]
    own: tuple[Size, ...]

    @property
    def padded(self) -> bool:
        return self.sizes != self.own


def needed(loop: ir.Operation, ops: Sequence[ir.Operation], ahead: Collection[int] = ()) -> list[ir.Operation]:
    """The ops and all in the loop's body that they are computed from, in order; raises PayloadError where that is more
    than the induction variable, what stands in front of the loop, and what it carries of these numbers."""
    body = loop.regions[0].blocks[0]
    carried = list(body.arguments)[1:]
    order = [o.operation for o in body.operations]
    found: set[ir.Operation] = set()
    rest = list(ops)
    while rest:
        op = rest.pop()
        if op in found:
            continue
        if op.name.split(".")[0] not in PURE:
            raise PayloadError("is no computation on tiles or numbers: it cannot be moved ahead", op)
        found.add(op)
        for value in reads(op):
            if value in carried and carried.index(value) not in ahead:
                what = f"reads what the loop carries from the iteration before (number {carried.index(value)})"
                raise PayloadError(f"{what}: it cannot be computed ahead of that", op)
            made_by = producer(value)
            if made_by is not None and made_by in order:
                rest.append(made_by)
    return [op for op in order if op in found]


class _Rotation:
    """The rewriting of one loop."""

    def __init__(self, loop: ir.Operation, ops: list[ir.Operation], ahead: int, behind: Behind | None = None):
        kept = behind.carried if behind is not None else ()
        self.loop, self.ops, self.ahead, self.kept, self.behind = loop, ops, ahead, sorted(kept), behind
        self.body = loop.regions[0].blocks[0]
        self.needed = needed(loop, ops, kept)
        step = _number(list(loop.operands)[2])
        if not isinstance(step, int) or step < 1:
            raise PayloadError("rotate takes a loop with a constant step", loop)
        self.step = step
        self.lower, self.upper = (_number(v) for v in list(loop.operands)[:2])
        if isinstance(self.lower, int) and isinstance(self.upper, int):
            steps = -(-(self.upper - self.lower) // step)
            if steps <= ahead:
                raise PayloadError(f"ahead {ahead}: the loop has {max(steps, 0)} steps: none is left to compute", loop)
        self.inits = list(loop.operands)[3:]
        self.carried = [self._carried(r) for op in ops for r in op.results if self._outside(r)]
        if not self.carried:
            raise PayloadError("nothing else in the loop uses it: there is nothing to compute ahead", ops[0])

    def _outside(self, value: ir.Value) -> bool:
        """Whether what is not moved reads a value. What the loop yields of itself moves, too."""
        for use in value.uses:
            op = use.owner.operation
            while op.parent.operation != self.loop:
                op = op.parent.operation
            moves = op.name == "scf.yield" and op.parent == self.loop and use.operand_number in self.kept
            if not moves and op not in (self.needed if self.kept else self.ops):
                return True
        return False

    def _carried(self, value: ir.Value) -> _Carried:
        if not isinstance(value.type, ir.RankedTensorType):
            raise PayloadError("makes a number: a loop carries tiles", producer(value))
        own = tuple(sizes_of(value))
        inside = [not isinstance(n, int) and self._changes(n) for n in own]
        try:
            sizes = tuple(_build.bound(n) if changes else n for n, changes in zip(own, inside, strict=True))
        except ValueError as e:
            raise PayloadError(f"makes tiles of {e}", producer(value)) from None
        return _Carried(value, sizes, own)

    def _changes(self, size: ir.Value) -> bool:
        """Whether an extent is computed in the loop."""
        made_by = producer(size)
        return size.owner == self.body if made_by is None else made_by.parent.operation == self.loop

    # -- numbers

    def _after(self, base: Size, iterations: int) -> Size:
        return _build.added(base, iterations * self.step)

    def _least(self, a: Size, b: Size) -> Size:
        return _extreme(affine.AffineMinOp, min, a, b)

    def _main_end(self) -> Size:
        """Where the main loop ends, no less than where it begins."""
        return _extreme(affine.AffineMaxOp, max, self._after(self.upper, -self.ahead), self.lower)

    def _behind_main(self, end: Size) -> Size:
        """The first iteration that the main loop leaves over."""
        if isinstance(end, int) and isinstance(self.lower, int):
            return self.lower + -(-(end - self.lower) // self.step) * self.step
        first, last = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
        values = [_value(self.lower), _value(end)]
        steps = ir.AffineExpr.get_ceil_div(last - first, self.step)
        return affine.AffineApplyOp(ir.AffineMap.get(2, 0, [first + steps * self.step]), values).result

    # -- the loops

    def rewrite(self) -> tuple[list[ir.Operation], list[ir.Operation]]:
        """The new loops in order, and the ops that are computed ahead, in the loops in front and in the main one."""
        with ir.InsertionPoint(self.loop), self.loop.location:
            moved: list[ir.Operation] = []
            state, queue = list(self.inits), list[list[ir.Value]]()
            loops: list[ir.Operation] = []
            for i in range(self.ahead):
                loops.append(self._first(i, moved, state))
                found = list(loops[-1].results)
                queue.append(found[: len(self.carried)])
                for n, value in zip(self.kept, found[len(self.carried) :], strict=True):
                    state[n] = value
            main, rest = self._main(state, queue, moved)
            loops.append(main)
            state = list(main.results)[: len(self.inits)]
            first = self._behind_main(_number(main.operands[1]))
            for i in range(self.ahead):
                loops.append(self._last(main, rest, i, self._after(first, i), state))
                state = list(loops[-1].results)
        for old, new in zip(self.loop.results, state, strict=True):
            old.replace_all_uses_with(new)
        return loops, moved

    def _for(self, lower: Size, upper: Size, inits: Iterable[ir.Value], copies: bool = True) -> scf.ForOp:
        made = scf.ForOp(_value(lower), _value(upper), _build.index(self.step), list(inits))
        for name in self.loop.attributes:
            if copies or name not in COPIES:
                made.operation.attributes[name] = self.loop.attributes[name]
        return made

    def _first(self, number: int, moved: list[ir.Operation], state: list[ir.Value]) -> ir.Operation:
        """A loop of one step or none, that computes the results for one of the first iterations, and what it carries of
        `state` that is ahead."""
        lower = self._after(self.lower, number)
        upper = self._least(self._after(lower, 1), self.upper)
        products = any(map(is_product, self.needed))
        empty = [_build.empty(c.sizes, _element(c.value)) for c in self.carried]
        loop = self._for(lower, upper, [*empty, *(state[n] for n in self.kept)], products)
        with ir.InsertionPoint(loop.body):
            early = list(loop.inner_iter_args)[len(empty) :]
            computed, kept = self._computed(loop.induction_variable, moved, early)
            scf.YieldOp([*computed, *kept])
        return loop.operation

    def _computed(
        self, iv: ir.Value, moved: list[ir.Operation], state: Sequence[ir.Value]
    ) -> tuple[list[ir.Value], list[ir.Value]]:
        """The ops for an iteration: their results as the loop carries them, and what is carried ahead (`state` before
        it)."""
        arguments = list(self.body.arguments)
        values = {arguments[0]: iv} | {arguments[1 + n]: v for n, v in zip(self.kept, state, strict=True)}
        for op in self.needed:
            made = _build.clone(op, values)
            if op in self.ops:
                moved.append(made)
        end = list(self.body.operations)[-1].operation
        kept = [values.get(end.operands[n], end.operands[n]) for n in self.kept]
        return [_padded(values[c.value], c.sizes) if c.padded else values[c.value] for c in self.carried], kept

    def _main(
        self, state: list[ir.Value], queue: list[list[ir.Value]], moved: list[ir.Operation]
    ) -> tuple[ir.Operation, list[ir.Operation]]:
        """The main loop, and what in it is the rest of the old one's body."""
        made = self._for(self.lower, self._main_end(), [*state, *(v for q in queue for v in q)])
        arguments = list(made.inner_iter_args)
        count, width = len(self.inits), len(self.carried)
        with ir.InsertionPoint(made.body):
            iv = made.induction_variable
            computed, early = self._computed(self._after(iv, self.ahead), moved, [arguments[n] for n in self.kept])
            end = list(self.body.operations)[-1].operation
            kept = arguments[count + width :] + computed
            ends = list(end.operands)
            for n, value in zip(self.kept, early, strict=True):
                ends[n] = value
            yielded = scf.YieldOp([*ends, *kept])
        rest = [o.operation for o in self.body.operations][:-1]
        for op, place in zip(rest, self._places(made.body, rest, yielded.operation), strict=True):
            op.move_before(place)
        end.erase()
        for old, new in zip(self.body.arguments, [iv, *arguments[:count]], strict=True):
            old.replace_all_uses_with(new)
        for c, argument in zip(self.carried, arguments[count:], strict=False):
            rest += self._use(c, argument)
        return made.operation, _without_dead(rest, self.needed, yielded.operation.block)

    def _places(self, body: ir.Block, rest: list[ir.Operation], end: ir.Operation) -> list[ir.Operation]:
        """In front of which op of the main loop each op of the rest stands: the end, or, of ops that stay behind, from
        their first product on in front of what is computed of the products ahead, so that both are under way together,
        and up to there in front of all: a product's sums have to be there before another one begins."""
        ops = [o.operation for o in body.operations]
        if self.behind is None or not (ahead := [i for i, op in enumerate(ops) if is_product(op)]):
            return [end] * len(rest)
        late = [i for i, op in enumerate(rest) if op in self.behind.ops and is_product(op)]
        return [ops[0] if i < late[0] else ops[ahead[-1] + 1] for i in range(len(rest))]

    def _use(self, carried: _Carried, argument: ir.Value) -> list[ir.Operation]:
        """Lets the rest read a value that is carried: of its own extents. Returns the ops that this takes."""
        if not carried.padded:
            carried.value.replace_all_uses_with(argument)
            return []
        with ir.InsertionPoint.after(producer(carried.value)):
            cut = _build.extract_slice(argument, [0] * len(carried.own), carried.own)
        carried.value.replace_all_uses_with(cut)
        return [cut.owner.operation]

    def _last(self, main: ir.Operation, rest: list[ir.Operation], number: int, lower: Size, state) -> ir.Operation:
        """One of the last iterations: the rest alone, of a loop of one step or none. What is ahead stays as it is."""
        loop = self._for(lower, self._least(self._after(lower, 1), self.upper), state)
        count, width = len(self.inits), len(self.carried)
        inside, end = main.regions[0].blocks[0], list(main.regions[0].blocks[0].operations)[-1].operation
        old = list(inside.arguments)
        values = dict(zip(old[: 1 + count], loop.body.arguments, strict=True))
        queue = list(main.results)[count + number * width :]
        values |= dict(zip(old[1 + count : 1 + count + width], queue[:width], strict=True))
        with ir.InsertionPoint(loop.body):
            for op in rest:
                _build.clone(op, values)
            ends = [values.get(v, v) for v in list(end.operands)[:count]]
            for n in self.kept:
                ends[n] = loop.inner_iter_args[n]
            scf.YieldOp(ends)
        return loop.operation


def _number(value: ir.Value) -> Size:
    made_by = producer(value)
    if made_by is not None and made_by.name == "arith.constant":
        return ir.IntegerAttr(made_by.attributes["value"]).value
    return value


def _value(size: Size) -> ir.Value:
    return _build.index(size) if isinstance(size, int) else size


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _extreme(kind: type, of_numbers, a: Size, b: Size) -> Size:
    """The least or the largest of two numbers, as an affine op where they are values."""
    if isinstance(a, int) and isinstance(b, int):
        return of_numbers(a, b)
    values = [v for v in (a, b) if not isinstance(v, int)]
    exprs = [ir.AffineExpr.get_constant(v) if isinstance(v, int) else ir.AffineExpr.get_dim(values.index(v))
             for v in (a, b)]  # fmt: skip
    return kind(ir.AffineMap.get(len(values), 0, exprs), values).result


def _padded(value: ir.Value, sizes: Sequence[Size]) -> ir.Value:
    """A tile at the front of one of other extents, whose rest nobody reads."""
    target = _build.empty(sizes, _element(value))
    (dynamic, static), rank = _build.split(sizes_of(value)), len(shape_of(value))
    return tensor.InsertSliceOp(value, target, [], dynamic, [], [0] * rank, static, [1] * rank).result


def _without_dead(rest: list[ir.Operation], moved: Sequence[ir.Operation], block: ir.Block) -> list[ir.Operation]:
    """The ops of the rest in order, but for those that were needed for the moved ones alone, which go."""
    order = [o.operation for o in block.operations]
    kept = [op for op in order if op in rest]
    for op in reversed(moved):
        if not any(True for r in op.results for _ in r.uses):
            kept.remove(op)
            op.erase()
    return kept


@transform_op(
    "rotate",
    operands=("loop", "ops"),
    consumes=("ops",),  # and the loop goes: its handle becomes empty
    results=("loops", "moved"),
    attributes={"ahead": int, "behind": int},
    defaults={"ahead": 0, "behind": 0},
)
def rotate(rewriter, loops, ops, ahead=0, behind=0):
    """Computes `ops` of a loop, with what they need, `ahead` iterations before the rest of its body; or, with `behind`
    in place of `ahead`, all but `ops`, and what reads their results, so many iterations before these.

    What is moved may need the induction variable, what stands in front of the loop, and, with `behind`, what the loop
    carries that it computes itself. Results: the loops in their order (`ahead` or `behind` short ones, the main one, as
    many short ones), which have the old one's attributes, and the ops in them that are computed ahead."""
    if len(loops) != 1 or loops[0].operation.name != "scf.for":
        raise PayloadError("rotate takes one scf.for", loops[0] if loops else None)
    loop, moved = loops[0].operation, [op.operation for op in ops]
    if not moved:
        raise PayloadError("rotate got no ops to compute ahead, or behind", loop)
    if ahead and behind:
        raise PayloadError("rotate takes ahead or behind, not both", loop)
    word, number = ("behind", behind) if behind else ("ahead", ahead)
    if not 1 <= number <= MOST_AHEAD:
        raise PayloadError(f"{word} {number}: 1 to {MOST_AHEAD} iterations", loop)
    for op in moved:
        if op.parent.operation != loop:
            raise PayloadError("does not stand in the loop that is rotated", op)
    rest = behind_of(loop, moved) if behind else None
    made, found = _Rotation(loop, rest.ahead if rest else moved, number, rest).rewrite()
    rewriter.erase_op(loop)
    return [made, found]
