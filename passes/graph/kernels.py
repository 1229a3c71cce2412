"""Builds the kernel function of one group: a map, a reduction or scan with its surroundings, a matmul with its
epilogue, or attention. What is computed comes from the scalar expression of the root's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.errors import MlircError
from mlirc.ir.tensors import shape_of
from mlirc.mlir import func, ir
from mlirc.passes.graph import classify
from mlirc.passes.graph.emit import Arguments, BodyEmitter
from mlirc.passes.graph.evaluate import Evaluator, loop_indices, map_results
from mlirc.passes.graph.facts import ATTENTION_LOOPS, attention_operands, attention_reads
from mlirc.passes.graph.index import Index, delinearize, dim, linearize, loop_pairs
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.matmul import MatmulEmitter
from mlirc.passes.graph.narrow_softmax import quicken
from mlirc.passes.graph.outline import KERNELS, ROOT
from mlirc.passes.graph.reduction import UNIT_ROW, ReductionEmitter
from mlirc.passes.graph.scalar import Scalar, Scalars, is_gather
from mlirc.passes.graph.scan_emitter import ScanEmitter
from mlirc.passes.graph.space import Space


@dataclass
class Built:
    """A kernel function, what the caller passes to it, and how the caller sees its results."""

    function: func.FuncOp
    kind: str
    arguments: list[ir.Value]
    shapes: list[tuple[int, ...]]


class KernelBuilder:
    """Builds the kernel whose root is `root`; `inline(op)` says which ops are computed in it. It returns the root's
    results that are used, then those that are `kept`, of as many elements, in the order of the root's. `scans`: one
    of the ops is a scan."""

    def __init__(
        self,
        module_body: ir.Block,
        root: ir.Operation,
        inline: Callable[[ir.Operation], bool],
        kept: Sequence[ir.Value] = (),
        scans: bool = False,
    ) -> None:
        self.root, self.kept, self.scans = root, kept, scans
        self.outputs = [*(r for r in root.results if list(r.uses) or root.name in ATTENTIONS), *kept]
        self.shapes = [shape_of(r) for r in self.outputs]
        self.evaluator = Evaluator(Scalars(), inline)
        with ir.InsertionPoint(module_body):
            self.function = func.FuncOp("kernel", ([], []), visibility="private")
        self.block = self.function.regions[0].blocks.append()
        self.arguments = Arguments(self.block, root)

    def build(self) -> Built:
        if self.root.name in ATTENTIONS:
            with ir.InsertionPoint(self.block):
                return self._finish("attention", self._attention())
        shape = shape_of(self.outputs[0])
        dims = tuple(dim(i, n) for i, n in enumerate(shape))
        nodes = [self._output(i, dims) for i in range(len(self.outputs))]
        inner = {n.number: n for node in nodes for n in node.walk() if n.kind in ("reduced", "dot")}
        with ir.InsertionPoint(self.block):
            if any(n.kind == "dot" for n in inner.values()):
                return self._finish("matmul", self._matmul(nodes[0], dims))
            if self.scans:
                return self._finish("scan", ScanEmitter(self.evaluator, self.arguments, nodes, dims).emit())
            if inner:
                return self._finish("reduction", self._reduction(nodes, dims))
            kind = "gather" if any(is_gather(n) for node in nodes for n in node.walk()) else "elementwise"
            return self._finish(kind, self._map(nodes, dims))

    def _output(self, number: int, dims: tuple[Index, ...]) -> Scalar:
        """The scalar of an output at the loops of the first one."""
        value = self.outputs[number]
        if number == 0:
            return self.evaluator.element(value, dims)
        if value in self.kept:
            return self.evaluator.element(value, delinearize(linearize(dims, self.shapes[0]), self.shapes[number]))
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
        pairs = loop_pairs(dims) or [(UNIT_ROW, 1)]
        order = _output_order(nodes, self.root, self.outputs)
        space = Space([pairs], nodes) if order is None else Space([[p] for p in pairs], nodes)
        emitter = BodyEmitter(space, self.arguments)
        return emitter.generic(nodes, range(len(space.loops)))

    # Reductions.

    def _reduction(self, nodes: list[Scalar], dims: Sequence[Index]) -> list[ir.Value]:
        results = ReductionEmitter(self.evaluator, self.arguments, nodes, dims, len(self.kept)).emit()
        quicken(self.block, results)
        return results

    # Contractions.

    def _matmul(self, node: Scalar, dims: Sequence[Index]) -> list[ir.Value]:
        """The contraction's result, or the map over it, in the contraction's own loops."""
        dots = [n for n in node.walk() if n.kind == "dot"]
        contraction = dots[0].data[0]
        shape = shape_of(contraction.results[0])
        dims = tuple(dim(i, n) for i, n in enumerate(shape))
        value = self.outputs[0]
        node = self.evaluator.element(value, delinearize(linearize(dims, shape), shape_of(value)))
        return MatmulEmitter(self.evaluator, self.arguments, node, dims).emit()

    # Attention.

    def _attention(self) -> list[ir.Value]:
        """The op on parameters that lie as their producers wrote them: a transpose becomes a layout."""
        operands, layouts = [], []
        for i, (value, indices) in enumerate(zip(self.root.operands, attention_reads(self.root), strict=False)):
            loops = self._attention_operand(value, indices)
            if i < 3:
                letters = [ATTENTION_LOOPS[n] for n in loops]
                sizes = dict(_attention_sizes(self.root.operands[i], self.root, i))
                layout, physical = _layout(letters, sizes, attention_operands(self.root)[i])
                layouts.append(layout)
                operands.append((value, indices, [sizes[x] for x in physical]))
            else:
                if loops != sorted(loops):
                    raise MlircError(f"attention operand of type {value.type} is not a tensor in memory")
                operands.append((value, indices, list(shape_of(value))))
        layouts.append(self.root.attributes["layouts"][3].value)
        attributes = {n: self.root.attributes[n] for n in self.root.attributes if n not in (KERNELS, ROOT)}
        attributes["layouts"] = ir.ArrayAttr.get([ir.StringAttr.get(x) for x in layouts])
        tensors = []
        for value, indices, extents in operands:
            node = self.evaluator.element(value, indices)
            tensors.append(self.arguments.get(node.data[0], extents))
        types = [r.type for r in self.root.results]
        return list(ir.Operation.create(self.root.name, types, tensors, attributes, loc=self.root.location).results)

    def _attention_operand(self, value: ir.Value, indices: tuple[Index, ...]) -> list[int]:
        node = self.evaluator.element(value, indices)
        found = plain_dims(node.data[1], shape_of(node.data[0])) if node.kind == "load" else None
        if found is None:
            raise MlircError(f"attention operand of type {value.type} is not a tensor in memory")
        return [number for number, _ in found]


def _output_order(nodes: list[Scalar], root: ir.Operation, outputs: Sequence[ir.Value]) -> bool | None:
    """None when all outputs walk the loops in the same order, so that loops may merge."""
    if len(outputs) == 1:
        return None
    all_maps = classify.maps(root)[-len(root.results) :]
    return None if len(set(map(str, all_maps))) == 1 else True


def _attention_sizes(value: ir.Value, op: ir.Operation, i: int) -> list[tuple[str, int]]:
    """The size of each logical dimension of q, k or v."""
    layout, logical = op.attributes["layouts"][i].value, attention_operands(op)[i]
    return [(logical["bhsd".index(x)], n) for x, n in zip(layout, shape_of(value), strict=True)]


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
