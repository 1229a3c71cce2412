"""Whether a target has the instructions of a kernel: LLVM's back end would end the process over one that it lacks.

The architectures are those of the PTX ISA, each instruction's "Target ISA Notes".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import ir, nested
from mlirc.schedule.places import script_line
from mlirc.targets import TARGETS, Target


@dataclass(frozen=True)
class _Rule:
    ops: re.Pattern[str]  # names of operations
    asm: re.Pattern[str]  # instructions in inline assembly
    instruction: str
    has: Callable[[Target], bool]


def _rule(ops: str, asm: str, instruction: str, has: Callable[[Target], bool]) -> _Rule:
    return _Rule(re.compile(ops), re.compile(asm), instruction, has)


def _hopper(target: Target) -> bool:
    return target.cc >= 90


def _specific(target: Target) -> bool:
    return target.name.endswith("a")


_RULES = (
    _rule(r"nvvm\.wgmma|nvgpu\.warpgroup\.", r"\bwgmma\.", "wgmma", lambda t: t.has_wgmma),
    _rule(r"nvvm\.tcgen05", r"\btcgen05\.", "tcgen05", lambda t: t.name == "sm_100a"),
    _rule(r"nvvm\.setmaxregister", r"\bsetmaxnreg\.", "setmaxnreg", _specific),
    _rule(r"nvvm\.cp\.async\.bulk|nvgpu\.tma\.", r"\bcp\.(reduce\.)?async\.bulk\b", "cp.async.bulk", _hopper),
    _rule(r"mlirc\.tensor_map", r"(?!)", "tensor maps", _hopper),
    _rule(r"nvvm\.cluster\.|nvvm\.mapa|gpu\.cluster_", r"\bbarrier\.cluster\.|\bmapa\.", "clusters", _hopper),
    _rule(r"nvvm\.griddepcontrol", r"\bgriddepcontrol\.", "griddepcontrol", _hopper),
    _rule(r"nvvm\.stmatrix", r"\bstmatrix\.", "stmatrix", _hopper),
    _rule(r"nvvm\.mbarrier\.(\w+\.)*expect_tx|nvvm\.mbarrier\.try_wait|nvgpu\.mbarrier\.arrive\.expect_tx",
          r"\bmbarrier\.try_wait\b|\bexpect_tx\b", "mbarriers that count bytes", _hopper),
)  # fmt: skip


def check_instructions(module: ir.Module, name: str, target: Target) -> None:
    """Raises MlircError, at the script's line where one is known, for an instruction of kernel `name` (at the `gpu`
    level) that the target does not have."""
    for op in nested(module.operation):
        text = ""
        if op.name in ("llvm.inline_asm", "nvvm.inline_ptx"):
            text = " ".join(op.attributes[a].value for a in ("asm_string", "ptxCode") if a in op.attributes)
        for rule in _RULES:
            if rule.has(target) or not (rule.asm.search(text) if text else rule.ops.match(op.name)):
                continue
            place = script_line(str(op.location))
            having = ", ".join(t.name for t in TARGETS.values() if rule.has(t))
            raise MlircError(
                f"{place + ': ' if place else ''}kernel {name}: {op.name}: {target.name} has no {rule.instruction}: "
                f"compile for {having}, or leave it out"
            )
