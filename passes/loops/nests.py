"""Which loops of a bufferized kernel can run as threads, and which neighbouring loops as one launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mlirc.mlir import ir, nested

_VIEWS = {
    "memref.cast", "memref.subview", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast",
    "memref.transpose", "memref.view", "memref.reshape", "memref.memory_space_cast",
}  # fmt: skip
_PURE_DIALECTS = {"arith", "math", "affine", "index", "vector"}


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """The operation and all nested in it."""
    yield op
    yield from nested(op)


def owner(value: ir.Value) -> ir.Operation | None:
    """The operation that defines a value; None for a block argument."""
    return value.owner.operation if isinstance(value.owner, ir.Operation | ir.OpView) else None


def is_view(op: ir.Operation) -> bool:
    return op.name in _VIEWS


def is_pure(op: ir.Operation) -> bool:
    if op.name == "memref.get_global":
        return True
    return not op.regions and op.name.split(".")[0] in _PURE_DIALECTS and op.name != "vector.store"


def root(buffer: ir.Value) -> ir.Value:
    """The argument or allocation that a memref is a view of."""
    while (op := owner(buffer)) is not None and is_view(op):
        buffer = op.operands[0]
    return buffer


def constant(value: ir.Value) -> int | None:
    """The number of an integer or index constant, else None."""
    op = owner(value)
    if op is None or op.name != "arith.constant" or not isinstance(op.attributes["value"], ir.IntegerAttr):
        return None
    return ir.IntegerAttr(op.attributes["value"]).value


@dataclass
class Nest:
    """Loops that become threads: induction variables with their extents (from 0, step 1), and the ops of one point.

    The ops stand in the function's block; `ivs` are placeholders for the loops' variables. No `ivs`: ops that run once.
    """

    ivs: list[ir.Value]
    extents: list[int]
    body: list[ir.Operation] = field(default_factory=list)

    @property
    def is_serial(self) -> bool:
        return not self.ivs


def _body(block: ir.Block) -> list[ir.Operation]:
    return [op.operation for op in block.operations][:-1]


def _unit_range(lower: ir.Value, upper: ir.Value, step: ir.Value) -> int | None:
    low, high, by = constant(lower), constant(upper), constant(step)
    return max(high, 0) if low == 0 and by == 1 and high is not None else None


def _unwrap(loop: ir.Operation) -> tuple[list[ir.Value], list[ir.Operation]]:
    """Replaces a loop by its body, with placeholders for its induction variables; returns both."""
    block = loop.regions[0].blocks[0]
    ivs = []
    for argument in block.arguments:
        with loop.location, ir.InsertionPoint.at_block_begin(_outermost_block(loop)):
            placeholder = ir.Operation.create("builtin.unrealized_conversion_cast", results=[argument.type])
        argument.replace_all_uses_with(placeholder.results[0])
        ivs.append(placeholder.results[0])
    body = _body(block)
    for op in body:
        op.move_before(loop)
    loop.erase()
    return ivs, body


def _outermost_block(op: ir.Operation) -> ir.Block:
    while op.parent.operation.name != "func.func":
        op = op.parent.operation
    return op.block


def nest_of(op: ir.Operation) -> Nest | None:
    """Unwraps a top-level loop as far as it can run in parallel; None (and no change) when nothing of it can."""
    if op.name == "scf.parallel":
        return _nest_of_parallel(op)
    if op.name == "scf.for":
        return _nest_of_for(op)
    return None


def _nest_of_parallel(op: ir.Operation) -> Nest | None:
    if len(op.results):
        return None
    count = len(op.regions[0].blocks[0].arguments)
    bounds = list(op.operands)
    extents = [_unit_range(bounds[i], bounds[count + i], bounds[2 * count + i]) for i in range(count)]
    if not count or any(e is None for e in extents):
        return None
    ivs, body = _unwrap(op)
    return Nest(ivs, [e for e in extents if e is not None], body)


def _nest_of_for(op: ir.Operation) -> Nest | None:
    """Takes from a chain of loops, each the only effect of the one around it, those that carry no dependence.

    A parallel loop may always be moved outwards, so the rest stays as it is.
    """
    chain = [op]
    while True:
        inner = [o for o in _body(chain[-1].regions[0].blocks[0]) if not is_pure(o)]
        if len(inner) != 1 or inner[0].name != "scf.for":
            break
        chain.append(inner[0])
    accesses = _accesses(op)
    if accesses is None:
        return None
    taken = []
    for loop in chain:
        extent = _unit_range(*list(loop.operands)[:3])
        iv = loop.regions[0].blocks[0].arguments[0]
        if extent is not None and not len(loop.results) and _carries_nothing(iv, accesses):
            taken.append((loop, extent))
    if not taken:
        return None
    nest = Nest([], [], [op])
    for loop, extent in taken:
        if loop in nest.body:
            nest.body.remove(loop)
            ivs, body = _unwrap(loop)
            nest.body += body
        else:
            ivs, _ = _unwrap(loop)
        nest.ivs += ivs
        nest.extents.append(extent)
    return nest


@dataclass
class Access:
    """One load or store: the root buffer, the memref it goes through, its indices."""

    root: ir.Value
    buffer: ir.Value
    indices: list[ir.Value]
    is_store: bool


def _accesses(op: ir.Operation) -> list[Access] | None:
    """All accesses nested in an op, or None when there are effects of another kind."""
    found = []
    for inner in walk(op):
        if inner.name == "memref.load":
            buffer = inner.operands[0]
            found.append(Access(root(buffer), buffer, list(inner.operands)[1:], False))
        elif inner.name == "memref.store":
            buffer = inner.operands[1]
            found.append(Access(root(buffer), buffer, list(inner.operands)[2:], True))
        elif not (inner.regions or is_pure(inner) or is_view(inner) or inner.name.startswith("scf.")):
            return None
    return found


def _carries_nothing(iv: ir.Value, accesses: list[Access]) -> bool:
    """Whether each point of a loop writes elements of its own, and reads no others of what is written."""
    written = {a.root for a in accesses if a.is_store}
    positions: dict[ir.Value, tuple[ir.Value, set[int]]] = {}
    for access in accesses:
        if access.root not in written:
            continue
        here = {i for i, index in enumerate(access.indices) if index == iv}
        buffer, common = positions.setdefault(access.root, (access.buffer, here))
        if buffer != access.buffer:
            return False
        positions[access.root] = (buffer, common & here)
    return all(common for _, common in positions.values())


def _pattern(access: Access, nest: Nest) -> tuple | None:
    """The indices as numbers of induction variables and constants; None when they are computed."""
    pattern: list[tuple[str, int]] = []
    for index in access.indices:
        number = constant(index)
        if number is not None:
            pattern.append(("constant", number))
        elif index in nest.ivs:
            pattern.append(("iv", nest.ivs.index(index)))
        else:
            return None
    return tuple(pattern)


def groups(nests: list[Nest]) -> list[list[Nest]]:
    """The nests in their order, neighbouring ones in one group where they do not depend on each other: none touches
    what another one writes."""
    found: list[list[Nest]] = []
    known: list[tuple[set[ir.Value], set[ir.Value]] | None] = []  # what the last group's nests write, and touch
    for nest in nests:
        sides = _sides(nest)
        if found and sides and all(k and not (k[0] & sides[1] or k[1] & sides[0]) for k in known):
            found[-1].append(nest)
            known.append(sides)
        else:
            found.append([nest])
            known = [sides]
    return found


def _sides(nest: Nest) -> tuple[set[ir.Value], set[ir.Value]] | None:
    """The buffers that a nest writes, and all that it touches, by loads in front of it, too, which its launch repeats;
    None where it may do something else."""
    accesses = [_accesses(op) for op in nest.body]
    if None in accesses:
        return None
    known = [a for each in accesses if each is not None for a in each]
    return {a.root for a in known if a.is_store}, {a.root for a in known} | _loaded_before(nest)


def _loaded_before(nest: Nest) -> set[ir.Value]:
    """The buffers of loads outside of a nest that its values are made of."""
    inside = {inner for op in nest.body for inner in walk(op)}
    found: set[ir.Value] = set()
    left, seen = [v for op in inside for v in op.operands], set(inside)
    while left:
        op = owner(left.pop())
        if op is None or op in seen:
            continue
        seen.add(op)
        if op.name == "memref.load":
            found.add(root(op.operands[0]))
        left += op.operands
    return found


def can_fuse(first: Nest, second: Nest) -> bool:
    """Whether the second nest's points may run right after the first's, in the same threads.

    They may when every buffer that one writes and the other touches is accessed at one element per thread, its own.
    """
    if first.is_serial or second.is_serial or first.extents != second.extents:
        return False
    sides = []
    for nest in (first, second):
        accesses: list[Access] = []
        for op in nest.body:
            found = _accesses(op)
            if found is None:
                return False
            accesses += found
        sides.append(accesses)
    written = [{a.root for a in side if a.is_store} for side in sides]
    touched = [{a.root for a in side} for side in sides]
    shared = (written[0] & touched[1]) | (written[1] & touched[0])
    needed = {("iv", i) for i, extent in enumerate(first.extents) if extent > 1}
    for buffer in shared:
        patterns = set()
        for nest, side in zip((first, second), sides, strict=True):
            patterns |= {(a.buffer, _pattern(a, nest)) for a in side if a.root == buffer}
        if len(patterns) != 1:
            return False
        ((_, pattern),) = patterns
        if pattern is None or not needed <= set(pattern):
            return False
    return True
