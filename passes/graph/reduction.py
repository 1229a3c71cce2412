"""Builds the body of a kernel that reduces: a norm, a softmax, a mean."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph import classify
from mlirc.passes.graph.emit import Arguments, BodyEmitter, Tile, clone_body, filled, make_generic
from mlirc.passes.graph.evaluate import Evaluator, map_results
from mlirc.passes.graph.facts import reduced_sizes, reduction_loops
from mlirc.passes.graph.index import Index, dim, loop_pairs
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.scalar import Scalar, constant_of, is_gather
from mlirc.passes.graph.space import Space, affine_map

REDUCED = 1000  # first number of the loops that only a reduction walks
CHAIN = 8  # reductions of a kernel from which on what is selected between them is kept
UNIT_ROW = 3003  # a loop of size 1: the row of a kernel that reduces everything


class ReductionEmitter:
    """Emits a kernel that reduces: maps over full rows, reductions, maps over one element per row, in turn. The last
    `kept` nodes are what others are made of: they are computed first, and once."""

    def __init__(
        self, evaluator: Evaluator, arguments: Arguments, nodes: list[Scalar], dims: Sequence[Index], kept: int = 0
    ) -> None:
        self.kept = nodes[len(nodes) - kept :]
        self.evaluator = evaluator
        self.arguments = arguments
        self.nodes = nodes
        self.root_dims = {n for n, _ in loop_pairs(dims)}
        rows, self.cols = self._rows_and_cols(dims)
        inputs = self._stage_inputs()
        self.row_dims = frozenset(n for n, _ in rows)
        col_pairs = loop_pairs(self.cols) or [(REDUCED, 1)]
        self.space = self._space(rows or [(UNIT_ROW, 1)], col_pairs, dims, [*nodes, *inputs])
        self.emitter = BodyEmitter(self.space, arguments)
        if not rows:
            self._keep_unit_row()
        row_numbers = {*self.row_dims, UNIT_ROW}
        self.full = list(range(len(self.space.loops)))
        self.rows = [i for i in self.full if self.space.loops[i].dims[0] in row_numbers]
        self.searched = _searched(inputs, self.row_dims)
        self.shared = _shared_expensive([*nodes, *inputs], self.row_dims) | self.searched
        self.steps = _steps([*nodes, *inputs], self.row_dims)
        self.prepared: set[tuple[int, int, bool, bool]] = set()
        self.has_reduced: dict[int, bool] = {}

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
        which the first reduced tensor lies in memory, if its rows come in the order of the root's: the result is
        made row by row, and its readers count on their order."""
        row_numbers, known = {n for n, _ in rows}, dict([*rows, *cols])
        order = [a[1] for d in dims for a in d.terms]
        root_rows = [n for n in order if n in row_numbers]
        if not {n for n, _ in cols} <= set(order):
            for node in nodes:
                for n in node.walk():
                    found = plain_dims(n.data[1], shape_of(n.data[0])) if n.kind == "load" else None
                    if found is None or {d for d, _ in found} != set(known):
                        continue
                    if [d for d, _ in found if d in root_rows] == root_rows:
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
        plain, whole = self.emitter.load, self.space.loops_of(n for n, _ in loop_pairs(self.cols) or [(REDUCED, 1)])

        def load(node: Scalar) -> Tile | None:
            if self.space.plain_loops(node) == whole:
                unit = self.space.index_loop(UNIT_ROW)
                return self.arguments.get(node.data[0], self.space.sizes([unit, *whole])), [unit, *whole]
            return plain(node)

        self.emitter.load = load  # type: ignore[method-assign]

    def emit(self) -> list[ir.Value]:
        """The outputs: over full rows if the root's dimensions include those of a row, else one element per row."""
        loops = self.full if {a[1] for c in self.cols for a in c.terms} & self.root_dims else self.rows
        for node in reversed(self.kept):
            self._prepare(node, loops)
            self.emitter.tiles[node.number] = self.emitter.tensor(node, loops)
        results = []
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
        way = (node.number, len(loops), top, share)
        if node.number in self.emitter.tiles or way in self.prepared:
            return
        self.prepared.add(way)  # a scalar that many use is prepared once: there are as many ways to it as paths
        if node.kind == "reduced":
            self._reduce(node)
            return
        if not top:
            if loops == self.full and node.kind == "op" and node.dims <= self.row_dims and self._has_reduced(node):
                self._prepare(node, self.rows)
                self.emitter.tiles[node.number] = self.emitter.tensor(node, self.rows)
                return
            if loops == self.rows and node.number in self.steps and self._has_reduced(node):
                self._prepare(node, self.rows)
                self.emitter.tiles[node.number] = self.emitter.tensor(node, self.rows)
                return
            if share and node.number in self.shared:
                self._prepare(node, self.full, share=node.number in self.searched)
                self.emitter.tiles[node.number] = self.emitter.tensor(node, self.full)
                return
        for operand in node.inputs():
            self._prepare(operand, loops, top=False, share=share)

    def _has_reduced(self, node: Scalar) -> bool:
        for n in node.walk_until(self.has_reduced):
            self.has_reduced[n.number] = n.kind == "reduced" or any(self.has_reduced[o.number] for o in n.inputs())
        return self.has_reduced[node.number]

    def _reduce(self, node: Scalar) -> None:
        op, read = node.data
        source = self._input(node)
        self._prepare(source, self.full, top=False)
        tile = self.emitter.tensor(source, self.full)
        if set(tile[1]) != set(self.full):  # a reduction's operand walks all of its loops
            tile = self.emitter.generic([source], self.full)[0], list(self.full)
        init = self.evaluator.element(op.operands[1], read)
        sizes = self.space.sizes(self.rows)
        constant = constant_of(init)
        start = filled(sizes, constant) if constant is not None else self.emitter.generic([init], self.rows)[0]
        maps = [affine_map(self.full, tile[1]), affine_map(self.full, self.rows)]
        kinds = ["parallel" if i in self.rows else "reduction" for i in self.full]
        generic = make_generic([tile[0]], [start], maps, kinds)
        with ir.InsertionPoint(generic.regions[0].blocks[0]):
            clone_body(op, list(generic.regions[0].blocks[0].arguments))
        self.emitter.tiles[node.number] = (generic.results[0], list(self.rows))


def _searched(inputs: Sequence[Scalar], rows: frozenset) -> set[int]:
    """What many reductions of a row compute alike, each of which goes on in its own way: the numbers that a search
    compares."""
    count: dict[int, int] = {}
    rarer: set[int] = set()  # of what others are made of
    walked = [list(stage.walk()) for stage in inputs]
    for stage in walked:
        for n in stage:
            count[n.number] = count.get(n.number, 0) + 1
    for stage in walked:
        for n in stage:
            if count[n.number] < CHAIN:
                rarer.update(o.number for o in n.inputs())
    every = {n.number: n for stage in walked for n in stage}
    return {i for i in rarer if count[i] >= CHAIN and every[i].kind == "op" and not every[i].dims <= rows}


def _steps(stages: Sequence[Scalar], rows: frozenset) -> set[int]:
    """Selections of a row that several others of its values are made of, and flags, in a chain of many reductions, as a
    search is: each step would else be computed again by all those behind it."""
    nodes = {n.number: n for stage in stages for n in stage.walk()}
    if sum(n.kind == "reduced" for n in nodes.values()) < CHAIN:
        return set()
    users: dict[int, int] = {}
    for n in nodes.values():
        for number in {o.number for o in n.inputs()}:
            users[number] = users.get(number, 0) + 1
    of_rows = [n for n in nodes.values() if n.kind == "op" and n.dims <= rows]
    flags = {n.number for n in of_rows if n.data[0] == "arith.ori"}  # what ends a search
    return flags | {n.number for n in of_rows if n.data[0] == "arith.select" and users.get(n.number, 0) > 1}


def _shared_expensive(stages: Sequence[Scalar], rows: frozenset) -> set[int]:
    """Scalars over full rows that more than one stage of a reduction kernel needs and that cost maths or a gather."""
    count: dict[int, int] = {}
    gathers: set[int] = set()
    for stage in stages:
        for n in stage.walk():
            if is_gather(n) or any(o.number in gathers for o in n.inputs()):
                gathers.add(n.number)
            if (n.expensive or n.number in gathers) and not n.dims <= rows:
                count[n.number] = count.get(n.number, 0) + 1
    return {n for n, c in count.items() if c > 1}
