"""Where a loop gives the slots of its rings back."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects import rings
from mlirc.ir.contractions import CASTS
from mlirc.mlir import ir
from mlirc.passes.distribute.copies.loop_operands import LoopOperand, LoopOperands
from mlirc.passes.distribute.emit.asynchronous import AT_ONCE, LATER, finish, first_reader, reads


@dataclass
class Channel:
    """A ring, and what one loop puts into it: slices that its products read."""

    ring: ir.Value
    group: list[LoopOperand]


def within(loop: ir.Operation, ops: list[ir.Operation]) -> list[ir.Operation]:
    """Ops of a loop's body and what they are computed from there, in order."""
    found = set(ops)
    for op in reversed([o.operation for o in loop.regions[0].blocks[0].operations]):
        if op in found:
            found |= {v.owner.operation for v in op.operands if not isinstance(v.owner, ir.Block)}
    return [o.operation for o in loop.regions[0].blocks[0].operations if o.operation in found]


def end_of(loop: ir.Operation) -> ir.Operation:
    """A loop's yield."""
    return list(loop.regions[0].blocks[0].operations)[-1].operation


def releases_of(operands: LoopOperands, channels: list[Channel]) -> list[tuple[ir.Operation, ir.Value, int]]:
    """(op, ring, lag): behind which product, or the loop, a slot is given back, or in front of which other op. As soon
    as its readers are done: products that a wait covers, at once; those under way until the next iteration, there,
    behind its first wait; and behind the loop for the last one. What is left comes at the iteration's end."""
    when = {p: finish(p) if f == LATER else AT_ONCE for p, f in operands.finishes.items() if f != "by lanes"}
    waited, late = ([p for p in when if when[p] == w] for w in (AT_ONCE, LATER))
    end, found = _end(operands.op), []
    # All products are waited for in front of what looks at the sums of one of the iteration before.
    readers_of_sums = [r for r in map(first_reader, late) if r is not None]
    stop = readers_of_sums[0] if readers_of_sums and not waited else end
    rest, at_once, lagging = [], [], []
    for channel in channels:
        readers = operands.readers(channel.group)
        if late and (readers is None or any(r in late for r in readers)):
            lagging.append(channel.ring)
        elif readers is not None and all(r in waited for r in readers):
            at_once.append((max(waited.index(r) for r in readers), channel.ring))
        else:
            rest.append((stop if readers is not None and _in_front(readers, stop) else end, channel.ring))
    # What is inserted behind one op comes in the reverse order.
    for position, ring in reversed(sorted(at_once, key=lambda x: x[0])):
        found.append((_in_flight(waited[position], operands.products), ring, 0))
    if waited:
        found += [(waited[0], ring, 1) for ring in reversed(lagging)]
    found += [(at, ring, 0) for at, ring in rest]
    if not waited:
        found += [(stop, ring, 1) for ring in lagging]
    return found + [(operands.op, ring, 0) for ring in reversed(lagging)]


def _end(loop: ir.Operation) -> ir.Operation:
    """In front of which op an iteration ends for its products: the yield, or conversions that it alone reads: what they
    make is what products of the next iteration read, and its registers are not written before this one's are done."""
    end, ops = end_of(loop), [o.operation for o in loop.regions[0].blocks[0].operations]
    at = len(ops) - 1
    while at and _converts(ops[at - 1]) and all(u.owner.operation == end for u in ops[at - 1].results[0].uses):
        at -= 1
    return ops[at]


def _converts(op: ir.Operation) -> bool:
    """Whether an op does nothing but convert a tile's elements."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    inner = [o.operation.name for o in op.regions[0].blocks[0].operations][:-1]
    return len(inner) == 1 and inner[0] in CASTS


def _in_flight(product: ir.Operation, products: list[ir.Operation]) -> ir.Operation:
    """The last product that is issued before a product's result is looked at: itself, as a rule."""
    order = [o.operation for o in product.block.operations]
    ops = order[order.index(product) + 1 :]
    stop = next((i for i, op in enumerate(ops) if reads(op, product.results[0])), 0)
    return next((op for op in reversed(ops[:stop]) if op in products), product)


def _in_front(ops: list[ir.Operation], stop: ir.Operation) -> bool:
    """Whether ops of a loop's body stand in front of another one."""
    order = [o.operation for o in stop.block.operations]
    return all(order.index(op) < order.index(stop) for op in ops)


def releases_at_end(operands: LoopOperands, channels: list[Channel]) -> list[tuple[ir.Operation, ir.Value, int]]:
    """The same where nobody else waits for a slot: at the end of the iteration, or of the next one where a product runs
    on until then."""
    late = [p for p, f in operands.finishes.items() if f == LATER and finish(p) == LATER]
    found = []
    for channel in channels:
        readers = operands.readers(channel.group)
        lag = int(bool(late) and (readers is None or any(r in late for r in readers)))
        found.append((end_of(operands.op), channel.ring, lag))
        found += [(operands.op, channel.ring, 0)] * lag
    return found


def insert_releases(found: list[tuple[ir.Operation, ir.Value, int]], operands: LoopOperands) -> None:
    """Builds what `releases_of` found for a loop."""
    for at, ring, lag in found:
        behind = at == operands.op or at in operands.products
        with ir.InsertionPoint.after(at) if behind else ir.InsertionPoint(at):
            rings.release(ring, lag, loc=at.location)
