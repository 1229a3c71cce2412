"""The rules of rings that the warps that compute fill themselves (`copy` "cp_async" or "registers"), and what follows
for them: which copies a get waits for, and where all warps have to meet before a slot is written again.

Both are found by going through a block program as a warp would, each loop for as many iterations as its rings are
deep, and some more. A get's tiles arrive, for everybody, where the first of the ring's next put and a reader stands:
this warp waits for its own copies, then all meet. A put that follows that, and writes what was released before, needs
nothing else; any other one meets, too."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.dialects import rings
from mlirc.dialects.rings import RingSpec
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.products import matching
from mlirc.passes.rings.check import Flow, Site, check_readers, check_releases, check_tiles, collect, wrong


@dataclass
class Multistage:
    """The rings of a block program that those fill who compute, by their values. `pending`: of a get (the first op of
    its site), how many groups of copies may be under way when its tiles have arrived. `meets`: puts (first ops, too) in
    front of which all warps meet; `clears`: rings in front of which they do. `on_demand`: ops that nothing but
    such puts asks for. `ends`: the ops that use a ring last, by the ring."""

    flows: dict[ir.Value, Flow] = field(default_factory=dict)
    pending: dict[ir.Operation, int] = field(default_factory=dict)
    meets: set[ir.Operation] = field(default_factory=set)
    clears: set[ir.Value] = field(default_factory=set)
    on_demand: set[ir.Operation] = field(default_factory=set)
    ends: dict[ir.Value, ir.Operation] = field(default_factory=dict)


def multistage_of(forall: ir.Operation) -> Multistage:
    """The rings that the computing warps of a block program fill. Raises Unsupported, at the op to blame, for what
    breaks a rule."""
    found = Multistage()
    homes: list[tuple[ir.Block, list[Flow]]] = []
    for op in nested(forall):
        if op.name == rings.MAKE_RING and RingSpec.of(op).multistage:
            flow = Flow(op.results[0], RingSpec.of(op))
            found.flows[flow.ring] = flow
            home = _home(flow)
            if not any(home == other for other, _ in homes):
                homes.append((home, []))
            next(flows for other, flows in homes if other == home).append(flow)
    for home, flows in homes:
        by_ring = {flow.ring: flow for flow in flows}
        collect(by_ring, home, rings.PUT, lambda flow: flow.puts)
        collect(by_ring, home, rings.GET, lambda flow: flow.gets)
        for flow in flows:
            _check_uses(flow)
            check_tiles(flow)
            check_releases(home, flow)
            check_readers(flow)
            found.ends[flow.ring] = _last_use(home, flow)
        _Walk(found, home, by_ring).run()
    found.on_demand = _on_demand(found)
    return found


def _home(flow: Flow) -> ir.Block:
    """The block that a ring is used in, directly or in one loop there: where it is made, or a role or a part there."""
    made = flow.ring.owner.operation
    home: ir.Block | None = None
    for use in flow.ring.uses:
        op = use.owner.operation
        if op.name not in rings.USES:
            raise wrong(op, "takes a ring, which put, get and release alone do")
        nests = [op]
        while nests[-1].block != made.block:
            nests.append(nests[-1].parent.operation)
        while nests[-1].name in (rings.ROLES, "scf.forall"):
            nests.pop()
        if len(nests) > 2 or nests[-1].name not in ("scf.for", op.name):
            raise wrong(op, "stands beside its ring, or in a loop directly there")
        if home is not None and home != nests[-1].block:
            raise wrong(op, "stands in another role than others that use its ring: who computes puts and gets")
        home = nests[-1].block
    if home is None:
        raise wrong(made, "nothing is put into the ring")
    roles = home.owner.operation if home.owner.operation.name != "scf.forall" else home.owner.operation.parent.operation
    if roles.name == rings.ROLES and home.region != roles.regions[1] and home.owner.operation == roles:
        raise wrong(
            made, f'copy = "{flow.spec.copy}" is for warps that compute, and its puts stand among the producers'
        )
    return home


def _check_uses(flow: Flow) -> None:
    if not flow.puts:
        raise wrong(flow.gets[0].op if flow.gets else flow.ring.owner.operation, "nothing is put into the ring")
    if not flow.gets:
        raise wrong(flow.puts[0].op, "nobody gets what is put into the ring")
    loops = dict.fromkeys(site.loop for site in flow.gets)
    if len(loops) > 1:
        raise wrong(flow.gets[-1].op, "a ring that those fill who compute is read by one loop: make another one")
    [loop] = loops
    for site in flow.puts:
        if site.loop is not None and not site.stands_in(loop):
            raise wrong(site.op, "stands in the loop that gets what it puts, or in front of it")
    inside, total = any(site.loop is not None for site in flow.puts), flow.gets[0].count()
    if loop is not None and not inside and (total is None or total > len(flow.puts)):
        raise wrong(flow.gets[0].op, f"gets from a ring in every iteration, which is put {len(flow.puts)} times")


def _last_use(home: ir.Block, flow: Flow) -> ir.Operation:
    """The op of a block that a ring is done with behind."""
    used = {u.owner.operation for u in flow.ring.uses}
    outer = {op.parent.operation if op.block != home else op for op in used}
    return [o.operation for o in home.operations if o.operation in outer][-1]


def waits_for_product(get: ir.Operation) -> bool:
    """Whether products beside it alone read what a get gives: it arrives where they do."""
    users = [u.owner.operation for u in get.results[0].uses]
    return all(u.block == get.block and u.name == "linalg.generic" and matching.match(u) is not None for u in users)


def _is_quiet(op: ir.Operation) -> bool:
    """Whether an op touches no shared memory: it makes numbers, or windows of global memory."""
    return op.name.split(".")[0] in ("affine", "arith") or op.name in _QUIET


_QUIET = ("tensor.extract_slice", "tensor.cast", "tensor.empty", "tensor.dim", "linalg.fill", *rings.NAMES)


class _Walk:
    """One way through a block. Times count what happens; a barrier orders what was before it."""

    def __init__(self, found: Multistage, home: ir.Block, flows: dict[ir.Value, Flow]):
        self.found, self.home, self.flows = found, home, flows
        self.sites = {op: s for f in flows.values() for s in (*f.puts, *f.gets) for op in s.ops.values()}
        self.iterations = 2 * max(f.spec.depth for f in flows.values()) + 3

    def run(self) -> None:
        """The first way finds the puts that have to meet, the second one what is left of memory that others read."""
        for last in (False, True):
            self.last = last
            self.time, self.met, self.commits = 1, -1, 0
            self.touched = 0  # when shared memory was last used by what is no ring of this block
            self.made = dict.fromkeys(self.flows, 0)  # when the ring's memory was last used before it
            self.freed: dict[tuple[ir.Value, int], int] = {}
            self.put: dict[ir.Value, list[int]] = {ring: [] for ring in self.flows}  # commits, by the slots' numbers
            self.got: dict[Site, list[int]] = {s: [] for f in self.flows.values() for s in f.gets}
            self.count = dict.fromkeys(self.flows, 0)  # of gets
            self.waiting: list[tuple[ir.Operation, ir.Value, int]] = []
            for op in self.home.operations:
                self._op(op.operation)

    def _op(self, op: ir.Operation) -> None:
        body = op.regions[0].blocks[0] if op.name == "scf.for" else None
        if body is not None and any(o.operation in self.sites for o in body.operations):
            total = next(s for s in self.sites.values() if s.stands_in(op)).count()
            for _ in range(self.iterations if total is None else min(self.iterations, total)):
                for inner in body.operations:
                    self._step(inner.operation)
        else:
            self._step(op)
        if op in self.found.ends.values():  # all copies have arrived, and the warps meet
            self.waiting = []
            self.time += 1
            self.met = self.time

    def _step(self, op: ir.Operation) -> None:
        self.time += 1
        site = self.sites.get(op)
        if op.name == rings.MAKE_RING and op.results[0] in self.flows:
            self.made[op.results[0]] = self.touched
        elif site is not None and op.name == rings.PUT:
            self._put(op, site, self.flows[op.operands[0]])
        elif site is not None:
            self._get(op, site, self.flows[op.operands[0]])
        elif op.name == rings.RELEASE and op.operands[0] in self.flows:
            ring, lag = op.operands[0], ir.IntegerAttr(op.attributes["lag"]).value
            numbers = self.got[self.flows[ring].released[op]]
            if lag < len(numbers):
                self.freed[ring, numbers[-1 - lag]] = self.time
        elif not _is_quiet(op):
            self.touched = self.time
            if any(v.owner.operation in self.sites for v in op.operands if not isinstance(v.owner, ir.Block)):
                self._arrive()

    def _put(self, op: ir.Operation, site: Site, flow: Flow) -> None:
        if op == site.op:
            self._arrive()
            self._make_room(op, site, flow)
        if op == list(site.ops.values())[-1]:
            self.commits += flow.spec.copy == "cp_async"
            self.put[flow.ring].append(self.commits)

    def _make_room(self, op: ir.Operation, site: Site, flow: Flow) -> None:
        number, depth = len(self.put[flow.ring]), flow.spec.depth
        needed = self.freed.get((flow.ring, number - depth)) if number >= depth else self.made[flow.ring]
        if needed is None:
            raise wrong(op, f"writes a slot that is not released yet: the ring's depth of {depth} is too short for it")
        if op in self.found.meets:
            self.met = self.time
        elif needed > self.met:
            if number < depth and site.loop is not None:
                if self.last:  # what has been in the ring's memory before it
                    self.found.clears.add(flow.ring)
                return
            self.found.meets.add(op)
            self.met = self.time

    def _get(self, op: ir.Operation, site: Site, flow: Flow) -> None:
        if op == site.op:
            number = self.count[flow.ring]
            if number >= len(self.put[flow.ring]):
                raise wrong(op, "gets what is put behind it: put it in front, or some iterations ahead")
            self.count[flow.ring] += 1
            self.got[site].append(number)
            self.waiting.append((op, flow.ring, number))
        if not waits_for_product(op):
            self._arrive()

    def _arrive(self) -> None:
        for get, ring, number in self.waiting:
            under_way = self.commits - self.put[ring][number]
            if self.flows[ring].spec.copy == "cp_async":
                self.found.pending[get] = min(self.found.pending.get(get, under_way), under_way)
        if self.waiting:
            self.met = self.time
        self.waiting = []


def _on_demand(found: Multistage) -> set[ir.Operation]:
    """Slices in loops that nothing but puts by cp.async reads, their conditions, and the numbers for them alone."""
    wanted: set[ir.Operation] = set()

    def visit(op: ir.Operation, number: bool, block: ir.Block) -> None:
        computes = op.name.startswith("affine.") or number and op.name.startswith("arith.")
        if op.block != block or op.name != "tensor.extract_slice" and not computes:
            return
        users = [u.owner.operation for r in op.results for u in r.uses]
        if not all(u in wanted or u.name == rings.PUT and u.operands[0] in copied for u in users):
            return
        wanted.add(op)
        for v in op.operands:
            if not isinstance(v.owner, ir.Block):
                visit(v.owner.operation, not isinstance(v.type, ir.RankedTensorType), block)

    copied = {ring for ring, flow in found.flows.items() if flow.spec.copy == "cp_async"}
    for ring in copied:
        for put in [op for site in found.flows[ring].puts if site.loop is not None for op in site.ops.values()]:
            for v in list(put.operands)[1:]:
                if not isinstance(v.owner, ir.Block):
                    visit(v.owner.operation, not isinstance(v.type, ir.RankedTensorType), put.block)
    return wanted
