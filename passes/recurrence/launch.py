"""The launch of a recurrence: the host function, the kernel and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.ir.dependence import COOPERATIVE
from mlirc.ir.recurrences import Recurrence
from mlirc.ir.tensors import element_bytes
from mlirc.mlir import arith, func, gpu, ir, llvm, memref
from mlirc.passes.distribute.emit.blame import check_attributes
from mlirc.passes.distribute.emit.emitter import Emitter, Unsupported
from mlirc.passes.distribute.kernel import memref_of
from mlirc.passes.recurrence import geometry
from mlirc.passes.recurrence.body import Body
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.attributes import Taken
from mlirc.targets import Target


@dataclass(frozen=True)
class Buffers:
    """What a kernel touches: the function's arguments, its results, and the state that blocks hand to each other,
    [2, batch, units]."""

    arguments: list[ir.Value]
    results: list[ir.Value]
    handed: ir.Value


def lower(module: ir.Module, function: func.FuncOp, name: str, recurrence: Recurrence, target: Target) -> None:
    """Replaces the function by a gpu.module and a host function of the same name."""
    taken = Taken(schedule_attributes.demands(function))
    check_attributes(function)
    g = _geometry(recurrence, function, taken)
    if problem := g.problem(target):
        raise Unsupported(f"mlirc.units = {g.own}: {problem}", function, "units")
    block = function.regions[0].blocks[0]
    returned = list(block.operations)[-1].operands
    inputs, outputs = [memref_of(a.type) for a in block.arguments], [memref_of(v.type) for v in returned]
    state = ir.MemRefType(inputs[recurrence.starts[recurrence.state]])
    handed = ir.MemRefType.get([2, *state.shape], state.element_type)
    with function.location, ir.InsertionPoint(function):
        gpu_module = gpu.GPUModuleOp(ir.StringAttr.get(f"{name}_gpu"))
        gpu_module.regions[0].blocks.append()
        host = func.FuncOp(f"{name}_host", ir.FunctionType.get([*inputs, *outputs], []))
        entry = host.add_entry_block()
        _kernel(gpu_module, name, recurrence, g, target, taken, [*inputs, *outputs, handed])
        with ir.InsertionPoint(entry):
            _launch(gpu_module, name, g, [*entry.arguments, memref.AllocOp(handed, [], []).result])
            func.ReturnOp([])
    for key in function.attributes:
        if key.startswith("mlirc.") and key != schedule_attributes.DEMANDS:
            host.attributes[key] = function.attributes[key]
    function.operation.erase()
    host.attributes["sym_name"] = ir.StringAttr.get(name)
    module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()


def _geometry(recurrence: Recurrence, function: func.FuncOp, taken: Taken) -> geometry.Geometry:
    matrix = function.regions[0].blocks[0].arguments[recurrence.matrix]
    instruction = taken.take(recurrence.product, "mma", "fma")
    own, warps = taken.take(function, "units", 1), taken.take(function, "warps", 8)
    size = element_bytes(ir.RankedTensorType(matrix.type).element_type)
    if instruction not in geometry.INSTRUCTIONS or instruction != "fma" and not recurrence.k_last:
        what = "rows of the matrix do not run along k" if instruction in geometry.INSTRUCTIONS else "takes none such"
        raise Unsupported(f'mlirc.mma = "{instruction}": {what}: leave it out', recurrence.product, "mma")
    return geometry.Geometry(recurrence.batch, recurrence.units, recurrence.gates, size, own, warps, instruction)


def _kernel(gpu_module, name: str, recurrence: Recurrence, g, target: Target, taken: Taken, types) -> None:
    """Builds the kernel, over the function's arguments, its results and the workspace."""
    with ir.InsertionPoint(gpu_module.regions[0].blocks[0]):
        counter = f"{name}_arrived"
        _declare(counter)
        kernel = gpu.GPUFuncOp(ir.FunctionType.get(types, []), name, kernel=True)
        kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([32 * g.warps, 1, 1])
        blocks = kernel.regions[0].blocks
        entry = blocks[0] if blocks else blocks.append(*types)
    em = Emitter(entry, g.warps, target, taken)
    arguments = list(entry.arguments)
    results = len(recurrence.returned)
    buffers = Buffers(arguments[: -results - 1], arguments[-results - 1 : -1], arguments[-1])
    with ir.InsertionPoint(entry):
        Body(em, recurrence, g, buffers, counter).build()
        gpu.ReturnOp([])
    i32 = ir.IntegerType.get_signless(32)
    kernel.attributes["mlirc.smem"] = ir.IntegerAttr.get(i32, em.smem_bytes)
    kernel.attributes["mlirc.min_blocks"] = ir.IntegerAttr.get(i32, 1)


def _declare(name: str) -> None:
    """Adds the blocks' counter, zero, to a gpu.module."""
    i32 = ir.IntegerType.get_signless(32)
    zeros = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get([1], i32), ir.IntegerAttr.get(i32, 0))
    llvm.GlobalOp(
        ir.TypeAttr.get(ir.Type.parse("!llvm.array<1 x i32>")), name, ir.Attribute.parse("#llvm.linkage<internal>"),
        value=zeros, addr_space=1,
    )  # fmt: skip


def _launch(gpu_module, name: str, g, operands: list[ir.Value]) -> None:
    index, i32 = ir.IndexType.get(), ir.IntegerType.get_signless(32)

    def number(t: ir.Type, value: int) -> ir.Value:
        return arith.ConstantOp(t, value).result

    one = number(index, 1)
    smem = ir.IntegerAttr(next(
        o for o in gpu_module.regions[0].blocks[0].operations if o.operation.name == "gpu.func"
    ).attributes["mlirc.smem"]).value  # fmt: skip
    launch = gpu.LaunchFuncOp(
        [f"{name}_gpu", name], (number(index, g.blocks), one, one), (number(index, 32 * g.warps), one, one), operands,
        dynamic_shared_memory_size=number(i32, smem),
    )  # fmt: skip
    if g.blocks > 1:
        launch.attributes[COOPERATIVE] = ir.UnitAttr.get()
