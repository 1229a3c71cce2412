"""`mlirc-partial-rows`: what is reduced of a product's rows for the products behind is reduced by its blocks, in parts.

A `kernels`-level pass, for norms between products. In `W2 (y g s)`, with `y = W1 x + residual` and a number s of each
row of y, made of a sum over that row, the kernel of W1 has further results: `y g` without s, and the sums of groups of
each row (`schedule.partial_results`). The kernel of W2 reads the former, adds the latter up while its weights are on
their way, and multiplies its sums by s (`graph/row_factors.py`). The reduction is no launch, and nothing waits for it.

    kinds    of products: `packed` (weights of few bits, up to 16 rows), `plain` (one row), or `all` (default: packed)
    readers  products that may read the row: each adds the parts up (default: 3)
    rows     of a product, at most (default: 16)
    columns  of a row, at least (default: 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import contraction, producer, structure, structured_ops
from mlirc.errors import MlircError
from mlirc.ir.tensors import VIEWS, shape_of, through_views
from mlirc.mlir import arith, func, ir, linalg, run_passes
from mlirc.passes import register
from mlirc.passes.graph.bundles import calls_reading, drop_unused
from mlirc.passes.graph.outline import ORIGIN_LIMIT, clone_into, graph_functions
from mlirc.passes.graph.row_factors import NoFactor, RowFactor
from mlirc.schedule.kernel_info import KernelInfo, describe

KINDS = ("packed", "plain", "all")
READERS = 3
# Elements of a part: columns of a block of `packed_rows`, and of one of `matvec`.
PACKED, PLAIN = 16, 8
ROWS = 16  # of products with packed weights


@register("mlirc-partial-rows")
def run(module: ir.Module, kinds: str = "packed", **options: str) -> None:
    """Takes reductions apart, in place. Raises MlircError for an unknown option."""
    known = {"readers": READERS, "rows": ROWS, "columns": 1}
    if not set(options) <= set(known) or kinds not in KINDS or not all(n.isdigit() for n in options.values()):
        raise MlircError(
            "mlirc-partial-rows: options are kinds (packed, plain or all), and numbers of readers, rows and columns"
        )
    with ir.Location.unknown(module.context):
        work = _Partial(module, kinds, **(known | {name: int(n) for name, n in options.items()}))
        for function in graph_functions(module):
            calls = [op for op in function.regions[0].blocks[0].operations if isinstance(op, func.CallOp)]
            for call in [c for c in calls if work.kind(c) == "reduction"]:
                work.visit(call)
        if not work.made:
            return
        drop_unused(module)
    run_passes(module, "canonicalize,cse")


@dataclass(frozen=True)
class _Maker:
    """Result `result` of a product's call, which a reduction reads as its argument `argument`."""

    call: func.CallOp
    result: int
    argument: int


class _Partial:
    def __init__(self, module: ir.Module, kinds: str, readers: int, rows: int, columns: int) -> None:
        self.module, self.kinds, self.readers, self.rows, self.columns = module, kinds, readers, rows, columns
        self.kernels = {op.name.value: op for op in module.body.operations if "mlirc.kernel" in op.attributes}
        self.factors: dict[str, RowFactor | None] = {}
        self.made: dict[tuple, func.FuncOp | None] = {}

    def kind(self, call: func.CallOp) -> str:
        """The kind of the kernel that a call is of."""
        kernel = self.kernels.get(call.callee.value)  # None: a loop over time steps
        return "" if kernel is None else ir.StringAttr(kernel.attributes["mlirc.kind"]).value

    def factor(self, call: func.CallOp) -> RowFactor | None:
        """What a reduction is made of, where its factor can go behind products."""
        name = call.callee.value
        if name not in self.factors:
            try:
                self.factors[name] = RowFactor(self.kernels[name].operation)
            except (NoFactor, PayloadError):
                self.factors[name] = None
        return self.factors[name]

    def visit(self, call: func.CallOp) -> None:
        """Takes a reduction apart, where it stands between products."""
        factor = self.factor(call)
        readers = None if factor is None else calls_reading(call.results[0])
        if factor is None or not readers or len(readers) > self.readers:
            return
        maker = self._maker(call, factor)
        if maker is None or any(self.kind(r) != "matmul" for r in readers):
            return
        width = self._width(self.kernels[maker.call.callee.value], factor)
        given = [n for n in range(len(call.operands)) if n != maker.argument]
        if not width or not all(_stands_before(call.operands[n], maker.call) for n in given):
            return
        first = self._producer(maker, call, factor, width)
        behind = [self._reader(reader, call, factor, width) for reader in readers]
        if first is None or not all(isinstance(k, func.FuncOp) for k in behind):
            return
        own = [_moved_before(call.operands[n], maker.call) for n in given]
        with ir.InsertionPoint(maker.call), ir.Location.fused([maker.call.location, call.location]):
            new = func.CallOp(first, [*maker.call.operands, *own])
        *results, operand, parts = list(new.results)
        for old, value in zip(maker.call.results, results, strict=True):
            old.replace_all_uses_with(value)
        maker.call.operation.erase()
        call.results[0].replace_all_uses_with(operand)
        for reader, kernel in zip(readers, behind, strict=True):
            with ir.InsertionPoint(reader), reader.location:
                scaled = func.CallOp(kernel, [*reader.operands, parts])
            for old, value in zip(reader.results, scaled.results, strict=True):
                old.replace_all_uses_with(value)
            reader.operation.erase()
        call.operation.erase()

    def _maker(self, call: func.CallOp, factor: RowFactor) -> _Maker | None:
        """The product whose result, in the reduction's own shape, is what is reduced."""
        for n, value in enumerate(call.operands):
            op = producer(value)
            if op is None or tuple(shape_of(value)) != factor.shape or op.name != "func.call":
                continue
            made_by = op.opview
            if self.kind(made_by) == "matmul" and made_by.operation.block == call.operation.block:
                return _Maker(made_by, list(made_by.results).index(value), n)
        return None

    def _width(self, kernel: func.FuncOp, factor: RowFactor) -> int:
        """Elements of a part of a product's rows; 0 where it makes none."""
        found = describe(kernel.operation)
        rows, columns = factor.shape
        packed = found.contraction is not None and found.contraction.packed > 0
        if found.obstacle or not (packed or found.matvec and rows == 1):
            return 0
        width = PACKED if packed else PLAIN
        if not self._takes(found, rows) or columns < self.columns:
            return 0
        return width if columns % width == 0 and columns > width else 0

    def _takes(self, found: KernelInfo, rows: int) -> bool:
        """Whether products of this kind are asked for, of so many rows."""
        if found.contraction is not None and found.contraction.packed:
            halves = found.contraction.a_type in ("bf16", "f16")
            return self.kinds != "plain" and rows <= min(self.rows, ROWS) and halves
        return self.kinds != "packed" and found.matvec is not None and not found.places

    def _producer(self, maker: _Maker, call: func.CallOp, factor: RowFactor, width: int) -> func.FuncOp | None:
        """The product's kernel with two further results: the row without its factor, and the parts."""
        product, reduction = self.kernels[maker.call.callee.value], self.kernels[call.callee.value]
        key = ("made", product.name.value, reduction.name.value, maker.result, maker.argument, width)
        if key in self.made:
            return self.made[key]
        body = product.regions[0].blocks[0]
        given = [a for n, a in enumerate(reduction.regions[0].blocks[0].arguments) if n != maker.argument]
        groups = ir.RankedTensorType.get([factor.shape[0], factor.shape[1] // width], ir.F32Type.get())
        results = [*[r.type for r in maker.call.results], call.results[0].type, groups]
        kernel = self._begin([*[a.type for a in body.arguments], *[a.type for a in given]], results)
        arguments = list(kernel.regions[0].blocks[0].arguments)
        with ir.InsertionPoint(kernel.regions[0].blocks[0]):
            places: dict[ir.Value, ir.Value] = dict(zip(body.arguments, arguments, strict=False))
            for op in list(body.operations)[:-1]:
                clone_into(op, places)
            inner = [places[v] for v in list(body.operations)[-1].operation.operands]
            values = dict(zip(given, arguments[len(body.arguments) :], strict=True))
            values[reduction.regions[0].blocks[0].arguments[maker.argument]] = inner[maker.result]
            operand = factor.operand(values)
            parts = factor.parts(values, width)
            func.ReturnOp([*inner, operand, parts])
        found = describe(kernel.operation)
        ok = found.partial == width and (found.contraction is not None or found.matvec is not None)
        self.made[key] = self._named(kernel, ok, product, reduction)
        return self.made[key]

    def _reader(self, reader: func.CallOp, call: func.CallOp, factor: RowFactor, width: int) -> func.FuncOp | None:
        """A reading product's kernel whose sums are multiplied by the factor, made of further arguments."""
        product, reduction = self.kernels[reader.callee.value], self.kernels[call.callee.value]
        at = [n for n, v in enumerate(reader.operands) if through_views(v) == call.results[0]]
        key = ("reads", product.name.value, reduction.name.value, tuple(at), width)
        if key not in self.made:
            self.made[key] = None
            before = describe(product.operation)
            if not before.obstacle and len(at) == 1 and self._takes(before, factor.shape[0]):
                self.made[key] = self._scaled(product, reduction, at[0], factor, width)
        return self.made[key]

    def _scaled(
        self, product: func.FuncOp, reduction: func.FuncOp, at: int, factor: RowFactor, width: int
    ) -> func.FuncOp | None:
        body = product.regions[0].blocks[0]
        if not _reads_rows(body, body.arguments[at], factor.shape):
            return None
        groups = ir.RankedTensorType.get([factor.shape[0], factor.shape[1] // width], ir.F32Type.get())
        last = list(body.operations)[-1].operation
        kernel = self._begin([*[a.type for a in body.arguments], groups], [v.type for v in last.operands])
        entry = kernel.regions[0].blocks[0]
        arguments = list(entry.arguments)
        with ir.InsertionPoint(entry):
            places: dict[ir.Value, ir.Value] = dict(zip(body.arguments, arguments, strict=False))
            products, behind = _products_first(body)
            for op in products:
                clone_into(op, places)
            number = factor.factor(arguments[-1])  # behind the products, which do not wait for it
            for op in products:
                if op.name == "linalg.generic" and contraction(op) is not None:
                    places[op.results[0]] = _times(places[op.results[0]], number)
            for op in behind:
                clone_into(op, places)
            func.ReturnOp([places[v] for v in last.operands])
        found, before = describe(kernel.operation), describe(product.operation)
        fits = found.matvec is not None and any(not d.whole for d in found.matvec.dims)
        if before.contraction is not None and before.contraction.packed:
            fits = found.contraction is not None and found.contraction.scaled > 0
        return self._named(kernel, fits, product, reduction)

    def _begin(self, arguments: list[ir.Type], results: list[ir.Type]) -> func.FuncOp:
        with ir.InsertionPoint(self.module.body):
            kernel = func.FuncOp("kernel", (arguments, results), visibility="private")
        kernel.attributes["mlirc.kind"] = ir.StringAttr.get("matmul")
        kernel.add_entry_block()
        return kernel

    def _named(self, kernel: func.FuncOp, fits: bool, *parts: func.FuncOp) -> func.FuncOp | None:
        if not fits:
            kernel.operation.erase()
            return None
        names = dict.fromkeys(n for k in parts for n in ir.ArrayAttr(k.attributes["mlirc.origin"]))
        name = next(n for i in range(len(self.kernels) + 1) if (n := f"matmul_{i}") not in self.kernels)
        kernel.attributes["sym_name"] = ir.StringAttr.get(name)
        kernel.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        kernel.attributes["mlirc.origin"] = ir.ArrayAttr.get(list(names)[:ORIGIN_LIMIT])
        self.kernels[name] = kernel
        return kernel


def _products_first(body: ir.Block) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """(a kernel's products and what stands in front of them, what reads their results): one loop has all products."""
    front: list[ir.Operation] = []
    behind: list[ir.Operation] = []
    sums: set[ir.Value] = set()
    for op in [o.operation for o in body.operations][:-1]:
        reads = any(v in sums for v in op.operands)
        (behind if reads else front).append(op)
        if reads or op.name == "linalg.generic" and contraction(op) is not None:
            sums |= set(op.results)
    return front, behind


def _times(sums: ir.Value, factor: ir.Value) -> ir.Value:
    """The sums [.., M, N] of a product, or [.., N] of one row, times the factor of each row, at the insertion point."""
    op = sums.owner.operation
    s, roles = structure(op), contraction(op)
    assert roles is not None
    (out,) = s.out_maps
    rank = len(out)
    count = shape_of(factor)[0]
    # Of one row the number is no dimension's: threads have it whatever they have of the sums.
    rows = next((i for i, d in enumerate(out) if d in roles.m and s.extents[d] == count), None) if count > 1 else None
    t = ir.RankedTensorType(sums.type)
    dims = list(range(rank))
    new = _build.generic(
        [sums, factor], [_build.empty(list(t.shape), t.element_type)], [dims, [rows], dims], [True] * rank
    )
    inner = new.regions[0].blocks.append(t.element_type, ir.F32Type.get(), t.element_type)
    with ir.InsertionPoint(inner):
        linalg.YieldOp([arith.MulFOp(*list(inner.arguments)[:2]).result])
    return new.results[0]


def _reads_rows(body: ir.Block, value: ir.Value, shape: tuple[int, ...]) -> bool:
    """Whether nothing but products, with sums in f32 from zero, read an argument, as their rows."""
    readers = [(u.owner.operation, u.operand_number) for u in value.uses]
    products = [op for op in structured_ops(body) if contraction(op) is not None]
    if not readers or {op for op, _ in readers} != set(products):
        return False
    for op, number in readers:
        s, roles = structure(op), contraction(op)
        assert roles is not None
        if number != 0 or len(roles.k) != 1 or not _starts_from_zero(s.outputs[0]):
            return False
        rows = [s.extents[d] for d in (*roles.batch, *roles.m) if s.extents[d] > 1]
        if s.extents[roles.k[0]] != shape[1] or rows != [shape[0]] * (shape[0] > 1):
            return False
        if shape[0] > 1 and not any(s.extents[d] == shape[0] for d in roles.m) or None in s.out_maps[0]:
            return False
    return True


def _starts_from_zero(value: ir.Value) -> bool:
    fill = producer(value)
    zero = producer(fill.operands[0]) if fill is not None and fill.name == "linalg.fill" else None
    if zero is None or zero.name != "arith.constant" or str(zero.results[0].type) != "f32":
        return False
    return ir.FloatAttr(zero.attributes["value"]).value == 0


def _stands_before(value: ir.Value, call: func.CallOp) -> bool:
    """Whether a value, but for views, has been made where a call stands."""
    op = producer(through_views(value))
    if op is None:
        return True
    order = [o.operation for o in call.operation.block.operations]
    return op in order and order.index(op) < order.index(call.operation)


def _moved_before(value: ir.Value, call: func.CallOp) -> ir.Value:
    """The value where a call stands: views behind that are copied."""
    op = producer(value)
    if op is None or op.name not in VIEWS:
        return value
    source = _moved_before(op.operands[0], call)
    with ir.InsertionPoint(call), op.location:
        return clone_into(op, {op.operands[0]: source}).results[0]
