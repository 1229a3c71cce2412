"""wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions") of the nvvm dialect, with A
in shared memory. With A in registers it is inline assembly."""

from __future__ import annotations

from collections.abc import Callable

from mlirc.device.addresses import struct_fields
from mlirc.device.attributes import number, sizes_of, word
from mlirc.device.declare import stateful
from mlirc.device.engine import Engine, engine_of
from mlirc.device.machine import State
from mlirc.device.translate import Translator
from mlirc.device.warps import WARPGROUP, warpgroups
from mlirc.device.wgmma import Product, checked, launch, made_late


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
