"""`schedule.swap_operands`: a product computed as its transpose, C^T = B^T A^T.

An instruction's rows and columns are not alike: wgmma takes 64 rows of its first operand and as few as 8 columns. Where
a product has few rows, and its weights are the second operand, the weights are the first one of the transpose. What
follows elementwise is computed on the transpose, too (neighbours in registers stay neighbours); the end of that is
transposed back where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import LINALG, PayloadError, transform_op
from mlirc.dialects.schedule._dims import contraction, producer, structure
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.mlir import ir, linalg


def _element(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _transposed(value: ir.Value, order: list[int]) -> ir.Value:
    """A tile with its dimensions in another order: of a fill a fill, else an elementwise op."""
    sizes = sizes_of(value)
    out = _build.empty([sizes[d] for d in order], _element(value))
    made_by = producer(value)
    if made_by is not None and made_by.name == "linalg.fill":
        return linalg.fill(made_by.operands[0], outs=[out])
    return _copied(value, out, order)


def _copied(value: ir.Value, out: ir.Value, order: list[int]) -> ir.Value:
    """`out[i, j, ...] = value[...]`, whose dimension `order[i]` is `out`'s i."""
    rank = len(order)
    source = [order.index(d) for d in range(rank)]
    op = _build.generic([value], [out], [source, list(range(rank))], [True] * rank)
    block = op.regions[0].blocks.append(_element(value), _element(out))
    with ir.InsertionPoint(block):
        linalg.YieldOp([block.arguments[0]])
    return op.results[0]


def swapped(op: ir.Operation, erase: Callable[[ir.Operation], None]) -> ir.Operation:
    """Replaces a product by one that computes its transpose, and a transposition behind what follows elementwise;
    returns the new product. Raises PayloadError for what is none."""
    roles = contraction(op)
    if roles is None:
        raise PayloadError("it is no contraction (out += a * b): match_contractions finds them", op)
    if not roles.m or not roles.n:
        raise PayloadError("a product of a matrix and a vector has no operands to swap", op)
    s = structure(op)
    lead = s.maps[2]
    kept = [d for d in lead if d not in (*roles.m, *roles.n)]
    order_of = [*kept, *(d for d in lead if d in roles.n), *(d for d in lead if d in roles.m)]
    order = [lead.index(d) for d in order_of]
    back = [order.index(i) for i in range(len(order))]
    with ir.InsertionPoint(op), op.location:
        init = _transposed(s.outputs[0], order)
        a, b = s.inputs
        new = _build.generic([b, a], [init], [s.maps[1], s.maps[0], order_of], list(s.parallel))
        for name in op.attributes:
            if name.startswith("mlirc."):
                new.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(_first_user(op)), op.location:  # behind other products, whose loop this one may share
        sizes = sizes_of(s.outputs[0])
        result = _copied(new.results[0], _build.empty(sizes, _element(op.results[0])), back)
    op.results[0].replace_all_uses_with(result)
    _body(op, new, (1, 0, 2))
    erase(op)
    last: ir.Operation | None = result.owner.operation
    while last is not None:
        last = _sunk(last, erase)
    return new


def _sunk(copy: ir.Operation, erase: Callable[[ir.Operation], None]) -> ir.Operation | None:
    """Moves a transposition behind the one elementwise op that reads its result; returns it, None where it stays."""
    users = {u.owner.operation for u in copy.results[0].uses}
    if len(users) != 1:
        return None
    [op] = users
    if op.name != "linalg.generic" or op.block != copy.block or len(op.results) != 1:
        return None
    s, source, back = structure(op), copy.operands[0], structure(copy).maps[0]
    read = [i for i, v in enumerate(s.inputs) if v == copy.results[0]]
    written = any(True for _ in list(op.regions[0].blocks[0].arguments)[-1].uses)
    if not all(s.parallel) or written or len(read) != 1 or None in (*s.maps[read[0]], *s.maps[-1]):
        return None
    # The op's dimension that each of the source's is, which is the copy's dimension `back[i]`.
    dims = [s.maps[read[0]][d] for d in back if d is not None]
    if not set(s.maps[-1]) <= set(dims):
        return None
    result = tuple(sorted(s.maps[-1], key=dims.index))
    inputs = [source if i == read[0] else v for i, v in enumerate(s.inputs)]
    maps = [tuple(dims) if i == read[0] else m for i, m in enumerate(s.maps[:-1])]
    sizes = sizes_of(s.outputs[0])
    with ir.InsertionPoint(op), op.location:
        out = _build.empty([sizes[s.maps[-1].index(d)] for d in result], _element(op.results[0]))
        new = _build.generic(inputs, [out], [*maps, result], list(s.parallel))
        _body(op, new, range(len(s.operands)))
        if result == s.maps[-1]:
            op.results[0].replace_all_uses_with(new.results[0])
            moved = None
        else:
            order = [result.index(d) for d in s.maps[-1]]
            value = _copied(new.results[0], _build.empty(sizes, _element(op.results[0])), order)
            op.results[0].replace_all_uses_with(value)
            moved = value.owner.operation
    erase(op)
    erase(copy)
    return moved


def _first_user(op: ir.Operation) -> ir.Operation:
    """The first op of a product's block that reads its result, or has one in it that does; its end where none does."""
    users = []
    for use in op.results[0].uses:
        user = use.owner.operation
        while user.block != op.block:
            user = user.parent.operation
        users.append(user)
    order = [o.operation for o in op.block.operations]
    return min(users, key=order.index, default=order[-1])


def _body(old: ir.Operation, new: ir.Operation, order: Sequence[int]) -> None:
    """Gives an op the body of another one, whose operand `order[i]` is its i."""
    arguments = list(old.regions[0].blocks[0].arguments)
    block = new.regions[0].blocks.append(*(arguments[i].type for i in order))
    values = {arguments[i]: a for i, a in zip(order, block.arguments, strict=True)}
    with ir.InsertionPoint(block):
        for inner in old.regions[0].blocks[0].operations:
            _build.clone(inner.operation, values)


@transform_op(
    "swap_operands",
    operands=("contractions",),
    consumes=("contractions",),
    results=("swapped",),
    takes=LINALG,
)
def swap_operands(rewriter, contractions):
    """Computes products as their transposes: the second operand is the first one then, and the rows of the result are
    its columns. To be used in front of `tile_reduction`; `warp_grid` is of the transpose."""
    found = []
    for op in contractions:
        if op.operation.parent.name == "scf.for":
            raise PayloadError("stands in a loop that carries its sums: swap_operands comes before tile_reduction", op)
        found.append(swapped(op.operation, rewriter.erase_op))
    return [found]
