"""`mlirc-unroll-windows`: makes maps of depthwise convolutions and poolings of small windows.

    y[n, p, q, c] = fold of f over the taps (r, s) of x[n, p*stride + r*dilation, q*stride + s*dilation, c], w[r, s, c]

becomes a `linalg.generic` that reads a strided slice of x for each tap, and folds them in the taps' order. What x pads
is padded for each tap by itself, and what it casts to a wider type is cast in the map: so that neither is a tensor in
memory. A window of more taps than `taps` stays a reduction.

    taps   the most taps of a window (default: 64)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.errors import MlircError
from mlirc.ir.tensors import shape_of
from mlirc.mlir import arith, ir, linalg, tensor
from mlirc.passes import register
from mlirc.passes.graph.classify import generic_inits
from mlirc.passes.graph.emit import make_generic
from mlirc.passes.graph.evaluate import is_move, map_results, owner_of, static
from mlirc.passes.graph.facts import is_widening_cast
from mlirc.passes.graph.index import Index, dim
from mlirc.passes.graph.outline import graph_functions
from mlirc.passes.graph.space import affine_map, tensor_type

MOST_TAPS = 64
WINDOWS = ("linalg.depthwise_conv_", "linalg.pooling_", "linalg.conv_", "linalg.generic")


@register("mlirc-unroll-windows")
def run(module: ir.Module, taps: str = str(MOST_TAPS)) -> None:
    """Rewrites a `linalg`-level module in place. Raises MlircError for an option that is no number."""
    if not taps.isdigit():
        raise MlircError("mlirc-unroll-windows has one option: taps, a number")
    with ir.Location.unknown(module.context):
        for function in graph_functions(module):
            _unroll(function.regions[0].blocks[0], int(taps))


def _unroll(block: ir.Block, most: int) -> None:
    """Replaces what it can of a function's body, and erases what nobody reads then."""
    replaced = []
    for op in [o.operation for o in block.operations]:
        if (loops := _Loops.of(op)) is not None and prod(loops.reduced.values()) <= most:
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(_unrolled(op, loops))
            replaced.append(op)
    for op in reversed([o.operation for o in block.operations] if replaced else []):
        if op.results and op.name != "func.call" and not any(True for r in op.results for _ in r.uses):
            op.erase()


@dataclass(frozen=True)
class _Loops:
    """The loops of an op over windows, by number: the sizes of those of its result's elements and of the reduced ones;
    and for each operand the index along each dimension, as a function of all loops."""

    parallel: dict[int, int]
    reduced: dict[int, int]
    maps: tuple[ir.AffineMap, ...]

    @classmethod
    def of(cls, op: ir.Operation) -> _Loops | None:
        """None for an op that sums over channels, too, or over no windows at all."""
        if not op.name.startswith(WINDOWS) or len(op.results) != 1 or any(0 in shape_of(v) for v in op.operands):
            return None
        maps = tuple(m.value if isinstance(m, ir.AffineMapAttr) else m for m in linalg.get_indexing_maps(op))
        if not maps[-1].is_projected_permutation or all(m.is_projected_permutation for m in maps):
            return None
        sizes: dict[int, int] = {}
        for value, map_ in zip(op.operands, maps, strict=True):
            for expr, n in zip(map_.results, shape_of(value), strict=True):
                if isinstance(expr, ir.AffineDimExpr):
                    sizes[expr.position] = n
        results = {e.position for e in maps[-1].results if isinstance(e, ir.AffineDimExpr)}
        reduced = {i: n for i, n in sizes.items() if i not in results}
        alone = {e.position for e in maps[0].results if isinstance(e, ir.AffineDimExpr)}
        if not reduced or len(sizes) != maps[0].n_dims or any(n > 1 and i in alone for i, n in reduced.items()):
            return None
        return cls({i: n for i, n in sizes.items() if i in results}, reduced, maps)

    def plain(self, operand: int) -> set[int]:
        """The dimensions of an operand along which taps read the element of the result's own loop."""
        exprs = list(self.maps[operand].results)
        return {i for i, e in enumerate(exprs) if isinstance(e, ir.AffineDimExpr) and e.position in self.parallel}

    def indices(self, operand: int, tap: dict[int, int]) -> list[Index]:
        """Where a tap reads an operand, along each dimension."""
        loops = [Index(tap[i]) if i in tap else dim(i, self.parallel[i]) for i in range(self.maps[0].n_dims)]
        return [f(loops) for f in map_results(self.maps[operand])]


def _unrolled(op: ir.Operation, loops: _Loops) -> ir.Value:
    """The map that an op over windows is."""
    *inputs, init = op.operands
    body = op.regions[0].blocks[0]
    used = [any(True for _ in a.uses) for a in body.arguments]
    folds = sum(used[: len(inputs)]) == 1  # no weights
    sources = [_Source.of(v, set(range(len(shape_of(v)))) if folds else loops.plain(i)) for i, v in enumerate(inputs)]
    numbers = _walk(sources[0], loops)
    place = {loop: i for i, loop in enumerate(numbers)}
    values, maps, taps = [init], [_of_loops(loops.maps[-1], place)], []
    for steps in product(*(range(n) for n in loops.reduced.values())):
        tap = dict(zip(loops.reduced, steps, strict=True))
        read = {}
        for number, source in enumerate(sources):
            if used[number]:
                value, walked = source.slice(loops.indices(number, tap), loops.parallel)
                read[number] = len(values)
                values.append(value)
                maps.append(affine_map(range(len(numbers)), [place[loop] for loop in walked]))
        taps.append(read)
    element = ir.RankedTensorType(op.results[0].type).element_type
    out = tensor.empty([loops.parallel[n] for n in numbers], element)
    maps.append(ir.AffineMap.get_identity(len(numbers)))
    made = make_generic(values, [out], maps, ["parallel"] * len(numbers))
    arguments = made.regions[0].blocks[0].arguments
    with ir.InsertionPoint(made.regions[0].blocks[0]):
        total = arguments[0]
        for read in taps:
            given = {body.arguments[len(inputs)]: total}
            for number, at in read.items():
                given[body.arguments[number]] = sources[number].cast(arguments[at])
            total = _fold(body, given)
        linalg.YieldOp([total])
    order = [place[e.position] for e in loops.maps[-1].results]
    if order == sorted(order):
        return made.results[0]
    shaped = tensor.empty(list(shape_of(op.results[0])), element)
    turned = linalg.transpose(made.results[0], outs=[shaped], permutation=order)
    return turned if isinstance(turned, ir.Value) else turned.operation.results[0]


def _walk(source: _Source, loops: _Loops) -> list[int]:
    """The loops in the order in which the image lies in memory, if that has them all; else in their own."""
    dims = [loops.indices(0, dict.fromkeys(loops.reduced, 0))[source.order.index(i)] for i in range(len(source.order))]
    walk = [atom[1] for index in dims for atom in index.terms]
    rest = [loop for loop, n in sorted(loops.parallel.items()) if loop not in walk]
    return [*rest, *walk] if all(loops.parallel[loop] == 1 for loop in rest) else sorted(loops.parallel)


def _of_loops(map_: ir.AffineMap, place: dict[int, int]) -> ir.AffineMap:
    return affine_map(range(len(place)), [place[e.position] for e in map_.results])


def _fold(body: ir.Block, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """A copy of a body's ops; what it yields."""
    *inner, end = [o.operation for o in body.operations]
    for op in inner:
        _build.clone(op, values)
    return values.get(end.operands[0], end.operands[0])


@dataclass(frozen=True)
class _Pad:
    """What is put around a tensor: by how much along each of its dimensions, and which constant."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    constant: ir.Attribute

    @classmethod
    def of(cls, op: ir.Operation) -> _Pad | None:
        if op.name != "tensor.pad" or not is_move(op):
            return None
        owner = owner_of(op.regions[0].blocks[0].operations[0].operands[0])
        low, high = (tuple(static(op, f"static_{side}") or ()) for side in ("low", "high"))
        if owner is None or owner.name != "arith.constant":
            return None
        return cls(low, high, owner.attributes["value"])

    def inside(self, permutation: Sequence[int]) -> _Pad:
        """The same around a tensor of which this one's is a transpose."""
        places = [list(permutation).index(i) for i in range(len(permutation))]
        low, high = (tuple(side[i] for i in places) for side in (self.low, self.high))
        return _Pad(low, high, self.constant)

    def around(self, value: ir.Value) -> ir.Value:
        """The padded value, whose elements' type has the constant."""
        element = ir.RankedTensorType(value.type).element_type
        shape = [a + n + b for a, n, b in zip(self.low, shape_of(value), self.high, strict=True)]
        constant = arith.ConstantOp(element, _in_type(self.constant, element)).result
        made = tensor.PadOp(tensor_type(shape, element), value, [], [], self.low, self.high)
        index = ir.IndexType.get()
        block = made.regions[0].blocks.append(*[index] * len(shape), arg_locs=[ir.Location.unknown()] * len(shape))
        with ir.InsertionPoint(block):
            tensor.YieldOp(constant)
        return made.result


@dataclass(frozen=True)
class _Source:
    """A tensor that taps read: `value`, padded in turn by `pads`, each element widened as `casts` do. `order`: the
    dimension of it that each of the operand's is."""

    value: ir.Value
    order: tuple[int, ...]
    pads: tuple[_Pad, ...] = ()
    casts: tuple[ir.Operation, ...] = ()

    @classmethod
    def of(cls, value: ir.Value, plain: set[int]) -> _Source:
        """Through pads, casts, and such transposes as together leave the last dimension the last one, or make one of
        `plain` the last: what lies in another order is put in this one once, not for each tap."""
        found = best = cls(value, tuple(range(len(shape_of(value)))))
        while (more := found._before()) is not None:
            found = more
            last = found.order.index(len(found.order) - 1)
            if last == len(found.order) - 1 or last in plain and shape_of(value)[last] > 1:
                best = found
        return best

    def _before(self) -> _Source | None:
        """What is in front of the op that makes the value; None where taps read its result."""
        op = owner_of(self.value)
        if op is None:
            return None
        if (pad := _Pad.of(op)) is not None:
            return _Source(op.operands[0], self.order, (pad, *self.pads), self.casts)
        if op.name == "linalg.transpose":
            permutation = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
            pads = tuple(p.inside(permutation) for p in self.pads)
            return _Source(op.operands[0], tuple(permutation[i] for i in self.order), pads, self.casts)
        narrow = ir.RankedTensorType(op.operands[0].type).element_type if is_widening_cast(op) else None
        if narrow is None or not _is_elementwise(op) or any(_in_type(p.constant, narrow) is None for p in self.pads):
            return None
        return _Source(op.operands[0], self.order, self.pads, (op, *self.casts))

    def slice(self, indices: Sequence[Index], sizes: dict[int, int]) -> tuple[ir.Value, list[int]]:
        """What of it a tap reads, and the loops along its dimensions."""
        value = self.value
        for pad in self.pads:
            value = pad.around(value)
        offsets, extents, strides, walked = [], [], [], []
        for index in (indices[self.order.index(i)] for i in range(len(self.order))):
            terms = {atom[1]: step for atom, step in index.terms.items()}
            loop, step = next(iter(terms.items()), (None, 1))
            offsets.append(index.const)
            extents.append(1 if loop is None else sizes[loop])
            strides.append(step)
            walked += [] if loop is None else [loop]
        type_ = tensor_type([sizes[loop] for loop in walked], ir.RankedTensorType(value.type).element_type)
        return tensor.ExtractSliceOp(type_, value, [], [], [], offsets, extents, strides).result, walked

    def cast(self, element: ir.Value) -> ir.Value:
        for op in self.casts:
            body = op.regions[0].blocks[0]
            element = _fold(body, {body.arguments[0]: element})
        return element


def _is_elementwise(op: ir.Operation) -> bool:
    """Whether a map with one input reads it where it writes."""
    maps = [a.value for a in op.attributes["indexing_maps"]]
    return generic_inits(op) == 1 and maps[0] == maps[1] and maps[0].is_permutation


def _in_type(constant: ir.Attribute | None, type_: ir.Type) -> ir.Attribute | None:
    """Zero or an infinity in another type, and any constant in its own; else None."""
    if constant is None or constant.type == type_:
        return constant
    if isinstance(constant, ir.FloatAttr) and isinstance(type_, ir.F16Type | ir.BF16Type | ir.F32Type):
        known = constant.value in (0.0, float("inf"), float("-inf"))
        return ir.FloatAttr.get(type_, constant.value) if known else None
    if isinstance(constant, ir.IntegerAttr) and isinstance(type_, ir.IntegerType) and constant.value == 0:
        return ir.IntegerAttr.get(type_, 0)
    return None
