"""One kernel function: its foralls become `gpu.func`s, itself the host function that launches them."""

from __future__ import annotations

import math

from mlirc.errors import MlircError
from mlirc.mlir import arith, func, gpu, ir, memref
from mlirc.passes.distribute import memory
from mlirc.passes.distribute.block import Scope
from mlirc.passes.distribute.emitter import Emitter, Index, Unsupported
from mlirc.passes.distribute.memory import storage_type
from mlirc.passes.distribute.slices import DYNAMIC

MAX_GRID = (1 << 31) - 1


def memref_of(t: ir.Type) -> ir.MemRefType:
    """The buffer type of a tensor (or scalar argument, as rank 0): identity layout, i1 as bytes."""
    if not isinstance(t, ir.RankedTensorType):
        return ir.MemRefType.get([], storage_type(t))
    t = ir.RankedTensorType(t)
    if not t.has_static_shape:
        raise MlircError(f"{t}: kernels are compiled for fixed shapes")
    return ir.MemRefType.get(list(t.shape), storage_type(t.element_type))


def distribute_function(module: ir.Module, function) -> None:
    """Replaces a `tiles`-level kernel function by a gpu.module and a host function of the same name."""
    name = ir.StringAttr(function.attributes["sym_name"]).value
    try:
        Kernel(module, function, name).lower()
    except Unsupported as e:
        raise MlircError(f"kernel {name}: {e}") from e


class Kernel:
    """Lowering state of one kernel function."""

    def __init__(self, module: ir.Module, function, name: str):
        self.module, self.function, self.name = module, function, name
        self.block = function.regions[0].blocks[0]
        attributes = function.attributes
        self.warps = ir.IntegerAttr(attributes["mlirc.warps"]).value if "mlirc.warps" in attributes else 4
        if not 1 <= self.warps <= 32:
            raise Unsupported(f"mlirc.warps = {self.warps}: a block has 1 to 32 warps")
        self.buffers: dict[ir.Value, ir.Value] = {}  # root tensor -> memref in the host function

    def lower(self) -> None:
        ops = [o.operation for o in self.block.operations]
        foralls = [o for o in ops if o.name == "scf.forall"]
        returned = list(ops[-1].operands)
        kept = {a: self.function.attributes[a] for a in self.function.attributes if a.startswith("mlirc.")}
        with self.function.location, ir.InsertionPoint(self.function):
            gpu_module = gpu.GPUModuleOp(ir.StringAttr.get(f"{self.name}_gpu"))
            if not gpu_module.regions[0].blocks:
                gpu_module.regions[0].blocks.append()
            inputs = [memref_of(a.type) for a in self.block.arguments]
            outputs = [memref_of(v.type) for v in returned]
            host = func.FuncOp(f"{self.name}_host", ir.FunctionType.get([*inputs, *outputs], []))
            for key, value in kept.items():
                host.attributes[key] = value
            entry = host.add_entry_block()
        self._bind_buffers(foralls, returned, entry, len(inputs))
        with ir.InsertionPoint(entry):
            for i, forall in enumerate(foralls):
                with forall.location:
                    self._launch(gpu_module, forall, f"{self.name}_{i}" if len(foralls) > 1 else self.name)
            with self.function.location:
                func.ReturnOp([])
        self.function.operation.erase()
        host.attributes["sym_name"] = ir.StringAttr.get(self.name)
        self.module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()

    # -- buffers

    def _root(self, value: ir.Value) -> ir.Value:
        """The argument or forall result that a function-level tensor is a reshape of."""
        owner = value.owner
        while not isinstance(owner, ir.Block) and owner.name in (
            "tensor.expand_shape",
            "tensor.collapse_shape",
            "tensor.cast",
        ):
            value = owner.operands[0]
            owner = value.owner
        return value

    def _bind_buffers(self, foralls, returned, entry: ir.Block, num_inputs: int) -> None:
        for i, argument in enumerate(self.block.arguments):
            self.buffers[argument] = entry.arguments[i]
        for i, value in enumerate(returned):
            root = self._root(value)
            if isinstance(root.owner, ir.Block):
                raise Unsupported("a kernel that returns its argument: there is nothing to launch")
            if root in self.buffers:
                raise Unsupported("a kernel that returns one tensor twice")
            self.buffers[root] = entry.arguments[num_inputs + i]
        with ir.InsertionPoint(entry):
            for forall in foralls:
                for result in forall.results:
                    if result not in self.buffers:
                        with forall.location:
                            self.buffers[result] = memref.AllocOp(memref_of(result.type), [], []).result

    # -- launches

    def _launch(self, gpu_module, forall, symbol: str) -> None:
        grid = Grid(forall)
        used = self._used_roots(forall)
        types = [self.buffers[r].type for r in used]
        with ir.InsertionPoint(gpu_module.regions[0].blocks[0]):
            kernel = gpu.GPUFuncOp(ir.FunctionType.get(types, []), symbol, kernel=True)
            kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([self.warps * 32, 1, 1])
            entry = kernel.regions[0].blocks[0] if kernel.regions[0].blocks else kernel.regions[0].blocks.append(*types)
        em = Emitter(entry, self.warps)
        with ir.InsertionPoint(entry):
            self._emit_body(em, forall, grid, dict(zip(used, entry.arguments, strict=True)))
            gpu.ReturnOp([])
        kernel.attributes["mlirc.smem"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), em.smem_bytes)
        if grid.total == 0:
            return
        index = ir.IndexType.get()
        one = func_constant(index, 1)
        gpu.LaunchFuncOp(
            [f"{self.name}_gpu", symbol],
            (func_constant(index, grid.total), one, one),
            (func_constant(index, self.warps * 32), one, one),
            [self.buffers[r] for r in used],
            dynamic_shared_memory_size=func_constant(ir.IntegerType.get_signless(32), em.smem_bytes),
        )

    def _used_roots(self, forall) -> list[ir.Value]:
        """Buffers that a forall touches: read from outside, then its outputs."""
        used: list[ir.Value] = []

        def visit(op) -> None:
            for v in op.operands:
                if isinstance(v.type, ir.RankedTensorType) or not isinstance(v.owner, ir.Operation | ir.OpView):
                    self._note(self._root(v), used)
            for region in op.regions:
                for block in region.blocks:
                    for inner in block.operations:
                        visit(inner.operation)

        for region in forall.regions:
            for inner in region.blocks[0].operations:
                visit(inner.operation)
        for r in forall.results:
            self._note(r, used)
        return used

    def _note(self, root: ir.Value, used: list[ir.Value]) -> None:
        if root in self.buffers and root not in used:
            used.append(root)

    def _emit_body(self, em: Emitter, forall, grid: Grid, arguments: dict[ir.Value, ir.Value]) -> None:
        scope = Scope(em)
        for root, value in arguments.items():
            self._bind_view(scope, root, value)
        for op in self.block.operations:
            if op.operation == forall:
                break
            self._function_level(scope, op.operation, arguments)
        body = forall.regions[0].blocks[0]
        for iv, value in zip(body.arguments, grid.indices(em, scope), strict=False):
            scope.scalars[iv] = value
        targets = {}
        for argument, result in zip(list(body.arguments)[grid.rank :], forall.results, strict=True):
            targets[argument] = scope.view(result)
            scope.views[argument] = scope.view(result)
        ops = list(body.operations)
        for op in ops[:-1]:
            scope.lower(op)
        for insert in ops[-1].regions[0].blocks[0].operations:
            with insert.location:
                scope.store(insert.operation, targets)

    def _bind_view(self, scope: Scope, value: ir.Value, base: ir.Value) -> None:
        t = value.type
        if not isinstance(t, ir.RankedTensorType):
            loaded = memory.load_elements(scope.em, memory.View(base, [], []), [], 1)
            scope.scalars[value] = memory.join(scope.em, [loaded], 1, t, 1)
            return
        shape = list(ir.RankedTensorType(t).shape)
        base = reshaped(base, shape)
        scope.bind_view(value, memory.View(base, [0] * len(shape), list(range(len(shape)))), shape, shape)

    def _function_level(self, scope: Scope, op, arguments) -> None:
        """Ops in front of the forall: constants and scalars, and reshapes of arguments and of earlier results."""
        if op.name in ("scf.forall", "tensor.empty"):
            return
        if op.results and isinstance(op.results[0].type, ir.RankedTensorType):
            if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
                root = self._root(op.results[0])
                if root in arguments:
                    self._bind_view(scope, op.results[0], arguments[root])
                return
            if op.name == "tensor.extract_slice" and scope.view(op.operands[0]) is None:
                return
        scope.lower(op)


class Grid:
    """The blocks of a forall: one launch dimension over all its induction variables, the last one fastest. The
    attribute `mlirc.group_m` visits that many rows of a two-dimensional grid before moving on along columns, for
    reuse in L2."""

    def __init__(self, forall):
        self.forall = forall
        segments = list(ir.DenseI32ArrayAttr(forall.attributes["operandSegmentSizes"]))
        if any(segments[:3]):
            raise Unsupported("an scf.forall with bounds that are not constant")
        self.lower, upper, self.step = (
            list(ir.DenseI64ArrayAttr(forall.attributes[n]))
            for n in ("staticLowerBound", "staticUpperBound", "staticStep")
        )
        if DYNAMIC in [*self.lower, *upper, *self.step]:
            raise Unsupported("an scf.forall with bounds that are not constant")
        self.counts = [max(0, -(-(u - lo) // s)) for lo, u, s in zip(self.lower, upper, self.step, strict=True)]
        self.rank = len(self.counts)
        self.total = math.prod(self.counts)
        if self.total > MAX_GRID:
            raise Unsupported(f"{self.total} blocks, more than a launch takes; use larger tiles")

    def indices(self, em: Emitter, scope: Scope) -> list[Index]:
        block: Index = gpu.BlockIdOp(gpu.Dimension.x).result if self.total > 1 else 0
        order = self._split(em, block)
        return [em.add(lo, em.mul(i, s)) for lo, s, i in zip(self.lower, self.step, order, strict=True)]

    def _split(self, em: Emitter, block: Index) -> list[Index]:
        counts = self.counts
        if "mlirc.group_m" in self.forall.attributes and self.rank >= 2:
            group = ir.IntegerAttr(self.forall.attributes["mlirc.group_m"]).value
            rows, columns = counts[-2], counts[-1]
            if 1 < group and rows % group == 0:
                inner = em.rem(block, rows * columns)
                outer = em.div(block, rows * columns)
                band, within = em.div(inner, group * columns), em.rem(inner, group * columns)
                row = em.add(em.mul(band, group), em.rem(within, group))
                return [*self._mixed(em, outer, counts[:-2]), row, em.div(within, group)]
        return self._mixed(em, block, counts)

    @staticmethod
    def _mixed(em: Emitter, block: Index, counts: list[int]) -> list[Index]:
        out: list[Index] = []
        for i, n in enumerate(reversed(counts)):
            last = i == len(counts) - 1
            out.append(0 if n == 1 else block if last else em.rem(block, n))
            block = em.div(block, n)
        return out[::-1]


def reshaped(base: ir.Value, shape: list[int]) -> ir.Value:
    """A contiguous memref seen with another shape."""
    t = ir.MemRefType(base.type)
    if list(t.shape) == shape:
        return base
    rank = len(t.shape)
    flat = base
    if rank != 1:
        flat_type = ir.MemRefType.get([math.prod(t.shape)] if rank else [1], t.element_type)
        if rank == 0:
            flat = memref.ExpandShapeOp(flat_type, base, [], [], [1]).result
        else:
            flat = memref.CollapseShapeOp(flat_type, base, [list(range(rank))]).result
    if len(shape) == 1:
        return flat
    if not shape:
        return memref.CollapseShapeOp(ir.MemRefType.get([], t.element_type), flat, []).result
    wide = ir.MemRefType.get(shape, t.element_type)
    return memref.ExpandShapeOp(wide, flat, [list(range(len(shape)))], [], shape).result


def func_constant(t: ir.Type, value: int) -> ir.Value:
    return arith.ConstantOp(t, value).result
