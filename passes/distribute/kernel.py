"""One kernel function: its foralls become `gpu.func`s, itself the host function that launches them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import zip_longest

from mlirc.dialects.im2col import IM2COL
from mlirc.dialects.rings import ROLES
from mlirc.dialects.tensor_map import map_argument, tensor_map
from mlirc.dialects.windows import Windows
from mlirc.errors import MlircError
from mlirc.mlir import arith, func, gpu, ir, memref, nested
from mlirc.passes.distribute.copies.multistage import Copies
from mlirc.passes.distribute.emit.blame import blamed, check_attributes
from mlirc.passes.distribute.emit.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.emit.pipeline import Pipeline
from mlirc.passes.distribute.lowerings import block, loop, roles
from mlirc.passes.distribute.lowerings.consumer import Consumer
from mlirc.passes.distribute.memory import access
from mlirc.passes.distribute.memory.access import storage_type
from mlirc.passes.distribute.products import notes
from mlirc.passes.distribute.program import cluster_parts, gates, last_block
from mlirc.passes.distribute.program.gates import Gate
from mlirc.passes.distribute.program.grid import Grid
from mlirc.passes.distribute.program.last_block import LastBlock
from mlirc.passes.distribute.program.program import Program
from mlirc.passes.distribute.program.results import store
from mlirc.passes.distribute.program.scope import Lowerings, Scope
from mlirc.passes.rings.check import Roles, check_registers, roles_of
from mlirc.passes.rings.check_multistage import multistage_of
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target

LOWERINGS: Lowerings = {**block.LOWERINGS, **loop.LOWERINGS, **roles.LOWERINGS}


def memref_of(t: ir.Type) -> ir.MemRefType:
    """The buffer type of a tensor (or scalar argument, as rank 0): identity layout, i1 as bytes."""
    if not isinstance(t, ir.RankedTensorType):
        return ir.MemRefType.get([], storage_type(t))
    t = ir.RankedTensorType(t)
    if not t.has_static_shape:
        raise MlircError(f"{t}: kernels are compiled for fixed shapes")
    return ir.MemRefType.get(list(t.shape), storage_type(t.element_type))


def take_place(module: ir.Module, function, host: func.FuncOp, name: str) -> None:
    """Puts the host function that launches a kernel in the place of the kernel's own, with its attributes and name."""
    for key in function.attributes:
        if key.startswith("mlirc.") and key != schedule_attributes.DEMANDS:
            host.attributes[key] = function.attributes[key]
    function.operation.erase()
    host.attributes["sym_name"] = ir.StringAttr.get(name)
    module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()


def distribute_function(module: ir.Module, function, target: Target) -> None:
    """Replaces a `tiles`-level kernel function by a gpu.module and a host function of the same name."""
    with blamed(function):
        Kernel(module, function, ir.StringAttr(function.attributes["sym_name"]).value, target).lower()


class Kernel:
    """Lowering state of one kernel function."""

    def __init__(self, module: ir.Module, function, name: str, target: Target):
        self.module, self.function, self.name, self.target = module, function, name, target
        self.block = function.regions[0].blocks[0]
        self.taken = Taken(schedule_attributes.demands(function))
        check_attributes(function)
        self.warps = self.taken.take(function, "warps", 4)
        self.min_blocks = self.taken.take(function, "min_blocks", 0)
        self.buffers: dict[ir.Value, ir.Value] = {}  # root tensor -> memref in the host function
        self.goes_on: dict[ir.Value, ir.Value] = {}  # result of a forall -> that of one which writes on into it

    def lower(self) -> None:
        ops = [o.operation for o in self.block.operations]
        foralls = [o for o in ops if o.name == "scf.forall"]
        check_scheduled(ops)
        returned = list(ops[-1].operands)
        with self.function.location, ir.InsertionPoint(self.function):
            gpu_module = gpu.GPUModuleOp(ir.StringAttr.get(f"{self.name}_gpu"))
            if not gpu_module.regions[0].blocks:
                gpu_module.regions[0].blocks.append()
            inputs = [memref_of(a.type) for a in self.block.arguments]
            outputs = [memref_of(v.type) for v in returned]
            host = func.FuncOp(f"{self.name}_host", ir.FunctionType.get([*inputs, *outputs], []))
            entry = host.add_entry_block()
        self._bind_buffers(foralls, returned, entry, len(inputs))
        with ir.InsertionPoint(entry):
            done: set[ir.Operation] = set()
            for i, (forall, behind) in enumerate(zip_longest(foralls, foralls[1:])):
                if forall not in done:
                    with forall.location:
                        symbol = f"{self.name}_{i}" if len(foralls) > 1 else self.name
                        done |= self._launch(gpu_module, forall, behind, symbol)
            with self.function.location:
                func.ReturnOp([])
        self._check_honoured()
        take_place(self.module, self.function, host, self.name)

    def _check_honoured(self) -> None:
        """Raises Unsupported for what the schedule demands and no op took."""
        for op, name, reason in self.taken.left(self.function):
            value = schedule_attributes.of(op)[name]
            what = reason or "nothing in this kernel takes it: leave it out"
            raise Unsupported(f"{op.name}: mlirc.{name} = {value}: {what}", op, name)

    # -- buffers

    def _root(self, value: ir.Value) -> ir.Value:
        """The argument or forall result that a function-level tensor is a reshape of."""
        owner = value.owner
        while not isinstance(owner, ir.Block) and owner.name in (*VIEWS, IM2COL):
            value = owner.operands[0]
            owner = value.owner
        return self._root(self.goes_on[value]) if value in self.goes_on else value

    def _memory(self, value: ir.Value) -> ir.Value:
        """The argument or forall result that a function-level tensor is a reshape, or a window, of."""
        root = self._root(value)
        while not isinstance(root.owner, ir.Block) and root.owner.name == "tensor.extract_slice":
            root = self._root(root.owner.operands[0])
        return root

    def _bind_buffers(self, foralls, returned, entry: ir.Block, num_inputs: int) -> None:
        for i, argument in enumerate(self.block.arguments):
            self.buffers[argument] = entry.arguments[i]
        for forall in foralls:
            for out, result in zip(list(forall.operands)[-len(forall.results) :], forall.results, strict=True):
                if not isinstance(out.owner, ir.Block) and out.owner.name == "scf.forall":
                    self.goes_on[out] = result
        for i, value in enumerate(returned):
            root = self._root(value)
            if isinstance(root.owner, ir.Block):
                raise Unsupported("a kernel that returns its argument: there is nothing to launch")
            if root in self.buffers:
                raise Unsupported("a kernel that returns one tensor twice")
            self.buffers[root] = entry.arguments[num_inputs + i]
        with ir.InsertionPoint(entry):
            self._begin_with_arguments(foralls)
            for forall in foralls:
                for result in map(self._root, forall.results):
                    if result not in self.buffers:
                        with forall.location:
                            self.buffers[result] = memref.AllocOp(memref_of(result.type), [], []).result

    def _begin_with_arguments(self, foralls) -> None:
        """Copies the arguments that foralls write into to their results."""
        for forall in foralls:
            for out, result in zip(list(forall.operands)[-len(forall.results) :], forall.results, strict=True):
                root = self._root(out)
                if isinstance(root.owner, ir.Block) and result in self.buffers:
                    with forall.location:
                        memref.CopyOp(self.buffers[root], self.buffers[result])

    # -- launches

    def _launch(self, gpu_module, forall, behind, symbol: str) -> set[ir.Operation]:
        """Adds the launch of a block program. Returns the one `behind` it, if this launch computes that, too."""
        grid = Grid(forall, self.taken)
        divided = self._roles(forall)
        if divided and divided.spec.producers < grid.teams:
            what = f"each team has a producer, and {divided.spec.producers} are too few: specialize(loop, producers=4)"
            raise Unsupported(f"mlirc.teams = {grid.teams}: {what}", forall, "teams")
        own = self.warps * grid.sharing.teams
        last = last_block.of(forall, behind, grid, own, bool(divided), self.taken) if behind else None
        more = last.warps - own if last and not divided else 0
        members = roles.teams_of(divided, self.warps * grid.sharing.teams * grid.spread, grid.teams, more)
        warps = sum(team.warps for team in members)
        threads = warps * 32 // grid.spread
        if grid.spread > 1 and divided:
            raise Unsupported(f"mlirc.spread = {grid.spread}: a producer copies for one block", forall, "spread")
        if threads > 1024:
            others = f"and {warps - self.warps} producers" if divided else f"in each of {grid.teams} teams"
            raise Unsupported(f"{self.warps} warps {others}: a block has at most 32 warps", forall, "teams")
        if divided:
            check_registers(divided, max(self.min_blocks, 1), grid.teams)
        used = self._used_roots(forall, *([last.forall] if last else []))
        types = [self.buffers[r].type for r in used]
        with ir.InsertionPoint(gpu_module.regions[0].blocks[0]):
            kernel = gpu.GPUFuncOp(ir.FunctionType.get(types, []), symbol, kernel=True)
            kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([threads, 1, 1])
            entry = kernel.regions[0].blocks[0] if kernel.regions[0].blocks else kernel.regions[0].blocks.append(*types)
        em = Emitter(entry, warps, self.target, self.taken, grid.spread)
        em.min_blocks = max(self.min_blocks, 1)
        copies = Copies(multistage_of(forall))
        program = Program(members, roles=divided, parts=grid.parts, sharing=grid.sharing, copies=copies)
        with ir.InsertionPoint(entry):
            arguments = dict(zip(used, entry.arguments, strict=True))
            finish = self._finish(em, last, gpu_module, symbol, arguments) if last else None
            each = bool(last and last.streamed)
            self._emit_body(Scope(em, program, LOWERINGS), forall, grid, arguments, finish, each)
            gpu.ReturnOp([])
        i32 = ir.IntegerType.get_signless(32)
        notes.note(kernel, em)
        kernel.attributes["mlirc.smem"] = ir.IntegerAttr.get(i32, em.smem_bytes)
        few = self._blocks_that_fit(em.smem_bytes, threads)
        if divided and divided.spec.registers:
            few = em.min_blocks  # for which setmaxnreg's numbers were made; without any ptxas ignores setmaxnreg
        if self.min_blocks:
            few = self._blocks_wanted(em.smem_bytes, threads)
        if few:
            kernel.attributes["mlirc.min_blocks"] = ir.IntegerAttr.get(i32, few)
        merged = {last.forall} if last else set()
        if grid.total == 0:
            return merged
        maps = self._add_maps(em, kernel, dict(zip(entry.arguments, used, strict=False)))
        index = ir.IndexType.get()
        one = func_constant(index, 1)
        blocks, cluster = grid.shape
        gpu.LaunchFuncOp(
            [f"{self.name}_gpu", symbol],
            (func_constant(index, blocks), one, one),
            (func_constant(index, threads), one, one),
            [self.buffers[r] for r in used] + maps,
            dynamic_shared_memory_size=func_constant(i32, em.smem_bytes),
            cluster_size=(func_constant(index, cluster), one, one) if cluster > 1 else None,
        )
        return merged

    def _blocks_that_fit(self, smem: int, threads: int) -> int:
        """How many blocks a multiprocessor holds where shared memory leaves room for one or two, else 0: ptxas does not
        know it, and would spill registers to make room for a third."""
        fitting = self.target.sm_smem // (smem + 1024)
        return fitting if fitting <= 2 and fitting * threads <= self.target.sm_threads else 0

    def _roles(self, forall) -> Roles | None:
        """The roles of a block program, checked."""
        for op in nested(forall):
            for name in ("producers", "stages"):
                if op.name == "scf.for" and f"mlirc.{name}" in op.attributes:
                    raise Unsupported(f"mlirc.{name}: mlirc-async comes in front of this pass", op, name)
        divided = roles_of(forall)
        if divided:
            if divided.spec.consumers != self.warps:
                what = f"{divided.spec.consumers} warps compute, and the kernel has mlirc.warps = {self.warps}"
                raise Unsupported(f"{divided.op.name}: {what}", divided.op)
        return divided

    def _add_maps(self, em: Emitter, kernel, roots: dict[ir.Value, ir.Value]) -> list[ir.Value]:
        """Declares the tensor maps that the body asked for as arguments of the kernel; returns the maps that the host
        binds to them. `roots`: the buffers of the kernel's arguments."""
        if not em.maps:
            return []
        plain = [ir.DictAttr.get({})] * (len(em.entry.arguments) - len(em.maps))
        kernel.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get([a.type for a in em.entry.arguments], [])
        )
        kernel.attributes["arg_attrs"] = ir.ArrayAttr.get([*plain, *[map_argument()] * len(em.maps)])
        return [
            tensor_map(reshaped(self.buffers[roots[m.root]], m.shape), m.box, m.swizzle, m.im2col)
            for m in em.maps.values()
        ]

    def _blocks_wanted(self, smem: int, threads: int) -> int:
        """`min_blocks`, or as many as fit where the script only offers it. Raises Unsupported for too many demanded."""
        blocks, demanded = self.min_blocks, "min_blocks" in self.taken.wanted
        while not demanded and blocks > 1 and self.target.too_many_blocks(blocks, threads, smem):
            blocks -= 1
        problem = self.target.too_many_blocks(blocks, threads, smem)
        if problem:
            raise Unsupported(f"mlirc.min_blocks = {blocks}: {problem}", self.function, "min_blocks")
        return blocks

    def _used_roots(self, *foralls) -> list[ir.Value]:
        """Buffers that the foralls of a launch touch: of each those that are read from outside, then its outputs."""
        used: list[ir.Value] = []

        def visit(op) -> None:
            for v in op.operands:
                if isinstance(v.type, ir.RankedTensorType) or not isinstance(v.owner, ir.Operation | ir.OpView):
                    self._note(self._memory(v), used)
            for region in op.regions:
                for nested_block in region.blocks:
                    for inner in nested_block.operations:
                        visit(inner.operation)

        for forall in foralls:
            for region in forall.regions:
                for inner in region.blocks[0].operations:
                    visit(inner.operation)
            for r in forall.results:
                self._note(self._root(r), used)
        if any(o.operation.name == ROLES for f in foralls for o in f.regions[0].blocks[0].operations):
            used.sort(key=list(self.buffers).index)  # not by who reads first: producers are
        return used

    def _note(self, root: ir.Value, used: list[ir.Value]) -> None:
        if root in self.buffers and root not in used:
            used.append(root)

    def _emit_body(
        self, scope: Scope, forall, grid: Grid, arguments: dict[ir.Value, ir.Value],
        finish: Callable[[Scope], None] | None, each: bool,
    ) -> None:  # fmt: skip
        self._bind(scope, forall, arguments)
        body = forall.regions[0].blocks[0]
        found = gates.gates_of(body)
        parts = gates.workspaces(forall, found)

        def compute(scope: Scope) -> None:
            if scope.program.roles is None:
                scope.em.pipeline = pipeline = Consumer(scope, body)
                scope.em.pipeline_depth = 1 if pipeline.gets else None
            _compute(scope, body, found, parts)

        roles.emit(scope.em, forall, grid, scope, compute, finish, each)

    def _bind(self, scope: Scope, forall, arguments: dict[ir.Value, ir.Value]) -> None:
        """What a block program sees of what is in front of it, and its results."""
        for root, value in arguments.items():
            self._bind_view(scope, root, value)
        for op in self.block.operations:
            if op.operation == forall:
                break
            self._function_level(scope, op.operation, arguments)
        results = list(forall.results)
        shared = list(forall.regions[0].blocks[0].arguments)
        for argument, result in zip(shared[len(shared) - len(results) :], results, strict=True):
            scope.views[argument] = scope.view(self._root(result))

    def _finish(
        self, em: Emitter, last: LastBlock, gpu_module, symbol: str, arguments: dict[ir.Value, ir.Value]
    ) -> Callable[[Scope], None]:  # fmt: skip
        """What builds that the last block of a tile computes what follows."""
        counters, body = f"{symbol}_counters", last.forall.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(gpu_module.regions[0].blocks[0]):
            last_block.declare(last, counters)

        def scope_of(indices: list[IndexValue]) -> Scope:
            scope = Scope(em, Program((em.team.members,)), LOWERINGS)
            self._bind(scope, last.forall, arguments)
            scope.scalars |= dict(zip(body.arguments, indices, strict=False))
            return scope

        def build(indices: list[IndexValue]) -> None:
            outer = em.pipeline, em.pipeline_depth
            em.pipeline, em.pipeline_depth = Pipeline(), None
            _compute(scope_of(indices), body, {}, frozenset())
            em.pipeline, em.pipeline_depth = outer

        return lambda scope: last_block.emit(em, last, counters, scope, scope_of, build)

    def _bind_view(self, scope: Scope, value: ir.Value, base: ir.Value) -> None:
        t = value.type
        if not isinstance(t, ir.RankedTensorType):
            loaded = access.load_elements(scope.em, access.View(base, [], []), [], 1)
            scope.scalars[value] = access.join(scope.em, [loaded], 1, t, 1)
            return
        shape = list(ir.RankedTensorType(t).shape)
        base = reshaped(base, shape)
        scope.bind_view(value, access.View(base, [0] * len(shape), list(range(len(shape)))), shape, shape)

    def _bind_windows(self, scope: Scope, op, arguments) -> None:
        root = self._root(op.results[0])
        if root not in arguments:
            return
        image, shape = (list(ir.RankedTensorType(v.type).shape) for v in (op.operands[0], op.results[0]))
        dims = list(range(len(shape)))
        view = access.View(reshaped(arguments[root], image), [0] * len(dims), dims, windows=Windows.of(op))
        scope.bind_view(op.results[0], view, shape, list(shape))

    def _function_level(self, scope: Scope, op, arguments) -> None:
        """Ops before the forall: constants and scalars, and reshapes of constants, arguments and earlier results."""
        if op.name in ("scf.forall", "tensor.empty"):
            return
        if op.name == IM2COL:
            self._bind_windows(scope, op, arguments)
            return
        if op.results and isinstance(op.results[0].type, ir.RankedTensorType):
            if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
                root = self._root(op.results[0])
                if root in arguments:
                    self._bind_view(scope, op.results[0], arguments[root])
                elif scope.known_tile(root) is not None:  # a constant's
                    scope.lower(op)
                return
            if op.name == "tensor.extract_slice" and scope.view(op.operands[0]) is None:
                return
        scope.lower(op)


def _compute(
    scope: Scope, body: ir.Block, found: Mapping[ir.Operation, Gate], parts: frozenset[ir.Operation]
) -> None:  # fmt: skip
    """Builds what a block computes, and stores; `parts` by each thread's own stores."""
    ops = list(body.operations)
    inserts = [o.operation for o in ops[-1].regions[0].blocks[0].operations]
    later = scope.program.later = {op for gate in found.values() for op in gate.left_out}
    with cluster_parts.unless_empty(scope, ops[:-1], inserts) as (scope, rest):
        for op in rest:
            if op.operation not in later:
                scope.lower(op)
        for insert in inserts:
            with insert.location, gates.behind(scope, found.get(insert)) as inner:
                store(inner, insert, plain=insert in parts)


def check_scheduled(ops: list[ir.Operation]) -> None:
    """Raises Unsupported for a kernel that computes outside of its block programs: a script stopped halfway."""
    for op in ops:
        if (
            op.name != IM2COL
            and op.name.startswith(("linalg.", "mlirc.", "tm_tensor."))
            or op.name in ("scf.for", "scf.if", "scf.while")
        ):
            raise Unsupported(
                f"its script leaves a {op.name} outside of every scf.forall: tile it (tile_to_blocks), or ask for the "
                'loops lowering, annotate(function, lowering="loops")',
            )
    for value in ops[-1].operands:
        root = value.owner
        while not isinstance(root, ir.Block) and root.name in VIEWS:
            root = root.operands[0].owner
        empty = isinstance(value.type, ir.RankedTensorType) and 0 in ir.RankedTensorType(value.type).shape
        if not isinstance(root, ir.Block) and root.name != "scf.forall" and not empty:
            raise Unsupported(f"a result is made by a {root.name} outside of every scf.forall: nothing would write it")


VIEWS = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast")


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
