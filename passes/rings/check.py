"""The rules of the `async` level that span several ops: what goes into a ring comes out of it, in the same number, and
is given back once; and what a slot holds is what its readers read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlirc.dialects import rings
from mlirc.dialects.rings import IN_PLACE, RingSpec, RolesSpec
from mlirc.mlir import ir, nested
from mlirc.passes.distribute.copies.loop_operands import product_of
from mlirc.passes.distribute.emit.emitter import Unsupported
from mlirc.passes.distribute.emit.team import Planner
from mlirc.passes.distribute.memory import slices
from mlirc.passes.distribute.products.rewriting import SLOTS

REGISTERS = 65536  # of a multiprocessor


@dataclass(eq=False)
class Site:
    """Where a role uses a slot of a ring, or (in a loop) one in each iteration: the puts or gets, by their tiles."""

    ops: dict[int, ir.Operation]
    loop: ir.Operation | None

    @property
    def op(self) -> ir.Operation:
        """The first of the ops."""
        return next(iter(self.ops.values()))

    def stands_in(self, loop: ir.Operation | None) -> bool:
        """Whether this is a loop's site, or (None) of no loop."""
        return self.loop is loop if self.loop is None or loop is None else self.loop == loop

    def count(self) -> int | None:
        """How often, where that is known."""
        if self.loop is None:
            return 1
        bounds = [slices.known(v) for v in list(self.loop.operands)[:3]]
        if bounds[2] is not None and bounds[2] <= 0:
            raise wrong(self.loop, f"a loop with a step of {bounds[2]}")
        return None if None in bounds else len(range(*(n for n in bounds if n is not None)))


@dataclass
class Flow:
    """Who does what with a ring, in program order. `released`: the site whose slots a release gives back."""

    ring: ir.Value
    spec: RingSpec
    puts: list[Site] = field(default_factory=list)
    gets: list[Site] = field(default_factory=list)
    released: dict[ir.Operation, Site] = field(default_factory=dict)


@dataclass
class Roles:
    """The roles of a block program: its one `mlirc.roles`, and its rings by their values."""

    op: ir.Operation
    spec: RolesSpec
    flows: dict[ir.Value, Flow]

    @property
    def produce(self) -> ir.Block:
        return self.op.regions[0].blocks[0]

    @property
    def consume(self) -> ir.Block:
        return self.op.regions[1].blocks[0]


def roles_of(forall: ir.Operation) -> Roles | None:
    """The roles of a block program, None where all of its warps do the same. Raises Unsupported, at the op to blame,
    for what breaks a rule."""
    body = [o.operation for o in forall.regions[0].blocks[0].operations]
    found = [op for op in body if op.name == rings.ROLES]
    for op in nested(forall):
        alone = op.name == rings.ROLES or op.name == rings.MAKE_RING and not RingSpec.of(op).multistage
        if alone and op.parent != forall:
            raise wrong(op, "stands directly in a block program (an scf.forall)")
        if op.name in rings.USES and not found and not rings.spec_of(op.operands[0]).multistage:
            raise wrong(op, "stands in the roles of a block (mlirc.roles)")
    if not found:
        return None
    if len(found) > 1:
        raise wrong(found[1], "a block's warps are divided once")
    roles = Roles(found[0], RolesSpec.of(found[0]), {})
    for op in body:
        if op.name == rings.MAKE_RING and not RingSpec.of(op).multistage:
            roles.flows[op.results[0]] = Flow(op.results[0], RingSpec.of(op))
    collect(roles.flows, roles.produce, rings.PUT, lambda flow: flow.puts)
    collect(roles.flows, roles.consume, rings.GET, lambda flow: flow.gets)
    for flow in roles.flows.values():
        if any(slot.rewrite for slot in flow.spec.slots) and roles.spec.producers < 2:
            what = (
                "warps beside the producer's write its tiles anew, as products read them: specialize(loop, producers=4)"
            )
            raise Unsupported(f"mlirc.producers: {what}", flow.ring.owner.operation, "producers")
        _check_uses(roles, flow)
        _check_counts(flow)
        check_releases(roles.consume, flow)
        check_readers(flow)
    return roles


def check_registers(roles: Roles, min_blocks: int, teams: int = 1) -> None:
    """Raises Unsupported for registers that the block's launch does not have: who asks for more waits for ever."""
    spec = roles.spec
    if spec.registers is None:
        return
    computing = spec.consumers * teams
    warps = spec.producers + computing
    launch = launch_registers(warps, min_blocks)
    asked = spec.producers * spec.registers[0] + computing * spec.registers[1]
    if asked > launch * warps:
        what = f"registers {list(spec.registers)} are {asked * 32} of a block's {launch * warps * 32}"
        raise wrong(roles.op, f"{what}: ask for less")
    if spec.registers[0] > launch or spec.registers[1] < launch:
        what = f"registers {list(spec.registers)}: producers give up some of the {launch} that each thread begins with"
        raise wrong(roles.op, what)


def launch_registers(warps: int, min_blocks: int) -> int:
    """Registers that each thread of a block begins with."""
    return min(REGISTERS // (min_blocks * warps * 32), 255) // 8 * 8


def wrong(op: ir.Operation, what: str) -> Unsupported:
    """An error at an op, with its line where the level was given as a file."""
    problem = Unsupported(f"{op.name}: {what}", op)
    place = str(op.location)
    if not problem.place and place.startswith('loc("-":'):  # of a file that was given
        return Unsupported(f"{op.name} in line {place.split(':')[1]}: {what}", op)
    return problem


def collect(flows: dict[ir.Value, Flow], block: ir.Block, name: str, sites_of: Callable[[Flow], list[Site]]) -> None:
    """Notes where a role uses some of its rings."""
    for outer in block.operations:
        outer_op = outer.operation
        inside = [outer_op]
        if outer_op.name == "scf.forall":  # over parts, of which each block has one
            collect(flows, outer_op.regions[0].blocks[0], name, sites_of)
        if outer_op.name == "scf.for":
            inside = [o.operation for o in outer_op.regions[0].blocks[0].operations]
        for op in inside:
            if op.name != name or op.operands[0] not in flows:
                continue
            sites, tile = sites_of(flows[op.operands[0]]), ir.IntegerAttr(op.attributes["tile"]).value
            loop = outer_op if op != outer_op else None
            if not sites or not sites[-1].stands_in(loop) or tile in sites[-1].ops and loop is None:
                sites.append(Site({}, loop))
            if tile in sites[-1].ops:
                raise wrong(op, f"a loop has one slot of a ring in each iteration, and this is its tile {tile} again")
            sites[-1].ops[tile] = op


def _check_uses(roles: Roles, flow: Flow) -> None:
    """A ring is used by the roles alone: put by producers, got and released by consumers, in loops that follow each
    other."""
    homes = {rings.PUT: roles.op.regions[0], rings.GET: roles.op.regions[1], rings.RELEASE: roles.op.regions[1]}
    known = {op for s in (*flow.puts, *flow.gets) for op in s.ops.values()}
    for use in flow.ring.uses:
        op = use.owner.operation
        if op.name not in homes:
            raise wrong(op, "takes a ring, which put, get and release alone do")
        block = op.block
        while block.owner.operation != roles.op and block.owner.operation.name in _NESTS:
            block = block.owner.operation.block
        if block.owner.operation != roles.op or block.region != homes[op.name]:
            who = "producers" if op.name == rings.PUT else "consumers"
            raise wrong(op, f"stands in the region of the {who}")
        if _role(op) is None or op.name != rings.RELEASE and op not in known:
            raise wrong(op, "stands in its role, or in a loop directly in that")
    if not flow.puts:
        got = flow.gets[0].op if flow.gets else flow.ring.owner.operation
        raise wrong(got, "nothing is put into the ring")
    if not flow.gets:
        raise wrong(flow.puts[0].op, "nobody gets what is put into the ring")
    check_tiles(flow)


def check_tiles(flow: Flow) -> None:
    """All tiles of a slot are put together."""
    for site in flow.puts:
        for number in range(len(flow.spec.slots)):
            if number not in site.ops:
                raise wrong(site.op, f"tile {number} of the slot is not put beside it")


_NESTS = ("scf.for", "scf.forall", "scf.if")


def _role(op: ir.Operation) -> ir.Operation | None:
    """The roles that an op stands in, directly or in one loop; a loop over parts, of which each block has one, is
    none."""
    home = op.parent.operation if op.parent.name != "scf.for" else op.parent.operation.parent
    home = home.parent if home.name == "scf.forall" else home
    return home if home.name == rings.ROLES else None


def _check_counts(flow: Flow) -> None:
    """As many puts as gets, where their numbers are known; what is not known is left to the host device."""
    put, got = ([s.count() for s in sites] for sites in (flow.puts, flow.gets))
    if None in put or None in got:
        return
    puts, gets = (sum(n for n in counts if n is not None) for counts in (put, got))
    if puts != gets:
        raise wrong(flow.puts[-1].op, f"puts {puts} times into the ring, which is got from {gets} times")


def check_releases(block: ir.Block, flow: Flow) -> None:
    """Every slot that is got in a block, or in loops there, is given back once, behind its readers."""
    order = _order(block)
    lags: dict[Site, list[tuple[ir.Operation, int, bool]]] = {site: [] for site in flow.gets}
    releases = [use.owner.operation for use in flow.ring.uses if use.owner.operation.name == rings.RELEASE]
    for op in sorted(releases, key=order.__getitem__):
        loop = op.parent.operation if op.parent.name == "scf.for" and op.block != block else None
        lag = ir.IntegerAttr(op.attributes["lag"]).value
        if loop is not None:
            site = next((s for s in flow.gets if s.stands_in(loop)), None)
            if site is None:
                raise wrong(op, "releases a ring that this loop does not get from")
        else:
            site = next((s for s in reversed(flow.gets) if order[s.loop or s.op] < order[op]), None)
            if site is None:
                raise wrong(op, "releases a ring in front of its first get")
        lags[site].append((op, lag, loop is not None))
        flow.released[op] = site
        if lag == 0 and (loop is not None or site.loop is None):
            _check_order(op, site, order)
    for site, found in lags.items():
        _check_lags(flow, site, found)


def _check_lags(flow: Flow, site: Site, found: list[tuple[ir.Operation, int, bool]]) -> None:
    """One release in the loop, `lag` behind its get, and one behind the loop for each of the slots that are left."""
    if site.loop is None:  # a slot by itself: there is none before it
        found = [(op, lag, True) for op, lag, _ in found if lag == 0]
    inside = [(op, lag) for op, lag, within in found if within]
    if not inside:
        where = "in the loop" if site.loop is not None else "behind it"
        raise wrong(site.op, f"the slot is not released {where}: {_never(flow)}")
    if len(inside) > 1:
        raise wrong(inside[1][0], "the slot is released twice")
    op, most = inside[0]
    if any(slot.rewrite for slot in flow.spec.slots) and most + 1 > SLOTS:
        raise wrong(op, f"lag = {most}: what is made of tiles that are written anew is kept for {SLOTS} slots")
    if most + 1 > flow.spec.depth:
        what = f"lag = {most} keeps {most + 1} slots of a ring of depth {flow.spec.depth}"
        raise wrong(op, f"{what}: {_never(flow)}")
    behind = [(op, lag) for op, lag, within in found if not within]
    for lag in range(most):
        if lag not in [n for _, n in behind]:
            what = f"release(lag = {lag}) is missing behind the loop, whose last slots the lag of {most} leaves"
            raise wrong(site.op, what)
    for i, (late, lag) in enumerate(behind):
        if lag >= most or lag in [n for _, n in behind[:i]]:
            raise wrong(late, f"the slot (lag = {lag}) is released twice")


def _never(flow: Flow) -> str:
    """What comes of a slot that stays taken."""
    return "nothing may be put there again" if flow.spec.multistage else "its producer would wait for ever"


def _check_order(release: ir.Operation, site: Site, order: dict[ir.Operation, int]) -> None:
    """A release of this iteration's slot stands behind all who read it."""
    for get in site.ops.values():
        if order[release] < order[get]:
            raise wrong(release, "releases a slot in front of its get")
        for use in get.results[0].uses:
            if order[use.owner.operation] > order[release]:
                raise wrong(release, f"a {use.owner.operation.name} behind it still reads the slot")


def _order(block: ir.Block) -> dict[ir.Operation, int]:
    """The ops of a role, nested ones too, in order; a loop comes behind what is in it."""
    found: dict[ir.Operation, int] = {}
    for outer in block.operations:
        for op in (*nested(outer.operation), outer.operation):
            found[op] = len(found)
    return found


def check_readers(flow: Flow) -> None:
    """Tiles stay in the iteration that gets them, and what copies read is in global memory."""
    for site in flow.gets:
        for get in site.ops.values():
            for use in get.results[0].uses:
                if use.owner.operation.name in ("scf.yield", rings.YIELD):
                    raise wrong(
                        use.owner.operation, "a tile of a ring leaves the iteration that got it: its slot does not"
                    )
    for site in flow.puts:
        for op in site.ops.values():
            if flow.spec.copy == "registers":
                continue
            source = rings.slice_of(op).operands[0]
            copied = site.loop is not None and not flow.spec.multistage  # by others, who know windows from outside
            near = copied and not isinstance(source.owner, ir.Block) and source.owner.operation.parent == site.loop
            if not slices.is_global(source) or near:
                raise wrong(op, "copies slices of what the kernel takes, or of an earlier launch's result")


def check_slots(planner: Planner, roles: Roles, cluster: int, fastest: ir.Value) -> None:
    """Raises Unsupported where a slot is not what the products read that read it: its extents, its panels, zeros along
    k; and for a multicast of what the blocks of a cluster do not share."""
    for flow in roles.flows.values():
        for site in flow.puts:
            for number, op in site.ops.items():
                shared = flow.spec.slots[number].multicast and cluster > 1
                if shared and depends(rings.slice_of(op), fastest):
                    raise wrong(op, "the blocks of a cluster read different slices: no multicast")
        check_products(planner, flow)


def check_products(planner: Planner, flow: Flow) -> None:
    """Raises Unsupported where a slot is not what the products read that read it."""
    for site in flow.gets:
        for number, get in site.ops.items():
            for use in get.results[0].uses:
                _check_reader(planner, flow, number, use.owner.operation, get.results[0])


def _check_reader(planner: Planner, flow: Flow, number: int, reader: ir.Operation, tile: ir.Value) -> None:
    found, slot = product_of(planner, reader), flow.spec.slots[number]
    if found is None:
        if slot.rewrite in IN_PLACE:
            raise wrong(reader, f"tile {number} of its ring is {slot.rewrite} where it lies: products alone read it")
        return
    info, geometry = found
    for which, value in enumerate(info.arrange(list(reader.operands))[:2]):
        if value != tile:
            continue
        wanted = geometry.operand_extents(which, slices.tile_bounds(tile))
        if any(n > m for n, m in zip(wanted, slot.tile.shape, strict=True)):
            shape = "x".join(map(str, wanted))
            raise wrong(flow.ring.owner.operation, f"a product reads {shape} of a slot of {slot.tile}")
        narrow = geometry.instruction.reads_narrow and slot.panels and slot.swizzle in (32, 64)
        panels = geometry.panels[which] or narrow
        if panels != slot.panels and (slot.panels or geometry.instruction.asynchronous):
            what = "in panels" if not slot.panels else "in whole rows"
            raise wrong(flow.ring.owner.operation, f"a product reads tile {number} of its slots {what}")
        if flow.spec.multistage:  # its copies leave zeros beyond a slice, and wgmma says what it cannot read
            continue
        if (
            geometry.instruction.asynchronous
            and slot.swizzle != 128
            and not narrow
            and not geometry.spread.rewrites[which]
        ):
            what = f"{geometry.instruction.name} reads rows that are swizzled over 128 bytes, not {slot.swizzle}"
            raise wrong(flow.ring.owner.operation, what)
        rewrite = geometry.spread.rewrites[which]
        if rewrite != slot.rewrite and (rewrite or slot.rewrite in IN_PLACE):
            what = f'a product reads tile {number} of its slots with rewrite = "{rewrite}", not "{slot.rewrite}"'
            raise wrong(flow.ring.owner.operation, what)
        position = info.maps[which].index(info.k)
        for site in flow.puts:
            put = site.ops[number]
            problem = zeros_beyond(rings.slice_of(put), position, list(slot.tile.shape))
            if problem:
                raise wrong(put, problem)


def zeros_beyond(op: ir.Operation, position: int, extents: list[int]) -> str:
    """Why what a copy of these extents reads beyond a slice along its dimension `position`, which products sum over,
    may be other than zero; "" where it lies outside of the tensor."""
    whole = list(ir.RankedTensorType(op.operands[0].type).shape)
    kept = slices.kept_dims(op, op.results[0])[position]
    static = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))[kept]
    if static == extents[position] or static == whole[kept]:
        return ""
    if static == slices.DYNAMIC and slices.cut_at_edges(op, whole)[kept]:
        return ""
    return "what lies beyond the slices along k is not zero"


def depends(op: ir.Operation, on: ir.Value) -> bool:
    """Whether an op's operands are computed from a value."""
    for v in op.operands:
        if v == on or not isinstance(v.owner, ir.Block) and depends(v.owner.operation, on):
            return True
    return False
