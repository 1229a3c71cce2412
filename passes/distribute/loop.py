"""`scf.for` in a tile program: loop-carried tiles take the layout of their first use in the body, and the tiles that
products read are fetched `mlirc.stages` - 1 iterations ahead by asynchronous copies into a ring of buffers.

One barrier per iteration suffices: it comes after the wait for this iteration's tile and before the copies into the
buffer that the previous iteration read (the multistage scheme of CUTLASS's sm80 mainloop)."""

from __future__ import annotations

from mlirc.mlir import arith, ir, scf
from mlirc.passes.distribute import contraction, products, slices, staging, wgmma
from mlirc.passes.distribute.emitter import Emitter, IndexValue, Unsupported
from mlirc.passes.distribute.layout import row_layout
from mlirc.passes.distribute.loop_argument import LoopArgument
from mlirc.passes.distribute.staging import AsyncTile, Staged
from mlirc.passes.distribute.values import Fragment, Tile


def lower(outer, op) -> None:
    """Lowers one scf.for of a tile program."""
    em: Emitter = outer.em
    body = op.regions[0].blocks[0]
    lb, ub, step = (outer.scalar(v) for v in list(op.operands)[:3])
    inits = list(op.operands)[3:]
    iv, carried = body.arguments[0], list(body.arguments)[1:]
    stages = em.taken.take(op, "stages", 1)

    pipeline = Pipeline(outer, op, stages, (lb, ub, step))
    if stages > 1 and not pipeline.tiles:
        why = "no product in this loop reads a slice that can be copied asynchronously (4 aligned bytes at least)"
        em.taken.refuse(op, "stages", f"{why}: leave it out")
    pipeline.prologue()
    outer_depth, outer_deferred = em.pipeline_depth, em.deferred_products
    em.pipeline_depth, em.deferred_products = (pipeline.ahead if pipeline.warpgroups else None), 0
    draft = scf.ForOp(em.value(lb), em.value(ub), em.value(step), [])
    scope = outer.inside()
    arguments: list[LoopArgument] = []
    scalar_arguments = [v for v in carried if not isinstance(v.type, ir.RankedTensorType)]
    if scalar_arguments:
        raise Unsupported("a loop that carries a scalar; carry a tensor of rank 0")
    for value, init in zip(carried, inits, strict=True):
        tile = outer.tile(init)
        argument = LoopArgument(em, tile.element, tile.shape, tile.sizes, draft.body)
        arguments.append(argument)
        scope.tiles[value] = argument
    with ir.InsertionPoint(draft.body):
        index = draft.induction_variable
        if isinstance(step, int):
            em.known_multiple(index, min(em.divisor(lb), em.divisor(step)))
        scope.scalars[iv] = index
        pipeline.iteration(index)
        ops = list(body.operations)
        for inner in ops[:-1]:
            if inner.operation.name == "tensor.extract_slice" and pipeline.bind(scope, inner.operation):
                continue
            scope.lower(inner)
        yielded = [scope.tile(v) for v in ops[-1].operands]
        for argument, tile in zip(arguments, yielded, strict=True):
            if argument.fragment is None:
                argument.get(tile.natural() or row_layout(tuple(tile.shape), em.warps, 1))
        if em.deferred_products:
            wgmma.wait(em.deferred_products)  # the previous iteration's are done
        next_values = [v for a, t in zip(arguments, yielded, strict=True) for v in a.values_of(t)]
        scf.YieldOp(next_values)
    results = _finish(em, draft, arguments, [outer.tile(v) for v in inits])
    for value, frag in zip(op.results, results, strict=True):
        outer.tiles[value] = frag
    if em.deferred_products:
        wgmma.wait(0)
    em.pipeline_depth, em.deferred_products = outer_depth, outer_deferred
    pipeline.epilogue()


def _finish(em: Emitter, draft: scf.ForOp, arguments: list[LoopArgument], inits: list[Tile]) -> list[Fragment]:
    """Replaces the draft loop, whose body has grown block arguments, by one that carries them."""
    with ir.InsertionPoint(draft.operation):
        starts = [v for a, t in zip(arguments, inits, strict=True) for v in a.values_of(t)]
        final = scf.ForOp(draft.lowerBound, draft.upperBound, draft.step, starts)
    # Block arguments were added in the order of first use: map them by owner.
    flat = [v for a in arguments for v in a.arguments]
    draft.induction_variable.replace_all_uses_with(final.induction_variable)
    for old, new in zip(flat, final.inner_iter_args, strict=True):
        old.replace_all_uses_with(new)
    with ir.InsertionPoint(final.body):
        anchor = arith.ConstantOp(em.index, 0).operation
    for op in list(draft.body.operations):
        op.operation.move_before(anchor)
    anchor.erase()
    if em.divisor(draft.induction_variable) > 1:
        em.known_multiple(final.induction_variable, em.divisor(draft.induction_variable))
    out, at = [], 0
    results = list(final.results)
    for a in arguments:
        n = len(a.arguments)
        out.append(a.result(results[at : at + n]))
        at += n
    draft.operation.erase()
    return out


class Pipeline:
    """The asynchronous copies of one loop."""

    def __init__(self, outer, op, stages: int, bounds: tuple[IndexValue, IndexValue, IndexValue]):
        self.outer, self.em, self.op, self.stages = outer, outer.em, op, stages
        self.lb, self.ub, self.step = bounds
        self.body = op.regions[0].blocks[0]
        self.iv = self.body.arguments[0]
        self.tiles: list[tuple] = []  # (slice op, AsyncTile)
        self._wanted: dict[ir.Value, tuple] = {}  # (slice op, element, extents, elements per copy, panels)
        self._by_result: dict[ir.Value, AsyncTile] = {}
        self.stage: IndexValue = 0
        self.warpgroups = False  # whether wgmma reads the tiles
        for inner in self.body.operations:
            if inner.operation.name == "linalg.generic":
                self._find_operands(inner.operation)
        if self.warpgroups and stages < 3:
            what = f"wgmma needs mlirc.stages >= 3, not {stages}: it reads a buffer one iteration longer"
            raise Unsupported(what, op, "stages")
        # wgmma may still read the previous iteration's buffer when a copy is issued: copies go one buffer less far.
        self.ahead = stages - (2 if self.warpgroups else 1)
        for value, (slice_op, element, extents, width, panels) in self._wanted.items():
            tile = AsyncTile(self.em, element, extents, width, self.stages, panels)
            self._by_result[value] = tile
            self.tiles.append((slice_op, tile))

    def _find_operands(self, generic) -> None:
        """Finds the operands of a product that are slices of global memory and can be copied asynchronously, and what
        their buffers must cover; one slice may be an operand of several products, or both of one."""
        info = products.match(generic)
        if info is None:
            return
        shapes, elements = [], []
        for v in generic.operands:
            t = ir.RankedTensorType(v.type)
            shapes.append(self._bounds(v, t))
            elements.append(t.element_type)
        shapes, elements = info.arrange(shapes), info.arrange(elements)
        geometry = contraction.Geometry(self.em, generic, info, elements, shapes)
        self.warpgroups |= geometry.kind == "wgmma"
        for which, value in enumerate(info.arrange(list(generic.operands))[:2]):
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.name != "tensor.extract_slice":
                continue
            if owner.operation.parent != self.op or self.outer.view(owner.operands[0]) is None:
                continue
            view, shape, sizes = self._at(owner.operation, self.lb)
            width = staging.async_vector(self.em, view, elements[which], shape, sizes)
            if width is None:
                continue
            extents = geometry.operand_extents(which, shape)
            panels = geometry.takes_panels(which)
            if value in self._wanted:
                extents = [max(a, b) for a, b in zip(extents, self._wanted[value][2], strict=True)]
                if panels != self._wanted[value][4]:
                    raise Unsupported("two products read one tile along different dimensions; use mma", generic, "mma")
            self._wanted[value] = (owner.operation, elements[which], extents, width, panels)

    def _bounds(self, value: ir.Value, t: ir.RankedTensorType) -> list[int]:
        """Bounds of an operand's extents: a slice's own, or those that its other uses give."""
        if t.has_static_shape:
            return list(t.shape)
        owner = value.owner
        if not isinstance(owner, ir.Block) and owner.name == "tensor.extract_slice":
            op = owner.operation
            segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
            operands = list(op.operands)
            first = len(operands) - sum(segments[-3:]) + segments[-3]
            dynamic = operands[first : first + segments[-2]]
            static = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
            full = [slices.bound(dynamic.pop(0)) if n == slices.DYNAMIC else n for n in static]
            kept = slices.kept_dims(op, op.results[0])
            return [full[i] or 1 for i in kept]
        if isinstance(owner, ir.Block) and owner == self.body:
            position = list(self.body.arguments).index(value) - 1
            return list(self.outer.tile(list(self.op.operands)[3 + position]).shape)
        if not isinstance(owner, ir.Block) and owner.name in (
            "linalg.generic",
            "linalg.fill",
            "tensor.empty",
            "tensor.cast",
        ):
            if owner.name == "tensor.empty":
                dynamic = list(owner.operands)
                return [slices.bound(dynamic.pop(0)) or 1 if n == slices.DYNAMIC else n for n in t.shape]
            if owner.name == "tensor.cast":
                source = owner.operands[0]
                return self._bounds(source, ir.RankedTensorType(source.type))
            if owner.name == "linalg.fill":
                return self._bounds(owner.operands[1], ir.RankedTensorType(owner.operands[1].type))
            result = list(owner.results).index(value)
            segments = list(ir.DenseI32ArrayAttr(owner.attributes["operandSegmentSizes"]))
            out = list(owner.operands)[segments[0] + result]
            return self._bounds(out, ir.RankedTensorType(out.type))
        return list(self.outer.tile(value).shape)

    def _at(self, slice_op, iv: IndexValue):
        """The slice as it is in the iteration whose induction variable has the given value."""
        local: dict[ir.Value, IndexValue] = {self.iv: iv}

        def lookup(value: ir.Value) -> IndexValue:
            if value in local:
                return local[value]
            owner = value.owner
            if isinstance(owner, ir.Block) or owner.operation.parent != self.op:
                return self.outer.scalar(value)
            if owner.name.startswith("affine."):
                local[value] = self.outer.affine(owner, lookup)
            else:
                for r, v in zip(owner.results, self.outer.scalar_of(owner, lookup), strict=True):
                    local[r] = v
            return local[value]

        return self.outer.slice_view(slice_op, lookup)

    def _iv(self, base: IndexValue, iterations: int) -> IndexValue:
        moved = self.em.add(base, self.em.mul(self.step, iterations))
        if isinstance(moved, ir.Value):
            self.em.known_multiple(
                moved, min(self.em.divisor(base), self.em.divisor(self.em.mul(self.step, iterations)))
            )
        return moved

    def _issue(self, iv: IndexValue, stage: IndexValue) -> None:
        enabled = self.em.less(iv, self.ub)
        for op, tile in self.tiles:
            view, _, sizes = self._at(op, iv)
            tile.copy(view, sizes, stage, enabled)
        # Not nvgpu.device_async_create_group: what it prints without operands takes the next line for them.
        ir.Operation.create("nvvm.cp.async.commit.group")

    def prologue(self) -> None:
        """Copies for the first iterations."""
        if not self.tiles:
            return
        self.em.barrier()  # earlier readers of shared memory are done
        for s in range(self.ahead):
            self._issue(self._iv(self.lb, s), s)

    def iteration(self, iv: ir.Value) -> None:
        """Start of an iteration: its tile has arrived for everybody, and the copy of a later one is on its way."""
        if not self.tiles:
            return
        em = self.em
        if self.stages == 1:
            em.barrier()
            self._issue(iv, 0)
            wait_groups(0)
            em.barrier()
            return
        number = em.sub(iv, self.lb)
        if isinstance(self.step, int):
            number = em.div(number, self.step)
        else:
            number = arith.DivUIOp(em.value(number), em.value(self.step)).result
        self.stage = em.rem(number, self.stages)
        wait_groups(self.ahead - 1)
        if self.warpgroups:
            wgmma.proxy_fence()
        em.barrier()
        ahead = em.rem(em.add(number, self.ahead), self.stages)
        self._issue(self._iv(iv, self.ahead), ahead)

    def bind(self, scope, slice_op) -> bool:
        """Makes a staged slice a tile in shared memory; False for other slices."""
        tile = self._by_result.get(slice_op.results[0])
        if tile is None:
            return False
        view, shape, sizes = scope.slice_view(slice_op, scope.scalar)
        scope.tiles[slice_op.results[0]] = Staged(self.em, tile.element, shape, sizes, tile.view(self.stage))
        return True

    def epilogue(self) -> None:
        if self.tiles:
            wait_groups(0)
            self.em.barrier()
            for _, tile in self.tiles:
                self.em.free_smem(tile.buffer)


def wait_groups(pending: int) -> None:
    """cp.async.wait_group: at most `pending` of the latest groups are still under way."""
    attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), pending)
    ir.Operation.create("nvvm.cp.async.wait.group", attributes={"n": attr})
