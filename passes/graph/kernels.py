"""Builds the kernel function of one group: a map, a reduction with its surroundings, a matmul with its epilogue, or
attention. What is computed comes from the scalar expression of the root's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import arith, func, ir
from mlirc.passes.graph import classify
from mlirc.passes.graph.emit import Arguments, BodyEmitter, Tile, filled, make_generic, reshape, zero_attribute
from mlirc.passes.graph.evaluate import Evaluator, loop_indices, map_results, shape_of
from mlirc.passes.graph.grouping import (
    ATTENTION_OPERANDS,
    attention_reads,
    contraction_maps,
    contraction_reads,
    reduced_sizes,
    reduction_loops,
    without_cast,
)
from mlirc.passes.graph.index import Index, delinearize, dim, linearize
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.outline import KERNELS, ROOT
from mlirc.passes.graph.scalar import Scalar, Scalars
from mlirc.passes.graph.space import Space, affine_map, tensor_type

UNIT_M, UNIT_N, UNIT_K, UNIT_ROW = 3000, 3001, 3002, 3003  # loops of size 1 that keep a kernel's form
REDUCED = 1000  # first number of the loops that only a reduction walks


@dataclass
class Built:
    """A kernel function, what the caller passes to it, and how the caller sees its results."""

    function: func.FuncOp
    kind: str
    arguments: list[ir.Value]
    shapes: list[tuple[int, ...]]


class KernelBuilder:
    """Builds the kernel whose root is `root`; `inline(op)` says which ops are computed in it."""

    def __init__(self, module_body: ir.Block, root: ir.Operation, inline: Callable[[ir.Operation], bool]) -> None:
        self.root = root
        self.outputs = [r for r in root.results if list(r.uses)]
        self.shapes = [shape_of(r) for r in self.outputs]
        self.evaluator = Evaluator(Scalars(), inline)
        with ir.InsertionPoint(module_body):
            self.function = func.FuncOp("kernel", ([], []), visibility="private")
        self.block = self.function.regions[0].blocks.append()
        self.arguments = Arguments(self.block, root)

    def build(self) -> Built:
        if self.root.name == "mlirc.attention":
            with ir.InsertionPoint(self.block):
                return self._finish("attention", [self._attention()])
        shape = shape_of(self.outputs[0])
        dims = tuple(dim(i, n) for i, n in enumerate(shape))
        nodes = [self._output(i, dims) for i in range(len(self.outputs))]
        inner = {n.number: n for node in nodes for n in node.walk() if n.kind in ("reduced", "dot")}
        with ir.InsertionPoint(self.block):
            if any(n.kind == "dot" for n in inner.values()):
                return self._finish("matmul", self._matmul(nodes[0], dims))
            if inner:
                return self._finish("reduction", self._reduction(nodes, dims))
            kind = "gather" if any(_is_gather(n) for node in nodes for n in node.walk()) else "elementwise"
            return self._finish(kind, self._map(nodes, dims))

    def _output(self, number: int, dims: tuple[Index, ...]) -> Scalar:
        """The scalar of an output at the loops of the first one."""
        value = self.outputs[number]
        if number == 0:
            return self.evaluator.element(value, dims)
        loops = loop_indices(self.root, list(self.root.results).index(self.outputs[0]), dims)
        all_maps = classify.maps(self.root)
        result = all_maps[len(all_maps) - len(self.root.results) + list(self.root.results).index(value)]
        return self.evaluator.element(value, tuple(f(loops) for f in map_results(result)))

    def _finish(self, kind: str, results: Sequence[ir.Value]) -> Built:
        func.ReturnOp(list(results))
        type_ = ir.FunctionType.get([a.type for a in self.block.arguments], [r.type for r in results])
        self.function.attributes["function_type"] = ir.TypeAttr.get(type_)
        return Built(self.function, kind, self.arguments.passed, self.shapes)

    # Maps.

    def _map(self, nodes: list[Scalar], dims: Sequence[Index]) -> list[ir.Value]:
        pairs = _pairs(dims) or [(UNIT_ROW, 1)]
        order = _output_order(nodes, self.root, self.outputs)
        space = Space([pairs], nodes) if order is None else Space([[p] for p in pairs], nodes)
        emitter = BodyEmitter(space, self.arguments)
        return emitter.generic(nodes, range(len(space.loops)))

    # Reductions.

    def _reduction(self, nodes: list[Scalar], dims: Sequence[Index]) -> list[ir.Value]:
        return ReductionEmitter(self, nodes, dims).emit()

    # Contractions.

    def _matmul(self, node: Scalar, dims: Sequence[Index]) -> list[ir.Value]:
        """The contraction's result, or the map over it, in the contraction's own loops."""
        dots = [n for n in node.walk() if n.kind == "dot"]
        contraction = dots[0].data[0]
        shape = shape_of(contraction.results[0])
        dims = tuple(dim(i, n) for i, n in enumerate(shape))
        value = self.outputs[0]
        node = self.evaluator.element(value, delinearize(linearize(dims, shape), shape_of(value)))
        return MatmulEmitter(self, node, dims).emit()

    # Attention.

    def _attention(self) -> ir.Value:
        """The op on parameters that lie as their producers wrote them: a transpose becomes a layout."""
        operands, layouts = [], []
        for i, (value, indices) in enumerate(zip(self.root.operands, attention_reads(self.root), strict=False)):
            loops = self._attention_operand(value, indices)
            if i < 3:
                sizes = dict(_attention_sizes(self.root.operands[i], self.root, i))
                layout, physical = _layout(loops, sizes, ATTENTION_OPERANDS[i])
                layouts.append(layout)
                operands.append((value, indices, [sizes[x] for x in physical]))
            else:
                if loops != sorted(loops, key="bhkstde".index):
                    raise MlircError(f"attention mask of type {value.type} is not a tensor in memory")
                operands.append((value, indices, list(shape_of(value))))
        layouts.append(self.root.attributes["layouts"][3].value)
        attributes = {n: self.root.attributes[n] for n in self.root.attributes if n not in (KERNELS, ROOT)}
        attributes["layouts"] = ir.ArrayAttr.get([ir.StringAttr.get(x) for x in layouts])
        tensors = []
        for value, indices, extents in operands:
            node = self.evaluator.element(value, indices)
            tensors.append(self.arguments.get(node.data[0], extents))
        created = ir.Operation.create(
            "mlirc.attention", [self.root.results[0].type], tensors, attributes, loc=self.root.location
        )
        return created.results[0]

    def _attention_operand(self, value: ir.Value, indices: tuple[Index, ...]) -> list[str]:
        node = self.evaluator.element(value, indices)
        found = plain_dims(node.data[1], shape_of(node.data[0])) if node.kind == "load" else None
        if found is None:
            raise MlircError(f"attention operand of type {value.type} is not a tensor in memory")
        return ["bhkstde"[number] for number, _ in found]


class ReductionEmitter:
    """Emits a kernel that reduces: maps over full rows, reductions, maps over one element per row, in turn."""

    def __init__(self, builder: KernelBuilder, nodes: list[Scalar], dims: Sequence[Index]) -> None:
        self.builder = builder
        self.evaluator = builder.evaluator
        self.nodes = nodes
        self.root_dims = {n for n, _ in _pairs(dims)}
        rows, self.cols = self._rows_and_cols(dims)
        inputs = self._stage_inputs()
        self.row_dims = frozenset(n for n, _ in rows)
        col_pairs = _pairs(self.cols) or [(REDUCED, 1)]
        self.space = self._space(rows or [(UNIT_ROW, 1)], col_pairs, dims, [*nodes, *inputs])
        self.emitter = BodyEmitter(self.space, builder.arguments)
        if not rows:
            self._keep_unit_row()
        row_numbers = {*self.row_dims, UNIT_ROW}
        self.full = list(range(len(self.space.loops)))
        self.rows = [i for i in self.full if self.space.loops[i].dims[0] in row_numbers]
        self.shared = _shared_expensive([*nodes, *inputs], self.row_dims)

    def _rows_and_cols(self, dims: Sequence[Index]) -> tuple[list[tuple[int, int]], list[Index]]:
        reduced = next(n for node in self.nodes for n in node.walk() if n.kind == "reduced")
        rows = [(a[1], a[2]) for i in reduced.data[1] for a in i.terms]
        numbers = {n for n, _ in rows}
        cols = [d for d in dims if d.terms and not {a[1] for a in d.terms} <= numbers]
        sizes = [n for n in reduced_sizes(reduced.data[0]) if n != 1]
        return rows, cols or [dim(REDUCED + i, n) for i, n in enumerate(sizes)]

    def _input(self, reduced: Scalar) -> Scalar:
        op, read = reduced.data
        loops = reduction_loops(op, read, self.cols)
        return self.evaluator.element(op.operands[0], (f(loops) for f in map_results(classify.maps(op)[0])))

    def _stage_inputs(self) -> list[Scalar]:
        """What each reduction of the kernel reduces."""
        found: dict[int, Scalar] = {}
        pending = list(self.nodes)
        while pending:
            for n in pending.pop().walk():
                if n.kind == "reduced" and n.number not in found:
                    found[n.number] = self._input(n)
                    pending.append(found[n.number])
        return list(found.values())

    def _space(self, rows, cols, dims, nodes) -> Space:
        """Loops in the order of the root's dimensions, or, where the root has one element per row, in the order in
        which the first reduced tensor lies in memory."""
        row_numbers, known = {n for n, _ in rows}, dict([*rows, *cols])
        order = [a[1] for d in dims for a in d.terms]
        if not {n for n, _ in cols} <= set(order):
            for node in nodes:
                for n in node.walk():
                    found = plain_dims(n.data[1], shape_of(n.data[0])) if n.kind == "load" else None
                    if found is not None and {d for d, _ in found} == set(known):
                        order = [d for d, _ in found]
        order = [n for n in order if n in known] + [n for n in known if n not in order]
        if not row_numbers & set(order[:1]) and UNIT_ROW in known:
            order = [UNIT_ROW] + [n for n in order if n != UNIT_ROW]
        classes: list[list[tuple[int, int]]] = []
        for n in order:
            if classes and (classes[-1][-1][0] in row_numbers) == (n in row_numbers):
                classes[-1].append((n, known[n]))
            else:
                classes.append([(n, known[n])])
        return Space(classes, nodes)

    def _keep_unit_row(self) -> None:
        """Tensors of one whole row get the unit row dimension in front."""
        plain, whole = self.emitter.load, self.space.loops_of(n for n, _ in _pairs(self.cols) or [(REDUCED, 1)])

        def load(node: Scalar) -> Tile | None:
            if self.space.plain_loops(node) == whole:
                unit = self.space.index_loop(UNIT_ROW)
                return self.builder.arguments.get(node.data[0], self.space.sizes([unit, *whole])), [unit, *whole]
            return plain(node)

        self.emitter.load = load  # type: ignore[method-assign]

    def emit(self) -> list[ir.Value]:
        """The outputs: over full rows if the root's dimensions include those of a row, else one element per row."""
        results = []
        loops = self.full if {a[1] for c in self.cols for a in c.terms} & self.root_dims else self.rows
        for node in self.nodes:
            self._prepare(node, loops)
            tile = self.emitter.tiles.get(node.number)
            if tile is not None and tile[1] == loops:
                results.append(tile[0])
            else:
                results.extend(self.emitter.generic([node], loops))
        return results

    def _prepare(self, node: Scalar, loops: list[int], top: bool = True, share: bool = True) -> None:
        """Makes tensors of what the scalar needs: reduced values, values per row, costly values that others need."""
        if node.number in self.emitter.tiles:
            return
        if node.kind == "reduced":
            self._reduce(node)
            return
        if not top:
            if loops == self.full and node.kind == "op" and node.dims <= self.row_dims and _has_reduced(node):
                self._prepare(node, self.rows)
                self.emitter.tiles[node.number] = self.emitter.tensor(node, self.rows)
                return
            if share and node.number in self.shared:
                self._prepare(node, self.full, share=False)
                self.emitter.tiles[node.number] = self.emitter.tensor(node, self.full)
                return
        for operand in node.inputs():
            self._prepare(operand, loops, top=False, share=share)

    def _reduce(self, node: Scalar) -> None:
        op, read = node.data
        source = self._input(node)
        self._prepare(source, self.full, top=False)
        tile = self.emitter.tensor(source, self.full)
        if set(tile[1]) != set(self.full):  # a reduction's operand walks all of its loops
            tile = self.emitter.generic([source], self.full)[0], list(self.full)
        init = self.evaluator.element(op.operands[1], read)
        sizes = self.space.sizes(self.rows)
        constant = _constant_of(init)
        start = filled(sizes, constant) if constant is not None else self.emitter.generic([init], self.rows)[0]
        maps = [affine_map(self.full, tile[1]), affine_map(self.full, self.rows)]
        kinds = ["parallel" if i in self.rows else "reduction" for i in self.full]
        generic = make_generic([tile[0]], [start], maps, kinds)
        with ir.InsertionPoint(generic.regions[0].blocks[0]):
            clone_body(op, list(generic.regions[0].blocks[0].arguments))
        self.emitter.tiles[node.number] = (generic.results[0], list(self.rows))


class MatmulEmitter:
    """Emits contractions over shared batch, row, column and inner loops, and the map over their results."""

    def __init__(self, builder: KernelBuilder, node: Scalar, dims: Sequence[Index]) -> None:
        self.builder = builder
        self.node = node
        self.out_order = [n for n, _ in _pairs(dims)]
        self.dots = {n.number: n for n in node.walk() if n.kind == "dot"}
        evaluator = builder.evaluator
        self.operands: dict[int, tuple[Scalar, Scalar]] = {}
        self.casts: dict[int, list[Scalar | None]] = {}
        for number, dot in self.dots.items():
            op = dot.data[0]
            reads = contraction_reads(op, tuple(dims))
            lhs, rhs = (evaluator.element(v, r) for v, r in zip(list(op.operands)[:2], reads, strict=True))
            self.casts[number] = [None if s.kind == "load" else s for s in (lhs, rhs)]
            lhs, rhs = without_cast(lhs), without_cast(rhs)
            if lhs.kind != "load" or rhs.kind != "load":
                raise MlircError(f"contraction operand of {op.name} is not a tensor in memory")
            self.operands[number] = (lhs, rhs)
        lhs, rhs = next(iter(self.operands.values()))
        sizes = dict(_pairs([*dims, *(i for s in (lhs, rhs) for i in s.data[1])]))
        out = set(self.out_order)
        batch = [n for n in self.out_order if n in lhs.dims and n in rhs.dims]
        m = [n for n in self.out_order if n in lhs.dims and n not in rhs.dims]
        n_ = [n for n in self.out_order if n not in lhs.dims]
        k = [n for n in sizes if n not in out]
        self.swap = bool(m and n_ and self.out_order.index(n_[0]) < self.out_order.index(m[0]))
        if self.swap:
            m, n_ = n_, m
        nodes = [node, *(s for pair in self.operands.values() for s in pair)]
        groups = [[(d, sizes[d]) for d in group] for group in (batch, m, n_, k)]
        units = (UNIT_M, UNIT_N, UNIT_K)
        classes = [groups[0]] + [g or [(u, 1)] for g, u in zip(groups[1:], units, strict=True)]
        self.space = Space(self._split_by_order(classes), nodes)
        self.batch, self.m, self.n, self.k = (self.space.loops_of(d for d, _ in g) for g in classes)
        self.emitter = BodyEmitter(self.space, builder.arguments)

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
        init = self.builder.evaluator.element(op.operands[2], dot.data[1])
        constant = _constant_of(init)
        if constant is not None:
            start = filled(self.space.sizes(results), constant)
        else:
            start = self.emitter.generic([init], parallel, results)[0]
        loops = [*parallel, *self.k]
        rows, columns = (self.n, self.m) if self.swap else (self.m, self.n)
        tiles = [self._operand(lhs, rows), self._operand(rhs, columns)]
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

    def _operand(self, load: Scalar, free: list[int]) -> Tile:
        """A contraction's operand, with loops of size 1 for a missing row, column or inner dimension."""
        loops = self.space.plain_loops(load)
        if loops is None:
            raise MlircError("contraction operand is not a plain read of a tensor")
        for unit in (*self.k, *free):  # [K] becomes [1, K], [M] becomes [M, 1]
            if unit not in loops and self.space.loops[unit].size == 1:
                loops = [*loops, unit] if unit in self.k else [*(i for i in loops if i in self.batch), unit,
                                                               *(i for i in loops if i not in self.batch)]  # fmt: skip
        return self.builder.arguments.get(load.data[0], self.space.sizes(loops)), list(loops)


def clone_body(op: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Copies the body of a generic to the insertion point, with `values` for its arguments."""
    old = op.regions[0].blocks[0]
    mapping = dict(zip(old.arguments, values, strict=True))
    for inner in old.operations:
        clone = inner.operation.clone()
        for i, value in enumerate(clone.operands):
            clone.operands[i] = mapping.get(value, value)
        mapping |= dict(zip(inner.operation.results, clone.results, strict=True))


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


def _constant_of(node: Scalar) -> ir.Attribute | None:
    if node.kind == "index" and not node.data.terms:
        return ir.IntegerAttr.get(node.type, node.data.const)
    if node.kind == "op" and node.data[0] == "arith.constant":
        return node.data[1][0][1]
    return None


def _pairs(indices: Sequence[Index]) -> list[tuple[int, int]]:
    """(number, size) of the loop dimensions in these indices, each once, in order."""
    return list(dict.fromkeys((a[1], a[2]) for i in indices for a in i.atoms() if a[0] == "d"))


def _is_gather(node: Scalar) -> bool:
    return node.kind == "load" and any(a[0] == "s" for i in node.data[1] for a in i.atoms())


def _output_order(nodes: list[Scalar], root: ir.Operation, outputs: Sequence[ir.Value]) -> bool | None:
    """None when all outputs walk the loops in the same order, so that loops may merge."""
    if len(outputs) == 1:
        return None
    all_maps = classify.maps(root)[-len(root.results) :]
    return None if len(set(map(str, all_maps))) == 1 else True


def _has_reduced(node: Scalar) -> bool:
    return any(n.kind == "reduced" for n in node.walk())


def _shared_expensive(stages: Sequence[Scalar], rows: frozenset) -> set[int]:
    """Scalars over full rows that more than one stage of a reduction kernel needs and that cost maths or a gather."""
    count: dict[int, int] = {}
    gathers: set[int] = set()
    for stage in stages:
        for n in stage.walk():
            if _is_gather(n) or any(o.number in gathers for o in n.inputs()):
                gathers.add(n.number)
            if (n.expensive or n.number in gathers) and not n.dims <= rows:
                count[n.number] = count.get(n.number, 0) + 1
    return {n for n, c in count.items() if c > 1}


def _attention_sizes(value: ir.Value, op: ir.Operation, i: int) -> list[tuple[str, int]]:
    """The size of each logical dimension of q, k or v."""
    layout = op.attributes["layouts"][i].value
    return [(ATTENTION_OPERANDS[i]["bhsd".index(x)], n) for x, n in zip(layout, shape_of(value), strict=True)]


def _layout(loops: list[str], sizes: dict[str, int], logical: str) -> tuple[str, list[str]]:
    """The layout attribute and the physical order of logical dimensions for an operand that lies as `loops` (those of
    size > 1). Dimensions of size 1 go where the usual layouts have them."""
    names = dict(zip(logical, "bhsd", strict=True))
    for usual in ("bhsd", "bshd"):
        physical = [logical["bhsd".index(x)] for x in usual]
        if [x for x in physical if sizes[x] != 1] == loops:
            return usual, physical
    physical = [x for x in logical if sizes[x] == 1] + loops
    return "".join(names[x] for x in physical), physical


__all__ = ["Built", "KernelBuilder", "contraction_maps", "reshape", "tensor_type", "zero_attribute"]
