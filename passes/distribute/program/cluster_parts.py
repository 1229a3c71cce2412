"""Loops over parts in a block program (`schedule.split_k`, `split_softmax`): the blocks of a cluster take one each, or
each of the teams of their warps does (`mlirc.teams`). What they compute stays in the shared memory of their blocks, and
each block combines its share of all parts from there (PTX ISA, "mapa", ld.shared::cluster), in the order of the parts:
the same sum in every run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mlirc.dialects import rings
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported, vec
from mlirc.passes.distribute.emit.team import Team, Warps
from mlirc.passes.distribute.layouts.registers import Layout, reg, row_layout
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.program.parts import is_of_teams
from mlirc.passes.distribute.program.results import put
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.distribute.tiles.values import Fragment, Marked, Tile, elementwise_op, load


def rank(em: Emitter) -> ir.Value:
    """The number of this block in its cluster."""
    i32 = ir.IntegerType.get_signless(32)
    return arith.IndexCastOp(em.index, nvvm.ClusterId(results=[i32]).results[0]).result


def meet() -> None:
    """All threads of the cluster; what they wrote before is seen by all behind it."""
    nvvm.ClusterArriveOp()
    nvvm.ClusterWaitOp()


def bind(scope: Scope, op: ir.Operation, part: IndexValue):
    """A scope for the body of a loop over parts, of which this block, or this team, has number `part`."""
    inner = scope.inside()
    inner.scalars[op.regions[0].blocks[0].arguments[0]] = part
    return inner


def lower(scope: Scope, op: ir.Operation) -> None:
    """Lowers a loop over parts: one whose results have a dimension of parts, or one whose results are stored."""
    ops = list(op.regions[0].blocks[0].operations)
    inserts = [i.operation for i in ops[-1].regions[0].blocks[0].operations]
    if is_of_teams(op):
        _compute_in_teams(scope, op, ops[:-1], inserts)
        return
    inner = bind(scope, op, scope.program.rank)
    if all(len(shape_of(i.operands[0])) < len(shape_of(i.operands[1])) for i in inserts):
        for inside in ops[:-1]:
            inner.lower(inside)
        _give_back(scope)
        found = [_found(scope.em, inner.tile(insert.operands[0])) for insert in inserts]
        parts = [Parts(scope.em, frag, scope.program.parts) for frag in found]
        meet()
        scope.program.meetings += 1
        for result, tile in zip(op.results, parts, strict=True):
            tile.whole = tile.share([0] * len(tile.shape), tile.shape, tile.sizes)
            scope.tiles[result] = tile
        return
    _store_shares(scope, inner, op, ops[:-1], inserts)


def _compute_in_teams(scope: Scope, op: ir.Operation, ops: list, inserts: list[ir.Operation]) -> None:
    """Computes the parts of the block's teams into its shared memory: what a team does is emitted once for all."""
    em, program = scope.em, scope.program
    teams = program.sharing.teams
    if program.roles is not None or em.spread > 1:
        what = "producers copy" if program.roles is not None else "blocks of a cluster work as one"
        raise Unsupported(f"mlirc.teams = {teams}: {what}, for one team: leave it out", op, "teams")
    team = Team(em, Warps(em.team.warps // teams, em.team.first, alike=teams))
    inner = bind(scope, op, team.number)
    with em.working(team):
        for inside in ops:
            inner.lower(inside)
        found = [_found(em, inner.tile(insert.operands[0])) for insert in inserts]
        buffers = [_stored(em, frag, team) for frag in found]
    em.team.meet()
    tiles = [TeamParts(em, frag, buffer) for frag, buffer in zip(found, buffers, strict=True)]
    widest = max(tiles, key=lambda tile: len(tile.shape))
    for result, tile in zip(op.results, tiles, strict=True):
        tile.like = every_part(widest.shape, em.team.warps)
        scope.tiles[result] = tile


def _found(em: Emitter, tile: Tile) -> Fragment:
    return tile.get(tile.natural() or row_layout(tuple(tile.shape), em.team.warps, 1))


def _give_back(scope: Scope) -> None:
    """The slots of rings are done with, since the block computes one tile: all copies have arrived, and the warps that
    compute meet when they have read them. The parts take their place."""
    em, rings_ = scope.em, scope.program.rings
    if rings_:
        em.team.meet()
    for ring in rings_.values():
        for tile in ring.tiles:
            em.free_smem(tile.buffer)


def _store_shares(scope: Scope, inner: Scope, op: ir.Operation, ops: list, inserts: list[ir.Operation]) -> None:
    """Computes this block's share of each result, and stores it where the whole one is inserted; of a tile at an edge
    there may be nothing for some."""
    program = scope.program
    if program.tensor_stores is not None:
        scope.em.taken.refuse(
            program.tensor_stores.forall, "store", "shares of a tile leave by the threads' own stores: leave it out"
        )
    with _combining(scope, ops), unless_empty(inner, ops, inserts) as (inside, rest):
        for o in rest:
            inside.lower(o)
        for result, insert in zip(op.results, inserts, strict=True):
            uses = [u.owner.operation for u in rings.outside(result).uses]
            if len(uses) != 1 or uses[0].name != "tensor.parallel_insert_slice":
                raise Unsupported("shares of a tile that are not stored", op)
            offsets, _, _ = slices.slice_geometry(insert, inside.scalar)
            put(inside, uses[0], inside.tile(insert.operands[0]), offsets)
            program.stored |= {result, rings.outside(result)}


@contextmanager
def _combining(scope: Scope, ops: list) -> Iterator[None]:
    """Who combines shares, where maxima or sums of rows say how much each part weighs: if one warp is enough for one,
    it does so alone, and no warps meet. Each thread has what it needs of the rows of its own elements."""
    em = scope.em
    read = [(op.operation, scope.known_tile(v)) for op in ops for v in op.operands]
    parts = {id(t): t for _, t in read if isinstance(t, Parts)}
    widest = max((len(t.shape) for t in parts.values()), default=0)
    if len({len(t.shape) for t in parts.values()}) < 2:
        yield
        return
    shapes = [t.shape for t in parts.values() if len(t.shape) == widest]
    for op, tile in read:
        if op.name == "tensor.extract_slice" and isinstance(tile, Parts) and len(tile.shape) == widest:
            shapes = [slices.slice_geometry(op, lambda value: value)[1]]
    share = shapes[0]
    like = every_part(share, 1)
    alone = like.num_regs <= share[0] * 4
    for tile in parts.values():
        assert tile.whole is not None
        tile.like = tile.whole.like = like if alone else every_part(share, em.team.warps)
    if not alone:
        yield
        return
    team = Team(em, em.team.members.part(0, 1))
    with access.predicated(team.comes_first()), em.working(team):
        yield


@contextmanager
def unless_empty(scope: Scope, ops: list, inserts: list[ir.Operation]) -> Iterator[tuple]:
    """(scope, ops that are left) of a program that ends with `inserts`. Of the shares of a tile at an edge some have
    nothing, and begin behind the tensor's end: what is built inside is skipped there."""
    sizes = list(dict.fromkeys(v for insert in inserts for v in insert.operands if _may_be_zero(v)))
    if not sizes:
        yield scope, ops
        return
    em, some = scope.em, True
    numbers = [o for o in ops if o.operation.name.startswith(("affine.", "arith."))]
    for o in numbers:
        scope.lower(o)
    for size in sizes:
        some = em.both(some, em.less(0, scope.scalar(size)))
    with access.predicated(some):
        yield scope.inside(), [o for o in ops if o not in numbers]


def _may_be_zero(size: ir.Value) -> bool:
    """Whether a size is an affine.min of an affine.max: what is left, but no less than nothing."""
    owner = size.owner
    if isinstance(owner, ir.Block) or owner.name != "affine.min":
        return False
    return any(not isinstance(v.owner, ir.Block) and v.owner.name == "affine.max" for v in owner.operands)


class Parts(Tile):
    """Tiles of the blocks of a cluster, [parts, ...], each in its block's shared memory."""

    def __init__(self, em: Emitter, frag: Fragment, parts: int):
        super().__init__(em, frag.element, [parts, *frag.shape], [parts, *frag.sizes])
        extents = [max(a, b) for a, b in zip(frag.layout.shape, frag.shape, strict=True)]
        stored = access.storage_type(frag.element)
        if extents and extents[-1] * element_bytes(stored) >= 128:
            extents[-1] += 16 // element_bytes(stored)  # keeps columns off a single bank
        self.buffer = em.alloc_smem([1, *extents], stored)
        view = access.View(self.buffer, [0] * (len(extents) + 1), list(range(1, len(extents) + 1)))
        access.store(em, frag, view, whole=True)

        self.like: Layout | None = None
        self.whole: Share | None = None  # all of it, as soon as all blocks have stored theirs

    def natural(self) -> Layout | None:
        assert self.whole is not None
        return self.whole.natural()

    def get(self, layout: Layout) -> Fragment:
        assert self.whole is not None
        return self.whole.get(layout)

    def share(self, offsets: list[IndexValue], bounds: list[int], sizes: list[IndexValue]) -> Share:
        """The slice of all parts that begins at `offsets`."""
        if offsets[0] != 0 or bounds[0] != self.shape[0] or len(bounds) != len(self.shape):
            raise Unsupported("some of the parts: all of them are combined")
        found = Share(self, offsets[1:], bounds, sizes)
        found.like = self.like
        return found


def every_part(shape: Sequence[int], warps: int) -> Layout:
    """A layout of [parts, ...] of which a thread has all parts of its elements: nobody meets to combine them."""
    vector = 4 if len(shape) > 2 and shape[-1] % 4 == 0 else 1
    return Layout.of((reg(shape[0]),), *row_layout(tuple(shape[1:]), warps, vector).dims)


class _AllParts(Marked):
    """A tile of parts. `like`: the layout of the one that has the most dimensions of those that are combined."""

    like: Layout | None = None

    def natural(self) -> Layout | None:
        return None if self.like is None else self.like.project(list(range(len(self.shape))))


def _stored(em: Emitter, frag: Fragment, team: Team) -> ir.Value:
    """A buffer of the block, [teams, ...], in which each team has stored its part."""
    extents, stored = list(frag.shape), access.storage_type(frag.element)
    if extents and extents[-1] * element_bytes(stored) >= 128:
        extents[-1] += 32 // element_bytes(stored)  # eight rows of sums as tensor cores leave them are in all banks
    with em.working(Team(em, Warps(team.warps * team.alike, team.first))):
        buffer = em.alloc_smem([team.alike, *extents], stored)
    place: list[IndexValue] = [team.number, *[0] * len(extents)]
    access.store(em, frag, access.View(buffer, place, list(range(1, len(place)))))
    return buffer


class TeamParts(_AllParts):
    """Tiles of a block's teams, [teams, ...], in its shared memory. `frag`: what one of them is like."""

    def __init__(self, em: Emitter, frag: Fragment, buffer: ir.Value):
        teams = ir.MemRefType(buffer.type).shape[0]
        super().__init__(em, frag.element, [teams, *frag.shape], [teams, *frag.sizes])
        self.buffer = buffer

    def build(self, layout: Layout) -> Fragment:
        view = access.View(self.buffer, [0] * len(self.shape), list(range(len(self.shape))))
        return load(self.em, view, self.element, self.shape, self.sizes, layout)


class Share(_AllParts):
    """The same slice of all parts of a cluster."""

    def __init__(self, parts: Parts, offsets: list[IndexValue], shape: list[int], sizes: list[IndexValue]):
        super().__init__(parts.em, parts.element, shape, sizes)
        self.parts, self.offsets = parts, offsets
        self.view = access.View(parts.buffer, [0, *offsets], list(range(len(shape))))
        self._blocks: dict[int, ir.Value] = {}

    def build(self, layout: Layout) -> Fragment:
        pieces: list[ir.Value] = []
        group: list[ir.Value] = []
        for _, width, indices, _ in access.accesses(self.em, self.view, self.shape, self.sizes, layout, False):
            group.append(self.load(indices[0], indices[1:], width))
            if len(group) * width == layout.piece:
                pieces.append(access.join(self.em, group, width, self.element, layout.piece))
                group = []
        return Fragment(self.em, self.element, self.shape, self.sizes, layout, pieces, layout.piece)

    def load(self, part: IndexValue, indices: list[IndexValue], width: int) -> ir.Value:
        """Elements of a part, from the memory of the block that computed it."""
        em, view = self.em, self.view
        block = self._block(part)
        at: IndexValue = 0
        for i, extent in zip(indices, view.shape[1:], strict=True):
            at = em.add(em.mul(at, extent), i)
        size = element_bytes(view.element)
        i8, i32 = ir.IntegerType.get_signless(8), ir.IntegerType.get_signless(32)
        number = arith.IndexCastOp(i32, em.value(em.mul(at, size))).result
        where = llvm.GEPOp(block.type, block, [number], [-(1 << 31)], i8, None).result
        return llvm.LoadOp(vec(view.element, width), where, alignment=width * size).result

    def _block(self, part: IndexValue) -> ir.Value:
        """Where a block's buffer begins."""
        em, i32, there = self.em, ir.IntegerType.get_signless(32), ir.Type.parse("!llvm.ptr<7>")
        with em.at_entry():
            base = em.shared_pointer(memref.ExtractAlignedPointerAsIndexOp(self.view.base).result)
        if not isinstance(part, int):
            return nvvm.MapaOp(there, base, arith.IndexCastOp(i32, part).result).result
        if part not in self._blocks:
            with em.at_entry():
                number = em.constant(ir.IntegerAttr.get(i32, part))
                self._blocks[part] = nvvm.MapaOp(there, base, number).result
        return self._blocks[part]


def add(scope: Scope, op: ir.Operation) -> bool:
    """Lowers a linalg.generic that combines the parts of a share, one after the other; False for any other."""
    share = scope.tile(op.operands[0]) if isinstance(op.operands[0].type, ir.RankedTensorType) else None
    share = share.whole if isinstance(share, Parts) else share
    if not isinstance(share, Share):
        return False
    body = [o.operation for o in op.regions[0].blocks[0].operations]
    maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    rank = len(share.shape)
    rest = ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(d) for d in range(1, rank)])
    if len(body) != 2 or len(op.operands) != 2 or maps != [ir.AffineMap.get_identity(rank), rest]:
        return False
    scope.tiles[op.results[0]] = Sum(share, scope.tile(op.operands[1]), body[0].name)
    return True


class Sum(Marked):
    """The sum of a share's parts, added one after the other to `start`."""

    def __init__(self, share: Share, start: Tile, addition: str):
        super().__init__(share.em, share.element, share.shape[1:], share.sizes[1:])
        self.share, self.start, self.addition = share, start, addition

    def build(self, layout: Layout) -> Fragment:
        em, share = self.em, self.share
        start = self.start.get(layout)
        pieces: list[ir.Value] = []
        piece, group = layout.piece, []
        view = access.View(share.view.base, share.view.offsets, share.view.dims[1:])
        for r, width, indices, _ in access.accesses(em, view, self.shape, self.sizes, layout, False):
            parts = [share.load(part, indices[1:], width) for part in range(share.shape[0])]
            total = start.read(list(range(r, r + width)))
            for part in parts:
                total = elementwise_op(self.addition, [total.type], [total, part], {})[0]
            group.append(total)
            if len(group) * width == piece:
                pieces.append(access.join(em, group, width, self.element, piece))
                group = []
        return Fragment(em, self.element, self.shape, self.sizes, layout, pieces, piece)
