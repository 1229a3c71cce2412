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

    def indices(self, operand: int, tap: dict[int, int]) -> list[Index]:
        """Where a tap reads an operand, along each dimension."""
        loops = [Index(tap[i]) if i in tap else dim(i, self.parallel[i]) for i in range(self.maps[0].n_dims)]
        return [f(loops) for f in map_results(self.maps[operand])]


def _unrolled(op: ir.Operation, loops: _Loops) -> ir.Value:
    """The map that an op over windows is."""
    *inputs, init = op.operands
    sources = [_Source.of(v) for v in inputs]
    numbers = sorted(loops.parallel)
    place = {loop: i for i, loop in enumerate(numbers)}
    body = op.regions[0].blocks[0]
    used = [any(True for _ in a.uses) for a in body.arguments]
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
    type_ = ir.RankedTensorType(op.results[0].type)
    out = tensor.empty(list(type_.shape), type_.element_type)
    made = make_generic(values, [out], [*maps, _of_loops(loops.maps[-1], place)], ["parallel"] * len(numbers))
    arguments = made.regions[0].blocks[0].arguments
    with ir.InsertionPoint(made.regions[0].blocks[0]):
        total = arguments[0]
        for read in taps:
            given = {body.arguments[len(inputs)]: total}
            for number, at in read.items():
                given[body.arguments[number]] = sources[number].cast(arguments[at])
            total = _fold(body, given)
        linalg.YieldOp([total])
    return made.results[0]


def _of_loops(map_: ir.AffineMap, place: dict[int, int]) -> ir.AffineMap:
    return affine_map(range(len(place)), [place[e.position] for e in map_.results])


def _fold(body: ir.Block, values: dict[ir.Value, ir.Value]) -> ir.Value:
    """A copy of a body's ops; what it yields."""
    *inner, end = [o.operation for o in body.operations]
    for op in inner:
        _build.clone(op, values)
    return values.get(end.operands[0], end.operands[0])


@dataclass(frozen=True)
class _Source:
    """A tensor that taps read: `value`, padded in turn by `pads`, each element widened as `casts` do."""

    value: ir.Value
    pads: tuple[ir.Operation, ...]
    casts: tuple[ir.Operation, ...]

    @classmethod
    def of(cls, value: ir.Value) -> _Source:
        pads: list[ir.Operation] = []
        casts: list[ir.Operation] = []
        while (op := owner_of(value)) is not None:
            if op.name == "tensor.pad" and is_move(op) and _constant(op) is not None:
                pads.insert(0, op)
            elif is_widening_cast(op) and _is_elementwise(op) and all(_narrowed(p, op) is not None for p in pads):
                casts.insert(0, op)
            else:
                break
            value = op.operands[0]
        return cls(value, tuple(pads), tuple(casts))

    def slice(self, indices: Sequence[Index], sizes: dict[int, int]) -> tuple[ir.Value, list[int]]:
        """What of it a tap reads, and the loops along its dimensions."""
        value = self.value
        element = ir.RankedTensorType(value.type).element_type
        for pad in self.pads:
            value = _padded(value, pad, element)
        offsets, extents, strides, walked = [], [], [], []
        for index in indices:
            terms = {atom[1]: step for atom, step in index.terms.items()}
            loop, step = next(iter(terms.items()), (None, 1))
            offsets.append(index.const)
            extents.append(1 if loop is None else sizes[loop])
            strides.append(step)
            walked += [] if loop is None else [loop]
        type_ = tensor_type([sizes[loop] for loop in walked], element)
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


def _constant(pad: ir.Operation) -> ir.Attribute | None:
    owner = owner_of(pad.regions[0].blocks[0].operations[0].operands[0])
    return owner.attributes["value"] if owner is not None and owner.name == "arith.constant" else None


def _narrowed(pad: ir.Operation, cast: ir.Operation) -> ir.Attribute | None:
    """The constant of a pad, in the type that a cast widens; None where none becomes it."""
    narrow = ir.RankedTensorType(cast.operands[0].type).element_type
    return _in_type(_constant(pad), narrow)


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


def _padded(value: ir.Value, pad: ir.Operation, element: ir.Type) -> ir.Value:
    """A value padded as by another op, whose constant its elements' type has."""
    low, high = static(pad, "static_low") or [], static(pad, "static_high") or []
    shape = [a + n + b for a, n, b in zip(low, shape_of(value), high, strict=True)]
    constant = arith.ConstantOp(element, _in_type(_constant(pad), element)).result
    made = tensor.PadOp(tensor_type(shape, element), value, [], [], low, high)
    index = ir.IndexType.get()
    block = made.regions[0].blocks.append(*[index] * len(shape), arg_locs=[ir.Location.unknown()] * len(shape))
    with ir.InsertionPoint(block):
        tensor.YieldOp(constant)
    return made.result
