"""Builds the body of a kernel around one contraction, or two that share their left operand."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.dialects.mlirc_dialect import DEQUANTIZE, GATHER_MATRICES
from mlirc.dialects.windows import image_of
from mlirc.errors import MlircError
from mlirc.mlir import arith, ir
from mlirc.passes.graph.emit import Arguments, BodyEmitter, Tile, clone_body, filled, make_generic
from mlirc.passes.graph.evaluate import Evaluator, Indices, owner_of
from mlirc.passes.graph.facts import (
    contraction_reads,
    is_dequantization,
    is_gather_of_matrices,
    owner_through_moves,
    without_cast,
)
from mlirc.passes.graph.index import Index, loop_pairs
from mlirc.passes.graph.scalar import Scalar, constant_of, is_gather
from mlirc.passes.graph.space import Space, affine_map
from mlirc.passes.graph.windows import element, emit, geometry_of, is_windows

UNIT_M, UNIT_N, UNIT_K = 3000, 3001, 3002  # loops of size 1 that keep a matmul's form


class MatmulEmitter:
    """Emits contractions over shared batch, row, column and inner loops, and the map over their results."""

    def __init__(self, evaluator: Evaluator, arguments: Arguments, node: Scalar, dims: Sequence[Index]) -> None:
        self.evaluator = evaluator
        self.arguments = arguments
        self.node = node
        self.out_order = [n for n, _ in loop_pairs(dims)]
        self.dots = {n.number: n for n in node.walk() if n.kind == "dot"}
        self.operands: dict[int, tuple[Scalar, Scalar]] = {}
        self.casts: dict[int, list[Scalar | None]] = {}
        self.reads: dict[int, Indices] = {}  # where each operand is read
        for number, dot in self.dots.items():
            op = dot.data[0]
            reads = contraction_reads(op, tuple(dims))
            lhs, rhs = (evaluator.element(v, r) for v, r in zip(list(op.operands)[:2], reads, strict=True))
            found = [f if (f := without_cast(s)).kind == "load" else s for s in (lhs, rhs)]
            self.casts[number] = [None if s is f else s for s, f in zip((lhs, rhs), found, strict=True)]
            for s, value, read in zip(found, list(op.operands)[:2], reads, strict=True):
                made_by = owner_through_moves(value)
                if (
                    (s.kind != "load" or is_gather(s))
                    and not is_dequantization(made_by)
                    and not is_gather_of_matrices(made_by)
                ):
                    raise MlircError(f"contraction operand of {op.name} is not a tensor in memory")
                self.reads[s.number] = s.data[1] if s.kind == "load" and not is_gather(s) else read
            self.operands[number] = (found[0], found[1])
        lhs, rhs = next(iter(self.operands.values()))
        sizes = dict(loop_pairs([*dims, *(i for s in (lhs, rhs) for i in self.reads[s.number])]))
        out = set(self.out_order)
        batch = [n for n in self.out_order if n in lhs.dims and n in rhs.dims]
        m = [n for n in self.out_order if n in lhs.dims and n not in rhs.dims]
        n_ = [n for n in self.out_order if n not in lhs.dims]
        k = [n for n in sizes if n not in out]
        # The result's rows run along columns, also where the right operand alone has a batch in front of the rows.
        self.swap = bool(m and n_ and self.out_order.index(n_[-1]) < self.out_order.index(m[-1]))
        if self.swap:
            m, n_ = n_, m
        operands = [s for pair in self.operands.values() for s in pair]
        self.windows = {s.number: w for s in operands if (w := self._elements_of_windows(s)) is not None}
        nodes = [node, *operands, *self.windows.values()]
        groups = [[(d, sizes[d]) for d in group] for group in (batch, m, n_, k)]
        units = (UNIT_M, UNIT_N, UNIT_K)
        classes = [groups[0]] + [g or [(u, 1)] for g, u in zip(groups[1:], units, strict=True)]
        self.space = Space(self._split_by_order(classes), nodes)
        self.batch, self.m, self.n, self.k = (self.space.loops_of(d for d, _ in g) for g in classes)
        self.emitter = BodyEmitter(self.space, arguments)

    def _split_by_order(self, classes: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
        """Cuts classes where the result does not walk their dimensions one right after the other."""
        found = []
        for group in classes:
            run: list[tuple[int, int]] = []
            for n, size in group:
                if run and n in self.out_order and self.out_order.index(n) != self.out_order.index(run[-1][0]) + 1:
                    found.append(run)
                    run = []
                run.append((n, size))
            found.append(run)
        return [g for g in found if g]

    def emit(self) -> list[ir.Value]:
        parallel = [*self.batch, *self.m, *self.n]
        walked = self.space.loops_of(self.out_order)
        results = [i for i in parallel if i not in walked]  # loops of size 1 in front of those that the result walks
        results = self._with_units(walked) if results else walked
        for number, dot in self.dots.items():
            self.emitter.tiles[number] = (self._contract(dot, *self.operands[number], parallel, results), list(results))
        if self.node.kind == "dot":
            return [self.emitter.tiles[self.node.number][0]]
        return self.emitter.generic([self.node], parallel, results)

    def _with_units(self, walked: list[int]) -> list[int]:
        """The result's loops with the unit row or column put where it belongs: batch, rows, columns."""
        if self.m[0] not in walked:
            at = len([i for i in walked if i in self.batch])
            walked = walked[:at] + self.m + walked[at:]
        return walked if self.n[0] in walked else walked + self.n

    def _contract(self, dot: Scalar, lhs: Scalar, rhs: Scalar, parallel: list[int], results: list[int]) -> ir.Value:
        op = dot.data[0]
        init = self.evaluator.element(op.operands[2], dot.data[1])
        constant = constant_of(init)
        if constant is not None:
            start = filled(self.space.sizes(results), constant)
        else:
            start = self.emitter.generic([init], parallel, results)[0]
        loops = [*parallel, *self.k]
        rows, columns = (self.n, self.m) if self.swap else (self.m, self.n)
        tiles = [
            self._operand(node, free, op.operands[i]) for i, (node, free) in enumerate(((lhs, rows), (rhs, columns)))
        ]
        order = [1, 0] if self.swap else [0, 1]
        maps = [affine_map(loops, tiles[i][1]) for i in order] + [affine_map(loops, results)]
        kinds = ["parallel"] * len(parallel) + ["reduction"] * len(self.k)
        generic = make_generic([tiles[i][0] for i in order], [start], maps, kinds)
        block = generic.regions[0].blocks[0]
        with ir.InsertionPoint(block):
            arguments = list(block.arguments)
            factors = [_widen(arguments[order[i]], self.casts[dot.number][i]) for i in (0, 1)]
            if op.name == "linalg.generic":
                clone_body(op, [*factors, arguments[2]])
            else:
                _multiply_add(factors[0], factors[1], arguments[2])
        return generic.results[0]

    def _operand(self, load: Scalar, free: list[int], value: ir.Value) -> Tile:
        """A contraction's operand, with loops of size 1 for a missing row, column or inner dimension. `value` is what
        it was."""
        if load.kind != "load" or is_gather(load):
            return self._computed(load, free, value)
        if load.number in self.windows:
            return self._windows(load, free)
        loops = self.space.plain_loops(load)
        if loops is None:
            raise MlircError("contraction operand is not a plain read of a tensor")
        for unit in (*self.k, *free):  # [K] becomes [1, K], [M] becomes [M, 1]
            if unit not in loops and self.space.loops[unit].size == 1:
                loops = [*loops, unit] if unit in self.k else [*(i for i in loops if i in self.batch), unit,
                                                               *(i for i in loops if i not in self.batch)]  # fmt: skip
        return self.arguments.get(load.data[0], self.space.sizes(loops)), list(loops)

    def _computed(self, node: Scalar, free: list[int], whole: ir.Value) -> Tile:
        """An operand that the kernel computes, rows along the inner dimension; or chosen matrices, as they lie."""
        own = set(self.space.loops_of(d for d in self.out_order if d in node.dims))
        loops = [*(i for i in self.batch if i in own), *free, *self.k]
        made_by = owner_through_moves(whole)
        if is_gather_of_matrices(made_by):
            return self._chosen(node, loops)
        (value,) = self.emitter.generic([node], loops)
        bits = made_by.attributes[DEQUANTIZE] if made_by is not None and DEQUANTIZE in made_by.attributes else None
        value.owner.attributes[DEQUANTIZE] = ir.UnitAttr.get() if bits is None else bits
        return value, list(loops)

    def _elements_of_windows(self, node: Scalar) -> Scalar | None:
        """What an element of a convolution's windows is; None for another operand."""
        op = owner_of(node.data[0]) if node.kind == "load" else None
        if not is_windows(op):
            return None
        return element(self.evaluator.scalars, image_of(op), geometry_of(op), node.data[1])

    def _windows(self, load: Scalar, free: list[int]) -> Tile:
        """The windows of a convolution, of the image as it lies in memory."""
        op = owner_of(load.data[0])
        own = set(self.space.loops_of(d for d in self.out_order if d in load.dims))
        loops = [*(i for i in self.batch if i in own), *free, *self.k]
        return emit(self.emitter, image_of(op), geometry_of(op), self.windows[load.number], loops), list(loops)

    def _chosen(self, node: Scalar, loops: list[int]) -> Tile:
        """Matrices that a number chooses for each index of the batch."""
        (load,) = (n for n in node.walk() if is_gather(n))
        walked = self.space.loops_of(a[1] for i in load.data[1][1:] for a in i.atoms() if a[0] == "d")
        loops = [*(i for i in loops if i not in walked), *walked]
        (value,) = self.emitter.generic([node], loops)
        value.owner.attributes[GATHER_MATRICES] = ir.UnitAttr.get()
        return value, list(loops)


def _multiply_add(lhs: ir.Value, rhs: ir.Value, acc: ir.Value) -> None:
    """The body of a named contraction: both factors cast to the accumulator's type, multiplied and added to it."""
    element = acc.type
    is_float = not isinstance(element, ir.IntegerType)
    lhs, rhs = (_cast(a, element, is_float) for a in (lhs, rhs))
    if is_float:
        total = arith.addf(acc, arith.mulf(lhs, rhs))
    else:
        total = arith.addi(acc, arith.muli(lhs, rhs))
    ir.Operation.create("linalg.yield", operands=[total])


def _widen(value: ir.Value, cast: Scalar | None) -> ir.Value:
    """The value through the cast that the payload applies to it, if any."""
    if cast is None:
        return value
    return ir.Operation.create(cast.data[0], [cast.type], [value], dict(cast.data[1])).results[0]


def _cast(value: ir.Value, type_: ir.Type, is_float: bool) -> ir.Value:
    if value.type == type_:
        return value
    return arith.extf(type_, value) if is_float else arith.extsi(type_, value)
