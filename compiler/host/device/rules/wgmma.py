"""wgmma as operations: of the nvvm dialect, with A in shared memory, and as inline assembly, with A in registers."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.host.device.attributes import number, sizes_of, word
from mlirc.host.device.declare import stateful
from mlirc.host.device.engine import Engine, engine_of
from mlirc.host.device.machine import State
from mlirc.host.device.rules.pointer import struct_fields
from mlirc.host.device.translate import Translator
from mlirc.host.device.warps import WARPGROUP, warpgroups
from mlirc.host.device.wgmma import Product, launch
from mlirc.mlir import ir


def checked(tr: Translator, p: Product, words: int, op) -> Product:
    """The product, if there is one with so many registers of 32 bits for its accumulator."""
    problem = p.problem()
    if not problem and words != p.words:
        problem = f"wgmma n={p.n} with {words} registers of 32 bits for its {p.d} accumulator, not {p.words}"
    if problem:
        raise tr.refused(op, problem)
    return p


_SAME_REGISTERS = ("llvm.extractvalue", "llvm.bitcast")


def made_late(op, value: ir.Value, carried: bool = True) -> bool:
    """Whether no wgmma.fence lies between what makes a value and a wgmma that has it in registers. `carried`: what a
    loop hands from turn to turn, with no fence in front, is late; else only what comes into the loop is looked at."""
    while True:
        if isinstance(value.owner, ir.Block):
            loop = value.owner.owner.operation
            if carried or loop.name != "scf.for" or value.arg_number == 0:
                break
            value = loop.operands[2 + value.arg_number]
        elif value.owner.operation.name in _SAME_REGISTERS:
            value = value.owner.operation.operands[0]
        else:
            break
    maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
    here = op
    while here.parent is not None and here.name not in ("llvm.func", "gpu.func"):
        before = []
        for other in here.block.operations:
            if other.operation == here:
                break
            before.append(other.operation)
        for other in reversed(before):
            if other.name == "nvvm.wgmma.fence.aligned":
                return False
            if maker is not None and other == maker:
                return True
        if maker is None and value.owner == here.block:
            return carried
        here = here.parent.operation
    return carried


@stateful("nvvm.wgmma.mma_async")
def _wgmma(tr: Translator, op):
    tr.proxies, tr.unit = True, WARPGROUP
    acc = op.operands[0]
    count, dtype = struct_fields(acc.type)
    _, n, k = sizes_of(op)
    sign_a, sign_b = (-1 if word(op, x) == "neg" else 1 for x in ("scaleA", "scaleB"))
    p = Product(
        n, k, word(op, "typeA"), word(op, "typeB"), word(op, "typeD"), sign_a, sign_b,
        a_major="row" in str(op.attributes["layoutA"]), b_major="col" in str(op.attributes["layoutB"]),
        adds=word(op, "scaleD") != "zero", saturate=word(op, "satfinite") == "satfinite",
    )  # fmt: skip
    checked(tr, p, count * dtype.itemsize // 4, op)
    late = made_late(op, acc, carried=False)
    return lambda s, before, a, b: launch(s, p, a, b, before, op, late)


def _by_warpgroup(op, do: Callable[[Engine, int, int], None]) -> Callable:
    """What an engine does for every warpgroup."""

    def run(s: State) -> None:
        for b, t in warpgroups(s, op):
            do(engine_of(s), b, t)

    return run


@stateful("nvvm.wgmma.fence.aligned")
def _wgmma_fence(tr: Translator, op):
    return _by_warpgroup(op, Engine.fence)


@stateful("nvvm.wgmma.commit.group.sync.aligned")
def _commit(tr: Translator, op):
    return _by_warpgroup(op, Engine.commit)


@stateful("nvvm.wgmma.wait.group.sync.aligned")
def _wait(tr: Translator, op):
    pending = number(op, "group")
    return _by_warpgroup(op, lambda engine, b, t: engine.wait(b, t, pending))
