"""Runs a kernel's PTX: launches as the host function at the `gpu` level has them, batch of blocks by batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mlirc.backend.kernel import CompiledKernel, Copy, Launch
from mlirc.device.ptx.bulk import ended
from mlirc.device.ptx.instructions import STEPS, check
from mlirc.device.ptx.machine import ASKED, WARP, Machine, Memory
from mlirc.device.ptx.parse import ASKS, TOGETHER, WAITS, Entry, Instruction, module_memory, parse
from mlirc.device.ptx.step import unknown
from mlirc.device.tensor_maps import AnyMap, Im2colMap, TensorMap
from mlirc.errors import MlircError
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.plan import Dim3
from mlirc.runtime.scalars import grid_of
from mlirc.runtime.tensor_map import TensorMapSpec

ALL_LANES = (1 << WARP) - 1
MASKED = ("shfl.", "vote.", "redux.", "elect.", "match.", "bar.warp.")  # instructions whose last operand names lanes
MAPS, ALIGN = 1 << 40, 128  # where tensor maps lie, in bytes
BATCH = 1 << 14  # threads at a time


def run_kernel(kernel: CompiledKernel, args: Sequence[np.ndarray]) -> None:
    """Runs a compiled kernel's launches; `args` are the host function's arguments, inputs then results, which are
    changed in place. Raises MlircError for an instruction that is not known, named with its line before anything runs,
    and for an access out of bounds or misaligned, and a deadlock."""
    entries = parse(kernel.ptx, f"PTX of {kernel.name}")
    memory = Memory([*(a.nbytes for a in args), *kernel.workspaces], module_memory(entries))
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


def run_entry(
    text: str, name: str, args: Sequence[np.ndarray | AnyMap], grid: Dim3, block: Dim3, smem: int = 0,
    cluster: Dim3 | None = None,
) -> None:  # fmt: skip
    """Launches one entry of a PTX text. `args`: an array for each pointer, changed in place where it may be written,
    and a tensor map for each that is one; the same array may be given twice. Raises MlircError as `run_kernel` does."""
    arrays = [a if isinstance(a, np.ndarray) else a.array for a in args]
    entries = parse(text, f"PTX of {name}")
    memory = Memory([_span(a) for a in arrays], module_memory(entries))
    first = [next(j for j, b in enumerate(arrays) if _same(a, b)) for a in arrays]
    views = []
    for i, array in enumerate(arrays):
        start = memory.starts[first[i]]
        view = np.ndarray(array.shape, array.dtype, memory.data, start, array.strides)
        view[...] = array
        views.append(view)
    maps = {i: dataclasses.replace(a, array=views[i]) for i, a in enumerate(args) if not isinstance(a, np.ndarray)}
    launch = Launch(name, grid, block, smem, first, [0] * len(args), cluster)
    run_launch(entries, launch, memory, maps)
    for array, view in zip(arrays, views, strict=True):
        if array.flags.writeable:
            array[...] = view


def _span(a: np.ndarray) -> int:
    """Bytes from an array's first element to its last."""
    return sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) + a.itemsize if a.size else 0


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.ctypes.data, a.strides, a.shape, a.dtype) == (b.ctypes.data, b.strides, b.shape, b.dtype)


def run_launch(
    entries: Mapping[str, Entry], launch: Launch, memory: Memory, maps: Mapping[int, AnyMap] | None = None
) -> None:
    """Runs one launch on buffers of `memory`, numbered as in `launch.args`; `maps`: arguments that are tensor maps,
    by their numbers, besides those that the launch knows."""
    entry = entries.get(launch.symbol)
    if entry is None:
        raise MlircError(f"PTX: no entry is called {launch.symbol}")
    for instruction in (i for block in entry.blocks for i in block):
        try:
            check(instruction)
        except MlircError as e:
            raise type(e)(f"{entry.name}: {e}") from e
    places = list(zip(launch.args, launch.offsets, strict=True))
    tensors = {i: _tensor(memory, *places[i], spec) for i, spec in launch.maps.items()} | dict(maps or {})
    addresses = [MAPS + ALIGN * i if i in tensors else memory.address(n) + o for i, (n, o) in enumerate(places)]
    parameters: dict[str, int | np.ndarray] = dict(zip(entry.parameters, addresses, strict=True))
    for i, name in enumerate(entry.parameters):
        if i in launch.values:
            parameters[name] = int.from_bytes(_bytes(memory, *places[i]), "little")
        elif i in launch.tables:
            others = [memory.address(n) + o for n, o in launch.tables[i]]
            parameters[name] = np.array([addresses[i], *others], np.uint64)
    cluster = launch.cluster or entry.cluster
    deciding = {n: int.from_bytes(_bytes(memory, n, o), "little") for n, o in launch.deciding}
    grid = grid_of(launch, deciding, {n: f"buffer {n}" for n in deciding})
    if 0 in grid:
        return
    by_address = {MAPS + ALIGN * i: tensor for i, tensor in tensors.items()}
    size = math.prod(cluster)
    order = _by_cluster(grid, cluster)
    at_once = max(1, BATCH // math.prod(launch.block) // size) * size
    with np.errstate(all="ignore"):
        for first in range(0, len(order), at_once):
            numbers = order[first : first + at_once]
            shape = grid, launch.block, launch.smem, numbers
            _run(Machine(entry, memory, *shape, parameters, cluster, by_address))


def _tensor(memory: Memory, number: int, offset: int, spec: TensorMapSpec) -> AnyMap:
    """A tensor map of a buffer from a byte on; raises MlircError for an array that is larger."""
    start = memory.starts[number] + offset
    if not memory.there[start : start + spec.nbytes].all():
        raise MlircError(f"PTX: a tensor map of {spec} is larger than its buffer")
    array = np.ndarray(spec.shape, NUMPY_DTYPES[spec.dtype], memory.data, start)  # type: ignore[call-overload]
    if spec.im2col is None:
        return TensorMap(array, spec.box, spec.swizzle)
    corners, (pixels, channels) = spec.im2col, spec.box
    return Im2colMap(
        array, corners.lower, corners.upper, pixels, channels, spec.swizzle, strides=corners.strides
    )  # fmt: skip


def _bytes(memory: Memory, number: int, offset: int) -> bytes:
    """The bytes of a buffer that holds one number, from one of them on."""
    start = memory.starts[number] + offset
    size = int(np.argmin(memory.there[start : start + 9]))
    return memory.data[start : start + size].tobytes()


def _by_cluster(grid: Dim3, cluster: Dim3) -> np.ndarray:
    """The numbers of all blocks, those of a cluster together and in the order of their ranks."""
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise MlircError(f"PTX: a grid of {grid} blocks is not made of clusters of {cluster}")
    numbers = np.arange(math.prod(grid)).reshape(grid[::-1])
    parts = [n for g, c in zip(grid[::-1], cluster[::-1], strict=True) for n in (g // c, c)]
    return numbers.reshape(parts).transpose(0, 2, 4, 1, 3, 5).reshape(-1)


def _run(m: Machine) -> None:
    while (found := m.next()) is not None:
        at, active = found
        block = m.entry.blocks[at]
        active = _ready(m, block[0], active)
        if not active.any():
            continue
        every = bool(active.all())
        for instruction in block:
            _execute(m, instruction, active, every, at)
        if not _leaves(block[-1]):
            m.pc[active] = at + 1
            _settle(m, block[-1], active)


def _ready(m: Machine, instruction: Instruction, active: np.ndarray) -> np.ndarray:
    """The active threads that may execute an instruction now; the others wait."""
    if instruction.name.startswith(WAITS):
        if instruction.guard:
            raise unknown(instruction)
        ready = m.has_met() if instruction.op[0] == "barrier" else ended(m, instruction, active)
        return m.hold(active, ready)
    if instruction.name.startswith("wgmma."):
        return m.gather_warpgroups(active) if instruction.name.startswith(TOGETHER) else active
    if instruction.name.startswith(TOGETHER):
        masked = instruction.name.startswith(MASKED)
        mask = m.read(instruction.operands[-1], "u32").astype(np.int64) if masked else np.full(m.count, ALL_LANES)
        return m.gather_lanes(active, mask)
    return active


def _settle(m: Machine, last: Instruction, active: np.ndarray) -> None:
    """What becomes of threads behind the last instruction of a basic block."""
    name = last.name
    if name.startswith("barrier.cluster.arrive"):
        m.meet(active)
    elif name.startswith(("bar.", "barrier.")) and not name.startswith(("bar.warp.", "barrier.cluster")):
        waits = last.op[1] == "sync"
        number, *count = last.operands
        if waits and not count and number.kind == "number" and number.value == 0:
            m.wait_for_block(active)  # those that have left count
        else:
            threads = np.full(m.count, math.prod(m.block), np.uint32)
            m.arrive(
                active, m.read(number, "u32").astype(np.int64), m.read(count[0], "u32") if count else threads, waits
            )
    elif name.startswith(ASKS):
        m.state[active] = ASKED


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
        m.leave()
    elif head in ("bar", "barrier"):
        if instruction.guard:
            raise unknown(instruction)
    elif chosen.any():
        try:
            STEPS[head](m, instruction, None if every and not instruction.guard else chosen)
        except MlircError as e:
            name = m.entry.name
            raise e if str(e).startswith(name) else type(e)(f"{name}: {e}") from e
