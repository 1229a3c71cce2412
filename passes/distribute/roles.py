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


def specialized_loop(forall) -> ir.Operation | None:
    """The K loop of a block program that has producers of its own."""
    found = [
        op.operation
        for op in forall.regions[0].blocks[0].operations
        if op.operation.name == "scf.for" and "mlirc.producers" in op.operation.attributes
    ]
    if len(found) > 1:
        raise Unsupported("mlirc.producers: two loops of a block have them: one may", found[1], "producers")
    return found[0] if found else None


def helpers(forall) -> int:
    """How many warps of a block do not compute."""
    return 1 if specialized_loop(forall) else 0


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
    loop = specialized_loop(forall)
    if em.taken.take(forall, "store", "vector") == "tma":
        em.tensor_stores = TensorStores(em, forall)

    def all_blocks(scope: Scope) -> None:
        with blocks.each(scope, body):
            compute(scope)
        if em.tensor_stores is not None:
            em.tensor_stores.finish()

    if loop is None:
        all_blocks(scope)
        return
    em.taken.take(loop, "producers")
    em.ring = ring = Ring(em, loop, grid.cluster, body.arguments[grid.fastest])
    computes = em.less(em.warp, em.warps)
    branch = scf.IfOp(em.condition(computes), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        all_blocks(scope.inside())
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        with memory.predicated(em.equal(em.lane, 0)):
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
            if op.operation == ring.loop:
                ring.fill(scope, rank)
                break
            tensor = any(isinstance(r.type, ir.RankedTensorType) for r in op.operation.results)
            if not tensor and name.split(".")[0] in _SCALAR or name in ("tensor.dim", "tensor.extract"):
                scope.lower(op)
            elif name == "tensor.extract_slice" and scope.view(op.operation.operands[0]) is not None:
                scope.lower(op)
