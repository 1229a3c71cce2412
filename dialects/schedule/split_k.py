"""`schedule.split_k`: the K loop of a block program is divided among parts that work at once, whose sums are added.

    parts = scf.forall (p) in (P) { a part of the loop, from zero; its sums into [p] of [P, ...] }
    sum   = linalg.generic over the parts, in their order, into what the loop started from
    done  = scf.forall (q) in (P) { a share of the sum's rows or columns, and of all that follows it }

Both loops are plain loops over parts, to which `mlirc-distribute` gives a block of a cluster each; or they become
launches of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._build import Size
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule._launches import launches
from mlirc.dialects.schedule._share import share
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.dialects.schedule.tile_to_blocks import mapping_of
from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import affine, arith, ir, linalg, scf

PARTS = (2, 4, 8)  # blocks of a portable cluster
NUMBERS = 4096  # of all parts that a block of the second launch adds: some for each thread, and many blocks
NUMBERS_OF_WARP = 2048  # that a warp of the last block adds at once: 64 of each thread


@dataclass(frozen=True)
class Loop:
    """A loop that can be divided: `steps` of `step` up to `last`; the addition of each of its sums."""

    op: ir.Operation
    last: int
    step: int
    additions: list[str]

    @property
    def steps(self) -> int:
        return -(-self.last // self.step)

    @property
    def starts(self) -> list[ir.Value]:
        return list(self.op.operands)[3:]


def read_loop(op: ir.Operation, parts: int) -> Loop:
    """Reads a loop; raises PayloadError for one that cannot be divided into so many parts."""
    if op.parent.name != "scf.forall":
        raise PayloadError(f"the loop stands inside of an {op.parent.name}: tile_to_blocks comes first", op)
    if op.parent.operation.parent.name == "scf.forall":
        raise PayloadError("the loop is split already", op)
    bounds = [producer(v) for v in list(op.operands)[:3]]
    numbers = [ir.IntegerAttr(b.attributes["value"]).value for b in bounds if b and b.name == "arith.constant"]
    if len(numbers) != 3 or numbers[0] != 0:
        raise PayloadError("the loop is none of tile_reduction: from 0 to a constant", op)
    body = op.regions[0].blocks[0]
    additions = []
    for argument, value in zip(
        list(body.arguments)[1:], body.operations[len(body.operations) - 1].operands, strict=True
    ):
        made_by = producer(value)
        found = multiply_accumulate(made_by) if made_by is not None and made_by.name == "linalg.generic" else None
        if made_by is None or found is None or list(made_by.operands)[-1] != argument:
            raise PayloadError("the loop carries something other than the sums of contractions", op)
        additions.append(found.add)
    loop = Loop(op, numbers[1], numbers[2], additions)
    if loop.steps < parts:
        raise PayloadError(f"parts {parts}: the loop has {loop.steps} steps of {loop.step}: fewer parts or steps", op)
    return loop


def sizes_of(value: ir.Value) -> list[Size]:
    """The extents of a tile, those at an edge as values; raises PayloadError where nothing says what they are."""
    if ir.RankedTensorType(value.type).has_static_shape:
        return list(shape_of(value))
    made_by = producer(value)
    if made_by is not None and made_by.name == "tensor.empty":
        dynamic = iter(list(made_by.operands))
        return [next(dynamic) if n == _build.DYNAMIC else n for n in shape_of(value)]
    if made_by is not None and made_by.name == "tensor.extract_slice":
        kept = kept_dims(list(made_by.attributes["static_sizes"]), shape_of(value))
        sizes = mixed(made_by, "static_sizes", 2)
        return [sizes[i] for i in kept]
    if made_by is not None and made_by.name in ("linalg.fill", "linalg.generic"):
        first = len(made_by.operands) - len(made_by.results)
        return sizes_of(made_by.operands[first + list(made_by.results).index(value)])
    raise PayloadError("a tile whose extents at an edge are not known", made_by)


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def zero_tile(sizes: Sequence[Size], t: ir.Type) -> ir.Value:
    """A tile of zeros of an element type."""
    zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType) else ir.FloatAttr.get(t, 0.0)
    return linalg.fill(arith.ConstantOp(t, zero).result, outs=[_build.empty(sizes, t)])


def _divide(loop: Loop, parts: int) -> scf.ForallOp:
    """Moves the loop into a loop over parts, whose results have a dimension of parts in front."""
    sizes = [sizes_of(v) for v in loop.starts]
    with ir.InsertionPoint(loop.op), loop.op.location:
        outs = [_build.empty([parts, *s], _element(v)) for s, v in zip(sizes, loop.starts, strict=True)]
        forall = scf.ForallOp([0], [parts], [1], outs, mapping=mapping_of(1))
    with ir.InsertionPoint(forall.body), loop.op.location:
        part = ir.AffineExpr.get_dim(0)
        first = ir.AffineExpr.get_floor_div(part * loop.steps, parts) * loop.step
        until = ir.AffineExpr.get_floor_div((part + 1) * loop.steps, parts) * loop.step
        p = list(forall.induction_variables)
        lower = affine.AffineApplyOp(ir.AffineMap.get(1, 0, [first]), p).result
        if loop.last % loop.step:
            end = ir.AffineExpr.get_constant(loop.last)
            upper = affine.AffineMinOp(ir.AffineMap.get(1, 0, [until, end]), p).result
        else:
            upper = affine.AffineApplyOp(ir.AffineMap.get(1, 0, [until]), p).result
        zeros = [zero_tile(s, _element(v)) for s, v in zip(sizes, loop.starts, strict=True)]
        terminator = scf.InParallelOp()
    loop.op.move_before(terminator.operation)
    for i, value in enumerate([lower, upper]):
        loop.op.operands[i] = value
    for i, value in enumerate(zeros):
        loop.op.operands[3 + i] = value
    with ir.InsertionPoint(terminator.region.blocks[0]), loop.op.location:
        for s, value, out in zip(sizes, loop.op.results, forall.inner_iter_args, strict=True):
            _build.parallel_insert_slice(value, out, [p[0], *[0] * len(s)], [1, *s])
    return forall


def _add(parts: ir.Value, start: ir.Value, addition: str) -> ir.Value:
    """The sum over the first dimension, in order."""
    rank = len(shape_of(start))
    rest = list(range(1, rank + 1))
    op = _build.generic([parts], [start], [[0, *rest], rest], [False, *[True] * rank], ir.Location.current)
    block = op.regions[0].blocks.append(_element(parts), _element(start))
    with ir.InsertionPoint(block):
        part, total = block.arguments
        linalg.yield_([ir.Operation.create(addition, results=[total.type], operands=[total, part]).results[0]])
    return op.results[0]


def divide(
    op: ir.Operation, parts: int, through: str, numbers: int, erase: Callable[[ir.Operation], None]
) -> list[list[ir.Operation]]:
    """Divides a loop as `split_k` says; returns the payload of its results."""
    loop = read_loop(op, parts)
    starts, uses = loop.starts, [[(u.owner, u.operand_number) for u in r.uses] for r in loop.op.results]
    partial = _divide(loop, parts)
    block = list(partial.operation.block.operations)
    behind = block[block.index(partial) + 1]
    with ir.InsertionPoint(behind), loop.op.location:
        for value, start, addition, readers in zip(partial.results, starts, loop.additions, uses, strict=True):
            total = _add(value, start, addition)
            for owner, number in readers:
                owner.operation.operands[number] = total
    if through == "cluster":
        return [[partial.operation], [share(partial.operation, parts, erase)]]
    finish = share(partial.operation, parts, erase, numbers=numbers)
    return [[made] for made in launches(partial.operation, finish, erase)]


@transform_op(
    "split_k",
    operands=("loop",),
    results=("partial", "finish"),
    attributes={"parts": int, "through": str, "numbers": int},
    takes="scf.for",
    defaults={"numbers": NUMBERS},
)
def split_k(rewriter, loops, parts, through, numbers):
    """Divides a loop of `tile_reduction` into `parts`. The loop stays the same op, inside of the first of two loops
    over parts that are returned; what follows it in its block moves into the second one, which takes a share of the
    tile's rows (or of the columns, where the rows are fewer than shares) at a time.

    `through`: "cluster": both stay in the block program, and parts (2, 4 or 8) are the blocks of a cluster, which read
    the others' sums from their shared memory. "memory": both become launches of their own, in the place of the block
    program, whose handle is dead; the sums are a workspace in global memory. Parts can be any number then. A block of
    the second one adds about so many `numbers` of all parts.

    The steps of K are divided as evenly as they can be: their number need not be a multiple of `parts`.
    """
    if len(loops) != 1:
        raise PayloadError(f"split_k needs one loop, the handle has {len(loops)}", loops[0] if loops else None)
    if through not in ("cluster", "memory"):
        raise PayloadError(f'through "{through}": choose "cluster" or "memory"', loops[0])
    if parts < 2:
        raise PayloadError(f"parts {parts}: divide a loop into 2 or more", loops[0])
    if through == "cluster" and parts not in PARTS:
        listed = f"{', '.join(map(str, PARTS[:-1]))} or {PARTS[-1]}"
        raise PayloadError(f"parts {parts}: a cluster has {listed} blocks", loops[0])
    if numbers < 1:
        raise PayloadError(f"numbers {numbers}: a block adds 1 or more", loops[0])
    return divide(loops[0].operation, parts, through, numbers, rewriter.erase_op)
