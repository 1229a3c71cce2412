"""What the warps of a block do, block after block: all of them the same, or (a loop with `mlirc.producers`) one warp
copies what the others compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mlirc.mlir import arith, gpu, ir, nvvm, scf
from mlirc.passes.distribute import memory
from mlirc.passes.distribute.block import Scope
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.ring import Ring
from mlirc.passes.distribute.tensor_stores import TensorStores


def specialized_loops(forall) -> list[ir.Operation]:
    """The K loops of a block program that have producers of their own."""
    return [
        op.operation
        for op in forall.regions[0].blocks[0].operations
        if op.operation.name == "scf.for" and "mlirc.producers" in op.operation.attributes
    ]


def helpers(forall) -> int:
    """How many warps of a block do not compute."""
    loops = specialized_loops(forall)
    counts = [ir.IntegerAttr(loop.attributes["mlirc.producers"]).value for loop in loops]
    if len(set(counts)) > 1:
        what = "loops of a block share their producers: give each the same number"
        raise Unsupported(f"mlirc.producers: {what}", loops[1], "producers")
    return counts[0] if counts else 0


REGISTERS = 65536  # of a multiprocessor
LEAST, MOST = 24, 240  # of a thread: setmaxnreg's least, and the most that are of use


def registers(em: Emitter) -> tuple[int, int] | None:
    """Registers of each computing thread and of each producer, where producers are a whole warpgroup, which can give
    theirs up (PTX ISA, "setmaxnreg"): as many as the block's launch has for all. None where there is nothing to
    give."""
    threads = em.threads + 32 * em.helpers
    if em.helpers % 4 or not em.helpers or em.warps % 4:
        return None
    launch = min(REGISTERS // (em.min_blocks * threads), 255) // 8 * 8
    more = min(launch + (launch - LEAST) * 32 * em.helpers // em.threads, MOST) // 8 * 8
    return (more, LEAST) if more > launch > LEAST else None


def _set_registers(count: int, action: str) -> None:
    nvvm.SetMaxRegisterOp(count, ir.Attribute.parse(f"#nvvm<action {action}>"))


class Blocks:
    """Which blocks of the forall a block of the launch computes: its own, or every `launched`-th from it on
    (`mlirc.persist`)."""

    def __init__(self, em: Emitter, grid):
        self.em, self.grid = em, grid

    @contextmanager
    def each(self, scope: Scope, body: ir.Block) -> Iterator[None]:
        """What is built inside is done for every block; the forall's induction variables are set in `scope`, and
        `em.turn` counts."""
        em, grid = self.em, self.grid
        first: IndexValue = gpu.BlockIdOp(gpu.Dimension.x).result if grid.launched > 1 else 0
        if grid.launched == grid.total:
            em.turn = 0
            self._bind(scope, body, first)
            yield
            return
        turns = em.div(em.sub(grid.total + grid.launched - 1, first), grid.launched)
        loop = scf.ForOp(em.c(0), em.value(turns), em.c(1), [])
        with ir.InsertionPoint(loop.body):
            em.turn = loop.induction_variable
            self._bind(scope, body, em.add(first, em.mul(em.turn, grid.launched)))
            yield
            scf.YieldOp([])
        em.turn = 0

    def _bind(self, scope: Scope, body: ir.Block, block: IndexValue) -> None:
        for iv, value in zip(body.arguments, self.grid.indices(self.em, block), strict=False):
            scope.scalars[iv] = value


def emit(em: Emitter, forall, grid, scope: Scope, compute: Callable[[Scope], None]) -> None:
    """Builds a block program: `compute` builds what the computing warps do for one block."""
    body = forall.regions[0].blocks[0]
    blocks = Blocks(em, grid)
    loops = specialized_loops(forall)
    if em.taken.take(forall, "store", "vector") == "tma":
        em.tensor_stores = TensorStores(em, forall)

    def all_blocks(scope: Scope) -> None:
        with blocks.each(scope, body):
            compute(scope)
        if em.tensor_stores is not None:
            em.tensor_stores.finish()

    if not loops:
        all_blocks(scope)
        return
    for loop in loops:
        em.taken.take(loop, "producers")
    em.ring = ring = Ring(em, loops, grid.cluster, body.arguments[grid.fastest])
    computes = em.less(em.warp, em.warps)
    branch = scf.IfOp(em.condition(computes), has_else=True)
    given = registers(em)
    with ir.InsertionPoint(branch.then_block):
        if given:
            _set_registers(given[0], "increase")
        all_blocks(scope.inside())
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        if given:
            _set_registers(given[1], "decrease")
        one = em.equal(em.lane, 0)
        with memory.predicated(em.both(em.equal(em.warp, em.warps), one) if em.helpers > 1 else one):
            _produce(em, ring, blocks, scope.inside(), body)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.operation):
        first = arith.CmpIOp(arith.CmpIPredicate.eq, em.tid, em.c(0)).result
        with memory.predicated(first):
            ring.initialize()
        _meet(grid.cluster)
    if grid.cluster > 1:
        _meet(grid.cluster)  # nobody leaves while others still write its memory


def _meet(cluster: int) -> None:
    """All threads of the block, or of the cluster."""
    if cluster == 1:
        gpu.BarrierOp()
        return
    nvvm.ClusterArriveOp()
    nvvm.ClusterWaitOp()


_SCALAR = ("affine", "arith")


def _produce(em: Emitter, ring: Ring, blocks: Blocks, scope: Scope, body: ir.Block) -> None:
    """One thread fills the ring for every block: of the program in front of the loop it needs the numbers alone."""
    rank: IndexValue = 0
    if ring.cluster > 1:
        i32 = ir.IntegerType.get_signless(32)
        rank = arith.IndexCastOp(em.index, nvvm.ClusterId(results=[i32]).results[0]).result
    with blocks.each(scope, body):
        for op in body.operations:
            name = op.operation.name
            if op.operation in ring.loops:
                ring.fill(scope, op.operation, rank)
                continue
            tensor = any(isinstance(r.type, ir.RankedTensorType) for r in op.operation.results)
            if not tensor and name.split(".")[0] in _SCALAR or name in ("tensor.dim", "tensor.extract"):
                scope.lower(op)
            elif name == "tensor.extract_slice" and scope.view(op.operation.operands[0]) is not None:
                scope.lower(op)
