"""`schedule.collapse_dims`: drops unit dimensions of a kernel and merges dimensions that are always contiguous.

Reshapes move to the arguments and results of the function, where they are free views; what is between has the lowest
rank that says the same: a bias added to `[1,128,768]` becomes a 2-D op, a pure elementwise chain a 1-D one.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import Dims, contraction, indexed_dims, producer, structured_ops
from mlirc.ir.scans import Scan, is_scan
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir, tensor


def kept_units(dims: Dims, vectors: bool = False) -> set[int]:
    """Unit classes that must stay: one each of a contraction's m, n and k (k alone with `vectors`), a scan's own, and
    one row if the last op has no other."""
    kept: set[int] = set()
    products = False
    for i, op in enumerate(dims.ops):
        if is_scan(op):
            kept.add(dims.of[i][Scan.of(op).dim])
        roles = contraction(op)
        if roles:
            products |= bool(roles.m and roles.n) and not vectors
            for group in (roles.k,) if vectors else (roles.m, roles.n, roles.k):
                classes = [dims.of[i][d] for d in group]
                if classes and all(dims.extent[c] == 1 for c in classes):
                    kept.add(classes[-1])
    rows = sorted(dims.row_classes(vectors)) or [c for c in dims.of[-1] if c not in dims.reduced]
    if not products and rows and all(dims.extent[c] == 1 and c not in kept for c in rows):
        kept.add(rows[-1])
    return kept


def merge_groups(dims: Dims, vectors: bool = False) -> tuple[dict[int, int], set[int]]:
    """(leader of each class, dropped classes): classes with one leader are merged, in the order of their operands."""
    for s in dims.structures:
        if any(isinstance(d, _build.Grouped) for m in s.maps for d in m):
            raise PayloadError("reads a dimension in groups: its dimensions stay as they are", s.op)
    kept = kept_units(dims, vectors)
    dropped = {c for c, n in dims.extent.items() if n == 1 and c not in kept}
    maps = []  # per op: its operand maps in classes, without dropped ones
    for i, s in enumerate(dims.structures):
        maps.append([[c for c in dims.map_classes(i, m) if c not in dropped] for m in s.maps])
    pairs = {
        (a, b) for op in maps for m in op for a, b in zip(m, m[1:], strict=False) if a is not None and b is not None
    }
    follows = {a: b for a, b in pairs if _always_adjacent(dims, maps, a, b)}
    leader = {c: c for c in dims.extent}
    for start in sorted(set(follows) - set(follows.values())):
        c = start
        while c in follows:
            c = follows[c]
            leader[c] = start
    return leader, dropped


def _always_adjacent(dims: Dims, maps: Sequence, a: int, b: int) -> bool:
    if 1 in (dims.extent[a], dims.extent[b]):
        return False
    for i, (s, row) in enumerate(zip(dims.structures, dims.of, strict=True)):
        if (a in row) != (b in row):
            return False
        if a not in row:
            continue
        da, db = row.index(a), row.index(b)
        if s.parallel[da] != s.parallel[db] or {da, db} & indexed_dims(s.op):
            return False
        for m in maps[i]:
            if (a in m) != (b in m) or (a in m and m[m.index(a) + 1 : m.index(a) + 2] != [b]):
                return False
    return True


def reassociation(groups: Sequence[int | None]) -> list[list[int]]:
    """Groups of value dimensions with the same leader; None (dropped) joins a neighbour. Empty when all are dropped."""
    result: list[list[int]] = []
    pending: list[int] = []
    previous = None
    for j, g in enumerate(groups):
        if g is None:
            (result[-1] if result else pending).append(j)
        elif result and g == previous:
            result[-1].append(j)
        else:
            result.append(pending + [j])
            pending, previous = [], g
    return result


class _Collapse:
    def __init__(self, block: ir.Block, dims: Dims, vectors: bool) -> None:
        self.dims, self.block = dims, block
        self.leader, self.dropped = merge_groups(dims, vectors)
        self.values: dict[ir.Value, ir.Value] = {}

    def groups(self, classes: Sequence[int | None]) -> list[int | None]:
        return [None if c is None or c in self.dropped else self.leader[c] for c in classes]

    def new_map(self, classes: Sequence[int | None], position: dict[int, int]) -> list[int | None]:
        groups = self.groups(classes)
        return [position[g] for j, g in enumerate(groups) if g is not None and (j == 0 or g not in groups[:j])]

    def reshape(self, value: ir.Value, classes: Sequence[int | None]) -> ir.Value:
        if value in self.values:
            return self.values[value]
        if not isinstance(value.type, ir.RankedTensorType):
            return value
        groups = reassociation(self.groups(classes))
        if len(groups) == len(classes):
            return value
        shape = [_product(shape_of(value)[j] for j in g) for g in groups]
        element = ir.RankedTensorType(value.type).element_type
        made_by = producer(value)
        if made_by is not None and made_by.name == "tensor.empty":
            return _build.empty(shape, element)
        return tensor.CollapseShapeOp(ir.RankedTensorType.get(shape, element), value, groups).result

    def rewrite(self, i: int) -> None:
        s, row = self.dims.structures[i], self.dims.of[i]
        order: list[int] = []
        for c in row:
            if c not in self.dropped and self.leader[c] not in order:
                order.append(self.leader[c])
        position = {c: p for p, c in enumerate(order)}
        classes = [self.dims.map_classes(i, m) for m in s.maps]
        with ir.InsertionPoint(s.op), s.op.location:
            operands = [self.reshape(v, c) for v, c in zip(s.operands, classes, strict=True)]
            n_in = len(s.inputs)
            if s.op.name == "linalg.fill":
                segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])}
                new = ir.Operation.create("linalg.fill", [operands[1].type], operands, segments, regions=1)
                s.op.regions[0].blocks[0].append_to(new.regions[0])
            else:
                maps = [self.new_map(c, position) for c in classes]
                parallel = [s.parallel[row.index(c)] for c in order]
                new = _build.generic(operands[:n_in], operands[n_in:], maps, parallel)
                renumber = {d: position.get(c) if c not in self.dropped else None for d, c in enumerate(row)}
                _build.take_body(new, s.op, renumber, {})
        for old, result in zip(s.op.results, new.results, strict=True):
            self.values[old] = result

    def restore(self, value: ir.Value, anchor: ir.Operation) -> None:
        """Gives users outside the group the value in its old shape."""
        new, shape = self.values[value], list(shape_of(value))
        if len(shape_of(new)) != len(shape):
            groups = reassociation(self.groups(self.dims.value_classes(value)))
            with ir.InsertionPoint(anchor), anchor.location:
                new = tensor.ExpandShapeOp(value.type, new, groups, [], shape).result
        value.replace_all_uses_with(new)


def _product(numbers) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result


def collapse(function: ir.Operation, erase=lambda op: op.erase(), vectors: bool = False) -> None:
    """Collapses the dimensions of a kernel function in place; does nothing when a dimension is empty. `vectors`: a
    contraction's m or n of 1 is dropped as well."""
    block = function.regions[0].blocks[0]
    ops = structured_ops(block)
    if not ops:
        return
    dims = Dims(ops)
    if 0 in dims.extent.values():
        return
    work = _Collapse(block, dims, vectors)
    if not work.dropped and all(a == b for a, b in work.leader.items()):
        return
    listed = list(block.operations)
    anchor = listed[max(i for i, o in enumerate(listed) if o.operation in set(dims.ops)) + 1].operation
    escaping = dims.escaping()
    for i in range(len(dims.ops)):
        work.rewrite(i)
    for value in escaping:
        work.restore(value, anchor)
    for op in reversed(dims.ops):
        erase(op)


@transform_op("collapse_dims", takes="func.func")
def collapse_dims(rewriter, targets):
    """Collapses the dimensions of each target function (see the module); the handle stays valid."""
    for function in targets:
        collapse(function.operation, rewriter.erase_op)
