"""wgmma as operations: of the nvvm dialect, with A in shared memory, and as inline assembly, with A in registers."""

from __future__ import annotations

from mlirc.host.device.attributes import word
from mlirc.host.device.declare import rule
from mlirc.host.device.machine import State
from mlirc.host.device.rules.hopper import WARPGROUP, engine_of, warpgroups
from mlirc.host.device.rules.pointer import struct_fields
from mlirc.host.device.translate import Translator
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


@rule("nvvm.wgmma.mma_async")
def _wgmma(tr: Translator, op):
    tr.proxies, tr.unit = True, WARPGROUP
    acc, a, b = op.operands
    count, dtype = struct_fields(acc.type)
    shape = str(op.attributes["shape"]).split("<")[-1].rstrip(">").replace(" ", "")
    numbers = {k: int(v) for k, v in (p.split("=") for p in shape.split(","))}
    sign_a, sign_b = (-1 if word(op, x) == "neg" else 1 for x in ("scaleA", "scaleB"))
    p = Product(
        numbers["n"], numbers["k"], word(op, "typeA"), word(op, "typeB"), word(op, "typeD"), sign_a, sign_b,
        a_major="row" in str(op.attributes["layoutA"]), b_major="col" in str(op.attributes["layoutB"]),
        adds=word(op, "scaleD") != "zero",
        saturate="satfinite" in op.attributes and word(op, "satfinite") == "satfinite",
    )  # fmt: skip
    checked(tr, p, count * dtype.itemsize // 4, op)
    registers, out = [tr.reg(v) for v in (a, b, acc)], tr.reg(op.results[0])

    late = made_late(op, acc, carried=False)

    def step(s: State) -> None:
        left, right, before = (s.r[x] for x in registers)
        s.r[out] = launch(s, p, left, right, before, op, late)

    return step


@rule("nvvm.wgmma.fence.aligned")
def _wgmma_fence(tr: Translator, op):
    def step(s: State) -> None:
        for b, t in warpgroups(s, op):
            engine_of(s).fence(b, t)

    return step


@rule("nvvm.wgmma.commit.group.sync.aligned")
def _commit(tr: Translator, op):
    def step(s: State) -> None:
        for b, t in warpgroups(s, op):
            engine_of(s).commit(b, t)

    return step


@rule("nvvm.wgmma.wait.group.sync.aligned")
def _wait(tr: Translator, op):
    pending = ir.IntegerAttr(op.attributes["group"]).value

    def step(s: State) -> None:
        for b, t in warpgroups(s, op):
            engine_of(s).wait(b, t, pending)

    return step
