"""Launches one function of a gpu.module without a host function: for kernels written by hand, and those that take
tensor maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlirc.device.arguments import Given, overlap
from mlirc.device.execution import execute
from mlirc.device.limits import SECONDS
from mlirc.device.memory import POISON, Buffer, MemRef
from mlirc.device.report import MAY_BE_HARMLESS, Report
from mlirc.device.shadows.origins import Shadows, has_poison
from mlirc.device.tensor_maps import Im2colMap, TensorMap, Writers, check_parameter
from mlirc.device.translate import Program, translate
from mlirc.errors import MlircError
from mlirc.ir import levels
from mlirc.mlir import ir
from mlirc.passes.contract import settle_floats


def run_function(
    module: ir.Module,
    name: str,
    args: Sequence[np.ndarray | TensorMap | Im2colMap],
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    smem: int = 0,
    *,
    blocks: Sequence[int] | None = None,
    check: bool = True,
    seed: int = 0,
    seconds: float = SECONDS,
) -> Report:
    """Runs an `llvm.func` or `gpu.func` of a gpu.module. `args`: an array for each pointer or memref, changed in place,
    and a TensorMap or Im2colMap for each tensor map. An array that is read-only is an input: a kernel that writes it is
    a finding. Two arguments may be the same array. Raises MlircError for an unknown function, arguments that do not
    fit, and different arrays that share memory."""
    module = levels.copy(module)
    settle_floats(module.operation)
    found = _find(module, name)
    program = translate(found)
    if len(args) != len(program.parameters):
        raise MlircError(f"host device: function {name} takes {len(program.parameters)} arguments, not {len(args)}")
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    arrays = [a for i, a in enumerate(arrays) if not any(_same(a, other) for other in arrays[:i])]
    if clash := overlap(arrays, [i for i, a in enumerate(arrays) if a.flags.writeable]):
        first, second = (arrays[i].shape for i in clash)
        raise MlircError(
            f"host device: function {name}: arrays {list(first)} and {list(second)} share memory in part: copy one"
        )
    report, options = Report(seed=seed), dict(blocks=blocks, check=check, seed=seed, seconds=seconds)
    tensors = [(a, a.array.copy()) for a in args if isinstance(a, TensorMap | Im2colMap)]
    buffers = _run(program, args, (grid, block, smem), report, options)
    if check and report.ended and (MAY_BE_HARMLESS & report.kinds() or has_poison(found)):
        shadows, again, results = Shadows(report), Report(), [(a, a.array.copy()) for a, _ in tensors]
        _restore(tensors)
        twice = _run(translate(found, shadows=shadows), args, (grid, block, smem), again, options)
        for buffer, a in twice:
            if a.flags.writeable:
                shadows.judge_result(buffer, a.nbytes, a.itemsize, name)
        shadows.settle(report, again)
        _restore(results)
    for buffer, a in buffers:
        if a.flags.writeable:
            a[...] = buffer.data[: a.nbytes].view(a.dtype).reshape(a.shape)
    return report


def _restore(tensors: list) -> None:
    """Puts back what was in the arrays of tensor maps."""
    for tensor, was in tensors:
        if tensor.array.flags.writeable:
            tensor.array[...] = was


def _run(program: Program, args: Sequence, shape: tuple, report: Report, options: dict) -> list:
    """One launch, on copies of the arrays, which it returns beside them."""
    registers, name, check = list(program.initial), program.name, options["check"]
    writers: dict[tuple, Writers] = {}  # of the same array, by several maps
    buffers: list[tuple[Buffer, np.ndarray]] = []
    arguments = program.function.regions[0].blocks[0].arguments
    for i, (number, value, a) in enumerate(zip(program.parameters, arguments, args, strict=False)):
        if isinstance(a, TensorMap | Im2colMap):
            memory = a.array.__array_interface__["data"][0], a.array.shape
            registers[number], a.writers = a, writers.setdefault(memory, Writers())
            check_parameter(program.function, i, name, report)
            continue
        buffer = next((b for b, other in buffers if _same(a, other)), None)
        if buffer is None:
            buffer = _buffer(i, a, check)
            buffers.append((buffer, a))
        if isinstance(value.type, ir.MemRefType):
            strides, _ = value.type.get_strides_and_offset()
            registers[number] = MemRef(buffer, 0, tuple(value.type.shape), tuple(strides), a.itemsize)
        else:
            registers[number] = MemRef(buffer, 0, (), (), 1)
    with np.errstate(all="ignore"):
        report.ended = execute(program, registers, shape, report=report, **options)
    return buffers


def _buffer(number: int, a: np.ndarray, check: bool) -> Buffer:
    """The memory of an argument: a copy of it."""
    contents = np.frombuffer(a.tobytes(), dtype=np.uint8)
    buffer = Buffer(f"argument {number}", "global", a.nbytes, contents=contents, poison=POISON)
    buffer.tracked = check
    if not a.flags.writeable:
        buffer.given = Given(f"argument {number}", a.shape, a.itemsize)
    return buffer


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.ctypes.data, a.strides, a.shape, a.dtype) == (b.ctypes.data, b.strides, b.shape, b.dtype)


def _find(module: ir.Module, name: str) -> ir.Operation:
    for op in module.body.operations:
        if op.operation.name == "gpu.module":
            for f in op.operation.regions[0].blocks[0].operations:
                if "sym_name" in f.operation.attributes and ir.StringAttr(f.attributes["sym_name"]).value == name:
                    return f.operation
    raise MlircError(f"host device: no function {name} in a gpu.module")
