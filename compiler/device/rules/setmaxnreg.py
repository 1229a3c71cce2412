"""Registers that warpgroups give each other (PTX ISA, "Miscellaneous Instructions": setmaxnreg)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mlirc.device.attributes import number, word
from mlirc.device.declare import stateful, waiting
from mlirc.device.machine import State
from mlirc.device.sync import Wait
from mlirc.device.translate import Translator
from mlirc.device.warps import WARPGROUP, warpgroups
from mlirc.mlir import ir

_FILE = 65536  # registers of a multiprocessor, sm_70 to sm_120
_SIZES = ("nvvm.reqntid", "nvvm.maxntid", "known_block_size", "gpu.known_block_size")
_MOST = 256  # registers of a thread as they are allocated: 255 and one that rounds up


def launch_registers(function: ir.Operation) -> int | None:
    """Registers per thread at the launch of a kernel with setmaxnreg, as ptxas takes them: `nvvm.maxnreg`, or what
    `nvvm.minctasm` blocks of the stated size leave to a thread, but no more than the largest number asked for. None
    where that is not stated: then ptxas ignores setmaxnreg (its warning C7508)."""
    attributes = function.attributes

    def stated(*names: str) -> int | None:
        return next((ir.IntegerAttr(attributes[n]).value for n in names if n in attributes), None)

    limit, blocks = stated("nvvm.maxnreg", "mlirc.max_registers"), stated("nvvm.minctasm", "mlirc.min_blocks")
    size = next((n for n in _SIZES if n in attributes), None)
    if limit is None and blocks and size is not None:
        warps = -(-int(np.prod(list(ir.DenseI32ArrayAttr(attributes[size])))) // 32)
        limit = min(_FILE // (blocks * 32 * warps), _MOST)
    if limit is None:
        return None
    asked: list[tuple[bool, int]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "nvvm.setmaxregister":
            asked.append((word(op, "action") == "increase", number(op, "regCount")))
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    if any(grows for grows, _ in asked):
        limit = min(limit, max(count for _, count in asked))
    return limit // 8 * 8


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


@stateful("nvvm.setmaxregister")
def _set_max_register(tr: Translator, op):
    count, grows, launch = number(op, "regCount"), word(op, "action") == "increase", launch_registers(tr.function)
    tr.unit, tr.waits = WARPGROUP, True

    def run(s: State):
        m = s.m
        if launch is None:
            message = "has no effect: state nvvm.maxnreg, or nvvm.minctasm and nvvm.reqntid"
            m.complain("bad setmaxregister", m.everyone(s.mask), message, op)
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
