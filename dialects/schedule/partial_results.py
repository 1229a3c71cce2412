"""`schedule.partial_results`: what a kernel's last ops reduce of groups of its result's rows is reduced by its blocks.

A kernel may end in ops marked `mlirc.partial` (`mlirc-partial-rows` makes such): a result [M, N], seen as [M, N/G, G],
is reduced along G, as squares are added up for the norm behind. A block that has whole groups reduces them itself."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.mlirc_dialect import PARTIAL
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.ir.tensors import VIEWS, shape_of, through_views
from mlirc.mlir import func, ir, linalg, scf, tensor


@dataclass(frozen=True)
class Partial:
    """`op` reduces groups of `width` elements of a row of `value`, from `start` on."""

    op: ir.Operation
    value: ir.Value
    width: int
    start: ir.Operation


def partials_of(block: ir.Block) -> list[Partial]:
    """The partial reductions of a kernel. Raises PayloadError for a marked op that is none."""
    found = []
    for op in (o.operation for o in block.operations):
        if PARTIAL not in op.attributes or op.name == "linalg.fill":
            continue
        view, start = producer(op.operands[0]), producer(op.operands[1])
        if view is None or view.name != "tensor.expand_shape" or start is None or start.name != "linalg.fill":
            raise PayloadError("no partial reduction of a result", op)
        found.append(Partial(op, view.operands[0], shape_of(view.results[0])[-1], start))
    return found


def detach_partials(function: ir.Operation) -> int:
    """Makes a kernel function that ends in partial reductions one that returns what they reduce, for analyses; returns
    how many elements of a row each part has, 0 for another function, which stays as it is."""
    block = function.regions[0].blocks[0]
    found = partials_of(block)
    if not found:
        return 0
    values = {p.op.results[0]: p.value for p in found}
    last = list(block.operations)[-1].operation
    returned = list(dict.fromkeys(values.get(v, v) for v in last.operands))
    with ir.InsertionPoint(last), last.location:
        func.ReturnOp(returned)
    last.erase()
    for p in found:
        views = p.op.operands[0].owner.operation
        p.op.erase()
        views.erase()
        if not any(True for _ in p.start.results[0].uses):
            p.start.erase()
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    new = ir.FunctionType.get(type_.inputs, [v.type for v in returned])
    function.attributes["function_type"] = ir.TypeAttr.get(new)
    return min(p.width for p in found)


def _inserts(forall: ir.Operation) -> dict[int, ir.Operation]:
    """What a block writes, by the number of the result."""
    body = forall.regions[0].blocks[0]
    shared = list(body.arguments)[-len(forall.results) :]
    terminator = list(body.operations)[-1].operation
    found = {}
    for op in (o.operation for o in terminator.regions[0].blocks[0].operations):
        found[shared.index(op.operands[1])] = op
    return found


class _Reducing:
    """Makes a forall with the results of the function out of one whose results the last ops reduce in part."""

    def __init__(self, forall: ir.Operation, partials: list[Partial]) -> None:
        self.forall, self.partials = forall, partials
        self.inserts = _inserts(forall)
        self.number = {p.op: list(forall.results).index(through_views(p.value)) for p in partials}
        # Squares that nothing but their reduction reads are no result.
        self.kept = [n for n, r in enumerate(forall.results) if not self._is_inner(r)]

    def _is_inner(self, value: ir.Value) -> bool:
        """Whether nothing but partial reductions reads a result, through views."""
        for use in value.uses:
            op = use.owner.operation
            if op.name in VIEWS:
                if not self._is_inner(op.results[0]):
                    return False
            elif PARTIAL not in op.attributes:
                return False
        return True

    def build(self) -> list[ir.Value]:
        """Puts the new forall in front of the old one, whose body it takes; returns its results: those that are kept,
        then the parts."""
        old = self.forall
        body = old.regions[0].blocks[0]
        upper = list(ir.DenseI64ArrayAttr(old.attributes["staticUpperBound"]))
        first = len(list(old.operands)) - len(old.results)
        outs = [old.operands[first + n] for n in self.kept]
        for p in self.partials:
            t = ir.RankedTensorType(p.op.results[0].type)
            outs.append(_build.empty(list(t.shape), t.element_type))
        new = scf.ForallOp([0] * len(upper), upper, [1] * len(upper), outs, mapping=old.attributes["mapping"])
        for mine, theirs in zip(new.induction_variables, list(body.arguments)[: len(upper)], strict=True):
            theirs.replace_all_uses_with(mine)
        with ir.InsertionPoint(new.body):
            terminator = scf.InParallelOp()
        for op in [o.operation for o in body.operations][:-1]:
            op.move_before(terminator.operation)
        shared = list(new.inner_iter_args)
        with ir.InsertionPoint(terminator.operation):
            stores = [self._part(p) for p in self.partials]
        inner = terminator.region.blocks[0]
        with ir.InsertionPoint(inner):
            for n, out in zip(self.kept, shared, strict=False):
                insert = self.inserts[n]
                offsets, sizes = mixed(insert, "static_offsets", 2), mixed(insert, "static_sizes", 3)
                _build.parallel_insert_slice(insert.operands[0], out, offsets, sizes)
            for (tile, offsets, sizes), out in zip(stores, shared[len(self.kept) :], strict=True):
                _build.parallel_insert_slice(tile, out, offsets, sizes)
        return list(new.results)

    def _part(self, p: Partial) -> tuple[ir.Value, list[Size], list[Size]]:
        """What a block has of a partial reduction, and where that goes."""
        insert = self.inserts[self.number[p.op]]
        tile, width = insert.operands[0], p.width
        offsets, sizes = mixed(insert, "static_offsets", 2), mixed(insert, "static_sizes", 3)
        columns, shape = sizes[-1], list(shape_of(tile))
        if not isinstance(columns, int) or columns % width or shape[-1] != columns:
            raise PayloadError(f"a block has {columns} elements of a row, not groups of {width}", insert)
        groups = columns // width
        at = offsets[-1]
        d = ir.AffineExpr.get_dim(0)
        begin: Size = at // width if isinstance(at, int) else _build.applied(ir.AffineExpr.get_floor_div(d, width), at)
        outer, rank = sizes_of_tile(sizes, shape), len(shape)
        element = ir.RankedTensorType(tile.type).element_type
        if groups > 1:
            t = ir.RankedTensorType.get([*shape[:-1], groups, width], element)
            order = [[i] for i in range(rank - 1)] + [[rank - 1, rank]]
            grown: list[Size] = [*outer, groups, width]
            dynamic, static = _build.split(grown)
            tile = tensor.ExpandShapeOp(t, tile, order, dynamic, static).result
        kept = [*outer, groups] if groups > 1 else outer
        constant = producer(p.start.operands[0])  # which stands behind the block program
        first = p.start.operands[0] if constant is None else constant.clone().results[0]
        start = linalg.fill(first, outs=[_build.empty(kept, element)])
        loops = len(shape_of(tile))
        dims = list(range(loops))
        made = _build.generic([tile], [start], [dims, dims[:-1]], [*[True] * (loops - 1), False])
        p.op.regions[0].blocks[0].append_to(made.regions[0])
        full = shape_of(p.op.results[0])
        lead = [(o, s) for o, s in zip(offsets[:-1], sizes[:-1], strict=True)]
        if len(full) != len(offsets):  # a row alone: the result has unit dimensions in front
            units = len(full) - len(offsets)
            lead = [(0, 1)] * units + lead
        return made.results[0], [*[o for o, _ in lead], begin], [*[s for _, s in lead], groups]


def sizes_of_tile(sizes: list[Size], shape: list[int]) -> list[Size]:
    """The extents of a tile's dimensions but for the last, of those of what it is inserted as."""
    if len(shape) == len(sizes):
        return sizes[:-1]
    return [s for s in sizes[:-1] if s != 1][: len(shape) - 1]


@transform_op("partial_results", operands=("forall",), consumes=("forall",), results=("reduced",), takes="scf.forall")
def partial_results(rewriter, foralls):
    """Moves the last ops of a kernel, which reduce its result in parts, into each block program: its tiles have whole
    parts. Nothing else is written of what only they read."""
    made = []
    for forall in foralls:
        forall = forall.operation
        block = forall.block
        found = partials_of(block)
        if not found or any(through_views(p.value) not in list(forall.results) for p in found):
            raise PayloadError("the kernel does not end in partial reductions of the block program's results", forall)
        with ir.InsertionPoint(forall), forall.location:
            work = _Reducing(forall, found)
            results = work.build()
        for n, value in zip(work.kept, results, strict=False):
            forall.results[n].replace_all_uses_with(value)
        for p, value in zip(found, results[len(work.kept) :], strict=True):
            p.op.results[0].replace_all_uses_with(value)
        for p in found:
            view = p.op.operands[0].owner.operation
            rewriter.erase_op(p.op)
            while view.name in VIEWS and not any(True for _ in view.results[0].uses):
                source = producer(view.operands[0])
                rewriter.erase_op(view)
                if source is None:
                    break
                view = source
            if not any(True for _ in p.start.results[0].uses):
                rewriter.erase_op(p.start)
        new = results[0].owner.operation
        rewriter.erase_op(forall)
        made.append(new)
    return [made]
