"""`mlirc-fuse-row-writes`: what rotates the rows of a product, and writes them to a cache, is computed by its blocks.

A `kernels`-level pass. A bundle that alone reads a product of one row (of queries, keys and values), and whose every
part computes each element from elements of the product's members at the same place (`passes/graph/members.py`), becomes
a part of the product's kernel: that computes the members, whose matrices are the halves of the heads' rows, and ends in
ops that say where rows go (`schedule.place_results`). Packed weights have members of whole panels of words. The
roundings are those that there were.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.dialects.mlirc_dialect import DEQUANTIZE
from mlirc.dialects.schedule import _build
from mlirc.dialects.schedule._base import PayloadError
from mlirc.dialects.schedule._dims import Dims, structured_ops
from mlirc.errors import MlircError
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import arith, func, ir, linalg, nested, run_passes, tensor
from mlirc.passes import register
from mlirc.passes.distribute.instructions.mma_direct import HALF_TILE
from mlirc.passes.graph.bundles import KIND, drop_unused
from mlirc.passes.graph.classify import maps
from mlirc.passes.graph.emit import make_generic
from mlirc.passes.graph.members import Heads, Member, NoMembers
from mlirc.passes.graph.outline import ORIGIN_LIMIT, clone_into, graph_functions
from mlirc.passes.loops.row_writes import is_row_write
from mlirc.schedule.kernel_info import describe

MEMBERS = (1, 2)  # of a head: all of its rows, or halves
LONGEST = 32 * 1024  # elements of a row of the matrix: longer ones are divided among blocks


@register("mlirc-fuse-row-writes")
def run(module: ir.Module, **options: str) -> None:
    """Moves bundles into the kernels of the products that they read, in place. Raises MlircError for an option."""
    if options:
        raise MlircError("mlirc-fuse-row-writes has no options")
    with ir.Location.unknown(module.context):
        work = _Fuse(module)
        for function in graph_functions(module):
            calls = [op for op in function.regions[0].blocks[0].operations if isinstance(op, func.CallOp)]
            for call in [c for c in calls if work.kind(c) == KIND]:
                work.visit(call)
        if not work.changed:
            return
        drop_unused(module)
    run_passes(module, "canonicalize,cse")


@dataclass(frozen=True)
class _Part:
    """What makes a result of a bundle: a map, and the op that writes its rows, where there is one."""

    map: ir.Operation
    write: ir.Operation | None


class _Fuse:
    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.kernels = {op.name.value: op for op in module.body.operations if "mlirc.kernel" in op.attributes}
        self.known: dict[
            str, func.FuncOp | None
        ] = {}  # by their text without a name; None: no kernel that is scheduled
        self.changed = False

    def kind(self, call: func.CallOp) -> str:
        """The kind of the kernel that a call is of."""
        kernel = self.kernels.get(call.callee.value)  # None: a loop over time steps
        return "" if kernel is None else ir.StringAttr(kernel.attributes["mlirc.kind"]).value

    def visit(self, call: func.CallOp) -> None:
        """Moves a bundle into the product that it reads, where that can be."""
        for number, value in enumerate(call.operands):
            product = self._product(value, call)
            if product is None:
                continue
            given = [*product.operands, *[v for n, v in enumerate(call.operands) if n != number]]
            kernel = self._kernel(product, call, number)
            if kernel is None or not _all_before(given, product, call):
                continue
            self.changed = True
            with ir.InsertionPoint(call), ir.Location.fused([product.location, call.location]):
                new = func.CallOp(kernel, given)
            for old, result in zip(call.results, new.results, strict=True):
                old.replace_all_uses_with(result)
            call.operation.erase()
            while not isinstance(value.owner, ir.Block) and value.owner.name in VIEWS:
                view, value = value.owner.operation, value.owner.operands[0]
                view.erase()
            product.operation.erase()
            return

    def _product(self, value: ir.Value, reader: func.CallOp) -> func.CallOp | None:
        """The call of a product with one row that makes a value for one reader alone, through views."""
        while len(list(value.uses)) == 1 and not isinstance(value.owner, ir.Block):
            op = value.owner
            if isinstance(op, func.CallOp):
                one_row = len(op.results) == 1 and all(n == 1 for n in shape_of(op.results[0])[:-1])
                return op if self.kind(op) == "matmul" and one_row else None
            if op.name not in VIEWS:
                return None
            value = op.operands[0]
        return None

    def _kernel(self, product: func.CallOp, call: func.CallOp, number: int) -> func.FuncOp | None:
        """The kernel of both; None where there is none, or no script for it."""
        first, second = self.kernels[product.callee.value], self.kernels[call.callee.value]
        key = f"{first.name.value} {second.name.value} {number}"
        if key not in self.known:
            self.known[key] = None
            for members in MEMBERS:
                try:
                    made = _Builder(self.module, first, second, number, members).build()
                except (NoMembers, PayloadError):
                    continue
                if _fits(made):
                    self.known[key] = self._named(made, first, second)
                    break
                made.operation.erase()
        return self.known[key]

    def _named(self, kernel: func.FuncOp, *parts: func.FuncOp) -> func.FuncOp:
        names = dict.fromkeys(n for k in parts for n in ir.ArrayAttr(k.attributes["mlirc.origin"]))
        name = next(n for i in range(len(self.kernels) + 1) if (n := f"matmul_{i}") not in self.kernels)
        kernel.attributes["sym_name"] = ir.StringAttr.get(name)
        kernel.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        kernel.attributes["mlirc.origin"] = ir.ArrayAttr.get(list(names)[:ORIGIN_LIMIT])
        self.kernels[name] = kernel
        return kernel


def _all_before(values: list[ir.Value], product: func.CallOp, call: func.CallOp) -> bool:
    """Whether what a call is given has been made; it always has been where the bundle stands."""
    return product.operation.block == call.operation.block and all(v not in list(call.results) for v in values)


def _fits(kernel: func.FuncOp) -> bool:
    """Whether a script schedules the kernel."""
    kernel_info = describe(kernel.operation)
    found, product = kernel_info.matvec, kernel_info.contraction
    if found is None or not kernel_info.places or found.row_length > LONGEST:
        return False
    if any(DEQUANTIZE in op.attributes for op in structured_ops(kernel.regions[0].blocks[0])):
        # Words are of panels of rows: a block has whole ones, of one head.
        return product is not None and product.packed > 0 and kernel_info.places % HALF_TILE == 0
    return any(not d.whole for d in found.dims)


class _Builder:
    """Makes the kernel of a product and of a bundle whose argument `number` is the product's result."""

    def __init__(self, module: ir.Module, product: func.FuncOp, bundle: func.FuncOp, number: int, members: int) -> None:
        self.module = module
        self.product, self.bundle = product.regions[0].blocks[0], bundle.regions[0].blocks[0]
        self.read = self.bundle.arguments[number]
        returned = list(list(self.product.operations)[-1].operation.operands)
        self.result = returned[0]
        self.parts = [_part(v) for v in list(self.bundle.operations)[-1].operation.operands]
        rows = {shape_of(p.map.results[0])[-1] for p in self.parts if shape_of(p.map.results[0])}
        total = shape_of(self.result)[-1] if shape_of(self.result) else 0
        if len(rows) != 1 or not total or total % (each := rows.pop()) or each % members:
            raise NoMembers
        self.cut = Heads(total // each, members, each // members)
        self.each = [[Member(p.map, self.read, self.cut, j) for j in range(members)] for p in self.parts]
        for found in self.each:
            if len({(m.first, m.step, m.heads) for m in found}) != 1:
                raise NoMembers
        ops = structured_ops(self.product)
        self.dims = Dims(ops)
        if self.result not in self.dims.produced:
            raise NoMembers
        self.class_of_rows = self.dims.value_classes(self.result)[-1]
        self.values: dict[ir.Value, ir.Value] = {}  # of the product's kernel, and of the bundle's, in the new one
        self.of_member: dict[tuple[ir.Value, int], ir.Value] = {}

    def build(self) -> func.FuncOp:
        arguments = [*self.product.arguments, *[a for a in self.bundle.arguments if a != self.read]]
        results = [v.type for v in list(self.bundle.operations)[-1].operation.operands]
        with ir.InsertionPoint(self.module.body):
            kernel = func.FuncOp("kernel", ([a.type for a in arguments], results), visibility="private")
        kernel.attributes["mlirc.kind"] = ir.StringAttr.get("matmul")
        self.values |= dict(zip(arguments, kernel.add_entry_block().arguments, strict=True))
        try:
            with ir.InsertionPoint(kernel.regions[0].blocks[0]):
                self._product_members()
                func.ReturnOp([self._placed(p, m) for p, m in zip(self.parts, self.each, strict=True)])
        except (NoMembers, PayloadError):
            kernel.operation.erase()
            raise
        return kernel

    def _product_members(self) -> None:
        """The product's ops, those that have its rows once for each member."""
        for i, op in enumerate(self.dims.ops):
            if self.class_of_rows not in self.dims.of[i]:
                clone_into(op, self.values)
                continue
            if self.class_of_rows in self.dims.reduced:
                raise NoMembers
            for j in range(self.cut.members):
                self._split(i, j)

    def _split(self, i: int, j: int) -> None:
        """Op i on the rows of member j: their dimension is two, the head and the row in its member."""
        s = self.dims.structures[i]
        if s.op.name == "linalg.fill":
            out = self._operand(s.outputs[0], len(shape_of(s.outputs[0])) - 1, j)
            value = s.inputs[0] if s.inputs[0] in self.values else None
            if value is None:
                clone_into(s.inputs[0].owner, self.values)
            self.of_member[s.op.results[0], j] = linalg.fill(self.values[s.inputs[0]], outs=[out])
            return
        rows = self.dims.of[i].index(self.class_of_rows)
        rank = len(s.parallel) + 1
        exprs = []
        operands = []
        for operand, map_ in zip(s.operands, maps(s.op), strict=True):
            at = [k for k, e in enumerate(map_.results) if isinstance(e, ir.AffineDimExpr) and e.position == rows]
            plain = all(isinstance(e, ir.AffineDimExpr | ir.AffineConstantExpr) for e in map_.results)
            if not plain:
                raise NoMembers
            operands.append(self._operand(operand, at[0] if at else None, j))
            results = []
            for e in map_.results:
                if isinstance(e, ir.AffineConstantExpr):
                    results.append(e)
                    continue
                p = e.position
                results += [ir.AffineExpr.get_dim(p if p <= rows else p + 1)]
                results += [ir.AffineExpr.get_dim(p + 1)] if p == rows else []
            exprs.append(ir.AffineMap.get(rank, 0, results))
        iterators = ["parallel" if p else "reduction" for p in s.parallel]
        iterators[rows:rows] = ["parallel"]
        inputs = len(s.inputs)
        new = make_generic(operands[:inputs], operands[inputs:], exprs, iterators)
        for name in s.op.attributes:
            if name.startswith("mlirc."):
                new.attributes[name] = s.op.attributes[name]
        self._clone_body(s.op, new, rows, j)
        for old, made in zip(s.op.results, new.results, strict=True):
            self.of_member[old, j] = made

    def _clone_body(self, old: ir.Operation, new: ir.Operation, rows: int, j: int) -> None:
        source = old.regions[0].blocks[0]
        block = new.regions[0].blocks[0]
        places = dict(zip(source.arguments, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in (o.operation for o in source.operations):
                if op.name == "linalg.index":
                    places[op.results[0]] = self._index(ir.IntegerAttr(op.attributes["dim"]).value, rows, j)
                    continue
                clone = op.clone().operation
                for inner in (clone, *nested(clone)):
                    for n, v in enumerate(inner.operands):
                        if v in places:
                            inner.operands[n] = places[v]
                        elif not isinstance(v.owner, ir.Block) and v.owner.operation.block == old.block:
                            inner.operands[n] = self._outside(v, new)
                        elif v in self.values:
                            inner.operands[n] = self.values[v]
                places |= dict(zip(op.results, clone.results, strict=True))

    def _outside(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """What a body captures of its kernel."""
        if value not in self.values:
            with ir.InsertionPoint(before):
                clone_into(value.owner, self.values)
        return self.values[value]

    def _index(self, dim: int, rows: int, j: int) -> ir.Value:
        if dim != rows:
            return linalg.IndexOp(dim if dim < rows else dim + 1).result
        head, own = linalg.IndexOp(rows).result, linalg.IndexOp(rows + 1).result
        first = arith.MulIOp(head, _build.index(self.cut.rows)).result
        return arith.AddIOp(arith.AddIOp(first, own).result, _build.index(j * self.cut.width)).result

    def _operand(self, value: ir.Value, dim: int | None, j: int) -> ir.Value:
        """An operand in the new kernel: of member j, where its dimension `dim` is the product's rows."""
        if not isinstance(value.type, ir.RankedTensorType) or dim is None:
            if value not in self.values:
                clone_into(value.owner, self.values)
            return self.values[value]
        if (value, j) not in self.of_member:
            if value in self.dims.produced:
                raise NoMembers
            if value not in self.values:
                clone_into(value.owner, self.values)
            self.of_member[value, j] = self._member_of(self.values[value], dim, j, self.cut.count)
        return self.of_member[value, j]

    def _member_of(self, value: ir.Value, dim: int, j: int, heads: int) -> ir.Value:
        """Member j of a tensor whose dimension `dim` is the rows of so many heads; 0: of one, which it is none for."""
        shape, element = list(shape_of(value)), ir.RankedTensorType(value.type).element_type
        own = [heads, self.cut.width] if heads else [self.cut.width]
        if not isinstance(value.owner, ir.Block) and value.owner.name == "tensor.empty":
            return tensor.EmptyOp([*shape[:dim], *own, *shape[dim + 1 :]], element).result
        several = self.cut.members > 1
        cut = [*own[:-1], self.cut.members, self.cut.width] if several else own
        wide = [*shape[:dim], *cut, *shape[dim + 1 :]]
        more = len(cut) - 1
        groups = [[k] for k in range(dim)] + [list(range(dim, dim + more + 1))]
        groups += [[k + more] for k in range(dim + 1, len(shape))]
        value = tensor.ExpandShapeOp(ir.RankedTensorType.get(wide, element), value, groups, [], wide).result
        if not several:
            return value
        at = dim + len(cut) - 2
        offsets, sizes = [0] * len(wide), list(wide)
        offsets[at], sizes[at] = j, 1
        type_ = ir.RankedTensorType.get([*wide[:at], *wide[at + 1 :]], element)
        return tensor.ExtractSliceOp(type_, value, [], [], [], offsets, sizes, [1] * len(wide)).result

    def _placed(self, part: _Part, members: list[Member]) -> ir.Value:
        """A result of the bundle: rows of members beside each other, written where the bundle's op writes them."""
        rows = self._rows(members)
        if part.write is None:
            if rows.type != part.map.results[0].type:
                raise NoMembers
            return rows
        if rows.type != part.write.operands[0].type:
            raise NoMembers
        for v in list(part.write.operands)[1:]:
            if v not in self.values:
                clone_into(v.owner, self.values)
        new = part.write.clone().operation
        new.operands[0] = rows
        for n, v in enumerate(list(part.write.operands)[1:]):
            new.operands[n + 1] = self.values[v]
        return new.results[0]

    def _rows(self, members: list[Member]) -> ir.Value:
        made = [self._member(m) for m in members]
        first, width = members[0], self.cut.width
        element = ir.RankedTensorType(made[0].type).element_type
        flat = ir.RankedTensorType.get([first.heads, width], element)
        offsets, sizes, steps = [0, first.first, 0], [1, first.heads, width], [1, first.step, 1]
        cuts = [tensor.ExtractSliceOp(flat, m, [], [], [], offsets, sizes, steps).result for m in made]
        if len(cuts) == 1:
            return cuts[0]
        joined = tensor.EmptyOp([first.heads, len(cuts), width], element).result
        for j, cut in enumerate(cuts):
            at = [0, j, 0], [first.heads, 1, width], [1, 1, 1]
            joined = tensor.InsertSliceOp(cut, joined, [], [], [], *at).result
        type_ = ir.RankedTensorType.get([first.heads, width * len(cuts)], element)
        return tensor.CollapseShapeOp(type_, joined, [[0], [1, 2]]).result

    def _member(self, member: Member) -> ir.Value:
        products = [self.of_member[self.result, j] for j in range(self.cut.members)]
        if any(n != 1 for n in shape_of(products[0])[:-2]) or len(shape_of(products[0])) != 3:
            raise NoMembers

        def input_of(operand: ir.Value, dim: int | None) -> ir.Value:
            if operand not in self.values:
                clone_into(operand.owner, self.values)
            value = self.values[operand]
            return value if dim is None or self.cut.members == 1 else self._member_of(value, dim, member.j, 0)

        return member.build(products, input_of)


def _part(value: ir.Value) -> _Part:
    """What makes a result of a bundle. Raises NoMembers for anything but maps, and writes of what they make."""
    op = value.owner
    if isinstance(op, ir.Block):
        raise NoMembers
    op = op.operation
    if is_row_write(op):
        made_by = op.operands[0].owner
        while not isinstance(made_by, ir.Block) and made_by.name in VIEWS:
            made_by = made_by.operands[0].owner
        if isinstance(made_by, ir.Block) or made_by.name != "linalg.generic":
            raise NoMembers
        return _Part(made_by.operation, op)
    if op.name != "linalg.generic":
        raise NoMembers
    return _Part(op, None)
