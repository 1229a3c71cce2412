"""Runs a kernel's PTX: launches as the host function at the `gpu` level has them, batch of blocks by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mlirc.backend.kernel import CompiledKernel, Copy, Launch
from mlirc.device.ptx.instructions import STEPS, check
from mlirc.device.ptx.machine import BLOCK, WARP, WARPS, Machine, Memory
from mlirc.device.ptx.parse import TOGETHER, Entry, Instruction, Unknown, parse
from mlirc.errors import MlircError

LANES_OF_A_WARP = (1 << WARP) - 1
BATCH = 1 << 14  # threads at a time


def run_kernel(kernel: CompiledKernel, args: Sequence[np.ndarray]) -> None:
    """Runs a compiled kernel's launches; `args` are the host function's arguments, inputs then results, which are
    changed in place. Raises MlircError for an instruction that is not known, named with its line before anything runs,
    and for an access out of bounds or misaligned, and a deadlock."""
    entries = parse(kernel.ptx, f"PTX of {kernel.name}")
    memory = Memory([*(a.nbytes for a in args), *kernel.workspaces])
    for start, array in zip(memory.starts, args, strict=False):
        memory.data[start : start + array.nbytes] = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    for launch in kernel.launches:
        if isinstance(launch, Copy):
            source, target = (memory.starts[i] + o for i, o in (
                (launch.source, launch.source_offset), (launch.target, launch.target_offset),
            ))  # fmt: skip
            memory.data[target : target + launch.size] = memory.data[source : source + launch.size]
        elif math.prod(launch.grid):
            run_launch(entries, launch, memory)
    for start, array in zip(memory.starts, args, strict=False):
        raw = memory.data[start : start + array.nbytes]
        if array.flags.writeable:
            array[...] = raw.view(array.dtype).reshape(array.shape)


def run_launch(entries: Mapping[str, Entry], launch: Launch, memory: Memory) -> None:
    """Runs one launch on buffers of `memory`, numbered as in `launch.args`."""
    entry = entries.get(launch.symbol)
    if entry is None:
        raise MlircError(f"PTX: no entry is called {launch.symbol}")
    if launch.cluster:
        raise Unknown(f"{launch.symbol}: clusters are not known here")
    if launch.maps:
        raise Unknown(f"{launch.symbol}: tensor maps are not known here")
    for instruction in (i for block in entry.blocks for i in block):
        try:
            check(instruction)
        except MlircError as e:
            raise type(e)(f"{entry.name}: {e}") from e
    addresses = [memory.address(i) + o for i, o in zip(launch.args, launch.offsets, strict=True)]
    parameters = dict(zip(entry.parameters, addresses, strict=True))
    total, at_once = math.prod(launch.grid), max(1, BATCH // math.prod(launch.block))
    with np.errstate(all="ignore"):
        for first in range(0, total, at_once):
            numbers = np.arange(first, min(total, first + at_once))
            machine = Machine(entry, memory, launch.grid, launch.block, launch.smem, numbers, parameters)
            _run(machine)


def _run(m: Machine) -> None:
    while (found := m.next()) is not None:
        at, active = found
        block = m.entry.blocks[at]
        if block[0].name.startswith(TOGETHER):
            active = m.gather_lanes(active, _mask(block[0]))
            if not active.any():
                continue
        every = bool(active.all())
        for instruction in block:
            _execute(m, instruction, active, every, at)
        if not _leaves(block[-1]):
            m.pc[active] = at + 1
            last = block[-1].name
            if last.startswith(("bar.", "barrier.")):
                m.wait(active, WARPS if last == "bar.warp.sync" else BLOCK)


def _mask(instruction: Instruction) -> int:
    """The lanes that an instruction names; all, where it has no mask."""
    if not instruction.name.startswith(("shfl.", "vote.")):
        return LANES_OF_A_WARP
    mask = instruction.operands[-1]
    if mask.kind != "number":
        raise Unknown(f"line {instruction.line}: `{instruction.name}` with a mask that is computed is not known here")
    return mask.value & LANES_OF_A_WARP


def _leaves(instruction: Instruction) -> bool:
    return instruction.op[0] in ("bra", "ret", "exit")


def _execute(m: Machine, instruction: Instruction, active: np.ndarray, every: bool, at: int) -> None:
    chosen = active
    if instruction.guard:
        chosen = active & (m.registers[instruction.guard] != instruction.negated)
    head = instruction.op[0]
    if head == "bra":
        m.pc[active] = at + 1
        m.pc[chosen] = m.entry.labels[instruction.operands[0].name]
    elif head in ("ret", "exit"):
        m.pc[active] = at + 1
        m.pc[chosen] = m.end
        for kind in (BLOCK, WARPS):
            m.wait(np.zeros(m.count, bool), kind)  # who waits for those that have left waits no longer
    elif head in ("bar", "barrier"):
        number = instruction.operands[0]
        count = len(instruction.operands)
        if instruction.guard or number.kind != "number" or number.value not in (0, -1) or count > 1:
            raise Unknown(
                f"{m.entry.name}: line {instruction.line}: a barrier of a part of its threads is not known here"
            )
    elif chosen.any():
        try:
            STEPS[head](m, instruction, None if every and not instruction.guard else chosen)
        except MlircError as e:
            name = m.entry.name
            raise e if str(e).startswith(name) else type(e)(f"{name}: {e}") from e
