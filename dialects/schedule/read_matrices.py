"""`schedule.read_matrices`: tiles of chosen matrices become slices of these, by numbers that are read from a table."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlirc.dialects.mlirc_dialect import GATHER_MATRICES
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.dialects.schedule._dims import body_of, producer
from mlirc.dialects.schedule._limits import number_of
from mlirc.dialects.schedule.tile_reduction import mixed
from mlirc.ir.levels import INDEX_BELOW
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, nested, tensor

SLT = int(arith.CmpIPredicate.slt)


@dataclass
class _Place:
    """An index of the body of a map: dimensions of the tile, numbers from outside, and a constant, added up."""

    dims: list[int] = field(default_factory=list)
    values: list[ir.Value] = field(default_factory=list)
    constant: int = 0

    def add(self, value: ir.Value, body: ir.Block) -> None:
        made_by = producer(value)
        constant = number_of(value)
        if constant is not None:
            self.constant += constant
        elif made_by is None or made_by.block != body:
            self.values.append(value)
        elif made_by.name == "linalg.index":
            self.dims.append(ir.IntegerAttr(made_by.attributes["dim"]).value)
        elif made_by.name == "arith.addi":
            for operand in made_by.operands:
                self.add(operand, body)
        else:
            raise PayloadError(f"a place in the matrices is a {made_by.name}", made_by)

    def offset(self) -> _build.Size:
        total: _build.Size = self.constant
        for value in self.values:
            total = _build.added(total, value)
        return total


def _of_matrices(read: ir.Operation) -> ir.Operation:
    """A read of [E,R,C] in the place of one of their rows [E*R,C], at a number times R and a row of it; any other as it
    is."""
    if len(read.operands) != 3:
        return read
    source, at, column = read.operands
    total = producer(at)
    scaled = producer(total.operands[0]) if total is not None and total.name == "arith.addi" else None
    size = number_of(scaled.operands[1]) if scaled is not None and scaled.name == "arith.muli" else None
    rows, columns = shape_of(source)
    if total is None or scaled is None or not size or rows % size:
        return read
    shape, outside = [rows // size, size, columns], read
    while outside.parent.name != "func.func":
        outside = outside.parent.operation
    with ir.InsertionPoint(outside), read.location:
        i64 = ir.IntegerType.get_signless(64)
        groups = ir.ArrayAttr.get([ir.ArrayAttr.get([ir.IntegerAttr.get(i64, d) for d in g]) for g in ([0, 1], [2])])
        kind = ir.RankedTensorType.get(shape, ir.RankedTensorType(source.type).element_type)
        matrices = tensor.ExpandShapeOp(kind, source, groups, [], shape).result
    with ir.InsertionPoint(read), read.location:
        new = tensor.ExtractOp(matrices, [scaled.operands[0], total.operands[1], column])
    read.results[0].replace_all_uses_with(new.result)
    read.erase()
    return new.operation


class _Tile:
    """A tile of chosen matrices: a map with one input, the group's number."""

    def __init__(self, op: ir.Operation) -> None:
        self.op, body = op, body_of(op)
        found = [o.operation for o in body.operations if o.operation.name == "tensor.extract"]
        found = [_of_matrices(read) for read in found]
        n_in = list(op.attributes["operandSegmentSizes"])[0]
        if len(found) != 1 or n_in != 1 or len(found[0].operands) != 4:
            raise PayloadError(f"{GATHER_MATRICES} is on a map that reads one element of [E,R,C]", op)
        self.matrices, number, *where = found[0].operands
        self._check_number(number, body)
        self.places = [_Place(), _Place()]
        for place, value in zip(self.places, where, strict=True):
            place.add(value, body)
        self.may_miss = self._check_result(found[0].results[0], body)

    def _check_number(self, value: ir.Value, body: ir.Block) -> None:
        """Raises PayloadError unless the matrix's number is the input, kept inside of what there is."""
        limits = {"arith.maxsi": 0, "arith.minsi": shape_of(self.matrices)[0] - 1}
        while value != body.arguments[0]:
            made_by = producer(value)
            name = "" if made_by is None else made_by.name
            if made_by is None or name != "arith.index_cast" and number_of(made_by.operands[-1]) != limits.get(name):
                raise PayloadError("the number of a matrix is not the map's input", self.op)
            value = made_by.operands[0]

    def _check_result(self, element: ir.Value, body: ir.Block) -> bool:
        """Whether a negative number is of no matrix, but zeros. Raises PayloadError for any other result."""
        (result,) = list(body.operations)[-1].operation.operands
        if result == element:
            return False
        chosen = producer(result)
        test = producer(chosen.operands[0]) if chosen is not None and chosen.name == "arith.select" else None
        if chosen is None or test is None or test.name != "arith.cmpi" or chosen.operands[2] != element:
            raise PayloadError("a tile of matrices holds what is not their elements", self.op)
        negative = ir.IntegerAttr(test.attributes["predicate"]).value == SLT and number_of(test.operands[1]) == 0
        zero = producer(chosen.operands[1])
        zeros = zero is not None and "value" in zero.attributes and zero.attributes["value"].value == 0
        if test.operands[0] != body.arguments[0] or not negative or not zeros:
            raise PayloadError("groups without a matrix are those with a negative number, and have zeros", self.op)
        return True

    def table(self) -> tuple[ir.Value, tuple[_build.Size, ...]]:
        """The table, and where in it the number is."""
        value = self.op.operands[0]
        made_by = producer(value)
        if made_by is not None and made_by.name == "tensor.extract_slice":
            return made_by.operands[0], tuple(mixed(made_by, "static_offsets", 1))
        return value, (0,) * len(shape_of(value))

    def slice(self, number: ir.Value) -> ir.Value:
        """The same elements, of the matrix of this number."""
        result = self.op.results[0]
        out = producer(self.op.operands[1])
        dynamic = iter(list(out.operands) if out is not None and out.name == "tensor.empty" else [])
        sizes = [n if n != _build.DYNAMIC else next(dynamic) for n in shape_of(result)]
        dims = [p.dims for p in self.places]
        kept = [d for each in dims for d in each]
        if any(len(d) > 1 for d in dims) or kept != sorted(kept):
            raise PayloadError("matrices are read row by row, as they lie", self.op)
        if any(n != 1 for d, n in enumerate(sizes) if d not in kept):
            raise PayloadError("a tile of matrices is of one group: tile the batch by 1", self.op)
        offsets = [number, *(p.offset() for p in self.places)]
        extents = [1, *(sizes[d[0]] if d else 1 for d in dims)]
        dropped = [0] * (0 not in self._units(sizes, kept)) + [i + 1 for i, d in enumerate(dims) if not d]
        return _build.extract_slice(self.matrices, offsets, extents, dropped)

    @staticmethod
    def _units(sizes: list, kept: list[int]) -> list[int]:
        """Dimensions of the tile that the matrices' number has."""
        return [d for d in range(len(sizes)) if d not in kept]


def _number(table: ir.Value, at: tuple[_build.Size, ...]) -> ir.Value:
    where = [_build.index(i) if isinstance(i, int) else i for i in at]
    number = tensor.ExtractOp(table, where).result
    return arith.IndexCastOp(ir.IndexType.get(), number).result


def _bounded(number: ir.Value, extent: int, may_miss: bool) -> ir.Value:
    """The number inside of [0, extent): of a group without a matrix 0, of others what it has to be."""
    for make, limit in ((arith.MaxSIOp, 0), (arith.MinSIOp, extent - 1)):
        number = make(number, _build.index(limit)).result
        if limit or extent == 1 or not may_miss:
            number.owner.attributes[INDEX_BELOW] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), extent)
    return number


def _read(inside: ir.Operation) -> None:
    tiles = [_Tile(op) for op in nested(inside) if GATHER_MATRICES in op.attributes]
    if not tiles:
        raise PayloadError(f"no map of {GATHER_MATRICES} is inside", inside)
    loop = inside if inside.name == "scf.for" else None
    numbers: dict[tuple, ir.Value] = {}
    for tile in tiles:
        table, at = tile.table()
        with ir.InsertionPoint(loop or tile.op), tile.op.location:
            key = (table, at)
            if loop is None or key not in numbers:
                numbers[key] = _number(table, at)
            number = _bounded(numbers[key], shape_of(tile.matrices)[0], tile.may_miss)
        with ir.InsertionPoint(tile.op), tile.op.location:
            new = tile.slice(number)
        tile.op.results[0].replace_all_uses_with(new)
        tile.op.erase()
    missing = [tile for tile in tiles if tile.may_miss]
    if not missing:
        return
    if loop is None or len(missing) != len(tiles) or len(numbers) != 1:
        raise PayloadError(
            "groups without a matrix end a loop over its products: give the loop of tile_reduction", inside
        )
    with ir.InsertionPoint(loop), loop.location:
        (number,) = numbers.values()
        none = arith.CmpIOp(arith.CmpIPredicate.slt, number, _build.index(0)).result
        loop.operands[1] = arith.SelectOp(none, loop.operands[0], loop.operands[1]).result


@transform_op("read_matrices", operands=("inside",))
def read_matrices(rewriter, inside):
    """Makes slices of the matrices themselves of what a loop, or a block program, reads of chosen ones
    (`mlirc.gather_matrices`): their number is read from the table once. A loop over the products of a group that has
    none takes no step."""
    for op in inside:
        _read(op.operation)
