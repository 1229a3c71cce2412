"""Evaluates one element of a tensor value symbolically: through maps, views and data movement, down to loads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from mlirc.dialects.windows import GATHER_WINDOWS
from mlirc.ir.scans import is_scan
from mlirc.ir.tensors import VIEWS, kept_dims, shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.classify import body, generic_inits, is_contraction, iterators, maps
from mlirc.passes.graph.index import Index, delinearize, linearize
from mlirc.passes.graph.scalar import Scalar, Scalars

MOVES = ("linalg.transpose", "linalg.broadcast", "tensor.extract_slice", "tensor.insert_slice", "tensor.concat",
         "tensor.pad")  # fmt: skip
Indices = tuple[Index, ...]


def owner_of(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value; None for a function or block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


@cache
def map_results(affine_map: ir.AffineMap) -> tuple[Callable[[Sequence[Index]], Index], ...]:
    """The map's results as functions from the loop indices."""
    return tuple(_affine(e) for e in affine_map.results)


def _affine(expr: ir.AffineExpr) -> Callable[[Sequence[Index]], Index]:
    if isinstance(expr, ir.AffineDimExpr):
        position = expr.position
        return lambda dims: dims[position]
    if isinstance(expr, ir.AffineConstantExpr):
        value = Index(expr.value)
        return lambda dims: value
    left, right = _affine(expr.lhs), _affine(expr.rhs)
    if isinstance(expr, ir.AffineAddExpr):
        return lambda dims: left(dims) + right(dims)
    if isinstance(expr, ir.AffineMulExpr):
        factor = expr.rhs.value
        return lambda dims: left(dims) * factor
    size = expr.rhs.value
    if isinstance(expr, ir.AffineFloorDivExpr):
        return lambda dims: left(dims).floordiv(size)
    if isinstance(expr, ir.AffineModExpr):
        return lambda dims: left(dims).mod(size)
    return lambda dims: (left(dims) + (size - 1)).floordiv(size)


@cache
def dim_positions(affine_map: ir.AffineMap) -> tuple[int | None, ...]:
    """For each result of the map the loop dimension that it is, None where it is something else."""
    return tuple(e.position if isinstance(e, ir.AffineDimExpr) else None for e in affine_map.results)


def loop_indices(op: ir.Operation, result: int, indices: Indices) -> list[Index]:
    """The loop indices of a `linalg.generic` at which it makes this element of a result; 0 for loops not in its map."""
    all_maps = maps(op)
    found = [Index()] * all_maps[0].n_dims
    for position, index in zip(dim_positions(all_maps[len(all_maps) - len(op.results) + result]), indices, strict=True):
        if position is not None:
            found[position] = index
    return found


def static(op: ir.Operation, name: str) -> list[int] | None:
    """A static-or-dynamic list attribute of a tensor op, None if any of it is dynamic."""
    values = list(op.attributes[name])
    return None if any(v == ir.ShapedType.get_dynamic_size() for v in values) else values


def slice_parameters(op: ir.Operation) -> tuple[list[int], list[int], list[int]] | None:
    """Static offsets, sizes and strides of an extract_slice or insert_slice; None if any is dynamic."""
    found = [static(op, f"static_{n}") for n in ("offsets", "sizes", "strides")]
    return None if any(f is None for f in found) else tuple(found)  # type: ignore[return-value]


def is_move(op: ir.Operation) -> bool:
    """Whether an op only moves elements and all its parameters are static."""
    if op.name in ("tensor.extract_slice", "tensor.insert_slice"):
        return slice_parameters(op) is not None
    if op.name == "tensor.pad":
        known = static(op, "static_low") is not None and static(op, "static_high") is not None
        return known and len(op.regions[0].blocks[0].operations) == 1
    return op.name in MOVES


def sources(op: ir.Operation, indices: Indices, result: int = 0) -> list[tuple[ir.Value, Indices | None]]:
    """The tensor elements that one element of an op's result is computed from: (value, indices), None for indices that
    depend on data."""
    if op.name in VIEWS:
        source = op.operands[0]
        return [(source, delinearize(linearize(indices, shape_of(op.results[0])), shape_of(source)))]
    if op.name == "linalg.generic":
        loops = loop_indices(op, result, indices)
        found: list[tuple[ir.Value, Indices | None]] = []
        inputs = len(op.operands) - generic_inits(op)
        for value, affine_map in zip(list(op.operands)[:inputs], maps(op), strict=False):
            found.append((value, tuple(f(loops) for f in map_results(affine_map))))
        for inner in body(op):
            if inner.name == "tensor.extract":
                found.append((inner.operands[0], None))
        return found
    return [(value, clamped(moved, value)) for value, moved, _ in _moved(op, indices)]


def clamped(indices: Sequence[Index], value: ir.Value) -> Indices:
    """The indices kept within the tensor's shape: what is read where a guard fails does not matter."""
    return tuple(i.clamp(n) for i, n in zip(indices, shape_of(value), strict=True))


Guard = list[tuple[Index, int, int]]  # (index, low, high): all must hold


def _moved(op: ir.Operation, indices: Indices) -> list[tuple[ir.Value, Indices, Guard]]:
    """For an op that moves elements: candidates (source, its indices, guard); the first whose guard holds applies."""
    operands = list(op.operands)
    if op.name == "linalg.transpose":
        permutation = list(op.attributes["permutation"])
        moved = [Index()] * len(indices)
        for j, p in enumerate(permutation):
            moved[p] = indices[j]
        return [(operands[0], tuple(moved), [])]
    if op.name == "linalg.broadcast":
        added = set(op.attributes["dimensions"])
        return [(operands[0], tuple(x for i, x in enumerate(indices) if i not in added), [])]
    if op.name == "tensor.extract_slice":
        offsets, sizes, strides = slice_parameters(op)  # type: ignore[misc]
        moved = [Index(o) for o in offsets]
        for index, i in zip(indices, kept_dims(sizes, shape_of(op.results[0])), strict=True):
            moved[i] = index * strides[i] + offsets[i]
        return [(operands[0], tuple(moved), [])]
    if op.name == "tensor.insert_slice":
        return _inserted(op, indices)
    if op.name == "tensor.pad":
        low = static(op, "static_low")
        shape = shape_of(operands[0])
        moved = [x - o for x, o in zip(indices, low, strict=True)]  # type: ignore[arg-type]
        return [(operands[0], tuple(moved), [(x, 0, n) for x, n in zip(moved, shape, strict=True)])]
    axis, start, found = op.attributes["dim"].value, 0, []
    for value in operands:
        size = shape_of(value)[axis]
        moved = list(indices)
        moved[axis] = indices[axis] - start
        found.append((value, tuple(moved), [(moved[axis], 0, size)]))
        start += size
    return found


def _inserted(op: ir.Operation, indices: Indices) -> list[tuple[ir.Value, Indices, Guard]]:
    source, dest = list(op.operands)[:2]
    offsets, sizes, strides = slice_parameters(op)  # type: ignore[misc]
    moved, guard = [], []
    for index, offset, size, stride in zip(indices, offsets, sizes, strides, strict=True):
        shifted = index - offset
        moved.append(shifted.floordiv(stride))
        guard.append((shifted, 0, (size - 1) * stride + 1))
        if stride != 1:
            guard.append((shifted.mod(stride), 0, 1))
    kept = kept_dims(sizes, shape_of(source))
    return [(source, tuple(moved[i] for i in kept), guard), (dest, indices, [])]


_DEEPEST = 90  # elements within elements: each is about seven of the thousand calls that Python nests


class _TooDeep(Exception):
    """An element that has to be known before what is made of it can be evaluated."""


class Evaluator:
    """Turns tensor elements into scalars. `inline(op)` says which ops are computed here rather than loaded from."""

    def __init__(self, scalars: Scalars, inline: Callable[[ir.Operation], bool]) -> None:
        self.scalars = scalars
        self.inline = inline
        self._memo: dict = {}
        self._depth = 0

    def element(self, value: ir.Value, indices: Iterable[Index]) -> Scalar:
        """The element of a tensor value at these indices."""
        indices = tuple(Index() if n == 1 and not i.given else i for i, n in zip(indices, shape_of(value), strict=True))
        key = (value, indices)
        found = self._memo.get(key)
        if found is None:
            found = self._from_below(key) if self._depth == 0 else self._nested(key)
        return found

    def _from_below(self, key: tuple[ir.Value, Indices]) -> Scalar:
        """An element, of however long a chain: beyond what calls can nest, its far end is evaluated first."""
        pending = [key]
        while pending:
            try:
                found = self._nested(pending[-1])
                pending.pop()
            except _TooDeep as e:
                pending.append(e.args[0])
        return found

    def _nested(self, key: tuple[ir.Value, Indices]) -> Scalar:
        if self._depth == _DEEPEST:
            raise _TooDeep(key)
        self._depth += 1
        try:
            found = self._memo[key] = self._element(*key)
        finally:
            self._depth -= 1
        return found

    def _element(self, value: ir.Value, indices: Indices) -> Scalar:
        op = owner_of(value)
        if 0 in shape_of(value):  # a part of a concatenation, say: never read
            return self.scalars.constant(zero_attribute(value.type.element_type))
        if op is None:
            return self.scalars.load(value, indices)
        if op.name in VIEWS:
            ((source, moved),) = sources(op, indices)
            assert moved is not None  # views have known indices
            return self.element(source, moved)
        if op.name == "tensor.cast":
            return self.element(op.operands[0], indices)
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
                return self.scalars.constant(attribute.get_splat_value())
            return self.scalars.load(value, indices)
        if op.name in ("linalg.fill", "tensor.splat"):
            return self.outer(op.operands[0])
        if op.name == "tensor.empty":
            return self.scalars.constant(zero_attribute(value.type.element_type))
        if op.name == "tensor.from_elements" and len(op.operands) == 1:
            return self.outer(op.operands[0])
        if not self.inline(op) or GATHER_WINDOWS in op.attributes:
            return self.scalars.load(value, indices)
        if is_scan(op):
            return self.scalars.inner("scanned", value, indices, value.type.element_type)
        if is_contraction(op):
            return self.scalars.inner("dot", op, indices, value.type.element_type)
        if op.name == "linalg.generic":
            result = list(op.results).index(value)
            if "reduction" in iterators(op):
                return self.scalars.inner("reduced", op, indices, value.type.element_type)
            return self._generic(op, tuple(loop_indices(op, result, indices)))[result]
        return self._move(op, indices)

    def _move(self, op: ir.Operation, indices: Indices) -> Scalar:
        candidates = _moved(op, indices)
        if op.name == "tensor.pad":
            last = self.outer(list(op.regions[0].blocks[0].operations)[0].operands[0])
        else:
            value, moved, _ = candidates.pop()
            last = None
        tests = []
        for candidate, where, guard in candidates:
            where = clamped(where, candidate)
            if op.name == "tensor.concat":  # what lies before was taken by an earlier candidate
                guard = [(index, -1 << 62, high) for index, _, high in guard]
            tests.append((candidate, where, self._guard(guard)))
        for i, (candidate, where, test) in enumerate(tests):
            if test is None:  # always holds: what follows is never reached
                tests, last = tests[:i], self.element(candidate, where)
                break
        if last is None:
            last = self.element(value, clamped(moved, value))
        for candidate, where, test in reversed(tests):
            last = self.scalars.select(test, self.element(candidate, where), last)
        return last

    def _guard(self, guard: Guard) -> Scalar | None:
        found = None
        for index, low, high in guard:
            test = self.scalars.in_range(index, low, high)
            if test is not None:
                found = test if found is None else self.scalars.op("arith.andi", (), (found, test), test.type)
        return found

    def _generic(self, op: ir.Operation, loops: Indices) -> tuple[Scalar, ...]:
        """The yielded scalars of a `linalg.generic` at these loop indices."""
        key = (op, loops)
        if key not in self._memo:
            self._memo[key] = self._body(op, loops)
        return self._memo[key]

    def _body(self, op: ir.Operation, loops: Indices) -> tuple[Scalar, ...]:
        block = op.regions[0].blocks[0]
        operands, all_maps = list(op.operands), maps(op)
        values: dict[ir.Value, Scalar] = {}
        numbers = {a: i for i, a in enumerate(block.arguments)}

        def get(value: ir.Value) -> Scalar:
            if value in values:
                return values[value]
            if value in numbers:
                k = numbers[value]
                found = self.element(operands[k], (f(loops) for f in map_results(all_maps[k])))
            else:
                found = self.outer(value)
            values[value] = found
            return found

        for inner in body(op):
            if inner.name == "linalg.yield":
                return tuple(get(v) for v in inner.operands)
            if inner.name == "linalg.index":
                values[inner.results[0]] = self.scalars.index(loops[inner.attributes["dim"].value], ir.IndexType.get())
            elif inner.name != "cf.assert":
                values[inner.results[0]] = self._scalar_op(inner, get)
        raise AssertionError("a linalg body ends in a yield")

    def _scalar_op(self, inner: ir.Operation, get: Callable[[ir.Value], Scalar]) -> Scalar:
        if inner.name == "arith.constant":
            return self.scalars.constant(inner.attributes["value"])
        if inner.name == "tensor.extract":
            tensor, *where = inner.operands
            indices = [self.scalars.as_index(get(i)) for i in where]
            return self.element(tensor, [i.bound(n) for i, n in zip(indices, shape_of(tensor), strict=True)])
        attributes = tuple((name, inner.attributes[name]) for name in inner.attributes)
        return self.scalars.op(inner.name, attributes, [get(v) for v in inner.operands], inner.results[0].type)

    def outer(self, value: ir.Value) -> Scalar:
        """A scalar defined outside of the linalg op: a constant, or computed from constants."""
        op = owner_of(value)
        assert op is not None, "main has only tensor arguments"
        if value not in self._memo:
            self._memo[value] = self._scalar_op(op, self.outer)
        return self._memo[value]


def zero_attribute(type_: ir.Type) -> ir.Attribute:
    """The constant 0 of a scalar type."""
    if isinstance(type_, ir.IntegerType | ir.IndexType):
        return ir.IntegerAttr.get(type_, 0)
    return ir.FloatAttr.get(type_, 0.0)
