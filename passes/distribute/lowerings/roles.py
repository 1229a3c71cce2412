"""What the warps of a block do, block after block: all of them the same, or (`mlirc.roles`) one warp copies what the
others compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlirc.dialects import rings
from mlirc.mlir import arith, gpu, ir, nvvm, scf
from mlirc.passes.distribute.copies.multistage import MultistageRing
from mlirc.passes.distribute.copies.ring import Ring, count_of
from mlirc.passes.distribute.copies.tensor_stores import TensorStores
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.team import Team, Warps
from mlirc.passes.distribute.lowerings.consumer import Consumer
from mlirc.passes.distribute.lowerings.producer import Producer, Rewriter
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.program import cluster_parts
from mlirc.passes.distribute.program.chain import Chain
from mlirc.passes.distribute.program.program import Program
from mlirc.passes.distribute.program.scope import Lowerings, Scope
from mlirc.passes.rings.check import Roles, Site, check_slots


class Blocks:
    """Which blocks of the forall a block of the launch computes: its own, or every `launched`-th from it on
    (`mlirc.persist`); of several teams (`mlirc.teams`), number `number` has one of its own."""

    def __init__(self, em: Emitter, grid, number: int = 0):
        self.em, self.grid, self.number = em, grid, number

    @contextmanager
    def all(self, scope: Scope, body: ir.Block, produces: bool = False) -> Iterator[None]:
        """What is built inside is done for every block; the forall's induction variables are set in `scope`, and
        the program's `turn` counts, or, of rings whose loops differ in length from block to block, the slots that were
        used so far (`started`). A team of the last block of the launch may have none. `produces`: by a producer."""
        em, grid = self.em, self.grid
        first: IndexValue = gpu.BlockIdOp(gpu.Dimension.x).result if grid.launched > 1 else 0
        if grid.chain > 1:
            scope.program.chain = Chain(em, grid.total, grid.chain)
            first = scope.program.chain.row
        first = em.add(em.mul(em.div(first, grid.parts), grid.teams), self.number)
        at_once = grid.launched * grid.teams
        if at_once >= grid.total:
            scope.program.turn = 0
            self._bind(scope, body, first)
            some = True if at_once == grid.total else em.condition(em.less(first, grid.total))
            with access.predicated(some):
                yield
            return
        turns = em.div(em.sub(grid.total + at_once - 1, first), at_once)
        counted = self._counted(scope.program, produces)
        loop = scf.ForOp(em.c(0), em.value(turns), em.c(1), [em.c(0)] * len(counted))
        with ir.InsertionPoint(loop.body):
            scope.program.turn = loop.induction_variable
            scope.program.started = dict(zip(counted, loop.inner_iter_args, strict=True))
            self._bind(scope, body, em.add(first, em.mul(loop.induction_variable, at_once)))
            yield
            ends: list[ir.Value] = []
            for ring, sites in counted.items():
                end: IndexValue = scope.program.started[ring]
                for site in sites:
                    end = em.add(end, count_of(site, scope))
                ends.append(em.value(end))
            scf.YieldOp(ends)
        scope.program.turn, scope.program.started = 0, {}

    @staticmethod
    def _counted(program: Program, produces: bool) -> dict[ir.Value, list[Site]]:
        """The rings, and their puts or gets, of which each block has a number of its own."""
        flows = program.roles.flows if program.roles else {}
        sites = {ring: flow.puts if produces else flow.gets for ring, flow in flows.items()}
        return {ring: found for ring, found in sites.items() if any(s.count() is None for s in found)}

    def _bind(self, scope: Scope, body: ir.Block, block: IndexValue) -> None:
        for iv, value in zip(body.arguments, self.grid.indices(self.em, block), strict=False):
            scope.scalars[iv] = value


def teams_of(roles: Roles | None, warps: int, teams: int = 1, more: int = 0) -> tuple[Warps, ...]:
    """The teams of a block: so many of `warps` warps each that compute, of which one alone may be all of them; with
    roles, a producer for each of these, and what is left of the producers; without, `more` warps that wait for what
    follows (`last_block.py`). Who meets without the others has a barrier of its own."""
    alone = roles is None and teams == 1 and not more
    gives, takes = roles.spec.registers or (None, None) if roles else (None, None)
    computing = [Warps(warps, warps * t, 0 if alone else t + 1, takes) for t in range(teams)]
    if roles is None:
        return (*computing, *([Warps(more, warps * teams)] if more else []))
    helping = Warps(roles.spec.producers, warps * teams, registers=gives)
    producers = [helping.part(t, 1) for t in range(teams)]
    return (*computing, *producers, helping.part(teams, roles.spec.producers - teams))


def emit(
    em: Emitter, forall, grid, scope: Scope, compute: Callable[[Scope], None],
    finish: Callable[[Scope], None] | None = None, each: bool = False,
) -> None:  # fmt: skip
    """Builds a block program: `compute` builds what computing warps do for one block. `finish` builds what follows that
    for the block whose induction variables a scope has, by all warps that have no role beside those that compute, or,
    where a block of the launch computes several, behind `each`, by those that compute."""
    body, program = forall.regions[0].blocks[0], scope.program
    store = em.taken.take(forall, "store", "vector")
    teams = [Team(em, members) for members in program.teams]
    computing, helping = teams[: grid.teams], teams[grid.teams :]
    if grid.parts > 1:
        program.rank = cluster_parts.rank(em)
    program.cluster = grid.cluster
    scopes = [scope.of_team() for _ in computing] if grid.teams > 1 else [scope]

    def all_blocks(number: int) -> None:
        _set_registers(computing[number], "increase")
        scope = scopes[number].inside() if len(teams) > 1 else scopes[number]
        stores = scope.program.tensor_stores = TensorStores(em, forall) if store == "tma" else None
        scope.program.whole_rows = store == "rows"
        with Blocks(em, grid, number).all(scope, body):
            compute(scope)
            if finish is not None and (program.roles is not None or each):
                finish(scope)
        if stores is not None:
            stores.finish()

    def help_them() -> None:
        _set_registers(helping[0], "decrease")
        _help(em, helping, grid, scopes, body)
        for _ in range(program.meetings):
            cluster_parts.meet()

    if program.roles is None:
        _divide(em, computing, all_blocks, (lambda: None) if helping else None)
        if grid.parts > 1:
            cluster_parts.meet()
        if finish is not None and not each:
            first: IndexValue = gpu.BlockIdOp(gpu.Dimension.x).result if grid.launched > 1 else 0
            with em.working(em.team if helping else computing[0]):
                inside = scope.inside()
                inside.scalars |= dict(zip(body.arguments, grid.indices(em, first), strict=False))
                finish(inside)
        return
    with em.working(computing[0]):
        check_slots(em, program.roles, grid.cluster, body.arguments[grid.fastest])
    branch = _divide(em, computing, all_blocks, help_them)
    assert branch is not None
    made = [ring for s in scopes for ring in s.program.rings.values()]
    if grid.teams > 1 and any(ring.rewriters for ring in made):
        what = "tiles that are written anew have all warps beside the producer's, for one team: leave it out"
        raise Unsupported(f"mlirc.teams = {grid.teams}: {what}", forall, "teams")
    with ir.InsertionPoint(branch):
        first = arith.CmpIOp(arith.CmpIPredicate.eq, em.block_thread, em.c(0)).result
        with access.predicated(first):
            for ring in made:
                ring.initialize()
            nvvm.FenceMbarrierInitOp()
        _meet(grid.cluster)
    if grid.shape[1] > 1:
        cluster_parts.meet()  # nobody leaves while others still write its memory


def _divide(
    em: Emitter, teams: list[Team], build: Callable[[int], None], others: Callable[[], None] | None = None,
    number: int = 0,
) -> ir.Operation | None:  # fmt: skip
    """Builds what each team of a block does, `build(its number)`, and what `others` do, if there are any. Returns the
    op where the first team parts from the rest."""
    team = teams[number]
    last = number == len(teams) - 1
    if last and others is None:
        with em.working(team):
            if number:
                team.begin()
            build(number)
        return None
    branch = scf.IfOp(em.condition(team.comes_first()), has_else=True)
    with ir.InsertionPoint(branch.then_block), em.working(team):
        team.begin()
        build(number)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        if last and others is not None:
            others()
        else:
            _divide(em, teams, build, others, number + 1)
        scf.YieldOp([])
    return branch.operation


def _set_registers(team: Team, action: str) -> None:
    """Moves registers to the threads of a team, or from them."""
    if team.members.registers is not None:
        nvvm.SetMaxRegisterOp(team.members.registers, ir.Attribute.parse(f"#nvvm<action {action}>"))


def _help(em: Emitter, teams: list[Team], grid, scopes: list[Scope], body: ir.Block) -> None:
    """What the helpers do: a thread for each team fills its rings, and where tiles are written anew, the other warps do
    that."""
    *producers, rewriters = teams

    def all_blocks(role: type[Producer], team: Team, number: int = 0) -> None:
        with em.working(team):
            inside = scopes[number].inside()
            helper = role(inside)
            with Blocks(em, grid, number).all(inside, body, produces=True):
                helper.block(inside, body)

    producer, *more = producers
    if not any(ring.rewriters for ring in scopes[0].program.rings.values()):
        one = producer.leads()
        with access.predicated(em.both(producer.comes_first(), one)):
            all_blocks(Producer, producer)
        for number, other in enumerate(more, 1):
            with access.predicated(em.both(em.equal(em.block_warp, other.first), one)):
                all_blocks(Producer, other, number)
        return
    branch = scf.IfOp(em.condition(producer.comes_first()), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        with access.predicated(producer.leads()):
            all_blocks(Producer, producer)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        all_blocks(Rewriter, rewriters)
        scf.YieldOp([])


def lower(scope: Scope, op: ir.Operation) -> None:
    """What the consumers do for a `mlirc.make_ring` or a `mlirc.roles`."""
    em, program, roles = scope.em, scope.program, scope.program.roles
    flow = program.copies.found.flows.get(op.results[0]) if op.name == rings.MAKE_RING else None
    if flow is not None:
        program.copies.rings[flow.ring] = MultistageRing(em, program.copies, flow)
        return
    assert roles is not None  # kernel.py has looked for them
    if op.name == rings.MAKE_RING:
        flow, rewriters = roles.flows[op.results[0]], roles.spec.producers - 1
        program.rings[op.results[0]] = Ring(em, scope, flow, program.cluster, rewriters)
        return
    consumer = Consumer(scope, roles.consume)
    outer, em.pipeline = em.pipeline, consumer
    outer_depth = em.pipeline_depth
    if consumer.gets:
        em.pipeline_depth = 1
    ops = list(roles.consume.operations)
    with em.team.run() as groups:
        for inner in ops[:-1]:
            if inner.operation not in program.later:
                scope.lower(inner)
        groups.finish()
    em.pipeline, em.pipeline_depth = outer, outer_depth
    for value in rings.yielded(roles.consume):
        result = rings.outside(value)
        if value in program.stored or not isinstance(value.owner, ir.Block) and value.owner.operation in program.later:
            continue
        if isinstance(value.type, ir.RankedTensorType):
            scope.tiles[result] = scope.tile(value)
        else:
            scope.scalars[result] = scope.scalar(value)


def _meet(cluster: int) -> None:
    """All threads of the block, or of the cluster."""
    if cluster == 1:
        gpu.BarrierOp()
        return
    cluster_parts.meet()


LOWERINGS: Lowerings = {
    rings.MAKE_RING: lower,
    rings.ROLES: lower,
    rings.CAST: lambda scope, op: None,  # of what the roles give: `lower` looks through it
}
