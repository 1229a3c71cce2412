"""Results that a block of a forall may not have: what it inserts then is a slice of no rows, whose size is a selection
between that of the tile and 0 (`schedule.stream_k`). What only such a result needs is built where the block has it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mlirc.dialects import rings
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.program.scope import Scope

# What is nothing but numbers and tiles, and may so be built later.
_QUIET = ("affine", "arith", "math", "tensor", "linalg")


@dataclass(frozen=True)
class Gate:
    """What a tensor.parallel_insert_slice inserts where `condition` holds: the tile `tile`; the `ops` that nothing else
    needs, in order, but for the `slice`."""

    insert: ir.Operation
    condition: ir.Value
    tile: ir.Value
    ops: tuple[ir.Operation, ...]
    slice: ir.Operation

    @property
    def left_out(self) -> tuple[ir.Operation, ...]:
        """What is not built where it stands."""
        return (*self.ops, self.slice)


def gates_of(body: ir.Block) -> dict[ir.Operation, Gate]:
    """The gates of a block program, by what inserts."""
    inserts = [o.operation for o in list(body.operations)[-1].operation.regions[0].blocks[0].operations]
    yielded = _yielded(body)
    found: dict[ir.Operation, Gate] = {}
    for insert in inserts:
        source = insert.operands[0]
        source = yielded.get(source, source)
        gate = _condition(insert, source)
        if gate is not None:
            condition, slice_op = gate
            found[insert] = Gate(insert, condition, slice_op.operands[0], _alone(body, slice_op), slice_op)
    return found


def _yielded(body: ir.Block) -> dict[ir.Value, ir.Value]:
    """What roles give, as it is inside of them."""
    found: dict[ir.Value, ir.Value] = {}
    for op in (o.operation for o in body.operations):
        if op.name == rings.ROLES:
            found |= {rings.outside(v): v for v in rings.yielded(op.regions[1].blocks[0])}
    return found


def _condition(insert: ir.Operation, source: ir.Value) -> tuple[ir.Value, ir.Operation] | None:
    """(condition, slice) of an insert of a slice that is a whole tile or no row of it."""
    if isinstance(source.owner, ir.Block) or source.owner.name != "tensor.extract_slice":
        return None
    slice_op = source.owner.operation
    sizes = slices.dynamic_sizes(slice_op)
    found = next((g for size in sizes if (g := slices.gated(size))), None)
    if found is None or slices.is_global(slice_op.operands[0]):
        return None
    condition, size = found
    whole = _sizes(slice_op.operands[0])
    mine = [g[1] if isinstance(v, ir.Value) and (g := slices.gated(v)) else v for v in _all_sizes(slice_op)]
    same = len(whole) == len(mine) and all(_same(a, b) for a, b in zip(whole, mine, strict=True))
    conditions = {g[0] for v in sizes if (g := slices.gated(v))}
    gated_insert = any(slices.gated(v) for v in slices.dynamic_sizes(insert))
    return (condition, slice_op) if same and len(conditions) == 1 and gated_insert else None


def _same(a: ir.Value | int, b: ir.Value | int) -> bool:
    known = [slices.known(v) if isinstance(v, ir.Value) else v for v in (a, b)]
    return a == b or None not in known and known[0] == known[1]


def _all_sizes(op: ir.Operation) -> list[ir.Value | int]:
    dynamic = iter(slices.dynamic_sizes(op))
    return [next(dynamic) if n == slices.DYNAMIC else n for n in ir.DenseI64ArrayAttr(op.attributes["static_sizes"])]


def _sizes(value: ir.Value) -> list[ir.Value | int]:
    """The extents of a tile, where its definition shows them."""
    shape = list(ir.RankedTensorType(value.type).shape)
    if slices.DYNAMIC not in shape:
        return list(shape)
    if isinstance(value.owner, ir.Block):
        return []
    op = value.owner.operation
    if op.name == "tensor.empty":
        dynamic = iter(list(op.operands))
        return [next(dynamic) if n == slices.DYNAMIC else n for n in shape]
    if op.name == "tensor.extract_slice":
        kept = slices.kept_dims(op, value)
        return [_all_sizes(op)[i] for i in kept]
    if op.name == "scf.for":
        return _sizes(list(op.operands)[3 + list(op.results).index(value)])
    if op.name in ("linalg.fill", "linalg.generic"):
        return _sizes(list(op.operands)[len(op.operands) - len(op.results) + list(op.results).index(value)])
    return []


def _alone(body: ir.Block, last: ir.Operation) -> tuple[ir.Operation, ...]:
    """What nobody but `last` needs, of a block program and of what its computing warps do, in order."""
    ops = [o.operation for o in body.operations]
    for op in list(ops):
        if op.name == rings.ROLES:
            at = ops.index(op)
            ops[at : at + 1] = [op, *[o.operation for o in op.regions[1].blocks[0].operations]]
    place = {op: i for i, op in enumerate(ops)}
    inside = {inner: op for op in ops if op.name != rings.ROLES for inner in [op, *nested(op)]}
    found = {last}
    for op in reversed(ops[: place[last]]):
        users = [u.owner.operation for r in op.results for u in r.uses]
        if op.name.split(".")[0] in _QUIET and users and all(inside.get(u) in found for u in users):
            found.add(op)
    return tuple(op for op in ops if op in found and op != last)


def workspaces(forall: ir.Operation, found: Collection[ir.Operation]) -> frozenset[ir.Operation]:
    """Of inserts with gates those of what another block program reads."""
    read = [any(u.owner.operation.parent.name != "func.func" for u in r.uses) for r in forall.results]
    shared = list(forall.regions[0].blocks[0].arguments)[-len(read) :]
    return frozenset(insert for insert in found if read[shared.index(insert.operands[1])])


@contextmanager
def behind(scope: Scope, gate: Gate | None) -> Iterator[Scope]:
    """The scope in which a result is stored: where it is not always there, what it alone needs is built here."""
    if gate is None:
        yield scope
        return
    with access.predicated(scope.em.condition(scope.scalar(gate.condition))):
        inside = scope.inside()
        for op in gate.ops:
            inside.lower(op)
        inside.tiles[gate.insert.operands[0]] = inside.tile(gate.tile)
        yield inside
