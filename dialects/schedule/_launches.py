"""A block program with loops over parts becomes two: one launch computes the parts, into a workspace in global memory,
and the next one adds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import ir, nested, scf

Values = dict[ir.Value, ir.Value]


def launches(
    partial: ir.Operation, finish: ir.Operation, erase: Callable[[ir.Operation], None]
) -> tuple[ir.Operation, ir.Operation]:
    """Makes an scf.forall of its own of each of two loops over parts of a block program, which is erased: the first one
    writes what each part of each block has computed into a tensor [blocks ..., parts, tile ...], the second one reads
    it. Returns both."""
    whole = partial.parent.operation
    ops = [o.operation for o in partial.block.operations]
    at = ops.index(partial)
    counts = list(ir.DenseI64ArrayAttr(whole.attributes["staticUpperBound"]))
    first, spaces = _first(whole, partial, ops[:at], counts)
    front = [*ops[:at], *ops[at + 1 : ops.index(finish)]]
    second = _second(whole, partial, finish, front, counts, spaces)
    for old, new in zip(whole.results, second.results, strict=True):
        old.replace_all_uses_with(new)
    erase(whole)
    return first, second


def _forall(counts: Sequence[int], outs: Sequence[ir.Value]) -> scf.ForallOp:
    rank = len(counts)
    return scf.ForallOp([0] * rank, list(counts), [1] * rank, list(outs), mapping=mapping_of(rank))


def _arguments(op: ir.Operation, rank: int) -> list[ir.Value]:
    return list(op.regions[0].blocks[0].arguments)[:rank]


def _copied(front: list[ir.Operation], values: Values) -> None:
    """Clones what stands in front of the loops at the insertion point; `values` learns of the results."""
    for op in front:
        _build.clone(op, values)


def moved_body(body: ir.Block, before: ir.Operation, values: Values) -> ir.Operation:
    """Moves all ops of a block but its terminator, which it returns, with `values` in place of others."""
    *ops, terminator = [o.operation for o in body.operations]
    for op in ops:
        op.move_before(before)
    for op in (*ops, terminator):
        for inner in [op, *nested(op)]:
            for i, value in enumerate(inner.operands):
                if value in values:
                    inner.operands[i] = values[value]
    return terminator


def terminator_of(op: ir.Operation) -> ir.Operation:
    ops = op.regions[0].blocks[0].operations
    return ops[len(ops) - 1].operation


def _inserts(terminator: ir.Operation) -> list[ir.Operation]:
    return [o.operation for o in terminator.regions[0].blocks[0].operations]


def _static(shape: Sequence[int], bounds: Sequence[Size]) -> list[int]:
    """Extents of a workspace: a tile at an edge has the room of any other."""
    return [_build.bound(size) if n == _build.DYNAMIC else n for n, size in zip(shape, bounds, strict=True)]


def _first(whole, partial, front, counts) -> tuple[ir.Operation, list[ir.Value]]:
    """The launch that computes parts; and the workspaces."""
    body = partial.regions[0].blocks[0]
    inserts = _inserts(terminator_of(partial))
    with ir.InsertionPoint(whole), partial.location:
        outs = []
        for insert in inserts:
            out = shape_of(insert.operands[1])
            shape = _static(out, [out[0], *mixed(insert, "static_sizes", 3)[1:]])
            outs.append(_build.empty([*counts, *shape], ir.RankedTensorType(insert.operands[1].type).element_type))
        (parts,) = list(ir.DenseI64ArrayAttr(partial.attributes["staticUpperBound"]))
        forall = _forall([*counts, parts], outs)
    ivs, values = (
        list(forall.induction_variables),
        dict(zip(_arguments(whole, len(counts)), forall.induction_variables, strict=False)),
    )
    values[body.arguments[0]] = ivs[-1]
    with ir.InsertionPoint(forall.body), partial.location:
        _copied(front, values)
        terminator = scf.InParallelOp()
    moved_body(body, terminator.operation, values)
    with ir.InsertionPoint(terminator.region.blocks[0]), partial.location:
        for insert, out in zip(inserts, forall.inner_iter_args, strict=True):
            sizes = mixed(insert, "static_sizes", 3)
            _build.parallel_insert_slice(
                insert.operands[0], out, [*ivs, *[0] * (len(sizes) - 1)], [*[1] * len(counts), *sizes]
            )
    return forall.operation, list(forall.results)


def _second(whole, partial, finish, front, counts, spaces) -> ir.Operation:
    """The launch that adds parts and stores results."""
    body = finish.regions[0].blocks[0]
    (shares,) = list(ir.DenseI64ArrayAttr(finish.attributes["staticUpperBound"]))
    outer = _inserts(terminator_of(whole))
    with ir.InsertionPoint(whole), finish.location:
        outs = [_build.empty(list(shape_of(v)), ir.RankedTensorType(v.type).element_type) for v in whole.results]
        forall = _forall([*counts, shares], outs)
    ivs = list(forall.induction_variables)
    values = dict(zip(_arguments(whole, len(counts)), ivs, strict=False))
    values[body.arguments[0]] = ivs[-1]
    with ir.InsertionPoint(forall.body), finish.location:
        _copied(front, values)
        terminator = scf.InParallelOp()
    inserts = _inserts(moved_body(body, terminator.operation, values))
    for result, space in zip(partial.results, spaces, strict=True):
        _slice_uses(result)
        for use in [u.owner.operation for u in result.uses]:
            _read_from(use, space, ivs[: len(counts)])
    of = {i.operands[0]: i for i in outer}
    for result, insert in zip(finish.results, inserts, strict=True):
        target = of[result]
        place = list(whole.regions[0].blocks[0].arguments).index(target.operands[1]) - len(counts)
        with ir.InsertionPoint(terminator), finish.location:
            offsets, sizes = _joined(target, insert, values)
        with ir.InsertionPoint(terminator.region.blocks[0]), finish.location:
            _build.parallel_insert_slice(insert.operands[0], forall.inner_iter_args[place], offsets, sizes)
    return forall.operation


def _slice_uses(parts: ir.Value) -> None:
    """What reads all of what parts have computed reads a slice of it: nothing of it is shared."""
    made_by = producer(list(parts.owner.operands)[-len(parts.owner.results) :][list(parts.owner.results).index(parts)])
    assert made_by is not None  # a tensor.empty of the parts' sizes
    dynamic = iter(list(made_by.operands))
    sizes = [next(dynamic) if n == _build.DYNAMIC else n for n in shape_of(parts)]
    for use in [u for u in parts.uses if u.owner.operation.name != "tensor.extract_slice"]:
        owner, number = use.owner.operation, use.operand_number
        with ir.InsertionPoint(owner), owner.location:
            owner.operands[number] = _build.extract_slice(parts, [0] * len(sizes), sizes)


def _read_from(slice_op: ir.Operation, space: ir.Value, block: list[ir.Value]) -> None:
    """Replaces a slice of all parts by one of the workspace."""
    if slice_op.name != "tensor.extract_slice":
        raise PayloadError("reads the parts of K otherwise than by slices", slice_op)
    offsets, sizes = mixed(slice_op, "static_offsets", 1), mixed(slice_op, "static_sizes", 2)
    with ir.InsertionPoint(slice_op), slice_op.location:
        lead = len(block)
        new = _build.extract_slice(space, [*block, *offsets], [*[1] * lead, *sizes], list(range(lead)))
    slice_op.results[0].replace_all_uses_with(new)
    slice_op.erase()


def _joined(outer: ir.Operation, inner: ir.Operation, values: Values) -> tuple[list[Size], list[Size]]:
    """Where a share of a tile goes in the whole result."""
    offsets, sizes = mixed(outer, "static_offsets", 2), mixed(outer, "static_sizes", 3)
    kept = kept_dims(list(outer.attributes["static_sizes"]), shape_of(outer.operands[0]))
    offsets = [values.get(o, o) if isinstance(o, ir.Value) else o for o in offsets]
    for at, by, size in zip(kept, mixed(inner, "static_offsets", 2), mixed(inner, "static_sizes", 3), strict=True):
        offsets[at], sizes[at] = _build.added(offsets[at], by), size
    return offsets, sizes
