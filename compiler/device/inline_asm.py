"""The text of inline assembly: what its operands and results are called there."""

from __future__ import annotations

import re

from mlirc.device.attributes import integers
from mlirc.errors import MlircError
from mlirc.mlir import ir


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
