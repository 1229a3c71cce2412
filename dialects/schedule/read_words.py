"""`schedule.read_words`: the words of packed weights that a loop unpacks become slices, which tensor copies can bring,
and their scales tiles, which are read an iteration ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import body_of, structure
from mlirc.dialects.schedule._limits import number_of
from mlirc.dialects.schedule._scaled_words import scale_sums
from mlirc.ir.tensors import shape_of
from mlirc.mlir import affine, arith, ir, nested, scf, tensor

WORD, CHUNK = "i32", 16  # words of a row of the weight that lie together
MOST_COLUMNS = 1 << 16  # that are looked at where nothing says how many there are


def _floor(a: Any, b: int) -> Any:
    return ir.AffineExpr.get_floor_div(a, b) if isinstance(a, ir.AffineExpr) else a // b


def _mod(a: Any, b: int) -> Any:
    return ir.AffineExpr.get_mod(a, b) if isinstance(a, ir.AffineExpr) else a % b


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.muli": lambda a, b: a * b,
    "arith.divui": _floor,
    "arith.remui": _mod,
}


def _by_chunks(read: ir.Operation, loop: ir.Operation) -> ir.Operation:
    """The same read of words [panels, words] as of [panels, chunks, CHUNK], rows that copies permute."""
    source, (panel, word) = read.operands[0], list(read.operands)[1:]
    at = loop
    while at.parent.name != "func.func":
        at = at.parent.operation
    panels, words = shape_of(source)
    with ir.InsertionPoint(at), loop.location:
        shape = [panels, words // CHUNK, CHUNK]
        i64 = ir.IntegerType.get_signless(64)
        groups = ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in g]) for g in ([0], [1, 2])])
        kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(source.type).element_type)
        rows = tensor.ExpandShapeOp(kind, source, groups, [], shape).result
    with ir.InsertionPoint(read), read.location:
        chunk, inside = (op(word, _build.index(CHUNK)).result for op in (arith.DivUIOp, arith.RemUIOp))
        new = tensor.ExtractOp(rows, [panel, chunk, inside])
    read.results[0].replace_all_uses_with(new.result)
    read.erase()
    return new.operation


class _Weight:
    """A tile of a packed weight in a loop: a map without inputs, of `rows` of the weight and `depth` columns of k, from
    a row and from the loop's induction variable on."""

    def __init__(self, op: ir.Operation, loop: ir.Operation):
        self.op, self.body, self.loop = op, body_of(op), loop
        self.iv = loop.regions[0].blocks[0].arguments[0]
        self.added: dict[int, ir.Value] = {}  # where the tile begins
        self._coordinates: dict[ir.Value, int] = {}  # the weight's row and column
        self.structure = structure(op)
        if len(op.results) != 1 or len(shape_of(op.results[0])) != 2:
            raise PayloadError(f"{DEQUANTIZE} is on a map of two dimensions", op)
        for inner in self.body.operations:
            self._note(inner.operation)
        depth = number_of(loop.operands[2])
        if self.added.get(1) != self.iv or depth is None:
            raise PayloadError("its columns are not those of the loop's steps", op)
        self.depth, self.extent = depth, number_of(loop.operands[1]) or MOST_COLUMNS
        start = self.structure.outputs[0].owner
        dynamic = iter(list(start.operands) if start.name == "tensor.empty" else [])
        self.sizes = [n if n != _build.DYNAMIC else next(dynamic) for n in shape_of(op.results[0])]
        self.rows = _build.bound(self.sizes[0])
        reads = [o.operation for o in self.body.operations if o.operation.name == "tensor.extract"]
        self.reads = [_by_chunks(r, loop) if str(r.results[0].type) == WORD else r for r in reads]

    def _note(self, op: ir.Operation) -> None:
        """Finds sums of a tile's own coordinates and of where it begins."""
        if op.name != "linalg.index":
            return
        dim, index = ir.IntegerAttr(op.attributes["dim"]).value, op.results[0]
        users = [u.owner.operation for u in index.uses]
        others = {v for o in users for v in o.operands if v != index}
        if any(o.name != "arith.addi" for o in users) or len(others) != 1 or next(iter(others)).owner == self.body:
            self._coordinates[index] = dim
            return
        self.added[dim] = others.pop()
        self._coordinates |= {o.results[0]: dim for o in users}

    # -- the indices of a read

    def at(self, read: ir.Operation, row: Any, column: Any) -> list[Any]:
        """The indices at a row and a column of the weight: numbers, arrays or affine expressions."""
        return [self._at(read, v, (row, column)) for v in list(read.operands)[1:]]

    def _at(self, read: ir.Operation, value: ir.Value, place: tuple[Any, Any]) -> Any:
        number = number_of(value)
        if number is not None:
            return number
        if value in self._coordinates:
            return place[self._coordinates[value]]
        op = None if isinstance(value.owner, ir.Block) else value.owner
        if op is None or op.name not in _BINARY:
            raise PayloadError("an index of it is no arithmetic on the weight's row and column", read)
        return _BINARY[op.name](*(self._at(read, v, place) for v in op.operands))

    def extents(self, read: ir.Operation) -> list[int] | None:
        """How much of a tensor a step reads along each dimension; None where an element's place is not the sum of the
        tile's and of its own in the tile."""
        found = []
        rows, columns = np.arange(self.rows)[:, None], np.arange(self.depth)[None, :]
        starts = np.arange(0, self.extent, self.depth)[:, None]
        inside = self.at(read, rows, columns)
        moved = self.at(read, rows + 3 * self.rows, columns)
        steps, first = self.at(read, 0, starts + columns), self.at(read, 0, starts)
        for own, later, step, start, base in zip(inside, moved, steps, first, self.at(read, 0, 0), strict=True):
            own, step = np.broadcast_to(own, (self.rows, self.depth)), np.asarray(step)
            if np.ptp(np.asarray(later) - own) or (step - start != np.asarray(own)[:1] - base).any():
                return None
            found.append(int(own.max()) - base + 1)
        return found

    def slice(self, read: ir.Operation, extents: list[int], step: int = 0) -> ir.Value:
        """The slice that a read takes its elements from in this iteration, at the insertion point, or in one `step`
        columns later, but not behind the last one."""
        d0, d1 = (ir.AffineExpr.get_dim(d) for d in range(2))
        source, row = read.operands[0], self.added.get(0)
        offsets: list[_build.Size] = []
        sizes: list[_build.Size] = []
        for found, extent, whole in zip(
            self.at(read, d0 if row else 0, d1 + step if step else d1), extents, shape_of(source), strict=True
        ):
            offset: _build.Size = 0 if extent == whole else found
            if not isinstance(offset, int):
                offset = self._applied(offset, row, whole, extent, step)
            size: _build.Size = extent
            if isinstance(offset, ir.Value) and extent > 1 and whole % extent:
                size = _build.remaining(offset, whole, extent)
            offsets.append(offset)
            sizes.append(size)
        if len(sizes) == 2 and extents == [self.rows, 1] and not isinstance(self.sizes[0], int):
            sizes[0] = self.sizes[0]
        return _build.extract_slice(source, offsets, sizes)

    def _applied(self, place: ir.AffineExpr, row: ir.Value | None, whole: int, extent: int, step: int) -> _build.Size:
        if isinstance(place, ir.AffineConstantExpr):
            return int(place.value)
        values = [row if row is not None else self.iv, self.iv]
        if not step or extent > 1:  # rows stay where they are
            return _build.applied(place, *values)
        last = ir.AffineExpr.get_constant(whole - extent)
        return affine.AffineMinOp(ir.AffineMap.get(2, 0, [place, last]), values).result

    # -- what becomes of them

    def read_slice(self, read: ir.Operation, source: ir.Value) -> None:
        """Reads words from the slice that the tile takes them from."""
        bases, known = self.at(read, 0, 0), dict[ir.Value, ir.Value]()
        with ir.InsertionPoint(read), read.location:
            for i, (value, base) in enumerate(zip(list(read.operands)[1:], bases, strict=True)):
                inside = self._inside(value, known)
                read.operands[1 + i] = arith.AddIOp(inside, _build.index(-base)).result if base else inside
        read.operands[0] = source

    def _inside(self, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
        """An index as it is of a tile that begins where the weight does."""
        if value not in known:
            op = None if isinstance(value.owner, ir.Block) else value.owner
            if value in self._coordinates:
                dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), self._coordinates[value])
                known[value] = ir.Operation.create("linalg.index", [ir.IndexType.get()], [], {"dim": dim}).results[0]
            elif op is None or op.name == "arith.constant":
                return value
            else:
                known[value] = _build.clone(op, {v: self._inside(v, known) for v in op.operands}).results[0]
        return known[value]

    def with_tiles(self, tiles: dict[ir.Operation, ir.Value], erase: Callable[[ir.Operation], None]) -> None:
        """Replaces the map by one that has tiles [rows, 1] as its inputs in place of reads."""
        op, old, s = self.op, self.body, self.structure
        inputs, maps = [*s.inputs, *tiles.values()], [*s.maps[:-1], *[[0, None]] * len(tiles), s.maps[-1]]
        with ir.InsertionPoint(op), op.location:
            new = _build.generic(inputs, list(s.outputs), maps, [True] * 2)
            for name in op.attributes:
                if name.startswith("mlirc."):
                    new.attributes[name] = op.attributes[name]
        *before, out = old.arguments
        read = [*before, *(r.results[0] for r in tiles), out]
        block = new.regions[0].blocks.append(*(v.type for v in read))
        values = dict(zip(read, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for inner in old.operations:
                if inner.operation not in tiles:
                    _build.clone(inner.operation, values)
        op.results[0].replace_all_uses_with(new.results[0])
        erase(op)


_Carried = tuple[_Weight, ir.Operation, list[int]]


def _weights(loop: ir.Operation) -> list[_Weight]:
    ops = [o.operation for o in loop.regions[0].blocks[0].operations]
    return [_Weight(op, loop) for op in ops if DEQUANTIZE in op.attributes]


def _read(loop: ir.Operation, weights: list[_Weight], erase: Callable[[ir.Operation], None]) -> None:
    """Rewrites one loop, or puts another one in its place."""
    carried: list[_Carried] = []
    for w in weights:
        for read in w.reads:
            extents = w.extents(read)
            if str(read.results[0].type) == WORD:
                if extents is None or extents[-1] != CHUNK:
                    what = f"tiles of {w.rows}x{w.depth} take words in part: more columns to a step (block_k)"
                    raise PayloadError(what, w.op)
                with ir.InsertionPoint(w.op), w.op.location:
                    w.read_slice(read, w.slice(read, extents))
            elif extents == [w.rows, 1]:
                carried.append((w, read, extents))
    scale_sums(_carry(loop, carried, erase) if carried else loop)


def _carry(loop: ir.Operation, reads: list[_Carried], erase: Callable[[ir.Operation], None]) -> ir.Operation:
    """Has a loop read what the next iteration multiplies its numbers with, and carry it."""
    old = loop.regions[0].blocks[0]
    with ir.InsertionPoint(loop), loop.location:
        starts = []
        for w, read, extents in reads:
            w.iv = loop.operands[0]
            starts.append(w.slice(read, extents))
        new = scf.ForOp(*list(loop.operands)[:3], [*list(loop.operands)[3:], *starts])
    for name in loop.attributes:
        if name.startswith("mlirc."):
            new.operation.attributes[name] = loop.attributes[name]
    inside = list(new.body.arguments)
    tiles = inside[len(old.arguments) :]
    with ir.InsertionPoint(new.body):
        end = scf.YieldOp([])
    for op in list(old.operations)[:-1]:
        op.operation.move_before(end.operation)
    for before, after in zip(old.arguments, inside, strict=False):
        before.replace_all_uses_with(after)
    later = []
    for w, read, extents in reads:
        w.iv = new.induction_variable
        with ir.InsertionPoint(new.body.operations[0]), w.op.location:
            later.append(w.slice(read, extents, w.depth))
    for w in dict.fromkeys(w for w, _, _ in reads):
        w.with_tiles({read: t for (x, read, _), t in zip(reads, tiles, strict=True) if x is w}, erase)
    with ir.InsertionPoint(end):
        scf.YieldOp([*list(old.operations)[-1].operation.operands, *later])
    end.operation.erase()
    for before, after in zip(loop.results, new.results, strict=False):
        before.replace_all_uses_with(after)
    erase(loop)
    return new.operation


@transform_op("read_words", operands=("forall",), takes="scf.forall")
def read_words(rewriter, forall):
    """Has the loops over k of a block program read the packed weights that they unpack (`mlirc.dequantize`) from slices
    of their words, which `stage(product, copy="tma")` has copied, where an instruction takes them in registers; and
    scales (and zero points) that a step's numbers of a row share an iteration ahead. A step takes whole blocks of
    words. To be used behind the other verbs: it replaces the loops."""
    for op in forall:
        loops = [o for o in nested(op.operation) if o.name == "scf.for"]
        weights = [(o, w) for o in loops if (w := _weights(o))]
        if not weights:
            raise PayloadError("no loop in it unpacks a packed weight", op)
        for loop, found in weights:
            _read(loop, found, rewriter.erase_op)
