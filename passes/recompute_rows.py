"""`mlirc-recompute-rows`: what products with one row read of a reduction is computed by each of their blocks.

A `kernels`-level pass. The result of a kernel of kind `reduction`, as the norm in front of a layer's products, that
nothing but products with one row reads becomes a part of their kernels: each block computes the whole row, while its
rows of the matrix are on their way, and the reduction is no launch. Its roundings are those that it had.

    readers   products that may read the row: each computes it again (default: 3)
    elements  of the row, at most: a block has them in registers (default: 16384)
    reads     elements of the row that the blocks of a product read, at most: a block of more matrices counts as one of
              each. Of more, a launch takes less (default: 10485760)
"""

from __future__ import annotations

from math import prod

from mlirc.errors import MlircError
from mlirc.ir.tensors import shape_of
from mlirc.mlir import func, ir, run_passes
from mlirc.passes import register
from mlirc.passes.graph.bundles import calls_reading, drop_unused, inline_call, inner_ops
from mlirc.passes.graph.outline import ORIGIN_LIMIT, clone_into, graph_functions
from mlirc.schedule.kernel_info import describe

# On an H200 a norm's launch takes 2 us. Products took that much longer for it, in us: 480 rows of 576 0.3, 2,560 of
# 2,048 0.6, 5,632 of 2,048, two matrices, 0.7, 4,608 of 3,584 3.5, 49,152 of 576 4.4.
READERS, ELEMENTS, READS = 3, 16 * 1024, 10 << 20


@register("mlirc-recompute-rows")
def run(module: ir.Module, **options: str) -> None:
    """Moves rows into the kernels that read them, in place. Raises MlircError for an unknown option."""
    if not set(options) <= {"readers", "elements", "reads"} or not all(n.isdigit() for n in options.values()):
        raise MlircError("mlirc-recompute-rows has three options: readers, elements and reads, which are numbers")
    with ir.Location.unknown(module.context):
        work = _Recompute(module, **{name: int(n) for name, n in options.items()})
        for function in graph_functions(module):
            calls = [op for op in function.regions[0].blocks[0].operations if isinstance(op, func.CallOp)]
            # Readers are erased, and are products: the list has none.
            for call in [c for c in calls if work.kind(c) == "reduction"]:
                work.visit(call)
        if not work.changed:
            return
        drop_unused(module)
    run_passes(module, "canonicalize,cse")


class _Recompute:
    def __init__(self, module: ir.Module, readers: int = READERS, elements: int = ELEMENTS, reads: int = READS) -> None:
        self.module, self.readers, self.elements, self.reads = module, readers, elements, reads
        self.kernels = {op.name.value: op for op in module.body.operations if "mlirc.kernel" in op.attributes}
        self.known: dict[str, func.FuncOp | None] = {}  # by their text without a name; None: no kernel of `matvec`
        self.changed = False

    def visit(self, call: func.CallOp) -> None:
        """Moves what a call computes to its readers, where that can be."""
        readers = calls_reading(call.results[0]) if len(call.results) == 1 else None
        if not readers or len(readers) > self.readers:
            return
        length = shape_of(call.results[0])[-1]
        if length > self.elements or any(
            self.kind(r) != "matmul" or length * self._blocks(r) > self.reads for r in readers
        ):
            return
        parts = [inner_ops([call, reader]) for reader in readers]
        inputs = [_inputs(part) for part in parts]
        made = [self._kernel(part, given) for part, given in zip(parts, inputs, strict=True)]
        if not all(isinstance(kernel, func.FuncOp) for kernel in made):
            return
        self.changed = True
        for reader, kernel, given in zip(readers, made, inputs, strict=True):
            with ir.InsertionPoint(reader), ir.Location.fused([call.location, reader.location]):
                new = func.CallOp(kernel, given)
            for old, result in zip(reader.results, new.results, strict=True):
                old.replace_all_uses_with(result)
            reader.operation.erase()
        for op in reversed(list(dict.fromkeys(op for part in parts for op in part[:-1]))):
            op.erase()

    def kind(self, call: func.CallOp) -> str:
        """The kind of the kernel that a call is of."""
        kernel = self.kernels.get(call.callee.value)  # None: a loop over time steps
        return "" if kernel is None else ir.StringAttr(kernel.attributes["mlirc.kind"]).value

    def _blocks(self, call: func.CallOp) -> float:
        """The rows of a product's matrix, for one of its matrices."""
        found = describe(self.kernels[call.callee.value].operation).contraction
        return prod(shape_of(call.results[0])) / (found.count if found else 1)

    def _kernel(self, part: list[ir.Operation], inputs: list[ir.Value]) -> func.FuncOp | None:
        """The kernel of calls and the views between them; None where `matvec` would not take it."""
        callees = [
            self.kernels[ir.FlatSymbolRefAttr(o.attributes["callee"]).value] for o in part if o.name == "func.call"
        ]
        types = [v.type for v in inputs], [r.type for r in part[-1].results]
        with ir.InsertionPoint(self.module.body):
            kernel = func.FuncOp("kernel", types, visibility="private")
        kernel.attributes["mlirc.kind"] = ir.StringAttr.get("matmul")
        places = dict(zip(inputs, kernel.add_entry_block().arguments, strict=True))
        with ir.InsertionPoint(kernel.regions[0].blocks[0]):
            for op in part:
                if op.name == "func.call":
                    inline_call(self.kernels[ir.FlatSymbolRefAttr(op.attributes["callee"]).value], op, places)
                else:
                    clone_into(op, places)
            func.ReturnOp([places[r] for r in part[-1].results])
        text = kernel.operation.get_asm(enable_debug_info=False, use_local_scope=True, assume_verified=True)
        if text in self.known or not _fits(callees[-1], kernel):
            kernel.operation.erase()
            return self.known.setdefault(text, None)
        names = dict.fromkeys(n for c in callees for n in ir.ArrayAttr(c.attributes["mlirc.origin"]))
        name = next(n for i in range(len(self.kernels) + 1) if (n := f"matmul_{i}") not in self.kernels)
        kernel.attributes["sym_name"] = ir.StringAttr.get(name)
        kernel.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        kernel.attributes["mlirc.origin"] = ir.ArrayAttr.get(list(names)[:ORIGIN_LIMIT])
        self.known[text] = self.kernels[name] = kernel
        return kernel


def _fits(reader: func.FuncOp, kernel: func.FuncOp) -> bool:
    """Whether the reader is a product with one row that reads its matrix as it lies, and still is with the row's
    reduction in front of it."""
    before = describe(reader.operation)
    packed = before.contraction is not None and before.contraction.packed
    if before.obstacle or before.matvec is None or packed:
        return False
    found = describe(kernel.operation).matvec
    return found is not None and any(not d.whole for d in found.dims)


def _inputs(part: list[ir.Operation]) -> list[ir.Value]:
    results = {r for op in part for r in op.results}
    return list(dict.fromkeys(v for op in part for v in op.operands if v not in results))
