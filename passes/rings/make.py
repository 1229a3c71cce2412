"""Loops with producers of their own (`mlirc.producers`) become the two roles of a block, with rings between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy

from mlirc.dialects import rings
from mlirc.dialects.rings import Slot
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import ir, nested, scf
from mlirc.passes.distribute.copies.loop_operands import LoopOperand, LoopOperands
from mlirc.passes.distribute.emit.blame import check_attributes
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.emit.team import Planned, Warps
from mlirc.passes.distribute.memory import slices
from mlirc.passes.distribute.program.grid import Grid
from mlirc.passes.distribute.program.parts import loops_over_parts
from mlirc.passes.rings import check, multistage
from mlirc.passes.rings.check_multistage import multistage_of
from mlirc.passes.rings.multistage import attribute
from mlirc.passes.rings.releases import Channel, insert_releases, releases_of, within
from mlirc.passes.rings.windows import forget_demands, moved
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target

PANEL_BYTES = 128  # of a row of a panel
LEAST, MOST = 40, 240  # of a thread: what a producer needs, and the most that are of use
REWRITING = 56  # of a producer's neighbour that writes tiles anew
_READS = ("tensor.dim", "tensor.extract")  # a number of a tensor
_WINDOWS = ("tensor.extract_slice", "tensor.cast", *slices.RESHAPES)
_QUIET = ("tensor.empty", "linalg.fill")


def make_rings(function, target: Target) -> None:
    """Rewrites every block program of a kernel function that has loops whose products read slices."""
    check_attributes(function)
    for forall in [o.operation for o in function.regions[0].blocks[0].operations]:
        if forall.name != "scf.forall":
            continue
        bodies = [forall, *loops_over_parts(forall)]
        ops = [o.operation for b in bodies for o in b.regions[0].blocks[0].operations]
        loops = [op for op in ops if op.name == "scf.for" and "mlirc.producers" in op.attributes]
        if loops:
            _Roles(function, forall, loops, target).rewrite()
        multistage.make_multistage(function, forall, target)
        multistage_of(forall)


def registers(warps: int, producers: int, min_blocks: int, least: int) -> tuple[int, int] | None:
    """Registers of a producer's thread and of a computing one, where the producers are a whole warpgroup, which can
    give theirs up (PTX ISA, "setmaxnreg"): as many as the block's launch has for all. None where there is nothing to
    give."""
    if producers % 4 or warps % 4:
        return None
    launch = check.launch_registers(warps + producers, min_blocks)
    more = min(launch + (launch - least) * producers // warps, MOST) // 8 * 8
    return (least, more) if more > launch > least else None


def _is_number(op: ir.Operation) -> bool:
    """Whether an op makes a number of numbers, or of a tensor in global memory."""
    if op.name in _READS:
        return slices.is_global(op.operands[0])
    return op.name.split(".")[0] in ("affine", "arith") and not any(
        isinstance(r.type, ir.RankedTensorType) for r in op.results
    )


def _is_window(op: ir.Operation) -> bool:
    return op.name in _WINDOWS and slices.is_global(op.results[0])


class _Roles:
    """The rewriting of one block program."""

    def __init__(self, function, forall: ir.Operation, loops: list[ir.Operation], target: Target):
        self.forall, self.loops = forall, loops
        self.nests = [*loops, *{loop.parent.operation for loop in loops if loop.parent != forall}]
        self.warps, self.min_blocks = attribute(function, "warps", 4), attribute(function, "min_blocks", 1)
        self.grid = Grid(forall, Taken())
        counts = {attribute(loop, "producers") for loop in loops}
        if len(counts) > 1:
            what = "loops of a block share their producers: give each the same number"
            raise Unsupported(f"mlirc.producers: {what}", loops[1], "producers")
        [self.producers] = counts
        if self.warps + self.producers > 32:
            what = f"{self.warps} warps compute, and a block has at most 32 in all: use fewer (warps)"
            raise Unsupported(f"mlirc.producers = {self.producers}: {what}", loops[0], "producers")
        team = Planned(Warps(self.warps), target, Taken())
        self.plans: list[multistage.Plan] = []
        self.operands: list[LoopOperands] = []  # and of those what producers copy
        for loop in loops:
            try:
                self.plans.append(multistage.plan_of(team, loop))
                self.operands.append(self._checked(self.plans[-1]))
            except Unsupported as e:
                e.at(loop)
                raise

    @staticmethod
    def _checked(plan: multistage.Plan) -> LoopOperands:
        """What producers copy for a loop; raises Unsupported for one that they cannot feed."""
        operands = copy(plan.operands)
        loop = operands.op
        if not operands.found:
            what = "no product in this loop reads a slice of a kernel argument"
            raise Unsupported(f"mlirc.producers: {what}: leave it out", loop, "producers")
        if attribute(loop, "stages", 1) < 2:
            raise Unsupported("mlirc.producers: a ring has mlirc.stages >= 2", loop, "stages")
        if slices.known(loop.operands[2]) is None:
            raise Unsupported("mlirc.producers: a loop whose step is not constant", loop, "producers")
        operands.found = {v: o for v, o in operands.found.items() if plan.kinds[v] == "tma"}
        if not operands.found:
            what = 'nothing that its products read is copied by tensor copies: stage(product, copy="tma")'
            raise Unsupported(f"mlirc.producers: {what}", loop, "producers")
        return operands

    # -- the block program

    def rewrite(self) -> None:
        body = self.forall.regions[0].blocks[0]
        ops = [o.operation for o in body.operations]
        shared = self._shared(body)
        outs = self._results(ops[-1], shared)
        marker = ops[-1]
        first = next(o for o in ops if o not in shared)
        for op in shared:
            op.move_before(first)
        with ir.InsertionPoint(first):
            channels = self._make_rings()
            anew = any(o.rewrite for operands in self.operands for o in operands.found.values())
            least = REWRITING if anew else LEAST
            registers_of = self._asked() or registers(
                self.warps * self.grid.teams, self.producers, max(self.min_blocks, 1), least
            )
            types = [v.type for v in outs]
            roles, results = rings.roles(types, (self.producers, self.warps), registers_of, loc=self.loops[0].location)
        produce, consume = (region.blocks[0] for region in roles.regions)
        with ir.InsertionPoint(produce), self.forall.location:
            for operands, fed in zip(self.operands, channels, strict=True):
                with operands.op.location, _part(operands.op, self.forall) as copied:
                    _produce(operands, fed, copied)
            rings.end_role()
        with ir.InsertionPoint(consume), self.forall.location:
            rings.end_role(outs)
        end = consume.operations[0].operation  # the yield, or a cast for it
        for op in ops[:-1]:
            if op not in shared:
                op.move_before(end)
        self._use_results(marker, outs, results)
        for plan, operands, fed in zip(self.plans, self.operands, channels, strict=True):
            _consume(operands, fed)
            multistage.rewrite(plan, self.warps)
            for name in ("mlirc.producers", "mlirc.stages", "mlirc.registers"):
                if name in operands.op.attributes:
                    del operands.op.attributes[name]
        for operands in self.operands:
            for product in operands.products:
                if "mlirc.copy" in product.attributes:
                    del product.attributes["mlirc.copy"]
        check.roles_of(self.forall)

    def _asked(self) -> tuple[int, int] | None:
        """The registers that the schedule asks for; raises Unsupported where nobody can give any."""
        asked = [(loop, tuple(found)) for loop in self.loops if (found := attribute(loop, "registers"))]
        if not asked:
            return None
        loop, first = asked[0]
        if any(other != first for _, other in asked):
            raise Unsupported(
                "mlirc.registers: loops of a block share their producers: give each the same", loop, "registers"
            )
        if self.producers % 4 or self.warps % 4:
            what = (
                f"{self.producers} producers and {self.warps} warps that compute: whole warpgroups (of 4) give and take"
            )
            raise Unsupported(f"mlirc.registers: {what}", loop, "registers")
        return first[0], first[1]

    def _shared(self, body: ir.Block) -> list[ir.Operation]:
        """What stands in front of the roles, in order: the numbers that say where slices lie, how far loops run and
        where results go, and among them what computes nothing."""
        ops = [o.operation for o in body.operations]
        found: set[ir.Operation] = set()

        def need(value: ir.Value, number: bool) -> bool:
            """Notes what a number, or a window of global memory, is computed from; False where tiles are."""
            if isinstance(value.owner, ir.Block):
                return True
            op = value.owner.operation
            if op.parent != self.forall and op.parent not in self.nests or op in found:
                return True
            if op.parent not in self.loops and not (_is_number(op) or not number and _is_window(op)):
                return False
            known = all([need(v, number and op.name not in _READS) for v in op.operands])
            if known:
                found.add(op)
            return known

        wanted = [v for o in self.operands for v in list(o.op.operands)[:3]]
        wanted += [o.op.results[0] for operands in self.operands for o in operands.found.values()]
        if not all([need(v, isinstance(v.type, ir.IndexType)) for v in wanted]):
            what = "where the slices lie that a producer copies must not depend on what the block computes"
            raise Unsupported(f"mlirc.producers: {what}", self.loops[0], "producers")
        for op in nested(ops[-1]):
            for v in op.operands:
                if isinstance(v.type, ir.IndexType):
                    need(v, True)
        last = max((i for i, op in enumerate(ops) if op in found), default=-1)
        shared: list[ir.Operation] = []
        for op in ops[: last + 1]:
            quiet = op in found or _is_number(op) or _is_window(op) or op.name in _QUIET
            owners = [v.owner.operation for v in op.operands if not isinstance(v.owner, ir.Block)]
            if quiet and all(o in shared or o.parent != self.forall for o in owners):
                shared.append(op)
        return shared

    def _results(self, end: ir.Operation, shared: list[ir.Operation]) -> list[ir.Value]:
        """The values of the block program that its results are made of."""
        found: list[ir.Value] = []
        for op in nested(end):
            for v in op.operands:
                inside = not isinstance(v.owner, ir.Block) and v.owner.operation.parent == self.forall
                if inside and v.owner.operation not in shared and v not in found:
                    found.append(v)
        return found

    def _use_results(self, end: ir.Operation, outs: list[ir.Value], results: list[ir.Value]) -> None:
        for op in nested(end):
            for i, v in enumerate(op.operands):
                if v in outs:
                    op.operands[i] = results[outs.index(v)]

    # -- rings

    def _make_rings(self) -> list[list[Channel]]:
        """For each loop its channels: rings are shared by loops that put tiles of the same form into them."""
        known: list[tuple[tuple, ir.Value]] = []
        channels = []
        for operands in self.operands:
            depth = attribute(operands.op, "stages")
            fed: list[Channel] = []
            for group in operands.groups():
                form = depth, tuple(o.form() for o in group)
                taken = [c.ring for c in fed]
                ring = next((r for f, r in known if f == form and r not in taken), None)
                if ring is None:
                    ring = rings.make_ring(depth, "tma", [self._slot(o) for o in group], loc=operands.op.location)
                    known.append((form, ring))
                fed.append(Channel(ring, group))
            channels.append(fed)
        return channels

    def _slot(self, o: LoopOperand) -> Slot:
        size = element_bytes(o.element)
        row = (o.row or PANEL_BYTES) if o.panels else o.extents[-1] * size
        swizzle = attribute(o.op, "swizzle", row)
        along_k = None if o.words else o.info.maps[o.which].index(o.info.k)  # of which what is beyond is multiplied
        problem = check.zeros_beyond(o.op, along_k, o.extents) if along_k is not None else ""
        if swizzle not in (0, row):
            what = f"mlirc.swizzle = {swizzle}: a slot's rows have {row} bytes: as many, or 0"
            raise Unsupported(what, o.op, "swizzle")
        if swizzle and row not in (32, 64, PANEL_BYTES):
            problem = f"slices of {row} bytes along a row: they must be 32, 64 or 128 (block_k)"
        if problem:
            raise Unsupported(f'mlirc.copy = "tma": {problem}', o.product, "copy")
        fastest = self.forall.regions[0].blocks[0].arguments[self.grid.fastest]
        multicast = self.grid.cluster > 1 and not check.depends(o.op, fastest)
        return Slot(ir.RankedTensorType.get(o.extents, o.element), swizzle, o.panels, multicast, o.rewrite)


@contextmanager
def _part(loop: ir.Operation, forall: ir.Operation) -> Iterator[dict[ir.Value, ir.Value]]:
    """What is built inside is of the same part as a loop in a loop over parts; yields what that one's values are
    here."""
    parts = loop.parent.operation
    if parts == forall:
        yield {}
        return
    bounds = [list(ir.DenseI64ArrayAttr(parts.attributes[f"static{n}"])) for n in ("LowerBound", "UpperBound", "Step")]
    made = scf.ForallOp(*bounds, [])
    with ir.InsertionPoint(made.body):
        yield {parts.regions[0].blocks[0].arguments[0]: made.body.arguments[0]}
        scf.InParallelOp()


def _produce(operands: LoopOperands, channels: list[Channel], copied: dict[ir.Value, ir.Value]) -> None:
    """Builds the producer's side of a loop."""
    loop = operands.op
    nests = [loop, loop.parent.operation] if copied else [loop]

    made = scf.ForOp(*(moved(v, copied, nests) for v in list(loop.operands)[:3]), [])
    copied[loop.regions[0].blocks[0].arguments[0]] = made.induction_variable
    with ir.InsertionPoint(made.body):
        for channel in channels:
            for number, o in enumerate(channel.group):
                window = moved(o.op.results[0], copied, nests)
                forget_demands(window.owner)
                rings.put(channel.ring, window, number, loc=o.product.location)
        scf.YieldOp([])


def _in_body(op: ir.Operation, loop: ir.Operation) -> ir.Operation | None:
    """The op of a loop's body that another one is, or stands in; None for one that does not."""
    while op.parent is not None and op.parent != loop:
        op = op.parent.operation
    return op if op.parent == loop else None


def _consume(operands: LoopOperands, channels: list[Channel]) -> None:
    """Lets the products of a loop read what comes through rings."""
    loop = operands.op
    releases = releases_of(operands, channels)
    for channel in channels:
        ops = [o.op for o in channel.group]
        order = [o.operation for o in operands.body.operations]
        last = max(order.index(op) for op in ops)
        users = [user for op in ops for u in op.results[0].uses if (user := _in_body(u.owner.operation, loop))]
        at = min((order[last + 1], *users), key=order.index)
        for op in within(loop, ops):
            if order.index(op) > order.index(at):
                op.move_before(at)
        with ir.InsertionPoint(at):
            for number, op in enumerate(ops):
                tile = rings.get(channel.ring, op.results[0].type, slices.dynamic_sizes(op), number, loc=op.location)
                op.results[0].replace_all_uses_with(tile)
                op.erase()
    insert_releases(releases, operands)
