"""What a kernel arranges with its launch: registers that warpgroups give each other, and launches that depend on each
other. PTX ISA, "setmaxnreg" and "griddepcontrol"."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlirc.host.device.hopper_rules import WARPGROUP, warpgroups
from mlirc.host.device.machine import State
from mlirc.host.device.sync import Wait
from mlirc.host.device.translate import Translator, rule, waiting
from mlirc.mlir import ir

_FILE = 65536  # registers of a multiprocessor, sm_70 to sm_120
_MOST = 256  # registers of a thread as they are allocated: 255 and one that rounds up


def launch_registers(function: ir.Operation) -> int | None:
    """Registers per thread at the launch: `nvvm.maxnreg`, or what the stated block size (and `nvvm.minctasm`) leaves to
    a thread, which is what ptxas then takes for kernels with setmaxnreg. None where neither is stated."""
    attributes = function.attributes

    def number(*names: str) -> int | None:
        for name in names:
            if name in attributes:
                return ir.IntegerAttr(attributes[name]).value
        return None

    if (limit := number("nvvm.maxnreg")) is not None:
        return -(-limit // 8) * 8
    for name in ("nvvm.reqntid", "nvvm.maxntid", "known_block_size", "gpu.known_block_size"):
        if name in attributes:
            warps = -(-int(np.prod(list(ir.DenseI32ArrayAttr(attributes[name])))) // 32)
            share = _FILE // ((number("nvvm.minctasm", "mlirc.min_blocks") or 1) * 32 * warps)
            return min(share // 8 * 8, _MOST)
    return None


@dataclass
class RegisterPool:
    """The registers of a batch of blocks: how many each thread of a warpgroup owns, how many are free."""

    launch: int
    owned: dict[tuple[int, int], int] = field(default_factory=dict)  # (block, first thread) -> per thread
    free: dict[int, int] = field(default_factory=dict)  # block -> registers

    def change(self, b: int, t: int, count: int) -> bool:
        """Takes or gives back what a warpgroup then has too few or too many; False if too few are free."""
        more = (count - self.owned.get((b, t), self.launch)) * WARPGROUP
        if more > self.free.get(b, 0):
            return False
        self.free[b] = self.free.get(b, 0) - more
        self.owned[b, t] = count
        return True

    def describe(self, b: int, t: int, count: int) -> str:
        more = (count - self.owned.get((b, t), self.launch)) * WARPGROUP
        return (
            f"{more} registers of its block's pool, which has {self.free.get(b, 0)} (launched with {self.launch} each)"
        )


@rule("nvvm.setmaxregister")
def _set_max_register(tr: Translator, op):
    count = ir.IntegerAttr(op.attributes["regCount"]).value
    grows, launch = "increase" in str(op.attributes["action"]), launch_registers(tr.function)
    tr.unit, tr.waits = WARPGROUP, True

    def run(s: State):
        m = s.m
        if launch is None:
            everyone = np.ones((1, 1), bool) if s.mask is None else s.mask
            m.complain("bad setmaxregister", everyone, "has no effect: state nvvm.maxnreg or nvvm.reqntid", op)
            return
        if m.registers is None:
            m.registers = RegisterPool(launch)
        pool: RegisterPool = m.registers
        for b, t in list(warpgroups(s, op)):
            mine = np.zeros((m.nb, m.nt), bool)
            mine[b, t : t + WARPGROUP] = True
            now = pool.owned.get((b, t), launch)
            if (now > count) if grows else (now < count):
                verb = "increases" if grows else "decreases"
                m.complain("bad setmaxregister", mine, f"{verb} {now} registers per thread to {count}", op)
                continue
            while not pool.change(b, t, count):
                what = pool.describe(b, t, count)
                have = pool.free.get(b, 0)
                yield Wait(lambda b=b, have=have: pool.free.get(b, 0) > have, what, mine, op)  # type: ignore[misc]

    return waiting(run)


@rule("nvvm.griddepcontrol")
def _grid_control(tr: Translator, op):
    if "wait" not in str(op.attributes["kind"]):  # which launch goes first decides nothing here
        return lambda s: None
    tr.grid_waits = True

    def step(s: State) -> None:
        if s.m.waited is not None:
            s.m.waited |= True if s.mask is None else s.mask

    return step
