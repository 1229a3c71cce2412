"""A block program that the launch in front of it computes, too (`mlirc.last_block`): of the blocks whose parts a block
of it reads, the one that is done last.

    parts    = this block's part, stored in global memory; the threads meet
    release    one thread adds 1 to the counter of the tile, which begins again at 0 behind the last part's (atom.inc)
    acquire    the block that has drawn the last number reads all parts, in their order: the same result in every run

A counter is 0 wherever no launch is under way: zeros of the module's own memory, which every launch that ends leaves as
they were. Who comes last differs from run to run; what it computes does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mlirc.mlir import arith, ir, llvm, memref, nested, scf
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.program import gates, streamed_parts
from mlirc.passes.distribute.program.grid import Grid
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.distribute.program.streamed_parts import StreamedParts
from mlirc.schedule.attributes import Taken

_ACQ_REL = 6  # LLVM's AtomicOrdering


@dataclass(frozen=True)
class LastBlock:
    """A block program that the last block of `parts` of `first` computes, by `warps` warps: `shares` blocks of it for
    each tile, one after the other. `counts`: the tiles, along the induction variables that both programs have. Or parts
    are `streamed`, and `parts` is 0."""

    first: ir.Operation
    forall: ir.Operation
    warps: int
    counts: list[int]
    parts: int
    shares: int
    streamed: StreamedParts | None = None

    @property
    def tiles(self) -> int:
        return math.prod(self.counts)


def of(
    first: ir.Operation, forall: ir.Operation, grid: Grid, warps: int, roles: bool, taken: Taken
) -> LastBlock | None:
    """What `mlirc.last_block` asks for, where the launch of `first` can do it; else None, and a reason is noted for who
    demands it. `grid` is that of `first`, `warps` those of it that compute, `roles` whether others copy for them."""
    wanted = taken.take(forall, "last_block", 0)
    if not wanted:
        return None
    own = Grid(forall, taken)
    if own.rank == 2 and gates.gates_of(first.regions[0].blocks[0]):
        return _streamed(first, forall, grid, own, wanted, warps, taken)
    problem = _problem(first, forall, grid, own) or _wrong_warps(wanted, warps, roles)
    if problem:
        taken.refuse(forall, "last_block", problem)
        return None
    return LastBlock(first, forall, wanted, grid.counts[:-1], grid.counts[-1], own.counts[-1])


def _streamed(
    first: ir.Operation, forall: ir.Operation, grid: Grid, own: Grid, wanted: int, warps: int, taken: Taken
) -> LastBlock | None:  # fmt: skip
    """The same of a launch whose blocks have parts of some tiles, among others that they compute."""
    found: StreamedParts | str = "its blocks do not count from 0 by 1, or the launch in front of it has several teams"
    if set(grid.lower + own.lower) == {0} and set(grid.step + own.step) == {1} and grid.teams == 1:
        found = streamed_parts.find(first, forall)
    if not isinstance(found, str) and wanted != warps:
        found = f"{warps} warps compute several blocks, and combine parts meanwhile: give {warps}"
    if isinstance(found, str):
        taken.refuse(forall, "last_block", found)
        return None
    return LastBlock(first, forall, wanted, own.counts[:1], 0, own.counts[1], found)


def _wrong_warps(wanted: int, warps: int, roles: bool) -> str:
    if roles and wanted != warps:
        return f"{warps} warps compute beside a producer: they combine the parts, too: give {warps}"
    return f"the block has {warps} warps that compute: give {warps} or more" if wanted < warps else ""


def _problem(first: ir.Operation, forall: ir.Operation, grid: Grid, own: Grid) -> str:
    """Why a launch cannot compute what follows it; "" if it can."""
    rank = grid.rank - 1
    if rank < 0 or own.rank != grid.rank or own.counts[:-1] != grid.counts[:-1]:
        return "its blocks are not those of the launch in front of it, less the parts"
    if set(grid.lower + own.lower) != {0} or set(grid.step + own.step) != {1} or not grid.total:
        return "its blocks do not count from 0 by 1"
    if grid.parts > 1 or own.parts > 1:
        return "a cluster divides K, or a row, already"
    if grid.teams > 1 or grid.launched != grid.total:
        return "each block of the launch in front of it computes one part: leave mlirc.persist and mlirc.teams out"
    if "mlirc.store" in first.attributes and ir.StringAttr(first.attributes["mlirc.store"]).value == "tma":
        return "parts leave by the threads' own stores: leave store out"
    ivs = list(forall.regions[0].blocks[0].arguments)[:rank]
    mine = list(first.regions[0].blocks[0].arguments)
    inserts = [o.operation for o in _end(first).regions[0].blocks[0].operations]
    if not all(_of_tile(op, mine[:rank], grid.counts) for op in inserts):
        return "a block in front of it writes to more than the workspace of its tile"
    inside = set(nested(forall))
    for use in (u for result in first.results for u in result.uses):
        op = use.owner.operation
        if op in inside and not (op.name == "tensor.extract_slice" and _of_tile(op, ivs, grid.counts)):
            return "it reads more than the parts of its own tile"
    if not any(u.owner.operation in inside for result in first.results for u in result.uses):
        return "it reads nothing of the launch in front of it"
    return ""


def _end(forall: ir.Operation) -> ir.Operation:
    ops = forall.regions[0].blocks[0].operations
    return ops[len(ops) - 1].operation


def _of_tile(op: ir.Operation, ivs: list[ir.Value], counts: list[int]) -> bool:
    """Whether the slice that an op reads, or inserts, begins with the induction variables, and has one of each."""
    offsets, _, sizes = slices.slice_geometry(op, lambda value: value)
    pairs = zip(offsets, ivs, counts, strict=False)
    return sizes[: len(ivs)] == [1] * len(ivs) and all(o == iv or (o == 0 and n == 1) for o, iv, n in pairs)


def emit(
    em: Emitter, last: LastBlock, counters: str, scope: Scope, scope_of: Callable[[list[IndexValue]], Scope],
    build: Callable[[list[IndexValue]], None],
) -> None:  # fmt: skip
    """Builds what follows a block's part: the block that is the last one of its tile computes what `build` does for
    the induction variables of each block of `last`. `scope`: what is known of this block; `scope_of`: what is of a
    block of `last` by its induction variables; `counters`: the name of the tiles' counters; the team that works are
    all warps that take part."""
    i32 = ir.IntegerType.get_signless(32)
    if last.streamed is None:
        body = last.first.regions[0].blocks[0]
        indices = [scope.scalar(iv) for iv in list(body.arguments)[: len(last.counts)]]
        _combine(em, last, counters, indices, em.constant(ir.IntegerAttr.get(i32, last.parts - 1)), build)
        return
    with access.predicated(em.condition(scope.scalar(last.streamed.condition))):
        tile = scope.scalar(last.streamed.tile)
        count = _count(scope_of([tile]), last.streamed.count)
        most = arith.IndexCastOp(i32, em.value(em.sub(count, 1))).result
        _combine(em, last, counters, [tile], most, build)


def _count(scope: Scope, count: ir.Value) -> IndexValue:
    """How many parts the tile of a scope has."""

    def lower(value: ir.Value) -> None:
        if not isinstance(value.owner, ir.Block):
            for v in value.owner.operands:
                lower(v)
            scope.lower(value.owner)

    lower(count)
    return scope.scalar(count)


def _combine(
    em: Emitter, last: LastBlock, counters: str, tile: list[IndexValue], most: ir.Value,
    build: Callable[[list[IndexValue]], None],
) -> None:  # fmt: skip
    """Draws a number of a tile's counter, and, where it is `most`, combines the tile's parts."""
    i32 = ir.IntegerType.get_signless(32)
    slot, zero = em.alloc_smem([1], i32), em.c(0)
    em.team.meet()
    with access.predicated(em.team.leads()):
        number = _draw(em, last, counters, tile, most)
        memref.StoreOp(number, slot, [zero])
    em.team.meet()
    number = memref.LoadOp(slot, [zero]).result
    with access.predicated(arith.CmpIOp(arith.CmpIPredicate.eq, number, most).result):
        if last.shares == 1:
            build([*tile, 0])
            return
        loop = scf.ForOp(zero, em.c(last.shares), em.c(1), [])
        with ir.InsertionPoint(loop.body):
            build([*tile, loop.induction_variable])
            scf.YieldOp([])


def _draw(em: Emitter, last: LastBlock, counters: str, tile: list[IndexValue], most: ir.Value) -> ir.Value:
    """The number that a block draws: of the parts that were done before."""
    at: IndexValue = 0
    for i, count in zip(tile, last.counts, strict=True):
        at = em.add(em.mul(at, count), i)
    i32, pointer = ir.IntegerType.get_signless(32), ir.Type.parse("!llvm.ptr<1>")
    place = llvm.AddressOfOp(pointer, counters).result
    if last.tiles > 1:
        number = arith.IndexCastOp(i32, em.value(at)).result
        place = llvm.GEPOp(pointer, place, [number], [-(1 << 31)], i32, None).result
    return llvm.AtomicRMWOp(
        llvm.AtomicBinOp.uinc_wrap, place, most, llvm.AtomicOrdering.acq_rel, syncscope="device"
    ).result


def declare(last: LastBlock, name: str) -> None:
    """Adds the tiles' counters, zeros, to a gpu.module."""
    i32 = ir.IntegerType.get_signless(32)
    zeros = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([last.tiles], i32), ir.IntegerAttr.get(i32, 0))
    llvm.GlobalOp(
        ir.TypeAttr.get(ir.Type.parse(f"!llvm.array<{last.tiles} x i32>")), name,
        ir.Attribute.parse("#llvm.linkage<internal>"), value=zeros, addr_space=1,
    )  # fmt: skip
