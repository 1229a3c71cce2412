"""`schedule.split_tested_steps`: the steps of a loop that all rows of the block see whole go through a loop of their
own, without tests of positions and with tiles of static size."""

from __future__ import annotations

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import body_of
from mlirc.dialects.schedule._limits import limits_of, number_of, read_loop
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import affine, ir, nested, scf


class Untested:
    """Copies a loop's body for steps that are whole, and whose elements are all seen."""

    def __init__(self, values: dict[ir.Value, ir.Value], iv: ir.Value, step: int) -> None:
        self.values, self.iv, self.step = values, iv, step

    def copy(self, op: ir.Operation) -> None:
        """Adds the op on the copied operands at the insertion point, with their static sizes."""
        if op.name == "affine.min" and self.iv in list(op.operands):
            results = [_build.index(self.step)]
        elif op.name == "tensor.empty":
            results = [_build.empty(self._sizes(op), ir.RankedTensorType(op.results[0].type).element_type)]
        elif op.name == "tensor.extract_slice":
            results = [self._slice(op)]
        else:
            results = self._clone(op)
        self.values |= dict(zip(op.results, results, strict=True))

    def _known(self, size: Size) -> Size:
        """A size, as a number where the copy has one."""
        if isinstance(size, int):
            return size
        new = self.values.get(size, size)
        number = number_of(new)
        return new if number is None else number

    def _sizes(self, op: ir.Operation) -> list[Size]:
        dynamic = iter(list(op.operands))
        return [self._known(next(dynamic)) if n == _build.DYNAMIC else n for n in shape_of(op.results[0])]

    def _slice(self, op: ir.Operation) -> ir.Value:
        offsets, sizes = mixed(op, "static_offsets", 1), mixed(op, "static_sizes", 2)
        kept = kept_dims(list(op.attributes["static_sizes"]), shape_of(op.results[0]))
        moved = [o if isinstance(o, int) else self.values.get(o, o) for o in offsets]
        source = self.values.get(op.operands[0], op.operands[0])
        dropped = [j for j in range(len(sizes)) if j not in kept]
        return _build.extract_slice(source, moved, [self._known(s) for s in sizes], dropped)

    def _clone(self, op: ir.Operation) -> list[ir.Value]:
        new = op.clone().operation
        for inner in [new, *nested(new)]:
            for i, v in enumerate(inner.operands):
                if v in self.values:
                    inner.operands[i] = self.values[v]
        if op.name in ("linalg.generic", "linalg.fill"):
            for result, out in zip(new.results, list(new.operands)[-len(new.results) :], strict=True):
                result.set_type(out.type)
        if op.name == "linalg.generic" and (same := _without_tests(new)) is not None:
            new.erase()
            return [same]
        return list(new.results)


def _without_tests(op: ir.Operation) -> ir.Value | None:
    """Takes the limits by position out of an elementwise op; returns the operand that is its result, if it does nothing
    else."""
    if any("reduction" in str(i) for i in op.attributes["iterator_types"]) or len(op.results) != 1:
        return None
    limits = limits_of(op)
    for limit in limits:
        limit.select.results[0].replace_all_uses_with(limit.select.operands[1])
        limit.select.erase()
    value = list(body_of(op).operations)[-1].operation.operands[0]
    maps = [m.value for m in op.attributes["indexing_maps"]]
    if not limits or not isinstance(value.owner, ir.Block):
        return None
    number = list(body_of(op).arguments).index(value)
    same = maps[number] == maps[-1] and op.operands[number].type == op.results[0].type
    return op.operands[number] if same else None


def split(loop: ir.Operation) -> list[ir.Operation]:
    """Makes the loop in front; returns both, or the one that there is."""
    bounds = read_loop(loop)
    if bounds.lower or bounds.start != 0:
        raise PayloadError("the first steps are tested, too: they cannot go in front", loop)
    whole = bounds.end // bounds.step * bounds.step
    if whole == 0 or (not bounds.upper and whole == bounds.end):
        return [loop]
    with ir.InsertionPoint(loop), loop.location:
        middle = _middle(bounds, whole)
        operands = list(loop.operands)
        front = scf.ForOp(operands[0], middle, operands[2], operands[3:])
    old, new = loop.regions[0].blocks[0], front.body
    untested = Untested(dict(zip(old.arguments, new.arguments, strict=True)), old.arguments[0], bounds.step)
    with ir.InsertionPoint(new), loop.location:
        for op in old.operations:
            untested.copy(op.operation)
    for name in [n for n in loop.attributes if n.startswith("mlirc.")]:
        front.operation.attributes[name] = loop.attributes[name]
    loop.operands[0] = middle
    for i, result in enumerate(front.results):
        loop.operands[3 + i] = result
    return [front.operation, loop]


def _middle(bounds, whole: int) -> ir.Value:
    """The end of the steps that the block's first row sees whole."""
    if not bounds.upper:
        return _build.index(whole)
    limit, step = min(bounds.upper), bounds.step
    d = ir.AffineExpr.get_dim(0)
    if limit < 0:
        seen, of = ir.AffineExpr.get_floor_div(d, step) * step, bounds.row_or_first(limit + 1)
    else:
        seen, of = ir.AffineExpr.get_floor_div(d + (limit + 1), step) * step, bounds.row()
    return affine.AffineMinOp(ir.AffineMap.get(1, 0, [ir.AffineExpr.get_constant(whole), seen]), [of]).result


@transform_op("split_tested_steps", operands=("loop",), consumes=("loop",), results=("loops",), takes="scf.for")
def split_tested_steps(rewriter, loops):
    """Puts a loop in front of each one, of the steps that are whole and that every row of the block sees (by the limits
    by position in the body), without tests and with static sizes. Returns the loops, the front one of each first."""
    return [[part for loop in loops for part in split(loop.operation)]]
