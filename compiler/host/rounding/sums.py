"""Sums over a whole loop: what rounding may do to them in any order.

A sum of n terms whose absolute values add up to S is off by at most n * u * S (u: half a unit in the last place), and
one rounding after the other goes either way: by more than 6 * sqrt(n) * u * S with a chance below 1e-11 (Higham and
Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019). Terms that are alike are rounded alike, too: then
the sum drifts, and the sum in f64 beside it says how far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from mlirc.host.rounding.values import ROUNDOFF, Builder
from mlirc.mlir import arith, ir, memref, nested, scf

_DEVIATIONS, _DRIFTS = 6.0, 4.0


@dataclass(frozen=True)
class Sum:
    """An addition of `term` to an element of `buffer`, `count` times for each element, by the loop around."""

    addition: ir.Operation
    term: ir.Value
    store: ir.Operation
    buffer: ir.Value
    count: int


def sums_of(function: ir.Operation) -> dict[ir.Operation, list[Sum]]:
    """The sums of each outermost loop of a function over buffers, whose terms are no products of two factors: tensor
    cores sum those, and cut what they sum."""
    loops = [o.operation for o in function.regions[0].blocks[0].operations if o.operation.name == "scf.for"]
    return {loop: found for loop in loops if (found := list(_sums(loop)))}


def _sums(loop: ir.Operation) -> Iterator[Sum]:
    inside = list(nested(loop))
    for store in inside:
        if store.name != "memref.store":
            continue
        value, buffer, *indices = store.operands
        addition = value.owner
        if isinstance(addition, ir.Block) or addition.name != "arith.addf" or str(value.type) not in ("f32", "f64"):
            continue
        addition = addition.operation
        loads = [v for v in addition.operands if is_load(v, buffer, indices)]
        uses = [o for o in inside if buffer in list(o.operands)]
        count = turns(store, loop, indices)
        if len(loads) != 1 or len(uses) != 2 or len(list(value.uses)) != 1 or count < 2:
            continue
        (term,) = [v for v in addition.operands if v != loads[0]]
        if not _is_product(term):
            yield Sum(addition, term, store, buffer, count)


def is_load(value: ir.Value, buffer: ir.Value, indices: list[ir.Value]) -> bool:
    op = value.owner
    return not isinstance(op, ir.Block) and op.name == "memref.load" and list(op.operands) == [buffer, *indices]


def _is_product(value: ir.Value) -> bool:
    op = value.owner
    return not isinstance(op, ir.Block) and op.name == "arith.mulf" and op.operands[0] != op.operands[1]


def turns(store: ir.Operation, outermost: ir.Operation, indices: list[ir.Value]) -> int:
    """How often each element is stored: the turns of the loops whose counters are no indices; 0 where that is not
    known."""
    if not all(isinstance(i.owner, ir.Block) or i.owner.name == "arith.constant" for i in indices):
        return 0
    count, op = 1, store
    while op != outermost:
        op = op.parent.operation
        if op.name != "scf.for":
            continue
        if op.regions[0].blocks[0].arguments[0] not in indices:
            low, high, step = (constant_of(v) for v in list(op.operands)[:3])
            if low is None or high is None or step is None:
                return 0
            count *= max(0, -(-(high - low) // step))
    return count


def constant_of(value: ir.Value) -> int | None:
    op = value.owner
    if isinstance(op, ir.Block) or op.name != "arith.constant":
        return None
    return ir.IntegerAttr(op.attributes["value"]).value


def root(buffer: ir.Value) -> ir.Value:
    """The buffer that a view is of."""
    while not isinstance(buffer.owner, ir.Block) and buffer.owner.name not in ("memref.alloc", "memref.alloca"):
        if not buffer.owner.operands:
            break
        buffer = buffer.owner.operands[0]
    return buffer


def add_rounding(b: Builder, found: Sum, errors: ir.Value, sizes: ir.Value, exact: ir.Value) -> None:
    """Adds to the errors of a buffer, behind the loop, what rounding may have done to its sums. `exact`: the sums in
    f64."""
    unit = ROUNDOFF[str(ir.MemRefType(found.buffer.type).element_type)]

    def element(at: list[ir.Value]) -> None:
        v, error, size = b.wide(memref.load(found.buffer, at)), memref.load(errors, at), memref.load(sizes, at)
        most = arith.mulf(b.constant((found.count / 2 + 2) * unit), size)
        drift = arith.mulf(b.constant(_DRIFTS), b.absolute(arith.subf(v, memref.load(exact, at))))
        likely = arith.addf(arith.mulf(b.constant(_DEVIATIONS * sqrt(found.count) * unit), size), drift)
        number = b.below(b.absolute(v), b.infinity)
        if found.buffer.type.element_type != b.f64:  # whose drift would have to be summed in more bits
            most = arith.minnumf(most, likely)
        rounding = b.select(number, most, b.zero)
        memref.store(arith.addf(error, rounding), errors, at)

    for_each([(0, size, 1) for size in ir.MemRefType(found.buffer.type).shape], element)


def for_each(
    ranges: Sequence[tuple[int, int, int]], element: Callable[[list[ir.Value]], None], at: Sequence[ir.Value] = ()
) -> None:
    """Loops over all indices of some ranges: start, end and step of each."""
    if len(at) == len(ranges):
        element(list(at))
        return
    loop = scf.ForOp(*(arith.constant(ir.IndexType.get(), n) for n in ranges[len(at)]))
    with ir.InsertionPoint(loop.body):
        for_each(ranges, element, [*at, loop.induction_variable])
        scf.yield_([])
