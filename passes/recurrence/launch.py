"""The launch of a recurrence: the host function, the kernel and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mlirc.ir.dependence import COOPERATIVE
from mlirc.ir.recurrences import Recurrence
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, func, gpu, ir, llvm, memref, scf
from mlirc.passes.distribute.emit.blame import check_attributes
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.kernel import memref_of, take_place
from mlirc.passes.recurrence import geometry
from mlirc.passes.recurrence.body import Body
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target


@dataclass(frozen=True)
class Buffers:
    """What the blocks of a recurrence touch: the function's arguments, its results, and the state that they hand to
    each other, [2, batch, units]."""

    arguments: list[ir.Value]
    results: list[ir.Value]
    handed: ir.Value


def lower(
    module: ir.Module, function: func.FuncOp, name: str, recurrences: Sequence[Recurrence], target: Target
) -> None:
    """Replaces the function by a gpu.module and a host function of the same name. Each of the recurrences has as many
    blocks of the launch."""
    taken = Taken(schedule_attributes.demands(function))
    check_attributes(function)
    geometries = [_geometry(r, function, taken) for r in recurrences]
    g = geometries[0]
    if problem := g.problem(replace(target, sms=target.sms // len(recurrences))):
        raise Unsupported(f"mlirc.units = {g.own}: {problem}", function, "units")
    if any(other != g for other in geometries):
        raise Unsupported("its recurrences are not divided alike", function)
    block = function.regions[0].blocks[0]
    returned = list(block.operations)[-1].operands
    inputs, outputs = [memref_of(a.type) for a in block.arguments], [memref_of(v.type) for v in returned]
    states = [ir.MemRefType(inputs[r.starts[r.state]]) for r in recurrences]
    handed = [ir.MemRefType.get([2, *state.shape], state.element_type) for state in states]
    with function.location, ir.InsertionPoint(function):
        gpu_module = gpu.GPUModuleOp(ir.StringAttr.get(f"{name}_gpu"))
        gpu_module.regions[0].blocks.append()
        host = func.FuncOp(f"{name}_host", ir.FunctionType.get([*inputs, *outputs], []))
        entry = host.add_entry_block()
        types = [*inputs, *outputs, *handed]
        smem = _kernel(gpu_module, name, recurrences, g, Emission(target, taken, len(inputs), types))
        with ir.InsertionPoint(entry):
            own = [memref.AllocOp(t, [], []).result for t in handed]
            _launch(name, g, len(recurrences), smem, [*entry.arguments, *own])
            func.ReturnOp([])
    take_place(module, function, host, name)


@dataclass(frozen=True)
class Emission:
    """What a kernel is built for, and over: buffers of these types, `inputs` inputs, then results, then states."""

    target: Target
    taken: Taken
    inputs: int
    types: list[ir.Type]


def _geometry(recurrence: Recurrence, function: func.FuncOp, taken: Taken) -> geometry.Geometry:
    matrix = function.regions[0].blocks[0].arguments[recurrence.matrix]
    instruction = taken.take(recurrence.product, "mma", "fma")
    own, warps = taken.take(function, "units", 1), taken.take(function, "warps", 8)
    size = element_bytes(ir.RankedTensorType(matrix.type).element_type)
    if instruction not in geometry.INSTRUCTIONS or instruction != "fma" and not recurrence.k_last:
        what = "rows of the matrix do not run along k" if instruction in geometry.INSTRUCTIONS else "takes none such"
        raise Unsupported(f'mlirc.mma = "{instruction}": {what}: leave it out', recurrence.product, "mma")
    return geometry.Geometry(recurrence.batch, recurrence.units, recurrence.gates, size, own, warps, instruction)


def _kernel(gpu_module, name: str, recurrences: Sequence[Recurrence], g: geometry.Geometry, e: Emission) -> int:
    """Builds the kernel; returns the bytes of shared memory of a block."""
    counters = [f"{name}_arrived{f'_{i}' if i else ''}" for i in range(len(recurrences))]
    with ir.InsertionPoint(gpu_module.regions[0].blocks[0]):
        for counter in counters:
            _declare(counter)
        kernel = gpu.GPUFuncOp(ir.FunctionType.get(e.types, []), name, kernel=True)
        kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([32 * g.warps, 1, 1])
        blocks = kernel.regions[0].blocks
        entry = blocks[0] if blocks else blocks.append(*e.types)
    em = Emitter(entry, g.warps, e.target, e.taken)
    arguments, handed = list(entry.arguments), list(entry.arguments)[-len(recurrences) :]
    results = arguments[e.inputs : -len(recurrences)]
    with ir.InsertionPoint(entry):
        launched = g.blocks * len(recurrences)
        number = gpu.BlockIdOp(gpu.Dimension.x).result if launched > 1 else 0

        def build(i: int) -> None:
            block = em.sub(number, i * g.blocks) if g.blocks > 1 else 0
            buffers = Buffers(arguments[: e.inputs], results, handed[i])
            body = Body(em, recurrences[i], g, buffers, counters[i], block)
            body.build()
            body.products.release()

        _each(em, number, g.blocks, len(recurrences), build)
        gpu.ReturnOp([])
    i32 = ir.IntegerType.get_signless(32)
    kernel.attributes["mlirc.smem"] = ir.IntegerAttr.get(i32, em.smem_bytes)
    kernel.attributes["mlirc.min_blocks"] = ir.IntegerAttr.get(i32, 1)
    return em.smem_bytes


def _each(em: Emitter, number, blocks: int, count: int, build: Callable[[int], None], first: int = 0) -> None:
    """Builds what the blocks of each recurrence from number `first` on do, `build(its number)`."""
    if first == count - 1:
        build(first)
        return
    branch = scf.IfOp(em.condition(em.less(number, (first + 1) * blocks)), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        build(first)
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _each(em, number, blocks, count, build, first + 1)
        scf.YieldOp([])


def _declare(name: str) -> None:
    """Adds a counter of blocks, zero, to a gpu.module."""
    i32 = ir.IntegerType.get_signless(32)
    zeros = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([1], i32), ir.IntegerAttr.get(i32, 0))
    array, internal = ir.Type.parse("!llvm.array<1 x i32>"), ir.Attribute.parse("#llvm.linkage<internal>")
    llvm.GlobalOp(ir.TypeAttr.get(array), name, internal, value=zeros, addr_space=1)


def _launch(name: str, g: geometry.Geometry, count: int, smem: int, operands: list[ir.Value]) -> None:
    index, i32 = ir.IndexType.get(), ir.IntegerType.get_signless(32)

    def number(t: ir.Type, value: int) -> ir.Value:
        return arith.ConstantOp(t, value).result

    one = number(index, 1)
    launch = gpu.LaunchFuncOp(
        [f"{name}_gpu", name], (number(index, g.blocks * count), one, one), (number(index, 32 * g.warps), one, one),
        operands, dynamic_shared_memory_size=number(i32, smem),
    )  # fmt: skip
    if g.blocks > 1:
        launch.attributes[COOPERATIVE] = ir.UnitAttr.get()
