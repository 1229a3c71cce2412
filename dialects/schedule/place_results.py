"""`schedule.place_results`: the blocks of a block program write their tiles where the kernel's last ops put them.

A kernel may end in ops that only say where its rows go (`mlirc-fuse-row-writes` makes such): each of its results is
some heads' rows, joined of their members (the halves of a head that a rotation pairs), as a tensor of its own or at
places in a pool that numbers name. A block writes each tile once, to the result whose head it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.ir.tensors import shape_of, through_views
from mlirc.mlir import arith, func, ir, scf, tensor

SCATTER = "tm_tensor.scatter"
_JOINING = ("tensor.extract_slice", "tensor.insert_slice", "tensor.collapse_shape", "tensor.expand_shape",
            "tensor.empty", SCATTER)  # fmt: skip
Predicate = arith.CmpIPredicate


@dataclass(frozen=True)
class Place:
    """Where a result's rows come from: `count` rows, of which row h is joined of row `first + step * h` of each of the
    `members`, whose shapes are [.., rows, width]. With `numbers` row h goes to row `numbers[h, 0]` of a `pool`, or,
    where that is negative, nowhere."""

    members: tuple[ir.Value, ...]
    first: int
    step: int
    count: int
    width: int
    numbers: ir.Value | None = None
    pool: ir.Value | None = None


def places_of(block: ir.Block) -> list[Place] | None:
    """The places of a kernel's results; None where one of them is no such rows."""
    returned = list(list(block.operations)[-1].operation.operands)
    found = [_place(v) for v in returned]
    if not any(_scattered(v) or _name(v) == "tensor.collapse_shape" for v in returned):
        return None
    return None if None in found else [p for p in found if p is not None]


def _name(value: ir.Value) -> str:
    made_by = producer(value)
    return "" if made_by is None else made_by.name


def _scattered(value: ir.Value) -> bool:
    return _name(value) == SCATTER


def _place(value: ir.Value) -> Place | None:
    if not _scattered(value):
        return _joined(value)
    rows, numbers, pool = value.owner.operation.operands
    found = _joined(rows)
    if found is None or not isinstance(pool.owner, ir.Block) or shape_of(numbers) != (found.count, 1):
        return None
    return Place(found.members, found.first, found.step, found.count, found.width, numbers, pool)


def _joined(value: ir.Value) -> Place | None:
    """Rows [count, members * width] that are slices of the members beside each other."""
    slices = [value]
    if _name(value) == "tensor.collapse_shape":
        slices, value = [], value.owner.operation.operands[0]
        while _name(value) == "tensor.insert_slice":
            op = value.owner.operation
            if list(op.attributes["static_offsets"]) != [0, shape_of(value)[1] - 1 - len(slices), 0]:
                return None
            slices.append(op.operands[0])
            value = op.operands[1]
        if _name(value) != "tensor.empty" or len(slices) != shape_of(value)[1]:
            return None
    members, cuts = [], set()
    for cut in reversed(slices):
        if _name(cut) != "tensor.extract_slice" or len(shape_of(cut)) != 2:
            return None
        op = cut.owner.operation
        member = op.operands[0]
        offsets, steps = (list(op.attributes[f"static_{n}"]) for n in ("offsets", "strides"))
        *units, _, width = shape_of(member)
        if any(n != 1 for n in units) or width != shape_of(cut)[1] or len(list(op.operands)) != 1:
            return None
        members.append(member)
        cuts.add((offsets[-2], steps[-2], *shape_of(cut)))
    return Place(tuple(members), *cuts.pop()) if len(cuts) == 1 else None


def detach(function: ir.Operation) -> int:
    """Makes a kernel function whose last ops place rows one that returns the members as they are, for analyses; returns
    how many rows of a head a member has, 0 for another function, which stays as it is."""
    block = function.regions[0].blocks[0]
    found = places_of(block)
    if found is None:
        return 0
    last = list(block.operations)[-1].operation
    members = list(dict.fromkeys(m for p in found for m in p.members))
    with ir.InsertionPoint(last), last.location:
        func.ReturnOp(members)
    last.erase()
    _erase_unused(block)
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    new = ir.FunctionType.get(type_.inputs, [m.type for m in members])
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    return min(p.width for p in found)


def _erase_unused(block: ir.Block, erase=lambda op: op.erase()) -> None:
    for op in reversed([o.operation for o in block.operations]):
        if op.name in _JOINING and op.results and not any(True for r in op.results for _ in r.uses):
            erase(op)


class _Placing:
    """Makes a forall with the results of the function out of one whose results the function's last ops place."""

    def __init__(self, forall: ir.Operation, places: Sequence[Place]) -> None:
        self.forall, self.places = forall, places
        body = forall.regions[0].blocks[0]
        self.results = list(forall.results)
        self.shared = list(body.arguments)[-len(self.results) :]
        self.inserts = {}
        for op in (o.operation for o in list(body.operations)[-1].operation.regions[0].blocks[0].operations):
            self.inserts[self.shared.index(op.operands[1])] = op

    def build(self) -> ir.Operation:
        """The new forall, in front of the old one, whose body it has."""
        old = self.forall
        outs = [p.pool if p.pool is not None else self._empty(p) for p in self.places]
        upper = list(ir.DenseI64ArrayAttr(old.attributes["staticUpperBound"]))
        new = scf.ForallOp([0] * len(upper), upper, [1] * len(upper), outs, mapping=old.attributes["mapping"])
        body, ivs = old.regions[0].blocks[0], list(old.regions[0].blocks[0].arguments)[: len(upper)]
        ops = [o.operation for o in body.operations]
        for mine, theirs in zip(new.induction_variables, ivs, strict=True):
            theirs.replace_all_uses_with(mine)
        target = new.body
        marker = _build_in(target)
        for op in ops[:-1]:
            op.move_before(marker)
        stores = self._stores(target, marker, new)
        with ir.InsertionPoint(marker):
            terminator = scf.InParallelOp()
        with ir.InsertionPoint(terminator.region.blocks[0]):
            for tile, shared, offsets, sizes in stores:
                _build.parallel_insert_slice(tile, shared, offsets, sizes)
        marker.erase()
        return new.operation

    def _empty(self, place: Place) -> ir.Value:
        element = ir.RankedTensorType(place.members[0].type).element_type
        return _build.empty([place.count, place.width * len(place.members)], element)

    def _stores(self, body: ir.Block, marker: ir.Operation, new: scf.ForallOp) -> list:
        first = body.operations[0].operation
        found, known = [], {}
        for place, shared in zip(self.places, new.inner_iter_args, strict=True):
            for j, member in enumerate(place.members):
                insert = self.inserts[self.results.index(through_views(member))]
                tile, offsets, size = self._cut(insert, place.width)
                key = (insert, place.first, place.step, place.count, place.numbers)
                with ir.InsertionPoint(_behind(first, offsets)):
                    if key not in known:
                        known[key] = self._row(place, offsets, len(shape_of(tile)) > 1)
                inside, row, column = known[key]
                with ir.InsertionPoint(marker):
                    cut, sizes = tile, [1, size]
                    if inside is not None:
                        zero = _build.index(0)
                        whole = _build.index(size) if isinstance(size, int) else size
                        sizes[1] = arith.SelectOp(inside, whole, zero).result
                        own = sizes[-len(shape_of(tile)) :]
                        cut = _build.extract_slice(tile, [0] * len(own), own)
                    at = _build.added(column, j * place.width)
                found.append((cut, shared, [row, at], sizes))
        return found

    def _cut(self, insert: ir.Operation, width: int) -> tuple[ir.Value, list[Size], Size]:
        """(the tile, of one dimension or row; where it begins, as [row, column] or the number of both; its size)."""
        dynamic = list(insert.operands)[2:]
        offsets = _mixed(insert, "static_offsets", dynamic)
        sizes = _mixed(insert, "static_sizes", dynamic)
        tile = insert.operands[0]
        if shape_of(tile)[:-1] not in ((), (1,)) or any(n != 1 for n in sizes[:-1]):
            raise PayloadError("a block has rows of several heads: it takes one of a head at a time", insert)
        total = shape_of(insert.operands[1])[-1]
        if len(sizes) == 1 and total != width:
            bound = _build.bound(sizes[0])
            if width % bound:
                raise PayloadError(f"tiles of {bound} rows do not divide the {width} of a member", insert)
        return tile, offsets, sizes[-1]

    def _row(self, place: Place, offsets: list[Size], whole_row: bool) -> tuple[ir.Value | None, Size, Size]:
        """(whether the block's rows are the place's, None where all are; the row and the column of its result).
        `whole_row`: the block's tile has a dimension for the row."""
        if len(offsets) == 1:
            flat = offsets[0] if isinstance(offsets[0], ir.Value) else _build.index(offsets[0])
            d = ir.AffineExpr.get_dim(0)
            head: Size = _build.applied(ir.AffineExpr.get_floor_div(d, place.width), flat)
            column: Size = _build.applied(ir.AffineExpr.get_mod(d, place.width), flat)
        else:
            head, column = offsets[-2:]
        rows = prod(shape_of(place.members[0])[:-1])
        if isinstance(head, int):
            head = _build.index(head)
        inside: ir.Value | None = None
        row: Size = head
        if (place.first, place.step, place.count) != (0, 1, rows):
            d = ir.AffineExpr.get_dim(0)
            moved = ir.AffineExpr.get_floor_div(d - place.first, place.step)
            number = _build.applied(moved, head)
            low, high = _build.index(0), _build.index(place.count - 1)
            row = arith.MinSIOp(arith.MaxSIOp(number, low).result, high).result
            back = _build.applied(d * place.step + place.first, row)
            inside = arith.CmpIOp(Predicate.eq, back, head).result
        if place.numbers is None:
            return inside, row, column
        number = tensor.ExtractOp(place.numbers, [row, _build.index(0)]).result
        if not isinstance(number.type, ir.IndexType):
            number = arith.IndexCastOp(ir.IndexType.get(), number).result
        there = arith.CmpIOp(Predicate.sge, number, _build.index(0)).result
        if whole_row:  # of no elements: its place is looked at all the same
            number = arith.MaxSIOp(number, _build.index(0)).result
        inside = there if inside is None else arith.AndIOp(inside, there).result
        return inside, number, column


def _mixed(op: ir.Operation, name: str, dynamic: list[ir.Value]) -> list[Size]:
    return [dynamic.pop(0) if n == _build.DYNAMIC else n for n in ir.DenseI64ArrayAttr(op.attributes[name])]


def _build_in(block: ir.Block) -> ir.Operation:
    with ir.InsertionPoint(block):
        return _build.index(0).owner.operation


def _behind(first: ir.Operation, values: Sequence[Size]) -> ir.Operation:
    """The first op of a block behind those that make some values."""
    listed = [o.operation for o in first.block.operations]
    makers = [v.owner.operation for v in values if isinstance(v, ir.Value) and not isinstance(v.owner, ir.Block)]
    return listed[max((listed.index(m) + 1 for m in makers), default=0)]


@transform_op("place_results", operands=("forall",), consumes=("forall",), results=("placed",), takes="scf.forall")
def place_results(rewriter, foralls):
    """Gives each block program the results of its kernel, whose last ops say where rows go; these ops go away. Tiles
    are of one dimension, or one row: rows of one head, in all of its members."""
    made = []
    for forall in foralls:
        forall = forall.operation
        block = forall.block
        places = places_of(block)
        if places is None or not {through_views(m) for p in places for m in p.members} <= set(forall.results):
            raise PayloadError("the kernel's last ops do not place the block program's results", forall)
        last = list(block.operations)[-1].operation
        with ir.InsertionPoint(last), forall.location:
            new = _Placing(forall, places).build()
            func.ReturnOp(list(new.results))
        rewriter.erase_op(last)
        _erase_unused(block, rewriter.erase_op)
        rewriter.erase_op(forall)
        made.append(new)
    return [made]
