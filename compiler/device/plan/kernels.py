"""What the `gpu` level says of each launch: its sizes, the bytes of its arguments, which of them it writes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mlirc.backend.kernel import Copy, Launch, launches_from_gpu_module, memref_bytes
from mlirc.backend.ptx import entry_name
from mlirc.device.launch import stored_parameters
from mlirc.device.plan.contents import NOTHING, Content, Memory, joined, part, whole
from mlirc.ir import levels
from mlirc.mlir import ir


@dataclass(frozen=True)
class KernelLaunches:
    """One kernel: how many inputs its host function has; the bytes of its arguments, results behind inputs, and of its
    workspaces behind them; its launches in order, by the names of the PTX's entries; and per launch the parameters that
    it writes."""

    name: str
    inputs: int
    sizes: tuple[int, ...]
    launches: tuple[Launch | Copy, ...]
    stored: tuple[frozenset[int], ...]

    def bytes_of(self, launch: Launch) -> tuple[int, ...]:
        """How many bytes each of the places of a launch (`Launch.places`) has."""
        return tuple(self.sizes[i] - o for i, o in launch.places)

    def unwritten(self) -> list[list[Content]]:
        """Per launch and parameter what of it earlier steps of the kernel have made, with NOTHING where they have not:
        there the plan's arena holds what was there before, and nobody may care."""
        memories = [Memory(n) for n in self.sizes]
        for memory, size in zip(memories[: self.inputs], self.sizes, strict=False):
            memory.write(0, whole(1, size))
        masks: list[list[Content]] = []
        for launch, stored in zip(self.launches, self.stored, strict=True):
            if isinstance(launch, Copy):
                masks.append([])
                memories[launch.target].write(
                    launch.target_offset, memories[launch.source].read(launch.source_offset, launch.size)
                )
                continue
            places = [(*place, size) for place, size in zip(launch.places, self.bytes_of(launch), strict=True)]
            masks.append([memories[i].read(offset, size) for i, offset, size in places])
            for parameter in stored:
                i, offset, size = places[parameter]
                memories[i].write(offset, whole(1, size))
        return masks


def masked(content: Content, mask: Content) -> Content:
    """A content with NOTHING where its mask has that."""
    if all(value != NOTHING for value, _, _ in mask):
        return content
    out, at = [], 0
    for value, _, size in mask:
        out += [(NOTHING, 0, size)] if value == NOTHING else list(part(content, at, size))
        at += size
    return joined(out)


def read_kernel(name: str, inputs: int, module: ir.Module) -> KernelLaunches:
    """Reads a kernel's `gpu`-level module; `inputs`: how many of the host function's arguments are no results. Raises
    MlircError where the back end would."""
    launches, workspaces = launches_from_gpu_module(module)
    host = levels.functions(module)[levels.host_function(module)]
    sizes = [memref_bytes(t, f"kernel {name}") for t in host.type.inputs]
    functions = {}
    for op in module.body.operations:
        if op.operation.name == "gpu.module":
            for f in op.operation.regions[0].blocks[0].operations:
                if f.operation.name == "gpu.func":
                    functions[ir.StringAttr(f.operation.attributes["sym_name"]).value] = f.operation
    kept: list[Launch | Copy] = []
    stored: list[frozenset[int]] = []
    for launch in launches:
        if isinstance(launch, Copy):
            kept.append(launch)
            stored.append(frozenset())
        elif math.prod(launch.grid):  # the driver refuses an empty grid, and the plan leaves it out
            written = stored_parameters(functions[launch.symbol])
            stored.append(frozenset(n for p in written for n in launch.numbers_of(p)))
            kept.append(replace(launch, symbol=entry_name(name, launch.symbol)))
    return KernelLaunches(name, inputs, (*sizes, *workspaces), tuple(kept), tuple(stored))
