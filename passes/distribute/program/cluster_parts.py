"""Loops over parts in a block program (`schedule.split_k`): the blocks of a cluster take one each. What they compute
stays in the shared memory of their blocks, and each block adds its share of all parts from there (PTX ISA, "mapa",
ld.shared::cluster), in the order of the parts: the same sum in every run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mlirc.dialects import rings
from mlirc.ir.tensors import element_bytes, shape_of
from mlirc.mlir import arith, ir, llvm, memref, nvvm
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported, vec
from mlirc.passes.distribute.layouts.registers import Layout, row_layout
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.program.results import put
from mlirc.passes.distribute.program.scope import Scope
from mlirc.passes.distribute.tiles.values import Fragment, Marked, Tile, elementwise_op


def rank(em: Emitter) -> ir.Value:
    """The number of this block in its cluster."""
    i32 = ir.IntegerType.get_signless(32)
    return arith.IndexCastOp(em.index, nvvm.ClusterId(results=[i32]).results[0]).result


def meet() -> None:
    """All threads of the cluster; what they wrote before is seen by all behind it."""
    nvvm.ClusterArriveOp()
    nvvm.ClusterWaitOp()


def bind(scope: Scope, op: ir.Operation):
    """A scope for the body of a loop over parts, of which this block has one."""
    inner = scope.inside()
    inner.scalars[op.regions[0].blocks[0].arguments[0]] = scope.program.rank
    return inner


def lower(scope: Scope, op: ir.Operation) -> None:
    """Lowers a loop over parts: one whose results have a dimension of parts, or one whose results are stored."""
    ops = list(op.regions[0].blocks[0].operations)
    inserts = [i.operation for i in ops[-1].regions[0].blocks[0].operations]
    if all(len(shape_of(i.operands[0])) < len(shape_of(i.operands[1])) for i in inserts):
        inner = bind(scope, op)
        for inside in ops[:-1]:
            inner.lower(inside)
        _give_back(scope)
        for result, insert in zip(op.results, inserts, strict=True):
            scope.tiles[result] = Parts(scope.em, inner.tile(insert.operands[0]), scope.program.parts)
        meet()
        scope.program.meetings += 1
        return
    inner = bind(scope, op)
    _store_shares(scope, inner, op, ops[:-1], inserts)


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
    with unless_empty(inner, ops, inserts) as (inside, rest):
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

    def __init__(self, em: Emitter, own: Tile, parts: int):
        frag = own.get(own.natural() or row_layout(tuple(own.shape), em.team.warps, 1))
        super().__init__(em, own.element, [parts, *own.shape], [parts, *own.sizes])
        extents = [max(a, b) for a, b in zip(frag.layout.shape, own.shape, strict=True)]
        stored = access.storage_type(own.element)
        if extents and extents[-1] * element_bytes(stored) >= 128:
            extents[-1] += 16 // element_bytes(stored)  # keeps columns off a single bank
        self.buffer = em.alloc_smem(extents, stored)
        access.store(em, frag, access.View(self.buffer, [0] * len(extents), list(range(len(extents)))), whole=True)

    def get(self, layout: Layout) -> Fragment:
        raise Unsupported("parts of K are added, and nothing else is done with them")

    def share(self, offsets: list[IndexValue], bounds: list[int], sizes: list[IndexValue]) -> Share:
        """The slice of all parts that begins at `offsets`."""
        if offsets[0] != 0 or bounds[0] != self.shape[0] or len(bounds) != len(self.shape):
            raise Unsupported("some of the parts of K: all of them are added")
        return Share(self, offsets[1:], bounds, sizes)


class Share(Tile):
    """The same slice of all parts."""

    def __init__(self, parts: Parts, offsets: list[IndexValue], shape: list[int], sizes: list[IndexValue]):
        super().__init__(parts.em, parts.element, shape, sizes)
        self.parts, self.offsets = parts, offsets

    def get(self, layout: Layout) -> Fragment:
        return self.parts.get(layout)


def add(scope: Scope, op: ir.Operation) -> bool:
    """Lowers a linalg.generic that adds the parts of a share; False for any other."""
    share = scope.tile(op.operands[0]) if isinstance(op.operands[0].type, ir.RankedTensorType) else None
    if not isinstance(share, Share):
        return False
    body = [o.operation for o in op.regions[0].blocks[0].operations]
    maps = [ir.AffineMapAttr(m).value for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    rank = len(share.shape)
    rest = ir.AffineMap.get(rank, 0, [ir.AffineExpr.get_dim(d) for d in range(1, rank)])
    if len(body) != 2 or len(op.operands) != 2 or maps != [ir.AffineMap.get_identity(rank), rest]:
        raise Unsupported("parts of K are added, and nothing else is done with them", op)
    scope.tiles[op.results[0]] = Sum(share, scope.tile(op.operands[1]), body[0].name)
    return True


class Sum(Marked):
    """The sum of a share's parts, added one after the other to `start`."""

    def __init__(self, share: Share, start: Tile, addition: str):
        super().__init__(share.em, share.element, share.shape[1:], share.sizes[1:])
        self.share, self.start, self.addition = share, start, addition

    def build(self, layout: Layout) -> Fragment:
        em, share = self.em, self.share
        view = access.View(share.parts.buffer, list(share.offsets), list(range(len(share.offsets))))
        with em.at_entry():
            base = em.shared_pointer(memref.ExtractAlignedPointerAsIndexOp(view.base).result)
            i32 = ir.IntegerType.get_signless(32)
            there = ir.Type.parse("!llvm.ptr<7>")
            numbers = [em.constant(ir.IntegerAttr.get(i32, number)) for number in range(share.shape[0])]
            blocks = [nvvm.MapaOp(there, base, number).result for number in numbers]
        start = self.start.get(layout)
        pieces: list[ir.Value] = []
        piece, group = layout.piece, []
        for r, width, indices, _ in access.accesses(em, view, self.shape, self.sizes, layout, False):
            parts = [self._load(block, view, indices, width) for block in blocks]
            total = start.read(list(range(r, r + width)))
            for part in parts:
                total = elementwise_op(self.addition, [total.type], [total, part], {})[0]
            group.append(total)
            if len(group) * width == piece:
                pieces.append(access.join(em, group, width, self.element, piece))
                group = []
        return Fragment(em, self.element, self.shape, self.sizes, layout, pieces, piece)

    def _load(self, block: ir.Value, view: access.View, indices: list[IndexValue], width: int) -> ir.Value:
        """Elements of one block's part; `block` is where its buffer begins."""
        em, size = self.em, element_bytes(view.element)
        at: IndexValue = 0
        for i, extent in zip(indices, view.shape, strict=True):
            at = em.add(em.mul(at, extent), i)
        i32 = ir.IntegerType.get_signless(32)
        number = arith.IndexCastOp(i32, em.value(em.mul(at, size))).result
        where = llvm.GEPOp(block.type, block, [number], [-(1 << 31)], ir.IntegerType.get_signless(8), None).result
        return llvm.LoadOp(vec(view.element, width), where, alignment=width * size).result
