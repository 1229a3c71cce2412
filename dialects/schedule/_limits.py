"""Limits by position in the bodies of elementwise ops: `select(row and column compare so, score, hidden)`."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import body_of, producer, structure, structured_ops
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.mlir import affine, arith, ir, linalg, nested

HIDDEN = (float("-inf"), 0.0)  # of scores, and of weights
_SLE, _SLT, _SGT, _SGE = (getattr(arith.CmpIPredicate, p).value for p in ("sle", "slt", "sgt", "sge"))


@dataclass
class Position:
    """A sum of an op's indices, values and a number."""

    dims: dict[int, int] = field(default_factory=dict)  # how often linalg.index of each
    values: dict[ir.Value, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Position, sign: int = 1) -> Position:
        def added(a: dict, b: dict) -> dict:
            total = {key: a.get(key, 0) + sign * b.get(key, 0) for key in [*a, *b]}
            return {key: n for key, n in total.items() if n}

        dims, values = added(self.dims, other.dims), added(self.values, other.values)
        return Position(dims, values, self.constant + sign * other.constant)


def position(value: ir.Value) -> Position:
    """An index as a sum; what it does not see through is a value of its own."""
    owner = value.owner
    if not isinstance(owner, ir.Block):
        if owner.name == "linalg.index":
            return Position({ir.IntegerAttr(owner.attributes["dim"]).value: 1})
        if owner.name == "arith.constant":
            return Position(constant=ir.IntegerAttr(owner.attributes["value"]).value)
        if owner.name in ("arith.addi", "arith.subi"):
            sign = 1 if owner.name == "arith.addi" else -1
            return position(owner.operands[0]).plus(position(owner.operands[1]), sign)
    return Position(values={value: 1})


@dataclass
class Limit:
    """One `select` whose condition is `below <= 0`."""

    select: ir.Operation
    below: Position


def limits_of(op: ir.Operation) -> list[Limit]:
    """The limits an elementwise op ends with, from the outermost inwards: what they hide is -inf or 0."""
    block = body_of(op)
    value = list(block.operations)[-1].operation.operands[0]
    found: list[Limit] = []
    while not isinstance(value.owner, ir.Block) and value.owner.name == "arith.select":
        select = value.owner.operation
        condition, inner, hidden = select.operands
        below = _below(condition)
        if below is None or not _is_hidden(hidden):
            break
        found.append(Limit(select, below))
        value = inner
    return found


def _is_hidden(value: ir.Value) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return False
    attribute = owner.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and attribute.value in HIDDEN


def _below(condition: ir.Value) -> Position | None:
    """What must be 0 or less for a comparison of positions to hold."""
    owner = condition.owner
    if (
        isinstance(owner, ir.Block)
        or owner.name != "arith.cmpi"
        or not isinstance(owner.operands[0].type, ir.IndexType)
    ):
        return None
    a, b = (position(v) for v in owner.operands)
    predicate = ir.IntegerAttr(owner.attributes["predicate"]).value
    if predicate in (_SGT, _SGE):
        a, b = b, a
    if predicate not in (_SLE, _SLT, _SGT, _SGE):
        return None
    return a.plus(b, -1).plus(Position(constant=int(predicate in (_SLT, _SGT))))


def add_limit(op: ir.Operation, dim: int, offset: ir.Value, extent: int, hidden: float) -> None:
    """Hides what an elementwise op makes at `dim` + `offset` from `extent` on, beneath the limits that it has."""
    found = limits_of(op)
    block = body_of(op)
    user, number = (found[-1].select, 1) if found else (list(block.operations)[-1].operation, 0)
    inner = user.operands[number]
    with ir.InsertionPoint(user), op.location:
        column = arith.AddIOp(linalg.IndexOp(dim).result, offset).result
        end = arith.ConstantOp(ir.IndexType.get(), extent).result
        seen = arith.CmpIOp(arith.CmpIPredicate.slt, column, end).result
        user.operands[number] = arith.SelectOp(seen, inner, arith.ConstantOp(inner.type, hidden).result).result


@dataclass
class Bounds:
    """A loop over positions, and what the limits in its body say of them: the block's row `row0 + i` (of `rows`) sees
    what is at most `row + upper`, and more than `row + lower`."""

    loop: ir.Operation
    start: int | None  # None: not a number
    end: int
    step: int
    row0: tuple[ir.Value, ...] = ()  # whose sum it is; none: the block has all rows
    rows: int = 0
    upper: list[int] = field(default_factory=list)
    lower: list[int] = field(default_factory=list)

    def row(self) -> ir.Value:
        """The block's first row."""
        if not self.row0:
            return _build.index(0)
        first, *more = self.row0
        for value in more:
            first = arith.AddIOp(first, value).result
        return first

    def row_or_first(self, offset: int) -> ir.Value:
        """The position beside the block's first row, `offset` further on, or 0: steps are counted without a sign."""
        moved = [ir.AffineExpr.get_constant(0), ir.AffineExpr.get_dim(0) + offset]
        return affine.AffineMaxOp(ir.AffineMap.get(1, 0, moved), [self.row()]).result


def read_loop(loop: ir.Operation) -> Bounds:
    """What limits the positions of a loop over tiles; raises PayloadError for bounds that it cannot read."""
    first, last, step = (number_of(v) for v in list(loop.operands)[:3])
    try:
        end = _build.bound(loop.operands[1]) if last is None else last
    except ValueError as e:
        raise PayloadError(f"its end is {e}", loop) from None
    if step is None:
        raise PayloadError("its step is no number", loop)
    iv = loop.regions[0].blocks[0].arguments[0]
    bounds = Bounds(loop, first, end, step)
    for op, limit in loop_limits(loop):
        below = limit.below
        sign = below.values.pop(iv, 0)
        along = [d for d, n in below.dims.items() if n == sign]
        across = [d for d, n in below.dims.items() if n == -sign]
        wrapped = {v: below.values.pop(v) for v in list(below.values) if _wraps(v) is not None}
        known = len(below.dims) == len(along) + len(across) and all(n == -sign for n in wrapped.values())
        if abs(sign) != 1 or len(along) != 1 or len(across) + len(wrapped) > 1 or not known:
            raise PayloadError("a limit that is no difference of two positions", op)
        if not across and not wrapped and not below.values:
            continue  # the end of all
        row0, rows = _row(op, loop, across, below, sign)
        rows = next((_wraps(v) or rows for v in wrapped), rows)
        if bounds.rows and (bounds.row0, bounds.rows) != (row0, rows):
            raise PayloadError("limits that count from different rows", op)
        bounds.row0, bounds.rows = row0, rows
        # column - row + constant <= 0, or row - column + constant <= 0
        if sign > 0:
            bounds.upper.append(-below.constant)
        else:
            bounds.lower.append(below.constant - 1)
    return bounds


def _row(
    op: ir.Operation, loop: ir.Operation, across: list[int], below: Position, sign: int
) -> tuple[tuple[ir.Value, ...], int]:
    """What the block's first row is the sum of, and how many rows it has at most."""
    inside = {op, *nested(op), loop, *nested(loop)}
    for value, times in below.values.items():
        owner = value.owner.owner if isinstance(value.owner, ir.Block) else value.owner
        if times != -sign or owner.operation in inside:
            raise PayloadError("a limit that does not count from the block's rows: tile them first", op)
    if not across:
        return tuple(below.values), 1
    maps = [m.value for m in op.attributes["indexing_maps"]]
    out = list(op.operands)[-1]
    place = [e.position for e in maps[-1].results].index(across[0])
    return tuple(below.values), _build.bound(sizes_of(out)[place])


def _wraps(value: ir.Value) -> int | None:
    """How many values a remainder in an op's body can have: rows that start anew, with each head of queries."""
    made_by = producer(value)
    if made_by is None or made_by.name != "arith.remui" or made_by.parent.name != "linalg.generic":
        return None
    return number_of(made_by.operands[1])


def loop_limits(loop: ir.Operation) -> list[tuple[ir.Operation, Limit]]:
    """The limits of the elementwise ops in a loop's body, with their ops."""
    ops = structured_ops(loop.regions[0].blocks[0])
    generics = [op for op in ops if op.name == "linalg.generic" and all(structure(op).parallel)]
    return [(op, limit) for op in generics for limit in limits_of(op)]


def number_of(value: ir.Value) -> int | None:
    """The number that an index is; None for a computed one."""
    made_by = producer(value)
    if made_by is None or made_by.name != "arith.constant":
        return None
    return ir.IntegerAttr(made_by.attributes["value"]).value
