"""What lowers the ops of a tile program, but for loops (`loop.py`) and roles (`roles.py`)."""

from __future__ import annotations

import math
from dataclasses import replace

from mlirc.ir.scans import Scan, is_scan
from mlirc.ir.window_sums import window_sum
from mlirc.mlir import ir
from mlirc.passes.distribute.emit.emitter import IndexValue, Unsupported
from mlirc.passes.distribute.instructions import contraction
from mlirc.passes.distribute.memory import access, slices
from mlirc.passes.distribute.products import matching
from mlirc.passes.distribute.program import cluster_parts
from mlirc.passes.distribute.program.results import default_layout, is_window, put
from mlirc.passes.distribute.program.scope import Lowerings, Scope
from mlirc.passes.distribute.tiles import reduction
from mlirc.passes.distribute.tiles import scan as scans
from mlirc.passes.distribute.tiles.banded import Banded
from mlirc.passes.distribute.tiles.elementwise import Elementwise, map_dims
from mlirc.passes.distribute.tiles.values import Reshaped, Resized, Splat, Tile


def _scalar_op(scope: Scope, op) -> None:
    for r, v in zip(op.results, scope.scalar_of(op, scope.scalar), strict=True):
        scope.scalars[r] = v


def _dense(scope: Scope, op) -> None:
    t = ir.RankedTensorType(op.results[0].type)
    attr = ir.DenseElementsAttr(op.attributes["value"])
    if not attr.is_splat:
        raise Unsupported("a constant tensor that is not a splat inside a tile program; pass it as an argument")
    scalar = scope.em.constant(attr.get_splat_value())
    scope.tiles[op.results[0]] = Splat(scope.em, t.element_type, list(t.shape), list(t.shape), scalar)


def _empty(scope: Scope, op) -> None:
    t = ir.RankedTensorType(op.results[0].type)
    shape, sizes = scope.shape_of(t, list(op.operands))
    scope.tiles[op.results[0]] = Splat(scope.em, t.element_type, shape, sizes, _undefined(scope, t.element_type))


def _undefined(scope: Scope, t: ir.Type) -> ir.Value:
    zero = ir.IntegerAttr.get(t, 0) if isinstance(t, ir.IntegerType | ir.IndexType) else ir.FloatAttr.get(t, 0.0)
    return scope.em.constant(zero)


def _dim(scope: Scope, op) -> None:
    source, index = op.operands
    position = scope.scalar(index)
    view = scope.view(source)
    sizes = view[2] if view is not None else scope.tile(source).sizes
    scope.scalars[op.results[0]] = sizes[position]


def _alias(scope: Scope, op) -> None:
    view = scope.view(op.operands[0])
    if view is not None:
        scope.bind_view(op.results[0], *view)
    else:
        scope.tiles[op.results[0]] = scope.tile(op.operands[0])


def _extract_slice(scope: Scope, op) -> None:
    found = scope.slice_view(op, scope.scalar)
    if found is not None:
        scope.bind_view(op.results[0], *found)
        return
    tile = scope.tile(op.operands[0])
    offsets, bounds, sizes = slices.slice_geometry(op, scope.scalar)
    if isinstance(tile, cluster_parts.Parts):
        scope.tiles[op.results[0]] = tile.share(offsets, bounds, sizes)
        return
    kept = slices.kept_dims(op, op.results[0])
    if isinstance(tile, Splat):
        shape, exact = [bounds[i] for i in kept], [sizes[i] for i in kept]
        scope.tiles[op.results[0]] = Splat(scope.em, tile.element, shape, exact, tile.scalar)
        return
    if any(o != 0 for o in offsets) or any(b != n for b, n in zip(bounds, tile.shape, strict=True)):
        raise Unsupported("a part of a tile: tiles are only cut from kernel arguments")
    if len(kept) == len(bounds):
        scope.tiles[op.results[0]] = tile if sizes == tile.sizes else Resized(scope.em, tile, sizes)
        return
    groups = [[i] for i in kept]
    for i in range(len(bounds)):
        if i not in kept:
            near = max((g for g in range(len(kept)) if kept[g] < i), default=0)
            groups[near] = sorted([*groups[near], i]) if groups else []
    shape, exact = [bounds[i] for i in kept], [sizes[i] for i in kept]
    scope.tiles[op.results[0]] = Reshaped(scope.em, tile, shape, exact, groups, expand=False)


def _insert_slice(scope: Scope, op) -> None:
    """A tile at the front of one that has nothing else in it, and is no larger than that one can be; or a part of a
    result, which is stored."""
    if is_window(op.operands[1]):
        put(scope, op, scope.tile(op.operands[0]))
        scope.views[op.results[0]] = scope.view(op.operands[1])
        return
    source, target = (scope.tile(v) for v in list(op.operands)[:2])
    offsets, bounds, _ = slices.slice_geometry(op, scope.scalar)
    empty = op.operands[1].owner
    if isinstance(empty, ir.Block) or empty.name != "tensor.empty" or any(o != 0 for o in offsets):
        raise Unsupported("a tile is inserted at the front of a tensor.empty alone")
    if bounds != target.shape or source.shape != target.shape:
        raise Unsupported(f"a tile of {bounds} at most is inserted into one of {target.shape}: they must be as large")
    scope.tiles[op.results[0]] = Resized(scope.em, source, target.sizes)


def _reshape(scope: Scope, op) -> None:
    groups = [[ir.IntegerAttr(i).value for i in g] for g in ir.ArrayAttr(op.attributes["reassociation"])]
    expand = op.name == "tensor.expand_shape"
    source, result = op.operands[0], op.results[0]
    t = ir.RankedTensorType(result.type)
    view = scope.view(source)
    if view is not None and _reshape_view(scope, op, view):
        return
    tile = scope.tile(source)
    wide = list(t.shape) if expand else tile.shape
    exact = _reshaped_sizes(scope, tile, groups, expand, t)
    shape = [n if isinstance(n, int) else _limit(tile, groups, expand, i, wide) for i, n in enumerate(exact)]
    if isinstance(tile, Splat):
        scope.tiles[result] = Splat(scope.em, tile.element, shape, exact, tile.scalar)
    else:
        scope.tiles[result] = Reshaped(scope.em, tile, shape, exact, groups, expand)


def _reshaped_sizes(scope: Scope, tile: Tile, groups, expand: bool, t) -> list[IndexValue]:
    if not expand:
        out: list[IndexValue] = []
        for g in groups:
            total: IndexValue = 1
            for d in g:
                total = scope.em.mul(total, tile.sizes[d])
            out.append(total)
        return out
    out = [n for n in t.shape]
    for i, g in enumerate(groups):
        unknown = [d for d in g if t.shape[d] == slices.DYNAMIC]
        if len(unknown) == 1 and all(t.shape[d] == 1 for d in g if d != unknown[0]):
            out[unknown[0]] = tile.sizes[i]
        elif unknown:
            raise Unsupported("expanding a dynamic tile dimension into several")
    return out


def _limit(tile: Tile, groups, expand: bool, i: int, wide: list[int]) -> int:
    if expand:
        return next(tile.shape[k] for k, g in enumerate(groups) if i in g)
    out = 1
    for d in groups[i]:
        out *= tile.shape[d]
    return out


def _reshape_view(scope: Scope, op, view) -> bool:
    """Reshapes of global memory that only add or drop dimensions of size 1 stay views."""
    where, shape, sizes = view
    order = slices.view_order(op, shape)
    if order is None:
        return False
    new = replace(where, dims=[where.dims[i] for i in order])
    scope.bind_view(op.results[0], new, [shape[i] for i in order], [sizes[i] for i in order])
    return True


def _extract(scope: Scope, op) -> None:
    view = scope.view(op.operands[0])
    if view is None:
        raise Unsupported("tensor.extract from a tile outside of a linalg body")
    where = view[0]
    indices = list(where.offsets)
    for d, v in zip(where.dims, list(op.operands)[1:], strict=True):
        indices[d] = scope.em.add(indices[d], scope.scalar(v))
    loaded = access.load_elements(scope.em, where, indices, 1)
    scope.scalars[op.results[0]] = access.join(scope.em, [loaded], 1, op.results[0].type, 1)


def _generic(scope: Scope, op) -> None:
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    inputs = segments[0]
    iterators = [str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"])]
    if any("reduction" in i for i in iterators):
        info = matching.match(op)
        if info is not None and inputs == 2:
            tiles = [scope.tile(v) for v in info.arrange(list(op.operands))]
            scope.tiles[op.results[0]] = contraction.lower(scope.em, op, info, tiles)
            return
        if cluster_parts.add(scope, op):
            return
    maps = [map_dims(ir.AffineMapAttr(m).value) for m in ir.ArrayAttr(op.attributes["indexing_maps"])]
    operands = [(scope.tile(v), dims) for v, dims in zip(op.operands, maps, strict=True)]
    shape, sizes = _space(scope, len(iterators), operands)
    if is_scan(op):
        _scan(scope, op, inputs, operands, shape, sizes)
        return
    if any("reduction" in i for i in iterators):
        _reduction(scope, op, inputs, operands, shape, sizes, iterators)
    else:
        _elementwise(scope, op, inputs, operands, shape, sizes)


def _space(scope: Scope, rank: int, operands) -> tuple[list[int], list[IndexValue]]:
    shape: list[int] = [0] * rank
    sizes: list[IndexValue | None] = [None] * rank
    for tile, dims in operands:
        for i, d in enumerate(dims):
            if d is None:
                continue
            if sizes[d] is None or (isinstance(tile.sizes[i], int) and not isinstance(sizes[d], int)):
                shape[d], sizes[d] = tile.shape[i], tile.sizes[i]
    if any(s is None for s in sizes):
        raise Unsupported("an iteration dimension that no operand shows")
    return shape, sizes  # type: ignore[return-value]


def _reduction(scope: Scope, op, inputs: int, operands, shape, sizes, iterators) -> None:
    reduced = [d for d, i in enumerate(iterators) if "reduction" in i]
    layout = None
    for tile, dims in operands[:inputs]:
        natural = tile.natural()
        covered = {d for d in dims if d is not None}
        if natural is not None and all(d in covered or shape[d] == 1 for d in range(len(shape))):
            layout = natural.lift(dims, len(shape))
            break
    if layout is None:
        layout = default_layout(scope.em, op, shape, operands)
    results = reduction.reduce_generic(
        scope.em, op, inputs, operands[:inputs], operands[inputs:], (layout, shape, sizes), reduced, scope.body_value
    )
    for value, frag in zip(op.results, results, strict=True):
        scope.tiles[value] = frag


def _scan(scope: Scope, op, inputs: int, operands, shape, sizes) -> None:
    about = Scan.of(op)
    dim = about.dim
    rest = [n for d, n in enumerate(shape) if d != dim]
    # Products of a linear recurrence's factors may overflow where no step does: its steps stay one after the other.
    if about.linear or dim < len(shape) - 1 and math.prod(rest) >= scope.em.team.threads:
        others = [(tile, [d - (d > dim) for d in dims if d not in (None, dim)]) for tile, dims in operands]
        layout = scans.in_registers(default_layout(scope.em, op, rest, others).dims, dim, shape[dim])
    else:
        layout = scans.walked(default_layout(scope.em, op, shape, operands).dims, dim)
    tile_scan = scans.TileScan(scope.em, op, layout, scope.body_value, scope.program.chain)
    results, carries = tile_scan.run(operands[:inputs], operands[inputs + about.count :], shape, sizes)
    for value, frag in zip(op.results, [*results, *carries], strict=True):
        scope.tiles[value] = frag


def _elementwise(scope: Scope, op, inputs: int, operands, shape, sizes) -> None:
    block = op.regions[0].blocks[0]
    bound_operands: list = []
    for i, (a, o) in enumerate(zip(block.arguments, operands, strict=True)):
        bound_operands.append(o if i < inputs or list(a.uses) else None)
    shared: dict = {}
    rows = scope.em.taken.take(op, "band", 0)
    if rows:
        tile, found = operands[inputs][0], window_sum(op)
        if found is None or len(op.results) != 1:
            raise Unsupported(
                "mlirc.band: a map with one result, which sums an image's windows channel by channel", op, "band"
            )
        given = tile.element, tile.shape, tile.sizes, bound_operands, (shape, sizes), scope.body_value, shared
        scope.tiles[op.results[0]] = Banded(scope.em, op, 0, *given, found=found, rows=rows)
        return
    for i, value in enumerate(op.results):
        tile = operands[inputs + i][0]
        scope.tiles[value] = Elementwise(
            scope.em,
            op,
            i,
            tile.element,
            tile.shape,
            tile.sizes,
            bound_operands,
            (shape, sizes),
            scope.body_value,
            shared,
        )


def _arith(scope: Scope, op) -> None:
    if op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
        _dense(scope, op)
    else:
        _scalar_op(scope, op)


def _affine(scope: Scope, op) -> None:
    scope.scalars[op.results[0]] = scope.affine(op, scope.scalar)


def _fill(scope: Scope, op) -> None:
    out = scope.tile(op.operands[1])
    scalar = scope.em.value(scope.scalar(op.operands[0]))
    scope.tiles[op.results[0]] = Splat(scope.em, out.element, out.shape, out.sizes, scalar)


LOWERINGS: Lowerings = {
    "affine.apply": _affine,
    "affine.min": _affine,
    "affine.max": _affine,
    "arith": _arith,
    "math": _scalar_op,
    "tensor.empty": _empty,
    "tensor.dim": _dim,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.expand_shape": _reshape,
    "tensor.collapse_shape": _reshape,
    "tensor.cast": _alias,
    "tensor.extract": _extract,
    "linalg.fill": _fill,
    "linalg.generic": _generic,
    "scf.forall": cluster_parts.lower,
}
