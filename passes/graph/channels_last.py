"""Where tensors lie channels last: the transposes that convolutions need sink below what moves or maps elements.

A value of the payload may have a stored form: the same elements with their dimensions in another order, `order[i]`
being the value's dimension that is dimension i in memory. Who reads the value takes the stored form where it can, and
what it makes has one then, too; at the end, a transpose makes the values that others read. A pair of transposes is
none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from mlirc.dialects.schedule import _build
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import ir, linalg, nested, tensor
from mlirc.passes.graph.classify import generic_inits, iterators, maps
from mlirc.passes.graph.emit import make_generic, reshape
from mlirc.passes.graph.evaluate import is_move, owner_of, static
from mlirc.passes.graph.row_reductions import by_rows
from mlirc.passes.graph.space import tensor_type

Order = tuple[int, ...]


def permuted(items: Sequence, order: Order) -> list:
    """The items of a value's dimensions, in the order of its stored form."""
    return [items[i] for i in order]


def channels_last(rank: int) -> Order:
    """The order of a value [N, C, *spatial] that is stored as [N, *spatial, C]."""
    return (0, *range(2, rank), 1)


def element_of(value: ir.Value) -> ir.Type:
    return ir.RankedTensorType(value.type).element_type


def _is_plain(order: Order) -> bool:
    return list(order) == list(range(len(order)))


def _same_memory(shape: Sequence[int], a: Order, b: Order) -> bool:
    """Whether two orders of a shape differ in dimensions of size 1 alone."""
    return [i for i in a if shape[i] != 1] == [i for i in b if shape[i] != 1]


class Layouts:
    """The stored forms of a block's values. What it makes stands at the insertion point: before the op that asks."""

    def __init__(self) -> None:
        self._home: dict[ir.Value, tuple[Order, ir.Value]] = {}
        self._known: dict[tuple[ir.Value, Order], ir.Value] = {}
        self.rewritten: list[ir.Operation] = []

    def order(self, value: ir.Value) -> Order | None:
        """The order that a value is stored in; None where that is its own."""
        order = self._home[value][0] if value in self._home else None
        return None if order is None or _is_plain(order) else order

    def put(self, value: ir.Value, order: Order, stored: ir.Value) -> None:
        """Says that a value is stored so; its own op will be erased."""
        self._home[value] = (order, stored)
        self._known[value, order] = stored

    def get(self, value: ir.Value, order: Order) -> ir.Value:
        """The value, stored in this order: transposed, if need be."""
        found = self._free(value, order)
        if found is None:
            source, before = value, tuple(range(len(order)))
            if value in self._home:
                before, source = self._home[value]
            found = transposed(source, tuple(before.index(i) for i in order))
            self._known[value, order] = found
        return found

    def _free(self, value: ir.Value, order: Order) -> ir.Value | None:
        """The value in this order where that moves nothing; None elsewhere."""
        if (value, order) in self._known:
            return self._known[value, order]
        found, op = None, owner_of(value)
        if op is not None and op.name in ("tensor.empty", "linalg.fill"):
            found = _filled(op, permuted(shape_of(value), order))
        elif value in self._home:
            home, stored = self._home[value]
            if _same_memory(shape_of(value), home, order):
                found = reshape(stored, permuted(shape_of(value), order))
        elif _same_memory(shape_of(value), tuple(range(len(order))), order):
            found = reshape(value, permuted(shape_of(value), order)) if not _is_plain(order) else value
        elif op is not None:
            found = self._through(op, order)
        if found is not None:
            self._known[value, order] = found
        return found

    def _through(self, op: ir.Operation, order: Order) -> ir.Value | None:
        """`_free` of an op's result, made of what the op reads."""
        result = op.results[0]
        shape = permuted(shape_of(result), order)
        if op.name == "linalg.transpose":
            permutation = list(op.attributes["permutation"])
            return self._free(op.operands[0], tuple(permutation[i] for i in order))
        if op.name in VIEWS:
            return self._view(op, order, shape)
        if op.name == "linalg.broadcast":
            added = set(op.attributes["dimensions"])
            kept = [i for i in order if i not in added]
            source = self.get(op.operands[0], tuple(sorted(kept).index(i) for i in kept))
            out = tensor.empty(shape, element_of(result))
            return _one(linalg.broadcast(source, outs=[out], dimensions=[order.index(i) for i in sorted(added)]))
        return None

    def _view(self, op: ir.Operation, order: Order, shape: list[int]) -> ir.Value | None:
        source = op.operands[0]
        groups = groups_of(op)
        if op.name == "tensor.collapse_shape":
            stored = self._free(source, tuple(i for d in order for i in groups[d]))
        else:
            whole = {d: g for g, group in enumerate(groups) for d in group if shape_of(op.results[0])[d] != 1}
            walk = [whole[d] for d in order if d in whole]
            inner = [d for d in order if d in whole]
            runs = list(dict.fromkeys(walk))
            if walk != sorted(walk, key=runs.index) or any(a > b for a, b in _pairs(inner, whole)):
                return None
            rest = [g for g in range(len(groups)) if g not in runs]
            stored = self._free(source, (*runs, *rest))
        return None if stored is None else reshape(stored, shape)

    def finish(self) -> None:
        """Makes the values that others read of their stored forms, and erases the ops that were rewritten."""
        for op in reversed(self.rewritten):
            for result in op.results:
                if list(result.uses):
                    order, stored = self._home[result]
                    with ir.InsertionPoint(op), op.location:
                        back = transposed(stored, tuple(order.index(i) for i in range(len(order))))
                    result.replace_all_uses_with(back)
            op.erase()


def _pairs(dims: list[int], group: dict[int, int]) -> list[tuple[int, int]]:
    return [(a, b) for a, b in zip(dims, dims[1:], strict=False) if group[a] == group[b]]


def _one(result: object) -> ir.Value:
    return result if isinstance(result, ir.Value) else list(getattr(result, "results", result))[0]  # type: ignore[call-overload]


def _filled(op: ir.Operation, shape: list[int]) -> ir.Value:
    """An empty or a filled tensor of another shape."""
    empty = tensor.empty(shape, element_of(op.results[0]))
    return empty if op.name == "tensor.empty" else _one(linalg.fill(op.operands[0], outs=[empty]))


def groups_of(view: ir.Operation) -> list[list[int]]:
    """The dimensions of the finer shape of a view that each of the coarser one is."""
    return [[ir.IntegerAttr(i).value for i in group] for group in ir.ArrayAttr(view.attributes["reassociation"])]


def transposed(value: ir.Value, order: Order) -> ir.Value:
    """The value with its dimensions in this order, at the insertion point: a view where only those of size 1 move."""
    shape = permuted(shape_of(value), order)
    if _same_memory(shape_of(value), tuple(range(len(order))), order):
        return reshape(value, shape)
    out = tensor.empty(shape, element_of(value))
    return _one(linalg.transpose(value, outs=[out], permutation=list(order)))


def sink(op: ir.Operation, layouts: Layouts) -> bool:
    """Rewrites an op that reads values which are stored in another order, or that transposes a value which is channels
    last already; False where it does neither, or cannot."""
    if op.name == "linalg.transpose" and layouts.order(op.operands[0]) is None:
        return _transposed_already(op, layouts)
    rule = _RULES.get(op.name)
    if rule is None or not any(layouts.order(v) is not None for v in _tensors(op)):
        return False
    with ir.InsertionPoint(op), op.location:
        return rule(op, layouts)


def _tensors(op: ir.Operation) -> list[ir.Value]:
    read = list(op.operands)
    if op.name == "linalg.generic":
        read += [o.operands[0] for o in nested(op) if o.name == "tensor.extract"]
    return read


def _result(op: ir.Operation, layouts: Layouts, order: Order, stored: ir.Value, number: int = 0) -> bool:
    layouts.put(op.results[number], order, stored)
    return True


def _transposed_already(op: ir.Operation, layouts: Layouts) -> bool:
    """A transpose to channels first, of a norm over channels, say: its result lies channels last in what it reads."""
    permutation = list(op.attributes["permutation"])
    rank = len(permutation)
    if rank < 3 or [permutation[i] for i in channels_last(rank)] != list(range(rank)):
        return False
    return _result(op, layouts, channels_last(rank), op.operands[0])


def _transpose(op: ir.Operation, layouts: Layouts) -> bool:
    order = layouts.order(op.operands[0])
    assert order is not None  # it is the op's only operand
    permutation = list(op.attributes["permutation"])
    return _result(op, layouts, tuple(permutation.index(i) for i in order), layouts.get(op.operands[0], order))


def _expand(op: ir.Operation, layouts: Layouts) -> bool:
    order = layouts.order(op.operands[0])
    assert order is not None
    groups = groups_of(op)
    new = tuple(d for i in order for d in groups[i])
    stored = reshape(layouts.get(op.operands[0], order), permuted(shape_of(op.results[0]), new))
    return _result(op, layouts, new, stored)


def _collapse(op: ir.Operation, layouts: Layouts) -> bool:
    source = op.operands[0]
    order, groups, shape = layouts.order(source), groups_of(op), shape_of(source)
    assert order is not None
    first = [min((order.index(i) for i in g if shape[i] != 1), default=order.index(g[0])) for g in groups]
    new = tuple(sorted(range(len(groups)), key=first.__getitem__))
    walked = tuple(i for d in new for i in groups[d])
    if not _same_memory(shape, walked, order):
        if len(groups) < 3 or len(groups[0]) > 1:
            return False
        new = channels_last(len(groups))
        walked = tuple(i for d in new for i in groups[d])
    stored = reshape(layouts.get(source, walked), permuted(shape_of(op.results[0]), new))
    return _result(op, layouts, new, stored)


def _pad(op: ir.Operation, layouts: Layouts) -> bool:
    order = layouts.order(op.operands[0])
    if order is None or not is_move(op):
        return False
    low, high = (permuted(static(op, f"static_{n}") or [], order) for n in ("low", "high"))
    fill = op.regions[0].blocks[0].operations[0].operands[0]
    return _result(op, layouts, order, padded(layouts.get(op.operands[0], order), low, high, fill))


def padded(value: ir.Value, low: Sequence[int], high: Sequence[int], fill: ir.Value) -> ir.Value:
    """The value with so many elements more in front of and after those of each dimension."""
    shape = [a + n + b for a, n, b in zip(low, shape_of(value), high, strict=True)]
    op = tensor.PadOp(tensor_type(shape, element_of(value)), value, [], [], low, high)
    index = ir.IndexType.get()
    block = op.regions[0].blocks.append(*[index] * len(shape), arg_locs=[ir.Location.unknown()] * len(shape))
    with ir.InsertionPoint(block):
        tensor.YieldOp(fill)
    return op.result


def _concat(op: ir.Operation, layouts: Layouts) -> bool:
    order = next(o for v in op.operands if (o := layouts.order(v)) is not None)
    axis = order.index(ir.IntegerAttr(op.attributes["dim"]).value)
    type_ = tensor_type(permuted(shape_of(op.results[0]), order), element_of(op.results[0]))
    return _result(
        op, layouts, order, tensor.ConcatOp(type_, axis, [layouts.get(v, order) for v in op.operands]).result
    )


def _slice(op: ir.Operation, layouts: Layouts) -> bool:
    source, result = op.operands[0], op.results[0]
    order = layouts.order(source)
    if order is None or not is_move(op) or len(shape_of(result)) != len(order):
        return False
    lists = [permuted(static(op, f"static_{n}") or [], order) for n in ("offsets", "sizes", "strides")]
    type_ = tensor_type(permuted(shape_of(result), order), element_of(result))
    return _result(
        op, layouts, order, tensor.ExtractSliceOp(type_, layouts.get(source, order), [], [], [], *lists).result
    )


def _insert(op: ir.Operation, layouts: Layouts) -> bool:
    source, target = list(op.operands)[:2]
    order = next(o for v in (source, target) if (o := layouts.order(v)) is not None)
    if not is_move(op) or len(shape_of(source)) != len(shape_of(target)):
        return False
    lists = [permuted(static(op, f"static_{n}") or [], order) for n in ("offsets", "sizes", "strides")]
    stored = tensor.InsertSliceOp(layouts.get(source, order), layouts.get(target, order), [], [], [], *lists).result
    return _result(op, layouts, order, stored)


def _generic(op: ir.Operation, layouts: Layouts) -> bool:
    """Its operands' maps name dimensions in the order that they are stored in; the loops are as they were."""
    count, all_maps = generic_inits(op), maps(op)
    operands = list(op.operands)
    inputs, inits = operands[: len(operands) - count], operands[len(operands) - count :]
    orders = _result_orders(op, layouts)
    if orders is None:
        return False
    values, new_maps = [], []
    for value, map_ in zip(inputs, all_maps, strict=False):
        order = layouts.order(value) or tuple(range(len(shape_of(value))))
        values.append(layouts.get(value, order) if layouts.order(value) is not None else value)
        new_maps.append(_with_results(map_, order) if isinstance(value.type, ir.RankedTensorType) else map_)
    outs = [layouts.get(v, order) for v, order in zip(inits, orders, strict=True)]
    new_maps += [_with_results(m, order) for m, order in zip(all_maps[-count:], orders, strict=True)]
    new = by_rows(op, values[0], new_maps[0], outs[0], new_maps[1]) if len(values) == 1 else None
    new = new or make_generic(values, outs, new_maps, iterators(op))
    for name in op.attributes:
        if name not in new.attributes:
            new.attributes[name] = op.attributes[name]
    block, old = new.regions[0].blocks[0], op.regions[0].blocks[0]
    numbers: dict[ir.Value, ir.Value] = dict(zip(old.arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for inner in [o.operation for o in old.operations]:
            _clone(inner, numbers, layouts, new)
    for number, order in enumerate(orders):
        _result(op, layouts, order, new.results[number], number)
    return True


def _clone(op: ir.Operation, values: dict[ir.Value, ir.Value], layouts: Layouts, user: ir.Operation) -> None:
    """A copy of an op of a body; what it extracts an element of is read as it is stored."""
    order = layouts.order(op.operands[0]) if op.name == "tensor.extract" else None
    if order is None:
        _build.clone(op, values)
        return
    source, *where = op.operands
    with ir.InsertionPoint(user):
        stored = layouts.get(source, order)
    values[op.results[0]] = tensor.ExtractOp(stored, permuted([values.get(i, i) for i in where], order)).result


def _with_results(map_: ir.AffineMap, order: Order) -> ir.AffineMap:
    return ir.AffineMap.get(map_.n_dims, map_.n_symbols, permuted(list(map_.results), order))


def _result_orders(op: ir.Operation, layouts: Layouts) -> list[Order] | None:
    """The orders of a generic's results: that in which the largest operand that is stored otherwise walks their loops;
    of one that is read by its indices, its own. None where a result's map is no list of loops."""
    walk = _walk(op, layouts)
    if walk is None:
        return None
    found = []
    for map_, result in zip(maps(op)[len(op.operands) - generic_inits(op) :], op.results, strict=True):
        loops = [e.position if isinstance(e, ir.AffineDimExpr) else None for e in map_.results]
        unit = [i for i, n in enumerate(shape_of(result)) if n == 1]
        if any(loop is None and i not in unit for i, loop in enumerate(loops)):
            return None
        places = {i: walk.index(loop) for i, loop in enumerate(loops) if loop is not None and loop in walk}
        known = sorted(places, key=places.__getitem__)
        if len(known) == len(loops):
            found.append(tuple(known))
        elif all(i in known or i in unit for i in range(len(loops))):
            found.append(_with_units(known, len(loops)))
        else:
            found.append(tuple(range(len(loops))))
    return found


def _with_units(known: list[int], rank: int) -> Order:
    """The order of all dimensions, those of size 1 that no loop has put as channels last has them."""
    usual = channels_last(rank) if rank > 2 else tuple(range(rank))
    rest = [i for i in usual if i not in known]
    if known and rest and known == [i for i in usual if i in known]:
        return usual
    return (*known, *rest)


def _walk(op: ir.Operation, layouts: Layouts) -> list[int] | None:
    """The loops of a generic in the order in which the operand that decides walks them."""
    largest: tuple[int, list[int]] | None = None
    for value, map_ in zip(op.operands, maps(op), strict=True):
        order = layouts.order(value)
        if order is None:
            continue
        exprs = permuted(list(map_.results), order)
        loops = [e.position for e in exprs if isinstance(e, ir.AffineDimExpr)]
        size = prod(shape_of(value))
        if largest is None or size > largest[0]:
            largest = (size, loops)
    if largest is not None:
        return largest[1]
    rank = len(shape_of(op.results[0]))
    result = maps(op)[-generic_inits(op)]
    for inner in nested(op):
        order = layouts.order(inner.operands[0]) if inner.name == "tensor.extract" else None
        if order is not None and len(order) == rank and all(isinstance(e, ir.AffineDimExpr) for e in result.results):
            return [result.results[i].position for i in order]
    return list(range(maps(op)[0].n_dims))


_RULES: dict[str, Callable[[ir.Operation, Layouts], bool]] = {
    "linalg.transpose": _transpose,
    "linalg.generic": _generic,
    "tensor.expand_shape": _expand,
    "tensor.collapse_shape": _collapse,
    "tensor.pad": _pad,
    "tensor.concat": _concat,
    "tensor.extract_slice": _slice,
    "tensor.insert_slice": _insert,
}
