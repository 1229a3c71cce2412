"""Loop nests to GPU launches: one thread per point, one gpu.func per nest, or for neighbouring nests that do not depend
on each other, each of which has blocks of its own."""

from __future__ import annotations

import math

from mlirc.errors import MlircError
from mlirc.mlir import arith, gpu, ir, memref, nested, run_passes, scf
from mlirc.passes.loops.buffers import is_start
from mlirc.passes.loops.nests import Nest, can_fuse, groups, is_pure, is_view, nest_of, owner, root, walk

_ALLOCATIONS = {"memref.alloc", "memref.alloca"}
_HOST = _ALLOCATIONS | {"memref.dealloc", "memref.assume_alignment"}


def _index(number: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), ir.IntegerAttr.get(ir.IndexType.get(), number)).result


class _Mapper:
    """The mapping of one function. Pure ops, views and loads of inputs stay where they are until some launch that
    needs them has its own copy; everything with an effect ends in a nest."""

    def __init__(self, module: ir.Module, function: ir.Operation, threads: int):
        self.module = module
        self.function = function
        self.threads = threads
        self.name = ir.StringAttr(function.attributes["sym_name"]).value
        self.block = function.regions[0].blocks[0]
        self.unwritten: set[ir.Value] = set()

    def _stays(self, op: ir.Operation) -> bool:
        """Whether an op can be repeated inside of the launches that use its results."""
        if is_pure(op) or is_view(op):
            return True
        return op.name == "memref.load" and root(op.operands[0]) in self.unwritten

    def nests(self) -> list[Nest]:
        """The function's effects in order; neighbouring serial ops are one nest, and so are nests that can fuse."""
        ops = [op.operation for op in self.block.operations][:-1]
        self.unwritten = set(self.block.arguments) - self._written(ops)
        result: list[Nest] = []
        for op in ops:
            if op.name in _HOST or is_start(op):
                continue
            if self._stays(op):
                makers = [maker for v in op.operands if (maker := owner(v)) is not None]
                if result and result[-1].is_serial and any(maker in result[-1].body for maker in makers):
                    result[-1].body.append(op)
                continue
            nest = nest_of(op) or Nest([], [], [op])
            if nest.ivs and math.prod(nest.extents) == 0:
                for dead in reversed(nest.body):
                    dead.erase()
            elif not nest.body:
                continue
            elif result and result[-1].is_serial and nest.is_serial:
                result[-1].body += nest.body
            elif result and can_fuse(result[-1], nest):
                self._fuse(result[-1], nest)
            else:
                result.append(nest)
        return result

    def _written(self, ops: list[ir.Operation]) -> set[ir.Value]:
        """Roots of the buffers that anything but a load may write."""
        written = set()
        for op in ops:
            if op.name in _HOST or is_view(op):
                continue
            for inner in walk(op):
                if inner.name == "memref.load" or is_view(inner):
                    continue
                written |= {root(v) for v in inner.operands if isinstance(v.type, ir.MemRefType)}
        return written

    def _fuse(self, first: Nest, second: Nest) -> None:
        for ours, theirs in zip(first.ivs, second.ivs, strict=True):
            theirs.replace_all_uses_with(ours)
        first.body += second.body

    def spill(self, nests: list[Nest]) -> None:
        """Gives scalars that a serial nest makes and others use a place in memory."""
        for nest in nests:
            if not nest.is_serial:
                continue
            inside = {inner for op in nest.body for inner in walk(op)}
            for op in list(nest.body):
                for result in op.results:
                    users = [u for u in result.uses if u.owner.operation not in inside]
                    if users:
                        self._spill_one(nest, op, result)

    def _spill_one(self, nest: Nest, op: ir.Operation, result: ir.Value) -> None:
        if isinstance(result.type, ir.MemRefType | ir.ShapedType):
            raise MlircError(f"kernel {self.name}: {op.name} at {op.location} makes a {result.type} outside of a loop")
        with op.location:
            with ir.InsertionPoint.at_block_begin(self.block):
                place = memref.AllocOp(ir.MemRefType.get([], result.type), [], []).result
            with ir.InsertionPoint.after(op):
                loaded = memref.LoadOp(place, []).result
                result.replace_all_uses_with(loaded)
                store = memref.StoreOp(result, place, [])
            store.operation.move_before(loaded.owner)
        nest.body.append(store.operation)
        nest.body.sort(key=self._position)

    def _position(self, op: ir.Operation) -> int:
        order = [o.operation for o in self.block.operations]
        return order.index(op)

    def run(self) -> None:
        nests = self.nests()
        self.spill(nests)
        with ir.InsertionPoint(self.function):
            container = gpu.GPUModuleOp(f"{self.name}_gpu")
        container.bodyRegion.blocks.append()
        for number, group in enumerate(groups(nests)):
            with group[0].body[0].location:
                self._launch(container, f"{self.name}_{number}", group)
        self._remove_leftovers()
        self._move_globals(container)

    def _move_globals(self, container: gpu.GPUModuleOp) -> None:
        """Constant tables go where the kernels are."""
        used = {
            ir.FlatSymbolRefAttr(op.attributes["name"]).value
            for op in walk(container.operation)
            if op.name == "memref.get_global"
        }
        first = container.bodyRegion.blocks[0].operations[0] if used else None
        for view in self.module.body.operations:
            op = view.operation
            if op.name == "memref.global" and ir.StringAttr(op.attributes["sym_name"]).value in used:
                assert first is not None  # the kernel that uses the global
                op.move_before(first.operation)

    def _launch(self, container: gpu.GPUModuleOp, name: str, group: list[Nest]) -> None:
        """Moves nests into a kernel of their own, and puts a launch in their place."""
        points = [math.prod(nest.extents) for nest in group]
        threads = (
            1 if len(group) == 1 and group[0].is_serial else min(self.threads, max(32, -(-max(points) // 32) * 32))
        )
        with ir.InsertionPoint.after(group[-1].body[-1]):
            marker = _index(1)  # where the launch goes
        body = _KernelBody(self, group, threads)
        body.build(container, name)
        with ir.InsertionPoint(marker.owner):
            one, grid, block = _index(1), _index(body.blocks), _index(threads)
            gpu.LaunchFuncOp(
                [ir.StringAttr(container.attributes["sym_name"]).value, name],
                (grid, one, one),
                (block, one, one),
                kernel_operands=body.arguments,
            )
        marker.owner.erase()

    def _remove_leftovers(self) -> None:
        """Erases what only the launches needed."""
        for op in reversed([op.operation for op in self.block.operations][:-1]):
            placeholder = op.name == "builtin.unrealized_conversion_cast"
            repeated = is_pure(op) or is_view(op) or op.name == "memref.load"
            if (placeholder or repeated) and not any(True for r in op.results for _ in r.uses):
                op.erase()


class _KernelBody:
    """Builds the gpu.func of a group of nests: moves their ops there, and clones what they use from outside."""

    def __init__(self, mapper: _Mapper, group: list[Nest], threads: int):
        self.mapper = mapper
        self.group = group
        self.threads = threads
        self.blocks = sum(self._blocks(nest) for nest in group)
        self.arguments: list[ir.Value] = []
        inside = [inner for nest in group for op in nest.body for inner in walk(op)]
        self.ops = inside
        self.made = {r for op in inside for r in op.results}
        for op in inside:
            for region in op.regions:
                for block in region.blocks:
                    self.made |= set(block.arguments)
        self.made |= {iv for nest in group for iv in nest.ivs}
        self.clones: list[ir.Operation] = []  # outer ops to repeat, in order
        for op in inside:
            for operand in op.operands:
                self._need(operand)

    def _blocks(self, nest: Nest) -> int:
        return -(-math.prod(nest.extents) // self.threads)

    def _need(self, value: ir.Value) -> None:
        if value in self.made:
            return
        op = owner(value)
        if op is None or op.name in _ALLOCATIONS:
            if value not in self.arguments:
                self.arguments.append(value)
            return
        if op in self.clones:
            return
        if not (is_pure(op) or is_view(op) or op.name == "memref.load"):
            raise MlircError(f"kernel {self.mapper.name}: {op.name} at {op.location} cannot be computed in a launch")
        for operand in op.operands:
            self._need(operand)
        self.clones.append(op)

    def build(self, container: gpu.GPUModuleOp, name: str) -> gpu.GPUFuncOp:
        type_ = ir.FunctionType.get([a.type for a in self.arguments], [])
        with ir.InsertionPoint(container.bodyRegion.blocks[0]):
            kernel = gpu.GPUFuncOp(type_, name, kernel=True, known_block_size=[self.threads, 1, 1])
            entry = kernel.body.blocks.append(*[a.type for a in self.arguments])
        places = dict(zip(self.arguments, entry.arguments, strict=True))
        with ir.InsertionPoint(entry):
            for op in self.clones:
                copy = op.clone()
                _remap(copy.operation, places)
                for old, new in zip(op.results, copy.operation.results, strict=True):
                    places[old] = new
            first = 0
            for nest in self.group:
                end = self._nest_block(nest, first, places)
                first += self._blocks(nest)
                for op in nest.body:
                    op.move_before(end)
            gpu.ReturnOp([])
        for op in self.ops:
            _remap(op, places)
            if op.name == "memref.alloc":
                _to_stack(op)
        return kernel

    def _nest_block(self, nest: Nest, first: int, places: dict[ir.Value, ir.Value]) -> ir.Operation:
        """Emits the points of a nest whose blocks begin at number `first`; returns the op to move the body before."""
        if len(self.group) == 1:
            return self._point_block(nest, None, places)
        block, end = gpu.block_id(gpu.Dimension.x), first + self._blocks(nest)
        bounds = [(arith.CmpIPredicate.uge, first)] if first else []
        bounds += [(arith.CmpIPredicate.ult, end)] if end < self.blocks else []
        inside = [arith.cmpi(predicate, block, _index(limit)) for predicate, limit in bounds]
        own = scf.IfOp(inside[0] if len(inside) == 1 else arith.andi(*inside))
        with ir.InsertionPoint(own.then_block):
            number = arith.subi(block, _index(first)) if first else block
            found = self._point_block(nest, number, places)
            scf.YieldOp([])
        return found

    def _point_block(self, nest: Nest, block: ir.Value | None, places: dict[ir.Value, ir.Value]) -> ir.Operation:
        """Emits this thread's point in a block, guarded where threads may be left over; returns the op to move the body
        before."""
        if nest.is_serial and block is None:
            return _index(0).owner
        points, threads = math.prod(nest.extents), self.threads
        first = arith.MulIOp(gpu.block_id(gpu.Dimension.x) if block is None else block, _index(threads)).result
        point = arith.AddIOp(first, gpu.thread_id(gpu.Dimension.x)).result
        end = None
        if points % threads:
            guard = scf.IfOp(arith.CmpIOp(6, point, _index(points)).result)  # unsigned less than
            with ir.InsertionPoint(guard.then_block):
                end = scf.YieldOp([]).operation
            anchor = ir.InsertionPoint(end)
        else:
            end = _index(0).owner
            anchor = ir.InsertionPoint(end)
        with anchor:
            rest = point
            for iv, extent in reversed(list(zip(nest.ivs, nest.extents, strict=True))):
                if iv == nest.ivs[0]:
                    places[iv] = rest
                else:
                    places[iv] = arith.RemUIOp(rest, _index(extent)).result
                    rest = arith.DivUIOp(rest, _index(extent)).result
        return end


def _to_stack(op: ir.Operation) -> None:
    """An allocation inside of a loop is each thread's own."""
    with op.location, ir.InsertionPoint(op):
        local = memref.AllocaOp(op.results[0].type, [], []).result
    for use in list(op.results[0].uses):
        if use.owner.operation.name == "memref.dealloc":
            use.owner.operation.erase()
    op.results[0].replace_all_uses_with(local)
    op.erase()


def _remap(op: ir.Operation, places: dict[ir.Value, ir.Value]) -> None:
    for i, operand in enumerate(op.operands):
        fresh = places.get(operand)
        if fresh is not None:
            op.operands[i] = fresh


def map_to_launches(module: ir.Module, function: ir.Operation, threads: int) -> None:
    """Replaces a bufferized function's loops by launches of kernels in a new gpu.module beside it."""
    if not 1 <= threads <= 1024:
        raise MlircError(f"mlirc.threads is {threads}: a block has 1 to 1024 threads")
    known = [op.operation for op in module.body.operations]
    blocks = function.attributes["mlirc.min_blocks"] if "mlirc.min_blocks" in function.attributes else None
    _Mapper(module, function, threads).run()
    for made in [op.operation for op in module.body.operations if op.operation not in known] if blocks else ():
        for kernel in nested(made):
            if kernel.name == "gpu.func":
                kernel.attributes["mlirc.min_blocks"] = blocks
    module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()
    run_passes(module, "gpu.module(scf-parallel-for-to-nested-fors,convert-linalg-to-loops),canonicalize,cse")
