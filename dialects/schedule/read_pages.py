"""`schedule.read_pages`: slices of gathered pages become slices of the pool, at places that are read from the table."""

from __future__ import annotations

from mlirc.dialects.mlirc_dialect import GATHER_PAGES, GatherInfo
from mlirc.dialects.pages import length_of, page_of
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import producer
from mlirc.dialects.schedule._limits import number_of
from mlirc.dialects.schedule.split_k import sizes_of
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.ir.tensors import kept_dims, shape_of
from mlirc.mlir import affine, arith, ir, linalg, nested


class _Reader:
    """One loop over keys, whose slices are cut from gathers of pages."""

    def __init__(self, loop: ir.Operation) -> None:
        self.loop, self.iv = loop, loop.regions[0].blocks[0].arguments[0]
        self.slices = [op for op in nested(loop) if op.name == "tensor.extract_slice" and self._gather(op) is not None]
        if not self.slices:
            raise PayloadError(f"no slice in the loop is of a {GATHER_PAGES}", loop)
        step = number_of(loop.operands[2])
        for op in self.slices:
            size = GatherInfo.of(self._gather(op)).pages.size
            if step is None or size % step or mixed(op, "static_offsets", 1)[2] != self.iv:
                raise PayloadError(f"steps of {step} keys: they divide a page, of {size}", loop)
        self.lengths: dict[tuple, ir.Value] = {}

    @staticmethod
    def _gather(op: ir.Operation) -> ir.Operation | None:
        made_by = producer(op.operands[0])
        return made_by if made_by is not None and made_by.name == GATHER_PAGES else None

    def rewrite(self) -> None:
        for op in self.slices:
            self._end(op)
        places: dict[tuple, tuple[ir.Value, ir.Value]] = {}
        for op in self.slices:
            self._read(op, places)

    def _sequence(self, op: ir.Operation) -> ir.Value:
        sequence = mixed(op, "static_offsets", 1)[0]
        return _build.index(sequence) if isinstance(sequence, int) else sequence

    def _end(self, op: ir.Operation) -> None:
        """Ends the loop, and the tiles of its last step, where the sequence does."""
        gather = self._gather(op)
        assert gather is not None
        key = (gather.operands[2], mixed(op, "static_offsets", 1)[0])
        if key in self.lengths:
            return
        with ir.InsertionPoint(self.loop), op.location:
            length = length_of(gather.operands[2], self._sequence(op), GatherInfo.of(gather).pages)
            self.lengths[key] = length
            self.loop.operands[1] = arith.MinSIOp(self.loop.operands[1], length).result
        sizes = mixed(op, "static_sizes", 2)
        size = None if isinstance(sizes[2], int) else producer(sizes[2])
        if size is None:
            return  # a step that all rows see whole
        if size.name != "affine.min" or list(size.operands) != [self.iv]:
            raise PayloadError("the size of a step of keys is what is left: online_softmax with ragged=true", op)
        with ir.InsertionPoint(size), op.location:
            rest = ir.AffineExpr.get_dim(1) - ir.AffineExpr.get_dim(0)
            most = [rest, ir.AffineExpr.get_constant(_build.bound(sizes[2]))]
            new = affine.AffineMinOp(ir.AffineMap.get(2, 0, most), [self.iv, length]).result
        size.results[0].replace_all_uses_with(new)
        size.erase()

    def _read(self, op: ir.Operation, places: dict) -> None:
        gather = self._gather(op)
        assert gather is not None
        info = GatherInfo.of(gather)
        pool, table, _ = gather.operands
        sequence, head, _, element = mixed(op, "static_offsets", 1)
        sizes = mixed(op, "static_sizes", 2)
        kept = kept_dims(list(op.attributes["static_sizes"]), shape_of(op.results[0]))
        if sizes[0] != 1 or kept != [2, 3]:
            raise PayloadError("a slice of pages is of one sequence and one head: tile both by 1", op)
        key = (table, sequence, info.pages)
        with ir.InsertionPoint(op), op.location:
            if key not in places:
                at, size = ir.AffineExpr.get_dim(0), info.pages.size
                # behind the last page there is none to look up: copies run ahead of the loop
                inside = [ir.AffineExpr.get_floor_div(at, size), ir.AffineExpr.get_constant(info.pages.count - 1)]
                place = affine.AffineMinOp(ir.AffineMap.get(1, 0, inside), [self.iv]).result
                page = page_of(table, self._sequence(op), place, info.pages)
                places[key] = page, _build.applied(ir.AffineExpr.get_mod(at, size), self.iv)
            page, offset = places[key]
            found = dict(
                zip("bhsd", [(page, 1), (head, sizes[1]), (offset, sizes[2]), (element, sizes[3])], strict=True)
            )
            order = [found[c] for c in info.layout]
            dropped = [i for i, c in enumerate(info.layout) if c in "bh"]
            new = _build.extract_slice(pool, [o for o, _ in order], [n for _, n in order], dropped)
            new = _widened(new, ir.RankedTensorType(op.results[0].type).element_type)
        if info.layout.index("d") < info.layout.index("s"):
            raise PayloadError(
                f"pages whose tokens lie as {info.layout}: elements of a token are one behind the other", op
            )
        op.results[0].replace_all_uses_with(new)
        op.erase()


def _widened(tile: ir.Value, element: ir.Type) -> ir.Value:
    """A tile of a cache of 8-bit floats, as the floats that products are of."""
    type_ = ir.RankedTensorType(tile.type)
    if type_.element_type == element:
        return tile
    dims = list(range(type_.rank))
    op = _build.generic([tile], [_build.empty(sizes_of(tile), element)], [dims, dims], [True] * type_.rank)
    block = op.regions[0].blocks.append(type_.element_type, element)
    with ir.InsertionPoint(block):
        linalg.YieldOp([arith.ExtFOp(element, block.arguments[0]).result])
    return op.results[0]


@transform_op("read_pages", operands=("loop",), takes="scf.for")
def read_pages(rewriter, loops):
    """Makes slices of the pools of what loops over keys read of gathered pages: each step looks up its page in the
    table. A loop ends where its sequence does, and so do the tiles of its last step: nothing is read behind it. The
    steps divide a page (`online_softmax` with `ragged`)."""
    for loop in loops:
        _Reader(loop.operation).rewrite()
