"""What is undefined in a kernel, what comes of it, and whether that matters: a branch, an address or a result that
depends on it is a finding; what is computed from it and thrown away (the rows that pad a tile) is none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirc.device.attributes import integers
from mlirc.device.inline_asm import overwritten
from mlirc.device.memory import Buffer
from mlirc.device.report import MAY_BE_HARMLESS, Report
from mlirc.mlir import ir

DEFINED = np.zeros((1, 1), np.uint8)  # the shadow of a value that is defined throughout
MOST = 254  # origins told apart: a byte of a buffer's `written` is 0 (nobody wrote), its value's origin, or 0xFF
_POISON = ("ub.poison", "llvm.mlir.poison", "llvm.mlir.undef")
_CHAIN, _FIELD = "llvm.insertvalue", "llvm.extractvalue"


class Shadows:
    """Of one run of a kernel: the operations that made undefined values, by number from 1 on, those of them that
    matter, and the findings."""

    def __init__(self, report: Report):
        self.found = Report(seed=report.seed, source=report.source, scripts=report.scripts)
        self.reached: set[tuple[str, str]] = set()  # origins that matter, as findings name operations
        self._numbers: dict[int, int] = {}
        self._operations: list[Any] = []
        self._stores: dict[tuple[int, int], tuple[str, Any]] = {}

    def number(self, op) -> int:
        """The number of an operation as an origin."""
        key = hash(op)
        if key not in self._numbers:
            if len(self._operations) == MOST:
                return MOST
            self._operations.append(op)
            self._numbers[key] = len(self._operations)
        return self._numbers[key]

    def complain(self, m, bad: np.ndarray, shadow: np.ndarray, message: str, op) -> None:
        """A finding about the threads `bad` (bool) with a shadow."""
        full, numbers = m.full(bad), m.full(shadow)
        text = f"{m.where(bad)} {message}, which depends on {self._origin(int(numbers[full][0]))}"
        self.reached.update(self._place(int(n)) for n in np.unique(numbers[full]))
        self.found.add("undefined value", text, op, m.kernel, int(full.sum()))

    def _place(self, number: int) -> tuple[str, str]:
        op = self._operations[number - 1]
        return op.name, self.found.place(op)

    def _origin(self, number: int) -> str:
        name, place = self._place(number)
        verb = "makes" if name in _POISON or name.startswith(("arith.", "affine.")) else "reads, where nobody wrote"
        return f"what {name} at {place} {verb}"

    def stored(self, m, buffer: Buffer, bad: np.ndarray, shadow: np.ndarray, op) -> None:
        """Notes who stores undefined values in a buffer."""
        full = m.full(bad)
        for number in np.unique(m.full(shadow)[full]):
            self._stores.setdefault((id(buffer), int(number)), (m.where(bad), op))

    def judge_result(self, buffer: Buffer, nbytes: int, item: int, kernel: str) -> None:
        """A finding for every origin that the elements of a result depend on, once the kernel has ended."""
        if buffer.written is None or not nbytes:
            return
        shadow = buffer.written[:nbytes]
        for number in np.unique(shadow[(shadow != 0xFF) & (shadow != 0)]):
            who, op = self._stores[id(buffer), int(number)]
            elements = np.unique(np.flatnonzero(shadow == number) // item)
            text = f"{who} writes a value to {buffer.name}, which depends on {self._origin(int(number))}"
            self.reached.add(self._place(int(number)))
            self.found.add("undefined value", text, op, kernel, len(elements))

    def settle(self, report: Report, again: Report) -> None:
        """Puts the findings in a report, and takes out of it those on which nothing depends. `again`: what the run with
        shadows reported; where that did not end, as for want of time, all stay."""
        if not again.ended:
            report.findings += [f for f in again.findings if f.kind in ("stopped", "deadlock", "endless loop")]
            report.findings += self.found.findings
            return
        report.findings = [
            f for f in report.findings if f.kind not in MAY_BE_HARMLESS or (f.op, f.location) in self.reached
        ] + self.found.findings


def has_poison(function) -> bool:
    """Whether a kernel has undefined values of its own, other than the start of a struct whose fields are all set, and
    accumulators of products that do not add to them."""
    found = False

    def visit(op) -> ir.WalkResult:
        nonlocal found
        found = found or (
            op.name in _POISON and not _unread(op.results[0]) and not _filled(op.results[0], list(op.results))
        )
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def _unread(value: ir.Value) -> bool:
    """Whether products overwrite a value, or the fields of a struct, wherever it is used."""
    return all(
        overwritten(use) or (use.owner.operation.name == _FIELD and _unread(use.owner.operation.results[0]))
        for use in value.uses
    )


def _filled(value: ir.Value, made: Sequence[ir.Value]) -> bool:
    """Whether a struct is only used to set its fields, one after the other."""
    fields = str(value.type).count(",") + 1
    left: set[tuple[int, ...]] = set()
    while True:
        uses = list(value.uses)
        owner = uses[0].owner.operation if len(uses) == 1 else None
        if owner is None or owner.name != _CHAIN or uses[0].operand_number != 0:
            return len(left) == fields
        left.add(tuple(integers(owner, "position")))
        if len(left) == fields:
            return True
        value = owner.results[0]
