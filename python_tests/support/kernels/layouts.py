"""Kernels of one block that read a tile in one register layout and write it in another, built without a tile program;
and random layouts."""

from __future__ import annotations

import numpy as np

from mlirc import mlir
from mlirc.device.direct import run_function
from mlirc.mlir import gpu, ir
from mlirc.passes.distribute.emit.emitter import Emitter
from mlirc.passes.distribute.layouts.registers import Layout, lane, reg, warp
from mlirc.passes.distribute.memory.access import View, store
from mlirc.passes.distribute.tiles import values
from mlirc.targets import get_target


def conversion(
    source: Layout, target: Layout, shape: list[int], element: str, warps: int, for_target: str | None = "sm_90a"
) -> tuple[ir.Module, Emitter]:
    """A gpu.module whose kernel @k(%x, %y) copies a tile, and what was emitted."""
    with mlir.context(), ir.Location.unknown():
        module = ir.Module.create()
        module.operation.attributes["gpu.container_module"] = ir.UnitAttr.get()
        t = ir.Type.parse(element)
        memory = ir.MemRefType.get(shape, ir.IntegerType.get_signless(8) if element == "i1" else t)
        with ir.InsertionPoint(module.body):
            holder = gpu.GPUModuleOp("m")
        block = holder.regions[0].blocks[0] if holder.regions[0].blocks else holder.regions[0].blocks.append()
        with ir.InsertionPoint(block):
            kernel = gpu.GPUFuncOp(ir.FunctionType.get([memory, memory], []), "k", kernel=True)
        entry = (
            kernel.regions[0].blocks[0] if kernel.regions[0].blocks else kernel.regions[0].blocks.append(memory, memory)
        )
        em = Emitter(entry, warps, get_target(for_target) if for_target else None)
        with ir.InsertionPoint(entry):
            dims = list(range(len(shape)))
            x, y = (View(a, [0] * len(shape), dims) for a in entry.arguments)
            frag = values.load(em, x, t, shape, shape, source)
            store(em, frag.get(target), y)
            gpu.ReturnOp([])
        kernel.attributes["known_block_size"] = ir.DenseI32ArrayAttr.get([32 * warps, 1, 1])
        return module, em


def run(module: ir.Module, em: Emitter, x: np.ndarray) -> np.ndarray:
    """What the kernel copies, on the host device; nothing may be found."""
    y = np.zeros_like(x)
    x.flags.writeable = False
    found = run_function(module, "k", [x, y], (1, 1, 1), (em.team.threads, 1, 1), em.smem_bytes).kinds()
    assert not found, found
    return y


def random_layout(random: np.random.Generator, bits: list[int], odd: list[int], warps: int) -> Layout:
    """A layout of a tile whose dimensions have 2 ** bits times odd elements: lanes and a power of two of warps take
    bits at random, registers the rest, and odd digits."""
    owners = [lane(2, 1 << i) for i in range(5)]
    owners += [warp(2, 1 << i) for i in range(warps.bit_length() - 1)]
    taken = [d for d, n in enumerate(bits) for _ in range(n)]
    random.shuffle(owners)
    owners = owners[: len(taken) - int(random.integers(0, 2))] if len(taken) else []
    owners += [reg(2)] * (len(taken) - len(owners))
    random.shuffle(owners)
    dims: list[list] = [[] for _ in bits]
    for d, owner in zip(taken, owners, strict=True):
        dims[d].append(owner)
    for d, n in enumerate(odd):
        dims[d].insert(0, reg(n))
    return Layout.of(*dims)
