"""`schedule.rotate`: software pipelining of a loop: what its iterations need first is computed some iterations ahead.

    ahead = for i = lower to min(lower + step, upper)              the first iteration's, where there is one
    main  = for i = lower to upper - step, carrying `ahead`:
                next = the ops at i + step
                the rest of the body at i, with what is carried
    last  = for i = the last iteration, where there is one: the rest of the body, with what main carried at its end

Nothing is computed that the loop did not compute, nothing more often, and a loop of no iterations stays one: the loops
in front of and behind the main one have one iteration or none. Moved so, the scores of the next keys are there when the
softmax of the last ones is done (FlashAttention-3's overlap within a warpgroup: Shah et al., 2024, section 3.2), and
slices that no copy brings to shared memory ahead are on their way to registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import contraction, is_structured, producer
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.ir.tensors import shape_of
from mlirc.mlir import affine, ir, nested, scf, tensor

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


def reads(op: ir.Operation) -> list[ir.Value]:
    """The values that an op and what is nested in it read."""
    return [v for o in (op, *nested(op)) for v in o.operands]


def needed(loop: ir.Operation, ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """The ops and all in the loop's body that they are computed from, in order; raises PayloadError where that is more
    than the induction variable and what stands in front of the loop."""
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
            if value in carried:
                what = f"reads what the loop carries from the iteration before (number {carried.index(value)})"
                raise PayloadError(f"{what}: it cannot be computed ahead of that", op)
            made_by = producer(value)
            if made_by is not None and made_by in order:
                rest.append(made_by)
    return [op for op in order if op in found]


class _Rotation:
    """The rewriting of one loop."""

    def __init__(self, loop: ir.Operation, ops: list[ir.Operation], ahead: int):
        self.loop, self.ops, self.ahead = loop, ops, ahead
        self.body = loop.regions[0].blocks[0]
        self.needed = needed(loop, ops)
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
        """Whether what is not moved reads a value."""
        for use in value.uses:
            op = use.owner.operation
            while op.parent.operation != self.loop:
                op = op.parent.operation
            if op not in self.ops:
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
            queue = [self._first(i, moved) for i in range(self.ahead)]
            main, rest = self._main(queue, moved)
            loops = [*(q[0].owner.operation for q in queue), main]
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

    def _first(self, number: int, moved: list[ir.Operation]) -> list[ir.Value]:
        """The results for one of the first iterations, of a loop of one step or none."""
        lower = self._after(self.lower, number)
        upper = self._least(self._after(lower, 1), self.upper)
        products = any(is_structured(op) and contraction(op) for op in self.needed)
        empty = [_build.empty(c.sizes, _element(c.value)) for c in self.carried]
        loop = self._for(lower, upper, empty, products)
        with ir.InsertionPoint(loop.body):
            scf.YieldOp(self._computed(loop.induction_variable, moved))
        return list(loop.results)

    def _computed(self, iv: ir.Value, moved: list[ir.Operation]) -> list[ir.Value]:
        """The ops for an iteration, and their results as the loop carries them."""
        values = {self.body.arguments[0]: iv}
        for op in self.needed:
            made = _build.clone(op, values)
            if op in self.ops:
                moved.append(made)
        return [_padded(values[c.value], c.sizes) if c.padded else values[c.value] for c in self.carried]

    def _main(self, queue: list[list[ir.Value]], moved: list[ir.Operation]) -> tuple[ir.Operation, list[ir.Operation]]:
        """The main loop, and what in it is the rest of the old one's body."""
        made = self._for(self.lower, self._main_end(), [*self.inits, *(v for q in queue for v in q)])
        arguments = list(made.inner_iter_args)
        count, width = len(self.inits), len(self.carried)
        with ir.InsertionPoint(made.body):
            iv = made.induction_variable
            computed = self._computed(self._after(iv, self.ahead), moved)
            end = list(self.body.operations)[-1].operation
            kept = arguments[count + width :] + computed
            yielded = scf.YieldOp([*end.operands, *kept])
        rest = [o.operation for o in self.body.operations][:-1]
        for op in rest:
            op.move_before(yielded.operation)
        end.erase()
        for old, new in zip(self.body.arguments, [iv, *arguments[:count]], strict=True):
            old.replace_all_uses_with(new)
        for c, argument in zip(self.carried, arguments[count:], strict=False):
            rest += self._use(c, argument)
        return made.operation, _without_dead(rest, self.needed, yielded.operation.block)

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
        """One of the last iterations: the rest alone, of a loop of one step or none."""
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
            scf.YieldOp([values.get(v, v) for v in list(end.operands)[:count]])
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
    attributes={"ahead": int},
)
def rotate(rewriter, loops, ops, ahead):
    """Computes `ops` of a loop, with what they need, `ahead` iterations before the rest of its body.

    They may need the induction variable and what stands in front of the loop, not what it carries. Results: the loops
    in their order (`ahead` short ones, the main one, `ahead` short ones), which have the old one's attributes, and the
    ops in them that are computed ahead."""
    if len(loops) != 1 or loops[0].operation.name != "scf.for":
        raise PayloadError("rotate takes one scf.for", loops[0] if loops else None)
    loop, moved = loops[0].operation, [op.operation for op in ops]
    if not moved:
        raise PayloadError("rotate got no ops to compute ahead", loop)
    if not 1 <= ahead <= MOST_AHEAD:
        raise PayloadError(f"ahead {ahead}: 1 to {MOST_AHEAD} iterations", loop)
    for op in moved:
        if op.parent.operation != loop:
            raise PayloadError("does not stand in the loop that is rotated", op)
    made, found = _Rotation(loop, moved, ahead).rewrite()
    rewriter.erase_op(loop)
    return [made, found]
