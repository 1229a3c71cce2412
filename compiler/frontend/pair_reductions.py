"""Reductions that find an extreme and its index (`max(dim)`, `argmin`, ...), as reductions of numbers.

torch-mlir makes one linalg op with two results of them, whose body compares with the best pair so far: neither lanes
nor blocks can share its work. An element of at most 32 bits and its index fit into one i64 instead, whose maximum is
both; of wider elements the extreme is found first, and then the first index that has it.

The key of an element, most significant bits first: 32 bits that order as the elements do (turned round for a minimum,
the largest one for NaN, which PyTorch finds before all others), 31 bits of the index, turned round, and whether the
element is negative, which tells -0 from 0, of which the first one is found. Of bf16 in rows of up to 32,768 the key has
16, 15 and 1 of these: a maximum of 32 bits is an instruction, where one of 64 is four.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from mlirc.mlir import arith, ir, linalg, tensor

_UNO, _OEQ = 14, 1  # of arith.cmpf
_SLT, _EQ = 2, 0  # of arith.cmpi
_LARGEST, _LAST = 0x7FFFFFFF, (1 << 31) - 1
_SHORT, _UPPER = 1 << 15, -(1 << 16)  # elements of a row that 15 bits count; the upper half of 32 bits
_FEW_ROWS, _LONG, _PART = 64, 4096, 1024  # so few rows that are so long are divided into parts, for a block each
_WHOLE = 256 * 1024  # rows of matrices up to here, of elements side by side, are one launch: a block's or a cluster's
_COMBINERS = {
    "arith.maximumf": True, "arith.minimumf": False, "arith.maxsi": True, "arith.minsi": False,
}  # fmt: skip


@dataclass
class _Pair:
    """One such op: the tensor, the dimension that is reduced, and whether the largest element is wanted."""

    op: ir.Operation
    source: ir.Value
    dim: int
    largest: bool

    @property
    def length(self) -> int:
        return ir.RankedTensorType(self.source.type).shape[self.dim]

    @property
    def rows(self) -> int:
        return prod(ir.RankedTensorType(self.source.type).shape) // max(self.length, 1)

    @property
    def element(self) -> ir.Type:
        return ir.RankedTensorType(self.source.type).element_type


def split_pairs(generics: Sequence[ir.Operation]) -> None:
    """Rewrites the reductions of pairs among linalg.generic ops, in place; others stay as they are."""
    for op in generics:
        pair = _pair(op)
        if pair is None:
            continue
        with op.location, ir.InsertionPoint(op):
            narrow = isinstance(pair.element, ir.F32Type | ir.BF16Type | ir.F16Type) or (
                isinstance(pair.element, ir.IntegerType) and pair.element.width <= 32
            )
            value, index = _by_keys(pair) if narrow else _one_after_the_other(pair)
        op.results[0].replace_all_uses_with(value)
        op.results[1].replace_all_uses_with(index)
        op.erase()


def _pair(op: ir.Operation) -> _Pair | None:
    """What torch-mlir's op finds; None for another op."""
    kinds = ["reduction" in str(k) for k in ir.ArrayAttr(op.attributes["iterator_types"])]
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    if len(op.results) != 2 or len(op.operands) != 3 or sum(kinds) != 1 or not _is_identity(maps[0], len(kinds)):
        return None
    kept = [d for d, reduced in enumerate(kinds) if not reduced]
    if any([str(e) for e in m.results] != [f"d{d}" for d in kept] for m in maps[1:]):
        return None
    block = op.regions[0].blocks[0]
    _, best, _ = block.arguments
    value, index = list(block.operations)[-1].operation.operands
    combine, select = value.owner, index.owner
    if isinstance(combine, ir.Block) or combine.name not in _COMBINERS or best not in list(combine.operands):
        return None
    if isinstance(select, ir.Block) or select.name != "arith.select" or not isinstance(index.type, ir.IntegerType):
        return None
    made = [o.operation for o in block.operations if o.operation.name == "linalg.index"]
    if [ir.IntegerAttr(o.attributes["dim"]).value for o in made] != [kinds.index(True)]:
        return None
    return _Pair(op, op.operands[0], kinds.index(True), _COMBINERS[combine.name])


def _is_identity(map_: ir.AffineMap, rank: int) -> bool:
    return [str(e) for e in map_.results] == [f"d{d}" for d in range(rank)]


def _by_keys(pair: _Pair) -> tuple[ir.Value, ir.Value]:
    """(extremes, indices) as a map to keys, their maximum, and maps of that."""
    i32, i64 = (ir.IntegerType.get_signless(n) for n in (32, 64))
    element = pair.element
    is_float = not isinstance(element, ir.IntegerType)
    split = _part(pair)
    padded = split and pair.length % split

    def number(type_: ir.Type, value: int) -> ir.Value:
        return arith.constant(type_, ir.IntegerAttr.get(type_, value))

    def key(x: ir.Value, _: ir.Value) -> ir.Value:
        index = arith.index_cast(i64, linalg.IndexOp(pair.dim).result)
        if split:
            place = arith.index_cast(i64, linalg.IndexOp(pair.dim + 1).result)
            index = arith.addi(arith.muli(index, number(i64, split)), place)
        low = arith.subi(number(i64, 2 * _LAST), arith.shli(index, number(i64, 1)))
        if is_float:
            wide = x if isinstance(element, ir.F32Type) else arith.extf(ir.F32Type.get(), x)
            bits = arith.bitcast(i32, wide)
            negative = arith.cmpi(_SLT, bits, number(i32, 0))
            low = arith.ori(low, arith.extui(i64, negative))
            positive_zero = arith.constant(ir.F32Type.get(), 0.0)
            bits = arith.select(arith.cmpf(_OEQ, wide, positive_zero), number(i32, 0), bits)
            order = arith.select(arith.cmpi(_SLT, bits, number(i32, 0)), arith.xori(bits, number(i32, _LARGEST)), bits)
            if not pair.largest:
                order = arith.xori(order, number(i32, -1))
            order = arith.select(arith.cmpf(_UNO, wide, wide), number(i32, _LARGEST), order)
        else:
            order = x if element.width == 32 else arith.extsi(i32, x)
            if not pair.largest:
                order = arith.xori(order, number(i32, -1))
        whole = arith.ori(arith.shli(arith.extsi(i64, order), number(i64, 32)), low)
        if not padded:
            return whole
        return arith.select(arith.cmpi(_SLT, index, number(i64, pair.length)), whole, number(i64, -(1 << 63)))

    def parts(found: ir.Value, *_: ir.Value) -> tuple[ir.Value, ir.Value]:
        order = arith.trunci(i32, arith.shrsi(found, number(i64, 32)))
        value = element_of(order, found) if is_float else number_of(order)
        turned = arith.andi(arith.shrsi(found, number(i64, 1)), number(i64, _LAST))
        return value, arith.subi(number(i64, _LAST), turned)

    def number_of(order: ir.Value) -> ir.Value:
        order = order if pair.largest else arith.xori(order, number(i32, -1))
        return order if element.width == 32 else arith.trunci(element, order)

    def element_of(order: ir.Value, found: ir.Value) -> ir.Value:
        missing = arith.cmpi(_EQ, order, number(i32, _LARGEST))
        order = order if pair.largest else arith.xori(order, number(i32, -1))
        bits = arith.select(arith.cmpi(_SLT, order, number(i32, 0)), arith.xori(order, number(i32, _LARGEST)), order)
        sign = arith.shli(arith.trunci(i32, found), number(i32, 31))  # of a zero; others have theirs
        bits = arith.select(arith.cmpi(_EQ, order, number(i32, 0)), sign, bits)
        f32 = ir.F32Type.get()
        wide = arith.select(missing, arith.constant(f32, float("nan")), arith.bitcast(f32, bits))
        return wide if isinstance(element, ir.F32Type) else arith.truncf(element, wide)

    if is_float and isinstance(element, ir.BF16Type) and not split and pair.length <= _SHORT:
        return _by_short_keys(pair)
    source = _in_parts(pair)
    (found,) = _generic([source], [i64], None, key)
    for dim in range(pair.dim, pair.dim + (2 if split else 1))[::-1]:
        (found,) = _generic([found], [i64], dim, arith.maxsi, start=-(1 << 63))
    value, index = _generic([found], [element, i64], None, parts)
    return value, index


def _by_short_keys(pair: _Pair) -> tuple[ir.Value, ir.Value]:
    """`_by_keys` of bf16 in rows of up to 32,768: keys of 32 bits, of which the element's order is the upper half."""
    i32, i64, f32 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64), ir.F32Type.get()

    def number(value: int) -> ir.Value:
        return arith.constant(i32, ir.IntegerAttr.get(i32, value))

    def turned(order: ir.Value) -> ir.Value:
        """Negative numbers in the order of theirs, and back."""
        return arith.select(arith.cmpi(_SLT, order, number(0)), arith.xori(order, number(_LARGEST)), order)

    def key(x: ir.Value, _: ir.Value) -> ir.Value:
        index = arith.index_cast(i32, linalg.IndexOp(pair.dim).result)
        low = arith.subi(number(2 * (_SHORT - 1)), arith.shli(index, number(1)))
        wide = arith.extf(f32, x)
        bits = arith.bitcast(i32, wide)
        low = arith.ori(low, arith.extui(i32, arith.cmpi(_SLT, bits, number(0))))
        zero = arith.cmpf(_OEQ, wide, arith.constant(f32, 0.0))
        order = turned(arith.select(zero, number(0), bits))
        if not pair.largest:
            order = arith.xori(order, number(-1))
        order = arith.select(arith.cmpf(_UNO, wide, wide), number(_LARGEST), order)
        return arith.ori(arith.andi(order, number(_UPPER)), low)

    def parts(found: ir.Value, *_: ir.Value) -> tuple[ir.Value, ir.Value]:
        order = arith.andi(found, number(_UPPER))
        missing = arith.cmpi(_EQ, order, number(_LARGEST & _UPPER))
        if not pair.largest:
            order = arith.andi(arith.xori(order, number(-1)), number(_UPPER))
        sign = arith.shli(found, number(31))  # of a zero; others have theirs
        bits = arith.select(arith.cmpi(_EQ, order, number(0)), sign, arith.andi(turned(order), number(_UPPER)))
        wide = arith.select(missing, arith.constant(f32, float("nan")), arith.bitcast(f32, bits))
        place = arith.andi(arith.shrsi(found, number(1)), number(_SHORT - 1))
        return arith.truncf(pair.element, wide), arith.extsi(i64, arith.subi(number(_SHORT - 1), place))

    (found,) = _generic([pair.source], [i32], None, key)
    (found,) = _generic([found], [i32], pair.dim, arith.maxsi, start=-(1 << 31))
    value, index = _generic([found], [pair.element, i64], None, parts)
    return value, index


def _part(pair: _Pair) -> int:
    """How many elements of a row make a part; 0 where it stays whole."""
    last = len(ir.RankedTensorType(pair.source.type).shape) - 1
    if pair.rows > _FEW_ROWS or pair.length < _LONG or (pair.length <= _WHOLE and pair.dim == last > 0):
        return 0
    near = [n for n in range(_PART // 2, 2 * _PART) if pair.length % n == 0]
    return min(near, key=lambda n: abs(n - _PART), default=_PART)


def _in_parts(pair: _Pair) -> ir.Value:
    """The tensor with its reduced dimension as (parts, elements of a part), filled up where that has a rest."""
    part, source = _part(pair), pair.source
    if not part:
        return source
    shape, element = list(ir.RankedTensorType(source.type).shape), pair.element
    count = -(-shape[pair.dim] // part)
    if rest := count * part - shape[pair.dim]:
        is_float = not isinstance(element, ir.IntegerType)
        zero = arith.constant(element, (ir.FloatAttr if is_float else ir.IntegerAttr).get(element, 0))
        shape[pair.dim] += rest
        low, high = [0] * len(shape), [rest if d == pair.dim else 0 for d in range(len(shape))]
        pad = tensor.PadOp(ir.RankedTensorType.get(shape, element), source, [], [], low, high)
        with ir.InsertionPoint(pad.regions[0].blocks.append(*[ir.IndexType.get()] * len(shape))):
            tensor.yield_(zero)
        source = pad.result
    groups = [[d] if d < pair.dim else [d, d + 1] if d == pair.dim else [d + 1] for d in range(len(shape))]
    shape[pair.dim : pair.dim + 1] = [count, part]
    return tensor.expand_shape(ir.RankedTensorType.get(shape, element), source, groups, [], shape)


def _one_after_the_other(pair: _Pair) -> tuple[ir.Value, ir.Value]:
    """(extremes, indices): the extreme, then the first index of an element that is equal to it, or NaN."""
    i64, element = ir.IntegerType.get_signless(64), pair.element
    is_float = not isinstance(element, ir.IntegerType)
    combine: Callable = {
        (True, True): arith.maximumf, (True, False): arith.minimumf, (False, True): arith.maxsi,
        (False, False): arith.minsi,
    }[is_float, pair.largest]  # fmt: skip
    if is_float:
        start: float | int = float("-inf" if pair.largest else "inf")
    else:
        start = -(1 << element.width - 1) if pair.largest else (1 << element.width - 1) - 1
    (value,) = _generic([pair.source], [element], pair.dim, combine, start=start)

    def place(x: ir.Value, best: ir.Value, _: ir.Value) -> ir.Value:
        if is_float:
            here = arith.ori(arith.cmpf(_OEQ, x, best), arith.cmpf(_UNO, x, x))
        else:
            here = arith.cmpi(_EQ, x, best)
        index = arith.index_cast(i64, linalg.IndexOp(pair.dim).result)
        return arith.select(here, index, arith.constant(i64, ir.IntegerAttr.get(i64, _LAST)))

    (places,) = _generic([pair.source, value], [i64], None, place, without=pair.dim)
    (index,) = _generic([places], [i64], pair.dim, arith.minsi, start=_LAST)
    return value, index


def _generic(
    inputs: Sequence[ir.Value],
    elements: Sequence[ir.Type],
    reduced: int | None,
    body: Callable,
    *,
    start: float | int | None = None,
    without: int | None = None,
) -> list[ir.Value]:
    """A linalg.generic over the loops of the first input, which reduces `reduced`, beginning with `start`. The second
    input lacks the dimension `without`. `body` makes the result's elements, of the types `elements`, of the inputs'
    and the results'."""
    shape = list(ir.RankedTensorType(inputs[0].type).shape)
    loops = [ir.AffineDimExpr.get(d) for d in range(len(shape))]
    kept = [d for d in range(len(shape)) if d != reduced]
    outs: list[ir.Value] = [tensor.empty([shape[d] for d in kept], element) for element in elements]
    if start is not None:
        (element,) = elements
        attribute = (ir.IntegerAttr if isinstance(element, ir.IntegerType) else ir.FloatAttr).get(element, start)
        outs = [linalg.fill(arith.constant(element, attribute), outs=outs)]
    maps = [loops, [x for d, x in enumerate(loops) if d != without]][: len(inputs)]
    maps += [[loops[d] for d in kept]] * len(outs)
    kinds = ["reduction" if d == reduced else "parallel" for d in range(len(shape))]
    generic = linalg.GenericOp(
        [out.type for out in outs],
        list(inputs),
        outs,
        ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get(len(shape), 0, m)) for m in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{k}>") for k in kinds]),
    )
    types = [ir.RankedTensorType(v.type).element_type for v in (*inputs, *outs)]
    block = generic.regions[0].blocks.append(*types)
    with ir.InsertionPoint(block):
        made = body(*block.arguments)
        linalg.YieldOp(list(made) if isinstance(made, tuple) else [made])
    return list(generic.results)
