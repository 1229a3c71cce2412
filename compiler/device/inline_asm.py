"""The text of inline assembly: what its operands and results are called there."""

from __future__ import annotations

import re

from mlirc.device.attributes import integers
from mlirc.errors import MlircError
from mlirc.mlir import ir

WGMMA = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)(\.satfinite)?\.(\w+)\.(\w+)\.(\w+)\s+"
    r"\{([^}]*)\}\s*,\s*(\{[^}]*\}|[^,]+?)\s*,\s*([^,]+?)\s*,\s*([^;]*);"
)
PREDICATE = re.compile(r"setp\.ne\.b32\s+(\w+)\s*,\s*\$(\d+)\s*,\s*0\s*;")


def text_of(op, name: str) -> str:
    return ir.StringAttr(op.attributes[name]).value


def tied(op) -> dict[int, int]:
    """The operands of inline assembly (their numbers) that share the register of a result (its number)."""
    constraints = [c for c in text_of(op, "constraints").split(",") if not c.startswith("~")]
    inputs = [c for c in constraints if not c.startswith("=")]
    return {i: int(c) for i, c in enumerate(inputs) if c.isdigit()}


def whole_struct(op) -> bool:
    """Whether the accumulator of a wgmma in inline assembly is a struct: all of its fields, in order."""
    source = None
    operands = {result: op.operands[k] for k, result in tied(op).items()}
    for i, v in sorted(operands.items()):
        if isinstance(v.owner, ir.Block) or v.owner.operation.name != "llvm.extractvalue":
            return False
        field = v.owner.operation
        other = source is not None and source != field.operands[0]
        if other or integers(field, "position") != [i]:
            return False
        source = field.operands[0]
    return source is not None and source.type == op.results[0].type


def in_place(use: ir.OpOperand) -> bool:
    """Whether a struct's field is used only to be the same register of a wgmma's accumulator, which is that struct: no
    instruction reads it there."""
    owner = use.owner.operation
    if owner.name != "llvm.inline_asm" or "wgmma.mma_async" not in text_of(owner, "asm_string"):
        return False
    return use.operand_number in tied(owner) and whole_struct(owner)


def scale(text: str, word: str) -> str:
    """What tells whether a wgmma's D is added to: "0", "1", or the operand ("$37") that the predicate is made of."""
    predicates = {name: f"${number}" for name, number in PREDICATE.findall(text)}
    return predicates.get(word, word)


def overwritten(use: ir.OpOperand) -> bool:
    """Whether a value is only the accumulator of a wgmma that never adds to it, and so is read by nobody."""
    owner = use.owner.operation
    if owner.name == "nvvm.wgmma.mma_async":
        return use.operand_number == 0 and "zero" in str(owner.attributes["scaleD"])
    found = WGMMA.search(text_of(owner, "asm_string")) if owner.name == "llvm.inline_asm" else None
    if found is None or use.operand_number not in tied(owner):
        return False
    operands, word = Operands(owner), scale(text_of(owner, "asm_string"), found[10].split(",")[0].strip())
    return word == "0" or (operands.number(word) is not None and _is_zero(operands.value(word)))


def _is_zero(value: ir.Value) -> bool:
    """Whether a value is a constant 0."""
    maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
    return maker is not None and maker.name == "arith.constant" and maker.attributes["value"].value == 0


class Operands:
    """What stands for what in the text of inline assembly."""

    def __init__(self, op):
        self.op = op
        text = text_of(op, "constraints")
        self.outputs = sum(c.startswith("=") for c in text.split(","))
        self.tied = {result: i for i, result in tied(op).items()}

    def number(self, word: str) -> int | None:
        """The operand or result that a word names; None for an immediate or a register of the text."""
        found = re.fullmatch(r"\$(\d+)", word.strip())
        return int(found[1]) if found else None

    def value(self, word: str) -> ir.Value:
        """The operand that a word names."""
        n = self.number(word)
        if n is None or n < self.outputs or n - self.outputs >= len(self.op.operands):
            raise MlircError(f"host device: {word} is no operand")
        return self.op.operands[n - self.outputs]

    def accumulator(self, words: list[str]) -> list[ir.Value]:
        """The operands tied to the results that the words name, which must be all of them in order."""
        if [self.number(w) for w in words] != list(range(self.outputs)) or set(self.tied) != set(range(self.outputs)):
            raise MlircError(
                f"host device: inline assembly: a wgmma's accumulator must be all results in order, each tied to an "
                f"operand, at {self.op.location}"
            )
        return [self.op.operands[self.tied[i]] for i in range(self.outputs)]
