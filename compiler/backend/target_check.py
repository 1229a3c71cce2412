"""Whether a target has the instructions of a kernel: LLVM's back end would end the process over one that it lacks.

The architectures are those of the PTX ISA, each instruction's "Target ISA Notes".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.mlir import ir, nested
from mlirc.schedule.places import script_line
from mlirc.targets import TARGETS, Target

_PRODUCT = "nvvm.mma.sync"
_ASSEMBLY = ("llvm.inline_asm", "nvvm.inline_ptx")


@dataclass(frozen=True)
class _Rule:
    ops: re.Pattern[str]  # names of operations
    asm: re.Pattern[str]  # instructions in inline assembly
    instruction: str
    has: Callable[[Target], bool]
    isa: int = 0  # the least PTX ISA that has it, where that is newer than some target's

    def matches(self, op: ir.Operation, text: str) -> bool:
        """Whether an operation, or inline assembly, is such an instruction."""
        return bool(self.asm.search(text) if text else self.ops.match(_named(op)))


def _rule(ops: str, asm: str, instruction: str, has: Callable[[Target], bool], isa: int = 0) -> _Rule:
    return _Rule(re.compile(ops), re.compile(asm), instruction, has, isa)


def _named(op: ir.Operation) -> str:
    """An operation's name, and those of the types that a product's registers are said to hold."""
    if op.name != _PRODUCT:
        return op.name
    types = [str(op.attributes[x]) for x in ("multiplicandAPtxType", "multiplicandBPtxType") if x in op.attributes]
    return " ".join([op.name, *types])


def _assembly(op: ir.Operation) -> str:
    """The text of inline assembly; "" for other operations."""
    if op.name not in _ASSEMBLY:
        return ""
    return " ".join(op.attributes[a].value for a in ("asm_string", "ptxCode") if a in op.attributes)


def _ada(target: Target) -> bool:
    return target.cc >= 89


def _hopper(target: Target) -> bool:
    return target.cc >= 90


def _specific(target: Target) -> bool:
    return target.name.endswith("a")


_RULES = (
    _rule(r"nvvm\.mma\.sync .*e[45]m", r"\bmma\.sync\..*\.e[45]m", "mma.sync of 8-bit floats", _ada, 84),
    _rule(r"nvvm\.wgmma|nvgpu\.warpgroup\.", r"\bwgmma\.", "wgmma", lambda t: t.has_wgmma),
    _rule(r"nvvm\.tcgen05", r"\btcgen05\.", "tcgen05", lambda t: t.name == "sm_100a"),
    _rule(r"nvvm\.setmaxregister", r"\bsetmaxnreg\.", "setmaxnreg", _specific),
    _rule(r"nvvm\.cp\.async\.bulk|nvgpu\.tma\.", r"\bcp\.(reduce\.)?async\.bulk\b", "cp.async.bulk", _hopper),
    _rule(r"mlirc\.tensor_map", r"(?!)", "tensor maps", _hopper),
    _rule(r"nvvm\.cluster\.|nvvm\.mapa|gpu\.cluster_", r"\bbarrier\.cluster\.|\bmapa\.", "clusters", _hopper),
    _rule(r"nvvm\.griddepcontrol", r"\bgriddepcontrol\.", "griddepcontrol", _hopper),
    _rule(r"nvvm\.stmatrix", r"\bstmatrix\.", "stmatrix", lambda t: t.has_stmatrix),
    _rule(r"nvvm\.mbarrier\.(\w+\.)*expect_tx|nvvm\.mbarrier\.try_wait|nvgpu\.mbarrier\.arrive\.expect_tx",
          r"\bmbarrier\.try_wait\b|\bexpect_tx\b", "mbarriers that count bytes", _hopper),
)  # fmt: skip


@functools.cache
def _rules(name: str) -> tuple[_Rule, ...]:
    """The rules that an operation of this name may fall under."""
    if name in (_PRODUCT, *_ASSEMBLY):
        return _RULES
    return tuple(rule for rule in _RULES if rule.ops.match(name))


def check_instructions(module: ir.Module, name: str, target: Target) -> None:
    """Raises MlircError, at the script's line where one is known, for an instruction of kernel `name` (at the `gpu`
    level) that the target does not have."""
    for op in nested(module.operation):
        for rule in _rules(op.name):
            if rule.has(target) or not rule.matches(op, _assembly(op)):
                continue
            place = script_line(str(op.location))
            having = ", ".join(t.name for t in TARGETS.values() if rule.has(t))
            raise MlircError(
                f"{place + ': ' if place else ''}kernel {name}: {op.name}: {target.name} has no {rule.instruction}: "
                f"compile for {having}, or leave it out"
            )


def least_isa(module: ir.Module, target: Target) -> int:
    """The PTX ISA that a kernel's instructions need (84: 8.4): the target's, or a newer one."""
    newer = any(rule.isa > target.ptx_isa for rule in _RULES)
    ops = nested(module.operation) if newer else []
    needed = (r.isa for op in ops for r in _rules(op.name) if r.isa > target.ptx_isa and r.matches(op, _assembly(op)))
    return max(needed, default=target.ptx_isa)
