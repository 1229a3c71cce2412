"""Iteration dimensions of a group of linalg ops, unified across the values that flow between them.

Dimension `d` of an op and dimension `j` of a value that flows inside the group are the same *class* when an indexing
map joins them. Classes are what is tiled, merged or dropped: a tile size given for one op then means the same for all.
Values from outside the group join nothing: one tensor may be read in two roles (say as a matmul's operand and as the
residual).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from mlirc.dialects.mlirc_dialect import PARTIAL
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._build import Grouped, renumber
from mlirc.ir.contractions import multiply_accumulate
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir

Map = tuple[int | None, ...]  # per operand dimension: iteration dimension (or `Grouped`), or None for constant 0


@dataclass(frozen=True)
class Structure:
    """Operands, maps and iterators of a linalg op (generic or fill)."""

    op: ir.Operation
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    maps: tuple[Map, ...]  # inputs, then outputs
    parallel: tuple[bool, ...]  # per iteration dimension
    extents: tuple[int, ...]

    @property
    def operands(self) -> tuple[ir.Value, ...]:
        return self.inputs + self.outputs

    @property
    def out_maps(self) -> tuple[Map, ...]:
        return self.maps[len(self.inputs) :]


def is_structured(op: ir.Operation) -> bool:
    """True for the linalg ops that schedules work on: generics and fills (named ops are generalized first)."""
    return op.operation.name in ("linalg.generic", "linalg.fill")


def producer(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


@functools.lru_cache(maxsize=4096)
def _parse_map(attribute: ir.AffineMapAttr) -> Map | str:
    """The map of an attribute, or what is wrong with it."""
    affine_map = attribute.value
    result: list[int | None] = []
    for e in affine_map.results:
        if isinstance(e, ir.AffineDimExpr):
            result.append(e.position)
        elif isinstance(e, ir.AffineConstantExpr) and e.value == 0:
            result.append(None)
        elif (grouped := _grouped(e)) is not None:
            result.append(grouped)
        else:
            return f"indexing map {affine_map} is not a projected permutation"
    dims = [d for d in result if d is not None]
    if len(set(dims)) != len(dims):
        return f"indexing map {affine_map} repeats a dimension"
    return tuple(result)


def _map(attribute: ir.AffineMapAttr, op: ir.Operation) -> Map:
    found = _parse_map(attribute)
    if isinstance(found, str):
        raise PayloadError(found, op)
    return found


@functools.lru_cache(maxsize=4096)
def _is_parallel(iterator: ir.Attribute) -> bool:
    return "parallel" in str(iterator)


def _grouped(e: ir.AffineExpr) -> Grouped | None:
    """The dimension of `d floordiv constant`."""
    if isinstance(e, ir.AffineFloorDivExpr):
        dim, factor = ir.AffineFloorDivExpr(e).lhs, ir.AffineFloorDivExpr(e).rhs
        if isinstance(dim, ir.AffineDimExpr) and isinstance(factor, ir.AffineConstantExpr):
            return Grouped(dim.position, factor.value)
    return None


def structure(op: ir.Operation) -> Structure:
    """Reads a linalg op; raises PayloadError when its maps are no projected permutations (constant 0 is allowed)."""
    op = op.operation
    operands = list(op.operands)
    if op.name == "linalg.fill":
        dims = tuple(range(len(shape_of(operands[1]))))
        maps: list[Map] = [(), dims]
        inputs, outputs, parallel = operands[:1], operands[1:], (True,) * len(dims)
    elif op.name == "linalg.generic":
        n_in = list(op.attributes["operandSegmentSizes"])[0]
        maps = [_map(m, op) for m in op.attributes["indexing_maps"]]
        inputs, outputs = operands[:n_in], operands[n_in:]
        parallel = tuple(map(_is_parallel, op.attributes["iterator_types"]))
    else:
        raise PayloadError("expected linalg.generic or linalg.fill", op)
    extents: dict[int, int] = {}
    for value, m in zip(operands, maps, strict=True):
        for d, size in zip(m, shape_of(value), strict=True):
            if d is not None and not isinstance(d, Grouped):
                extents[d] = size
    if len(extents) != len(parallel):
        raise PayloadError("an iteration dimension is in no indexing map", op)
    sizes = tuple(extents[d] for d in range(len(parallel)))
    return Structure(op, tuple(inputs), tuple(outputs), tuple(maps), parallel, sizes)


def body_of(op: ir.Operation) -> ir.Block:
    return op.operation.regions[0].blocks[0]


def indexed_dims(op: ir.Operation) -> set[int]:
    """Iteration dimensions that the body reads with linalg.index."""
    found: set[int] = set()

    def visit(o: ir.Operation) -> ir.WalkResult:
        if o.name == "linalg.index":
            found.add(ir.IntegerAttr(o.attributes["dim"]).value)
        return ir.WalkResult.ADVANCE

    if op.operation.name == "linalg.generic":
        op.operation.walk(visit)
    return found


@dataclass(frozen=True)
class Contraction:
    """Roles of a contraction's iteration dimensions."""

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]


def contraction(op: ir.Operation) -> Contraction | None:
    """The roles of dimensions when the op is `out += a * b` reduced over at least one dimension; otherwise None."""
    if op.operation.name != "linalg.generic":
        return None
    s = structure(op)
    if all(s.parallel) or len(s.inputs) != 2 or len(s.outputs) != 1 or multiply_accumulate(op) is None:
        return None
    a, b, c = (set(m) - {None} for m in s.maps)
    roles: dict[str, list[int]] = {"batch": [], "m": [], "n": [], "k": []}
    for d, is_parallel in enumerate(s.parallel):
        if not is_parallel and d in a and d in b:
            roles["k"].append(d)
        elif is_parallel and d in c and (d in a or d in b):
            roles["batch" if d in a and d in b else "m" if d in a else "n"].append(d)
        else:
            return None
    return Contraction(**{k: tuple(v) for k, v in roles.items()})


class Dims:
    """Dimension classes of a group of linalg ops in program order.

    `of[i][d]` is the class of dimension d of op i; `extent[c]` its size; `reduced` holds the classes that some op
    reduces.
    """

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self.ops = [op.operation for op in ops]
        self.structures = [structure(op) for op in self.ops]
        self._parent: dict[tuple[int, int], tuple[int, int]] = {}
        produced: dict[ir.Value, tuple[int, Map]] = {}
        for i, s in enumerate(self.structures):
            for value, m in zip(s.operands, s.maps, strict=True):
                if value in produced:
                    j, source_map = produced[value]
                    for d, e in zip(m, source_map, strict=True):
                        if isinstance(d, Grouped):
                            raise PayloadError("reads what another op makes in groups", s.op)
                        if d is not None and e is not None:
                            self._union((i, d), (j, e))
            for result, m in zip(s.op.results, s.out_maps, strict=False):
                produced[result] = (i, m)
        self.produced = produced
        self._join_reduced_inputs()
        ids: dict[tuple[int, int], int] = {}
        self.of: list[tuple[int, ...]] = []
        self.extent: dict[int, int] = {}
        self.reduced: set[int] = set()
        for i, s in enumerate(self.structures):
            row = tuple(ids.setdefault(self._find((i, d)), len(ids)) for d in range(len(s.parallel)))
            if len(set(row)) != len(row):
                raise PayloadError("two dimensions of one op are tied together through other ops", s.op)
            self.of.append(row)
            for d, c in enumerate(row):
                self.extent[c] = s.extents[d]
                if not s.parallel[d]:
                    self.reduced.add(c)

    def _join_reduced_inputs(self) -> None:
        """Joins the dimension that a row reduction reduces with the one along which another op reads the same outside
        value, when they agree on the rows: a norm reads its argument for the statistics and again to scale it."""
        reduced = set()
        for i, s in enumerate(self.structures):
            if not all(s.parallel) and contraction(s.op) is None:
                reduced |= {(i, d) for d, parallel in enumerate(s.parallel) if not parallel}
        readers: dict[ir.Value, list[tuple[int, Map]]] = {}
        for i, s in enumerate(self.structures):
            for value, m in zip(s.inputs, s.maps, strict=False):
                if value not in self.produced and m and None not in m:
                    readers.setdefault(value, []).append((i, m))
        for uses in readers.values():
            for i, m in uses:
                for j, n in uses:
                    self._join_along([(i, d) for d in m], [(j, d) for d in n], {self._find(r) for r in reduced})

    def _join_along(self, one: list, other: list, reduced: set) -> None:
        pairs = [(self._find(a), self._find(b)) for a, b in zip(one, other, strict=True)]
        agree = [a == b for a, b in pairs]
        if any(agree) and all(same or a in reduced for same, (a, _) in zip(agree, pairs, strict=True)):
            for a, b in pairs:
                if not self._in_one_op(a, b):  # queries and keys may be one tensor
                    self._union(a, b)

    def _in_one_op(self, a: tuple[int, int], b: tuple[int, int]) -> bool:
        """Whether two different classes are both dimensions of one op."""
        for i, s in enumerate(self.structures if self._find(a) != self._find(b) else ()):
            found = {self._find((i, d)) for d in range(len(s.parallel))}
            if self._find(a) in found and self._find(b) in found:
                return True
        return False

    def _find(self, node: tuple[int, int]) -> tuple[int, int]:
        while node in self._parent:
            node = self._parent[node]
        return node

    def _union(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        a, b = self._find(a), self._find(b)
        if a != b:
            self._parent[a] = b

    def map_classes(self, i: int, m: Map) -> tuple[int | None, ...]:
        """An indexing map of op i with classes in place of iteration dimensions."""
        return tuple(renumber(d, self.of[i]) for d in m)

    def value_classes(self, value: ir.Value) -> tuple[int | None, ...]:
        """Class of each dimension of a value that the group produces."""
        i, m = self.produced[value]
        return self.map_classes(i, m)

    def row_classes(self, vectors: bool = False) -> set[int]:
        """Classes that some reduction keeps (matmuls aside, without `vectors`): the rows, of which each block takes
        whole ones."""
        rows: set[int] = set()
        for s, row in zip(self.structures, self.of, strict=True):
            roles = contraction(s.op)
            if not all(s.parallel) and (vectors or not (roles and roles.m and roles.n)):
                rows |= {c for c, parallel in zip(row, s.parallel, strict=True) if parallel}
        return rows

    def escaping(self) -> list[ir.Value]:
        """Values that the group produces and something outside the group uses, in program order."""
        inside = set(self.ops)
        return [v for v in self.produced if any(u.owner.operation not in inside for u in v.uses)]


def structured_ops(block: ir.Block) -> list[ir.Operation]:
    """The linalg ops of a block, in order (bodies excluded), but for those that reduce a kernel's result in parts
    (`schedule.partial_results`): these are of no use to who tiles the others."""
    return [op.operation for op in block.operations if is_structured(op) and PARTIAL not in op.attributes]


def elements(shape: Sequence[int]) -> int:
    return prod(shape)
