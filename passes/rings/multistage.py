"""Loops without producers, and operands that those leave to the warps that compute: the slices that products read
come through rings that the computing warps fill themselves, by `cp.async` some iterations ahead (`mlirc.stages`), or
through registers in the iteration itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod

from mlirc.dialects import rings
from mlirc.dialects.rings import Slot
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import affine, arith, ir, nested
from mlirc.passes.distribute.copies.loop_operands import LoopOperand, LoopOperands
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.emit.team import Planned, Warps
from mlirc.passes.distribute.layouts.shared import SharedLayout
from mlirc.passes.distribute.memory import access, alignment, slices
from mlirc.passes.distribute.products import staging
from mlirc.passes.rings.check import depends
from mlirc.passes.rings.releases import Channel, end_of, insert_releases, releases_at_end, within
from mlirc.passes.rings.windows import forget_demands, moved
from mlirc.schedule.attributes import Taken, demands, plain
from mlirc.targets import Target

TENSOR_COPY_BYTES = 16  # of which rows are a multiple
# Slices are read ahead in loops of so many steps, where a thread has as many elements on their way, and few sums.
LEAST_STEPS, READ_AHEAD, SUMS = 4, 128, 16
NOT_AHEAD = "no product in this loop reads a slice that can be copied asynchronously (4 aligned bytes at least)"


@dataclass
class Plan:
    """What a loop's rings will be: its operands, each with its copies (`kinds`, by the value; `asked`: those that the
    schedule names; `ahead`: slices that are read into registers an iteration ahead, with the last induction variable
    that there is a slice for), and `stages`."""

    operands: LoopOperands
    kinds: dict[ir.Value, str]
    stages: int
    asked: set[ir.Value] = field(default_factory=set)
    ahead: dict[ir.Value, int] = field(default_factory=dict)

    @property
    def multistage(self) -> bool:
        return any(kind != "tma" for kind in self.kinds.values())


def attribute(op: ir.Operation, name: str, default=None):
    """The value of a schedule's attribute."""
    return plain(op.attributes[f"mlirc.{name}"]) if f"mlirc.{name}" in op.attributes else default


def make_multistage(function, forall: ir.Operation, target: Target) -> None:
    """Makes rings for the loops of a block program that have none, and no producers."""
    team = Planned(Warps(attribute(function, "warps", 4)), target, Taken())
    for loop in [op for op in nested(forall) if op.name == "scf.for"]:
        if any(o.operation.name in rings.USES for o in loop.regions[0].blocks[0].operations):
            continue
        try:
            plan = plan_of(team, loop)
            _check_stages(plan, "stages" in demands(function))
            rewrite(plan, team.team.warps)
        except Unsupported as e:
            e.at(loop)
            raise


def plan_of(team: Planned, loop: ir.Operation) -> Plan:
    """How the operands of a loop's products are copied. Raises Unsupported for what cannot be, at the attribute that
    asks for it."""
    operands = LoopOperands(team, loop)
    plan = Plan(operands, {}, attribute(loop, "stages", 1))
    produced = "mlirc.producers" in loop.attributes
    for value, o in operands.found.items():
        plan.kinds[value] = _kind(plan, o, produced)
    _read_ahead(plan, team.team.warps)
    for value, o in operands.computed.items():
        asked = attribute(o.op, "copy")
        if asked not in (None, "registers"):
            what = f'mlirc.copy = "{asked}": the loop computes this operand: copy = "registers"'
            raise Unsupported(what, o.op, "copy")
        if asked or o.finishes != "by lanes" and o.which == 1:  # which no thread could give it from its registers
            plan.kinds[value] = "registers"
        if asked:
            plan.asked.add(value)
    return plan


def _kind(plan: Plan, o: LoopOperand, produced: bool) -> str:
    """How a slice is copied: as it, or else its products, ask for; or else as it can be."""
    readers = [p for p in plan.operands.products if o.op.results[0] in list(p.operands) or o.unpacked_by(p)]
    asking = next((op for op in (o.op, *readers) if "mlirc.copy" in op.attributes), None)
    asked = attribute(asking, "copy") if asking is not None else None
    if asked == "tma" and not produced:
        raise Unsupported('mlirc.copy = "tma" takes a producer warp: specialize(loop)', asking, "copy")
    if asked is None and produced:
        what = 'mlirc.producers: a producer warp copies by tensor copies: stage(product, copy="tma")'
        raise Unsupported(what, plan.operands.op, "producers")
    if asked is not None:
        plan.asked.add(o.op.results[0])
    row = alignment.row_bytes(o.op)
    if asked == "tma" and row % TENSOR_COPY_BYTES:
        what = f"rows of {row} bytes: tensor copies take multiples of {TENSOR_COPY_BYTES}"
        raise Unsupported(f'mlirc.copy = "tma": {what}: copy = "registers" takes any', asking, "copy")
    if asked in ("tma", "registers"):
        return asked
    fits = alignment.copy_width(o.op) is not None
    if asked == "cp_async" and not fits:
        what = 'mlirc.copy = "cp_async": rows of which no four bytes are aligned: copy = "registers" takes any'
        raise Unsupported(what, asking, "copy")
    return "cp_async" if fits else "registers"


def _read_ahead(plan: Plan, warps: int) -> None:
    """Finds the slices that no cp.async takes and that can be read into registers an iteration ahead: all of them, or
    none where threads have no registers to spare, so many sums that other blocks do better, or few steps: behind the
    last one a slice is read that nobody needs."""
    loop = plan.operands.op
    own = {v: o for v, o in plan.operands.found.items() if plan.kinds[v] == "registers" and v not in plan.asked}
    held = sum(prod(o.extents) for o in own.values()) // (32 * warps)
    sums = sum(prod(slices.tile_bounds(p.results[0])) for p in plan.operands.products) // (32 * warps)
    lower, upper, step = (slices.known(v) for v in list(loop.operands)[:3])
    if plan.stages < 2 or lower is None or upper is None or not step or lower % step:
        return
    if len(range(lower, upper, step)) < LEAST_STEPS or held > READ_AHEAD or sums > SUMS:
        return
    last = {v: _last_start(o.op, loop, step) for v, o in own.items()}
    plan.ahead = {v: n for v, n in last.items() if n is not None} if None not in last.values() else {}


def _last_start(op: ir.Operation, loop: ir.Operation, step: int) -> int | None:
    """The largest multiple of the step at which a slice begins inside of its tensor; None where it does not begin at
    the loop's induction variable."""
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    dynamic = list(op.operands)[segments[0] : segments[0] + segments[1]]
    found: list[int] = []
    iv = loop.regions[0].blocks[0].arguments[0]
    for extent, offset in zip(
        ir.RankedTensorType(op.operands[0].type).shape,
        ir.DenseI64ArrayAttr(op.attributes["static_offsets"]),
        strict=True,
    ):
        value = dynamic.pop(0) if offset == slices.DYNAMIC else None
        if value is None:
            continue
        if value == iv:
            found.append((extent - 1) // step * step)
        elif not isinstance(value.owner, ir.Block) and depends(value.owner, iv):
            return None
    return min(found) if found else None


def _check_stages(plan: Plan, demanded: bool) -> None:
    """Raises Unsupported where nothing in a loop is as deep as the schedule demands."""
    loop, stages = plan.operands.op, plan.stages
    deep = any(kind == "cp_async" or v in plan.asked or v in plan.ahead for v, kind in plan.kinds.items())
    if demanded and stages > 1 and not deep:
        raise Unsupported(f"{loop.name}: mlirc.stages = {stages}: {NOT_AHEAD}: leave it out", loop, "stages")
    if "mlirc.stages" in loop.attributes:
        del loop.attributes["mlirc.stages"]


def _operand(plan: Plan, value: ir.Value) -> LoopOperand:
    return plan.operands.found.get(value) or plan.operands.computed[value]


def rewrite(plan: Plan, warps: int) -> None:
    """Makes the rings of a loop that the computing warps fill, with their puts, gets and releases."""
    operands, loop = plan.operands, plan.operands.op
    asynchronous = operands.warpgroups
    kinds = {v: kind for v, kind in plan.kinds.items() if kind != "tma"}
    if kinds and asynchronous and plan.stages < 3:
        what = f"wgmma needs mlirc.stages >= 3, not {plan.stages}: it reads a buffer one iteration longer"
        raise Unsupported(what, loop, "stages")
    ahead_of = [_operand(plan, v) for v, kind in kinds.items() if kind == "cp_async"]
    stored_in_time = [v for v, kind in kinds.items() if kind == "registers" and v not in plan.ahead]
    together = _side_by_side(loop, [_operand(plan, v) for v in stored_in_time])
    together += [[_operand(plan, v) for v in plan.ahead]] if plan.ahead else []
    channels: list[tuple[Channel, Callable[[], None]]] = []
    with ir.InsertionPoint(loop), loop.location:
        if ahead_of:
            # wgmma may still read the previous iteration's slot when a copy is issued: copies go one slot less far.
            ahead = plan.stages - (2 if asynchronous else 1)
            made = _make_ring("cp_async", plan.stages, ahead_of, warps)
            channels.append((made, lambda: _copy_ahead(operands, made, ahead)))
        for group in together:
            deep = any(o.op.results[0] in plan.asked for o in group)
            # Two slots (three where products read one longer) spare the barrier in front of what is put.
            last = min((plan.ahead[v] for o in group if (v := o.op.results[0]) in plan.ahead), default=None)
            depth = 3 if asynchronous else min(plan.stages, 2) if deep or last is not None else 1
            stored = _make_ring("registers", depth, group, warps)
            now = partial(_store, loop, stored)
            channels.append((stored, now if last is None else partial(_store_ahead, operands, stored, last)))
    found = releases_at_end(operands, [channel for channel, _ in channels])
    for _, build in channels:
        build()
    insert_releases(found, operands)
    for op in operands.products:
        if "mlirc.copy" in op.attributes and kinds:
            del op.attributes["mlirc.copy"]


def _make_ring(copy: str, depth: int, group: list[LoopOperand], warps: int) -> Channel:
    slots = [_slot(copy, o, warps) for o in group]
    return Channel(rings.make_ring(depth, copy, slots), group)


def _slot(copy: str, o: LoopOperand, warps: int) -> Slot:
    width = alignment.copy_width(o.op) if copy == "cp_async" else None
    covered = staging.covered(o.extents, o.element, warps, width)
    usual = SharedLayout.of_tile(covered, element_bytes(access.storage_type(o.element)), o.panels).swizzle
    swizzle = attribute(o.op, "swizzle", usual)
    if swizzle not in (0, usual):
        what = f"mlirc.swizzle = {swizzle}: rows of this operand are permuted over {usual} bytes, or 0"
        raise Unsupported(what, o.op, "swizzle")
    return Slot(ir.RankedTensorType.get(o.extents, o.element), swizzle, o.panels)


def _side_by_side(loop: ir.Operation, members: Sequence[LoopOperand]) -> list[list[LoopOperand]]:
    """Operands that are all made before one of them is read, and can be put together."""
    order = [o.operation for o in loop.regions[0].blocks[0].operations].index
    groups: list[list[LoopOperand]] = []
    for o in sorted(members, key=lambda o: order(o.op)):
        if not groups or order(o.op) > min(order(_first_user(loop, m)) for m in groups[-1]):
            groups.append([])
        groups[-1].append(o)
    return groups


def _first_user(loop: ir.Operation, o: LoopOperand) -> ir.Operation:
    order = [op.operation for op in loop.regions[0].blocks[0].operations]
    users = {u.owner.operation for u in o.op.results[0].uses}
    return min((op for op in users if op in order), key=order.index)


def _sizes(o: LoopOperand) -> list[ir.Value]:
    """The sizes of an operand's dynamic dimensions."""
    if o.op.name == "tensor.extract_slice":
        return slices.dynamic_sizes(o.op)
    if slices.DYNAMIC not in ir.RankedTensorType(o.op.results[0].type).shape:
        return []
    start = list(o.op.operands)[-1].owner
    if len(o.op.results) > 1 or isinstance(start, ir.Block) or start.name != "tensor.empty":
        what = 'mlirc.copy = "registers": an operand whose sizes nothing shows: its op starts from a tensor.empty'
        raise Unsupported(what, o.op, "copy")
    return list(start.operands)


# -- by cp.async


def _copy_ahead(operands: LoopOperands, channel: Channel, ahead: int) -> None:
    """The gets of a loop at its start, and behind them the puts of a later iteration; in front of the loop those of
    the first iterations."""
    loop, body = operands.op, operands.body
    lower, upper, step = list(loop.operands)[:3]
    for number in range(ahead):
        with ir.InsertionPoint(loop):
            start = _later(lower, step, number)
            _put_slices(channel, loop, start, _more(start, upper))
    numbers = within(loop, [v.owner.operation for o in channel.group for v in _sizes(o) if _inside(v, loop)])
    first = next(o.operation for o in body.operations if o.operation not in numbers)
    for op in numbers:
        op.move_before(first)
    with ir.InsertionPoint(first):
        if not ahead:  # this iteration's slices are put, and then got
            _put_slices(channel, loop, body.arguments[0], None)
        tiles = _gets(channel)
        if ahead:
            then = _later(body.arguments[0], step, ahead)
            _put_slices(channel, loop, then, _more(then, upper))
    for o, tile in zip(channel.group, tiles, strict=True):
        o.op.results[0].replace_all_uses_with(tile)
        o.op.erase()


def _gets(channel: Channel) -> list[ir.Value]:
    return [
        rings.get(channel.ring, o.op.results[0].type, _sizes(o), i, loc=o.op.location)
        for i, o in enumerate(channel.group)
    ]


def _inside(value: ir.Value, loop: ir.Operation) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.parent == loop


def _later(start: ir.Value, step: ir.Value, iterations: int) -> ir.Value:
    """An induction variable so many iterations later, at the current insertion point."""
    if not iterations:
        return start
    at, by = slices.known(start), slices.known(step)
    if at is not None and by is not None:
        return arith.ConstantOp(ir.IndexType.get(), at + by * iterations).result
    d0, d1 = ir.AffineExpr.get_dim(0), ir.AffineExpr.get_dim(1)
    if by is not None:
        return affine.AffineApplyOp(ir.AffineMap.get(1, 0, [d0 + by * iterations]), [start]).result
    return affine.AffineApplyOp(ir.AffineMap.get(2, 0, [d0 + d1 * iterations]), [start, step]).result


def _more(iv: ir.Value, upper: ir.Value) -> ir.Value | None:
    """Whether a loop has the iteration of an induction variable; None where that is known."""
    at, end = slices.known(iv), slices.known(upper)
    if at is not None and end is not None:
        if at < end:
            return None
        i1 = ir.IntegerType.get_signless(1)
        return arith.ConstantOp(i1, ir.IntegerAttr.get(i1, 0)).result
    return arith.CmpIOp(arith.CmpIPredicate.slt, iv, upper).result


def _put_slices(channel: Channel, loop: ir.Operation, iv: ir.Value, when: ir.Value | None) -> None:
    """Puts the slices of the iteration of an induction variable."""
    copied = {loop.regions[0].blocks[0].arguments[0]: iv}
    for number, o in enumerate(channel.group):
        window = moved(o.op.results[0], copied, [loop])
        forget_demands(window.owner)
        rings.put(channel.ring, window, number, when, loc=o.op.location)


# -- through registers


def _store_ahead(operands: LoopOperands, channel: Channel, last: int) -> None:
    """The gets of a loop at its start, and behind them the slices of the next iteration, which are on their way to
    registers while the products compute; they are put at the end. Behind the last iteration that is the last slice
    once more, which nobody gets."""
    loop, body = operands.op, operands.body
    lower, _, step = list(loop.operands)[:3]
    with ir.InsertionPoint(loop):
        _put_slices(channel, loop, _no_later(lower, 0, last), None)
    numbers = within(loop, [v.owner.operation for o in channel.group for v in _sizes(o) if _inside(v, loop)])
    first = next(o.operation for o in body.operations if o.operation not in numbers)
    for op in numbers:
        op.move_before(first)
    with ir.InsertionPoint(first):
        tiles = _gets(channel)
        copied = {body.arguments[0]: _no_later(body.arguments[0], slices.known(step) or 0, last)}
        windows = [moved(o.op.results[0], copied, [loop]) for o in channel.group]
    with ir.InsertionPoint(end_of(loop)):
        for i, (o, window) in enumerate(zip(channel.group, windows, strict=True)):
            forget_demands(window.owner)
            rings.put(channel.ring, window, i, loc=o.op.location)
    for o, tile in zip(channel.group, tiles, strict=True):
        o.op.results[0].replace_all_uses_with(tile)
        o.op.erase()


def _no_later(start: ir.Value, more: int, last: int) -> ir.Value:
    """An induction variable `more` later, but at most the last one, at the current insertion point."""
    at = slices.known(start)
    if at is not None:
        return arith.ConstantOp(ir.IndexType.get(), min(at + more, last)).result
    exprs = [ir.AffineExpr.get_dim(0) + more, ir.AffineExpr.get_constant(last)]
    return affine.AffineMinOp(ir.AffineMap.get(1, 0, exprs), [start]).result


def _store(loop: ir.Operation, channel: Channel) -> None:
    """Puts and gets operands where the last of them is made."""
    order = [o.operation for o in loop.regions[0].blocks[0].operations].index
    last = max((o.op for o in channel.group), key=order)
    following = list(loop.regions[0].blocks[0].operations)[order(last) + 1].operation
    with ir.InsertionPoint(following):
        tiles = _gets(channel)
    for o, tile in zip(channel.group, tiles, strict=True):
        o.op.results[0].replace_all_uses_with(tile)
    with ir.InsertionPoint(tiles[0].owner):
        for i, o in enumerate(channel.group):
            rings.put(channel.ring, o.op.results[0], i, loc=o.op.location)
            forget_demands(o.op)
