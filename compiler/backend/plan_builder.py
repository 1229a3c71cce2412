"""Builds the launch plan from the `kernels` level's `@main` and what the back end made of each kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mlirc.backend.arena import pack
from mlirc.backend.kernel import CompiledKernel, Copy
from mlirc.backend.plan_branches import IN_ORDER, Branches, find_branches
from mlirc.backend.plan_draft import Draft
from mlirc.backend.plan_in_place import InPlace, plan_in_place
from mlirc.backend.plan_loops import read_loop_call
from mlirc.backend.plan_state import write_back, written_argument
from mlirc.backend.plan_views import Buffer, Step, View, tensor_bytes
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.ir.at_load import FIXED, split_at_load
from mlirc.ir.dependence import GIVEN as UNWRITTEN
from mlirc.ir.loops import is_loop, read_loop
from mlirc.ir.sizes import read_sizes
from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir
from mlirc.runtime.plan import (
    DTYPE_BYTES,
    GIVEN,
    WRITTEN,
    CopyStep,
    KernelLaunch,
    Plan,
    Ref,
    Repeat,
    TensorSpec,
    aligned,
)
from mlirc.runtime.plan_check import check_plan, used_arena
from mlirc.runtime.repeats import MAX_STEPS, PlanStep, unroll, with_references
from mlirc.runtime.sizes import Sizes
from mlirc.runtime.structure import Structure


def tensor_spec(type_: ir.Type, name: str, kind: str, dtype: str = "") -> TensorSpec:
    """The plan's description of a static ranked tensor type; `dtype` is what its elements mean, where they do not say
    it."""
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise MlircError(f"{kind} '{name}': {type_} is not a tensor of static shape")
    dtype = dtype or str(type_.element_type)
    if dtype not in DTYPE_BYTES:
        raise MlircError(f"{kind} '{name}': element type {dtype} is not supported: use one of {', '.join(DTYPE_BYTES)}")
    return TensorSpec(name, dtype, tuple(type_.shape), kind)


def origins(location: ir.Location) -> list[str]:
    """The module paths named by a location, in order, without repetitions."""
    if isinstance(location, ir.NameLoc):
        return [location.name_str]
    if isinstance(location, ir.FusedLoc):
        return list(dict.fromkeys(name for part in location.locations for name in origins(part)))
    if isinstance(location, ir.CallSiteLoc):
        return origins(location.callee) or origins(location.caller)
    return []


PLACE = Ref("arena", 0, 0, 0)  # where a table's pointers will be


def _string(attributes: Mapping[str, ir.Attribute] | None, name: str, default: str) -> str:
    if attributes is None or name not in attributes:
        return default
    return ir.StringAttr(attributes[name]).value


def _dicts(attribute: ir.Attribute | None, count: int) -> list:
    return list(attribute) if attribute is not None else [None] * count


@dataclass
class Builder(Draft):
    """Walks `@main` once; afterwards `steps` and `buffers` hold the plan with the arena not yet laid out."""

    compiled: Mapping[str, CompiledKernel] = field(default_factory=dict)
    boundary: dict[str, list[TensorSpec]] = field(default_factory=lambda: {"input": [], "weight": [], "output": []})
    kernels: dict[str, ir.Operation] = field(default_factory=dict)
    setup: int = 0
    arguments: list[TensorSpec] = field(default_factory=list)  # of `@main`
    places: list[View] = field(default_factory=list)  # of the arguments
    in_place: InPlace = field(default_factory=InPlace)
    draws: tuple[int, ...] = ()
    sizes: Sizes | None = None
    structure: Structure | None = None

    def walk(self, main: ir.Operation) -> None:
        block = main.regions[0].blocks[0]
        attrs = main.attributes
        self.sizes, self.structure = read_sizes(main), levels.structure_of(main)
        self.read_arguments(block, _dicts(attrs["arg_attrs"] if "arg_attrs" in attrs else None, len(block.arguments)))
        operations = [view.operation for view in block.operations]
        kinds = {v: spec.kind for v, spec in zip(block.arguments, self.arguments, strict=True)}
        now, later = split_at_load(operations, kinds)
        results = later[-1].operands
        about = _dicts(attrs["res_attrs"] if "res_attrs" in attrs else None, len(results))
        self.in_place = plan_in_place(block, about, self.compiled, set(now))
        for op in now:
            self.read(op)
        self.align_fixed(later)
        self.setup, self.in_setup = len(self.steps), False
        for op in later[:-1]:
            self.read(op)
        self.read_return(later[-1], about)
        for buffer in self.buffers:
            if buffer.static and buffer.last >= self.setup:
                buffer.last = len(self.steps)  # kept from one run to the next

    def align_fixed(self, operations: list[ir.Operation]) -> None:
        """Copies what these kernels read of weights from an address that is none for them, once for all runs."""
        for op in operations:
            if op.name == "func.call" and ir.FlatSymbolRefAttr(op.attributes["callee"]).value in self.compiled:
                for view in [self.values[v] for v in op.operands if v in self.values]:
                    if self.buffers[view.buffer].static:
                        self.align(view)

    def read(self, op: ir.Operation) -> None:
        if op.name == "func.call":
            self.read_call(op)
        else:
            self.read_view(op)

    def read_arguments(self, block: ir.Block, attributes: list) -> None:
        for i, (arg, attrs) in enumerate(zip(block.arguments, attributes, strict=True)):
            kind = _string(attrs, "mlirc.kind", "input")
            spec = tensor_spec(
                arg.type, _string(attrs, "mlirc.name", f"arg{i}"), kind, _string(attrs, "mlirc.dtype", "")
            )
            if kind not in (*GIVEN, "random", "weight", "constant", "state"):
                raise MlircError(f"main: argument '{spec.name}' has kind '{kind}': use input, weight or constant")
            space = "input" if kind in (*GIVEN, "random") else "weight"
            if kind == "random":
                self.draws = levels.draws_of(attrs)
            self.values[arg] = self.new_buffer(space, spec.nbytes, len(self.boundary[space]))
            self.buffers[-1].static = kind in FIXED
            self.boundary[space].append(spec)
            self.arguments.append(spec)
            self.places.append(self.values[arg])

    def read_view(self, op: ir.Operation) -> None:
        if op.name in ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"):
            self.values[op.results[0]] = self.values[op.operands[0]]
        elif op.name == "tensor.extract_slice":
            source = self.values[op.operands[0]]
            offset, size = _slice_range(op)
            self.values[op.results[0]] = replace(source, offset=source.offset + offset, size=size)
        else:
            raise MlircError(f"main: {op.name} at {op.location} is neither a kernel call nor a free view")

    def read_call(self, op: ir.Operation) -> None:
        name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if name in self.kernels and is_loop(self.kernels[name]):
            read_loop_call(self, op, read_loop(self.kernels[name]), self.kernels.get, self.read)
            return
        if name not in self.compiled:
            raise MlircError(f"main: kernel '{name}' is called but was not compiled")
        kernel = self.compiled[name]
        inputs = [self.align(self.values[v]) for v in op.operands]
        first = len(self.steps)
        results = [self.place(op, i) or self.new_buffer("arena", tensor_bytes(v.type, f"kernel {name}, result"))
                   for i, v in enumerate(op.results)]  # fmt: skip
        workspaces = [self.new_buffer("arena", size) for size in kernel.workspaces]
        views = [*inputs, *results, *workspaces]
        origin = tuple(origins(op.location) or self.kernel_origin(name))
        for launch in kernel.launches:
            self.add_launch(name, launch, views, len(inputs), origin)
        copied = any(isinstance(launch, Copy) for launch in kernel.launches)
        if len(self.steps) == first and any(v.size for v in results) and not copied:
            raise MlircError(f"kernel '{name}' has results but launches nothing: its schedule must tile it to blocks")
        for value, result in zip(op.results, results, strict=True):
            self.values[value] = result
        # Results and workspaces of one call must not share memory: all of them live through the whole call.
        for view in views:
            self.buffers[view.buffer].last = max(self.buffers[view.buffer].last, len(self.steps) - 1)

    def place(self, op: ir.Operation, number: int) -> View | None:
        """Where a kernel's result is made over what nobody reads any more; None for a buffer of its own."""
        argument = self.in_place.result_of.get((op, number))
        operand = self.in_place.over.get((op, number))
        if argument is not None:
            view = self.places[ir.BlockArgument(argument).arg_number]
        elif operand is not None:
            view = self.values[op.operands[operand]]
            buffer = self.buffers[view.buffer]
            own = buffer.space == "arena" and not buffer.static and not buffer.looped
            if not own or view != View(view.buffer, 0, buffer.size):
                return None
        else:
            return None
        self.realigned = {v: copy for v, copy in self.realigned.items() if v.buffer != view.buffer}
        return view

    def kernel_origin(self, name: str) -> list[str]:
        function = self.kernels.get(name)
        if function is None or "mlirc.origin" not in function.attributes:
            return []
        return [ir.StringAttr(a).value for a in ir.ArrayAttr(function.attributes["mlirc.origin"])]

    def add_launch(self, kernel: str, launch, views: list[View], inputs: int, origin: tuple[str, ...]) -> None:
        """Adds a launch or a copy of a kernel whose first `inputs` views it does not write."""
        if isinstance(launch, Copy):
            source, target = views[launch.source], views[launch.target]
            if launch.size and source != target:  # a result that is made in the argument's place
                a = replace(source, offset=source.offset + launch.source_offset, size=launch.size)
                b = replace(target, offset=target.offset + launch.target_offset, size=launch.size)
                self.steps.append(Step((a, b), written=(b,)))
            return
        if 0 in launch.grid:
            return  # nothing to compute, and the driver refuses an empty grid
        bound = []
        written = tuple(views[i] for i, _ in launch.places if inputs <= i < len(views))
        for index, offset in launch.places:
            if not 0 <= index < len(views):
                raise MlircError(f"kernel '{kernel}': launch {launch.symbol} binds buffer {index} of {len(views)}")
            view = views[index]
            bound.append(replace(view, offset=view.offset + offset, size=view.size - offset))
        extents = {d: replace(e, scalar=self.scalar(kernel, views[e.scalar])) for d, e in launch.extents.items()}
        del bound[len(bound) - len(extents) :]
        for number in launch.values:
            self.scalar(kernel, bound[number])
        for number in launch.given:
            self.check_given(kernel, launch, number, [bound[i] for i in launch.numbers_of(number)])
        step = KernelLaunch(
            launch.symbol, launch.grid, launch.block, launch.smem, (), kernel, origin, launch.cluster, launch.maps,
            launch.dependent, launch.values, {n: (PLACE,) * len(t) for n, t in launch.tables.items()}, extents,
            launch.cooperative,
        )  # fmt: skip
        self.steps.append(Step(tuple(bound), step, written))

    def check_given(self, kernel: str, launch, number: int, views: list[View]) -> None:
        """Raises MlircError where a run may write what a launch reads before those in front of it have ended."""
        for view in views:
            buffer = self.buffers[view.buffer]
            about = self.boundary[buffer.space][buffer.index] if buffer.space in ("input", "weight") else None
            if about is None or about.kind in WRITTEN:
                raise MlircError(
                    f"kernel '{kernel}': {launch.symbol} may read argument {number} before the launches in front of "
                    f"it have ended ({UNWRITTEN}), but in @main that is what a run writes"
                )

    def scalar(self, kernel: str, view: View) -> int:
        """The number of the input of kind `scalar` that a view is all of; raises MlircError for anything else."""
        buffer = self.buffers[view.buffer]
        spec = self.boundary["input"][buffer.index] if buffer.space == "input" else None
        if spec is None or spec.kind != "scalar" or view.size != spec.nbytes:
            raise MlircError(
                f"kernel '{kernel}' takes a number by value that is no input of kind 'scalar': the host has no other"
            )
        return buffer.index

    def read_return(self, op: ir.Operation, attributes: list) -> None:
        written: list[tuple[View, View]] = []
        taken: set[int] = set()
        for value, attrs in zip(op.operands, attributes, strict=True):
            number = written_argument(attrs, self.arguments, taken)
            if number is not None:
                written.append((self.values[value], self.places[number]))
                continue
            i = len(self.boundary["output"])
            spec = tensor_spec(
                value.type, _string(attrs, "mlirc.name", f"out{i}"), "output", _string(attrs, "mlirc.dtype", "")
            )
            self.boundary["output"].append(spec)
            view = self.values[value]
            buffer = self.buffers[view.buffer]
            own = buffer.space == "arena" and not buffer.static and not buffer.looped
            if own and buffer.size == view.size == spec.nbytes:
                buffer.space, buffer.index = "output", i  # written in place by the kernel that makes it
            elif spec.nbytes:
                self.copy(view, self.new_buffer("output", spec.nbytes, i))
        for number, spec in enumerate(self.arguments):
            if spec.kind in WRITTEN and number not in taken:
                raise MlircError(f"main: no result is the new value of '{spec.name}', which is of kind {spec.kind}")
        write_back(self, written)


def _slice_range(op: ir.Operation) -> tuple[int, int]:
    """(byte offset, bytes) of a contiguous static `tensor.extract_slice`."""
    source = op.operands[0].type
    where = f"main: tensor.extract_slice at {op.location}"
    if len(op.operands) != 1:
        raise MlircError(f"{where} has sizes or offsets that are not constant")
    lists = [list(ir.DenseI64ArrayAttr(op.attributes[n])) for n in ("static_offsets", "static_sizes", "static_strides")]
    element = ELEMENT_BYTES[str(source.element_type)]
    offset, stride, count, dense = 0, 1, 1, True
    for extent, start, size, step in zip(*(reversed(x) for x in (source.shape, *lists)), strict=True):
        if size != 1 and (step != 1 or not dense):
            raise MlircError(f"{where} is not contiguous: it has to be a kernel")
        dense = dense and size == extent
        offset, count, stride = offset + start * stride, count * size, stride * extent
    return offset * element, count * element


def _lay_out(buffers: list[Buffer], branches: Branches) -> tuple[list[int], int, int]:
    """(arena offset of every buffer, arena size, size without packing), all in bytes."""
    indices = [i for i, b in enumerate(buffers) if b.space == "arena"]
    lifetimes = [branches.lifetime(buffers[i]) for i in indices]
    packed, size = pack(lifetimes)
    offsets = [0] * len(buffers)
    for i, offset in zip(indices, packed, strict=True):
        offsets[i] = offset
    return offsets, size, sum(aligned(b.size) for b in lifetimes)


def _unrolled(builder: Builder, once: list[PlanStep]) -> tuple[list[PlanStep], list[Repeat], int]:
    """All steps, with every iteration of the loops of which `once` has the first; the loops among them; and how many
    of the steps run at load."""
    steps: list[PlanStep] = []
    repeats: list[Repeat] = []
    loops = {loop.first: loop for loop in builder.loops}
    setup = number = 0
    while number < len(once):
        if loop := loops.get(number):
            repeats.append(Repeat(len(steps), loop.length, loop.count))
            motions = [[v.motion for v in s.views] for s in builder.steps[number : number + loop.length]]
            if len(steps) + loop.length * loop.count > MAX_STEPS:
                raise MlircError(
                    f"main: its loops over time steps make more than {MAX_STEPS} launches and copies: give the model a "
                    "shorter sequence"
                )
            steps += unroll(once[number : number + loop.length], motions, loop.count)
        else:
            steps.append(once[number])
        number += loop.length if loop else 1
        setup = len(steps) if number <= builder.setup else setup
    return steps, repeats, setup


def build_plan(
    kernels_module: ir.Module,
    compiled: Mapping[str, CompiledKernel],
    *,
    model: str,
    target: str,
    versions: Mapping[str, str] | None = None,
) -> Plan:
    """Builds the launch plan of a `kernels`-level module.

    `compiled` maps each kernel function's name to its CompiledKernel; `target` is the target's name. Intermediate
    results and workspaces share one arena by their lifetimes; a kernel's result that the model returns is written
    straight into the output; an input, a weight or a part of a tensor that the model returns, or one returned twice, is
    copied. Calls that depend on weights and constants alone run once, when the model is loaded (`mlirc.ir.at_load`).
    Names default to `argN` and `outN`, and an argument without `mlirc.kind` is an input. Raises MlircError for an
    operation in `@main` that is neither a call nor a free view.
    """
    functions = [op.operation for op in kernels_module.body.operations if op.operation.name == "func.func"]
    by_name = {ir.StringAttr(f.attributes["sym_name"]).value: f for f in functions}
    if "main" not in by_name:
        raise MlircError("kernels level: the module has no function @main")
    builder = Builder(compiled=compiled, kernels=by_name)
    with kernels_module.context:
        builder.walk(by_name["main"])
    branches = IN_ORDER
    if levels.BRANCHES in by_name["main"].attributes and not builder.loops:
        branches = find_branches(builder.steps, builder.setup)
    offsets, arena_size, unpacked = _lay_out(builder.buffers, branches)

    def bound(step: Step) -> PlanStep:
        refs = []
        for view in step.views:
            buffer = builder.buffers[view.buffer]
            refs.append(Ref(buffer.space, buffer.index, offsets[view.buffer] + view.offset, view.size))
        return with_references(step.launch, refs) if step.launch else CopyStep(*refs)

    steps, repeats, setup = _unrolled(builder, [bound(step) for step in builder.steps])
    plan = Plan(
        model=model,
        target=target,
        inputs=builder.boundary["input"],
        outputs=builder.boundary["output"],
        weights=builder.boundary["weight"],
        arena_size=min(arena_size, used_arena(steps)),
        steps=steps,
        unpacked_size=unpacked,
        setup=setup,
        repeats=repeats,
        versions=dict(versions or {}),
        draws=builder.draws,
        sizes=builder.sizes,
        structure=builder.structure,
        after=branches.after,
    )
    check_plan(plan)
    return plan
