"""Builds the body of a kernel that scans: what it scans, the scan, the maps that read it, and a reduction of these
along another dimension."""

from __future__ import annotations

from collections.abc import Sequence

from mlirc.errors import MlircError
from mlirc.ir.scans import SCAN, Scan
from mlirc.mlir import ir, tensor
from mlirc.passes.graph import classify
from mlirc.passes.graph.emit import Arguments, BodyEmitter, Tile, clone_body, filled, make_generic
from mlirc.passes.graph.evaluate import Evaluator, loop_indices, map_results
from mlirc.passes.graph.facts import reduced_sizes, reduction_loops
from mlirc.passes.graph.index import Index, dim, loop_pairs, mirrored
from mlirc.passes.graph.scalar import Scalar, constant_of
from mlirc.passes.graph.space import Space, affine_map

COLS = 2000  # first number of the loops that a reduction alone walks
ALONG, ROW = 1000, 1001  # numbers of loops of size 1: along which a scan walks, and the row of a kernel that has one


class ScanEmitter:
    """Emits a kernel with one scan, in loops that are the dimensions in front of the one along which it walks, that
    one, and those behind it."""

    def __init__(self, evaluator: Evaluator, arguments: Arguments, nodes: list[Scalar], dims: Sequence[Index]) -> None:
        self.evaluator, self.nodes = evaluator, nodes
        self.reduced = [n for node in nodes for n in node.walk() if n.kind == "reduced"]
        sizes = [n for r in self.reduced[:1] for n in reduced_sizes(r.data[0]) if n != 1]
        self.cols = [dim(COLS + i, n) for i, n in enumerate(sizes)]
        summed = [self._reduced_input(r) for r in self.reduced]
        self.scanned = list({n.number: n for s in (*nodes, *summed) for n in s.walk() if n.kind == "scanned"}.values())
        self.op, indices = self.scanned[0].data[0].owner.operation, self.scanned[0].data[1]
        if any(n.data[0].owner.operation != self.op or n.data[1] != indices for n in self.scanned):
            raise MlircError("a kernel of two scans")
        self.scan = Scan.of(self.op)
        self.loops = loop_indices(self.op, 0, indices)
        if not self.loops[self.scan.dim].terms:
            self.loops[self.scan.dim] = dim(ALONG, 1)
        backwards = mirrored(self.loops[self.scan.dim])
        self.reverse = backwards is not None
        ((along, length),) = loop_pairs([backwards or self.loops[self.scan.dim]])
        pairs = loop_pairs(dims)
        if along not in [n for n, _ in pairs]:
            pairs = [*pairs, (along, length)]
        place = [n for n, _ in pairs].index(along)
        self.inputs = [self._element(i) for i in range(self.scan.inputs)]
        first = len(self.op.operands) - self.scan.count
        self.starts = [self._element(first + i) for i in range(self.scan.count)]
        cols = loop_pairs(self.cols)
        groups = [g for g in (pairs[:place], pairs[place : place + 1], pairs[place + 1 :], cols) if g]
        groups = groups if len(groups) > 1 else [[(ROW, 1)], *groups]
        self.space = Space(groups, [*nodes, *summed, *self.inputs, *self.starts])
        self.emitter = BodyEmitter(self.space, arguments)
        if self.space.loops[0].dims == (ROW,):
            self._keep_row()
        self.full = list(range(len(self.space.loops)))
        self.along = self.space.index_loop(along)
        self.rows = [i for i in self.full if i != self.along]  # of the carries
        numbers = {n for n, _ in cols}
        self.kept = [i for i in self.full if self.space.loops[i].dims[0] not in numbers]  # of the outputs

    def _element(self, operand: int) -> Scalar:
        """What one operand of the scan is at its loops."""
        where = map_results(classify.maps(self.op)[operand])
        return self.evaluator.element(self.op.operands[operand], (f(self.loops) for f in where))

    def _reduced_input(self, node: Scalar) -> Scalar:
        """What a reduction of the kernel reduces."""
        op, read = node.data
        loops = reduction_loops(op, read, self.cols)
        return self.evaluator.element(op.operands[0], (f(loops) for f in map_results(classify.maps(op)[0])))

    def _keep_row(self) -> None:
        """Tensors of the only row get a dimension for it in front."""
        plain = self.emitter.load

        def load(node: Scalar) -> Tile | None:
            tile = plain(node)
            if tile is None or tile[1] != [1]:
                return tile
            return self.emitter.arguments.get(node.data[0], self.space.sizes([0, 1])), [0, 1]

        self.emitter.load = load  # type: ignore[method-assign]

    def emit(self) -> list[ir.Value]:
        """The outputs, over all loops but those that are reduced."""
        tiles = [self._input(node) for node in self.inputs]
        sizes, rows = self.space.sizes(self.full), self.space.sizes(self.rows)
        types = [node.type for node in self.starts]
        results = [tensor.empty(sizes, t) for t in types]
        carries = [self._start(node, rows) for node in self.starts]
        ways = [tile[1] for tile in tiles] + [self.full] * len(types) + [self.rows] * len(types)
        iterators = ["reduction" if i == self.along else "parallel" for i in self.full]
        maps = [affine_map(self.full, w) for w in ways]
        made = make_generic([t[0] for t in tiles], [*results, *carries], maps, iterators)
        made.attributes[SCAN] = ir.StringAttr.get("reverse") if self.reverse else self.op.attributes[SCAN]
        with ir.InsertionPoint(made.regions[0].blocks[0]):
            clone_body(self.op, list(made.regions[0].blocks[0].arguments))
            _take_constants(made)
        for node in self.scanned:
            number = list(self.op.results).index(node.data[0])
            self.emitter.tiles[node.number] = made.results[number], list(self.full)
        for node in self.reduced:
            self._reduce(node)
        return [self._output(node) for node in self.nodes]

    def _reduce(self, node: Scalar) -> None:
        op, read = node.data
        value = self.emitter.generic([self._reduced_input(node)], self.full)[0]
        start = constant_of(self.evaluator.element(op.operands[1], read))
        if start is None:
            raise MlircError("a reduction in a scan's kernel that starts from a tensor")
        maps = [affine_map(self.full, self.full), affine_map(self.full, self.kept)]
        kinds = ["parallel" if i in self.kept else "reduction" for i in self.full]
        made = make_generic([value], [filled(self.space.sizes(self.kept), start)], maps, kinds)
        with ir.InsertionPoint(made.regions[0].blocks[0]):
            clone_body(op, list(made.regions[0].blocks[0].arguments))
        self.emitter.tiles[node.number] = made.results[0], list(self.kept)

    def _input(self, node: Scalar) -> Tile:
        """What is scanned, as a tensor: over the loops on which it depends, and the row that all tensors have."""
        if self.space.loops[0].dims == (ROW,) and any(n.kind == "load" for n in node.walk()):
            return self.emitter.tensor(node, self.full)
        loops = self.space.loops_of(sorted(node.dims, key=self.space.index_loop)) if node.dims else [self.along]
        return self.emitter.tensor(node, loops)

    def _start(self, node: Scalar, rows: list[int]) -> ir.Value:
        constant = constant_of(node)
        if constant is not None:
            return filled(rows, constant)
        return self.emitter.generic([node], self.rows)[0]

    def _output(self, node: Scalar) -> ir.Value:
        tile = self.emitter.tiles.get(node.number)
        return self.emitter.generic([node], self.kept)[0] if tile is None else tile[0]


def _take_constants(op: ir.Operation) -> None:
    """Gives a body copies of the constants that it captures from the function that it comes from."""
    block = op.regions[0].blocks[0]
    inside = {*block.arguments, *(r for o in block.operations for r in o.operation.results)}
    for inner in list(block.operations):
        for i, value in enumerate(inner.operation.operands):
            if value not in inside:
                with ir.InsertionPoint.at_block_begin(block):
                    inner.operation.operands[i] = value.owner.operation.clone().operation.results[0]
