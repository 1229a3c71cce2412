"""PTX text as entries of basic blocks of instructions (PTX ISA, "Syntax"): what LLVM's NVPTX back end writes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from mlirc.errors import MlircError

_WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64, "s32": 32, "u32": 32}
_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(")
_PARAM = re.compile(r"\.param\s+\.(?:u64|b64)\s+(?:\.ptr\s+)?(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?([\w$]+)")
_REG = re.compile(r"^\.reg\s+\.(\w+)\s+(%[\w$]+)(?:<(\d+)>)?;$")
_SHARED = re.compile(r"^(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\];$")
_GUARD = re.compile(r"^@(!?)(%[\w$]+)\s+")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+")
# Instructions that begin a basic block: lanes come to them together.
TOGETHER = ("shfl.", "ldmatrix.", "mma.", "vote.")
# Instructions that end one.
ENDS = ("bra", "ret", "exit", "bar.", "barrier.")


class Unknown(MlircError):
    """Something that is not executed here, which says nothing against the PTX."""


@dataclass(frozen=True)
class Operand:
    """`kind`: reg, special, number (its bits in `value`), symbol, memory (`parts` is the base, `value` the offset), or
    list (`parts`)."""

    kind: str
    name: str = ""
    value: int = 0
    parts: tuple[Operand, ...] = ()


@dataclass
class Instruction:
    """`op` is the opcode with its dots, split; `guard` a predicate register's name, `negated` whether its opposite
    decides; `line` counts from 1 in the text."""

    op: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: str = ""
    negated: bool = False

    @property
    def name(self) -> str:
        return ".".join(self.op)


@dataclass
class Entry:
    """A kernel: its parameters (pointers), the widths in bits of its registers, the bytes of its static shared arrays
    with their alignment, the dynamic one's name, and its basic blocks; `labels` says where each label's begins."""

    name: str
    parameters: list[str]
    registers: dict[str, int] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    dynamic: dict[str, int] = field(default_factory=dict)
    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


def parse(text: str, where: str = "PTX") -> dict[str, Entry]:
    """The entries of a PTX text by name. Raises MlircError, with the line, for what is not understood."""
    lines = [re.sub(r"//.*", "", line).strip() for line in text.split("\n")]
    dynamic: dict[str, int] = {}
    shared: dict[str, tuple[int, int]] = {}
    entries: dict[str, Entry] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if match := _SHARED.match(line):
            if match[1]:
                dynamic[match[3]] = int(match[2])
            else:
                shared[match[3]] = (int(match[4]), int(match[2]))
        elif match := _ENTRY.match(line):
            end = next(i for i in range(number, len(lines)) if lines[i] == "{")
            entry = Entry(match[1], _PARAM.findall(" ".join(lines[number:end])), shared=dict(shared), dynamic=dynamic)
            number = _body(entry, lines, end + 1, where)
            entries[entry.name] = entry
        elif line and not line.startswith((".version", ".target", ".address_size")):
            raise Unknown(f"{where}:{number + 1}: `{line[:80]}` is not known here")
        number += 1
    return entries


def _body(entry: Entry, lines: list[str], start: int, where: str) -> int:
    """Reads an entry's body into it; returns the number of its last line."""
    depth, fresh, begun = 1, True, ""
    for number in range(start, len(lines)):
        line, begun = f"{begun} {lines[number]}".strip(), ""
        if line in ("{", "}"):
            depth += 1 if line == "{" else -1
            if not depth:
                return number
        elif match := _REG.match(line):
            if match[1] not in _WIDTHS:
                raise Unknown(f"{where}:{number + 1}: registers of type .{match[1]} are not known here")
            names = [f"{match[2]}{i}" for i in range(int(match[3]))] if match[3] else [match[2]]
            entry.registers.update(dict.fromkeys(names, _WIDTHS[match[1]]))
        elif match := _SHARED.match(line):
            entry.shared[match[3]] = (int(match[4]), int(match[2]))
        elif line.endswith(":"):
            entry.labels[line[:-1]] = len(entry.blocks)
            fresh = True
        elif line.endswith(";") and not line.startswith("."):
            instruction = _instruction(line[:-1], number + 1, where)
            if fresh or instruction.name.startswith(TOGETHER):
                entry.blocks.append([])
            entry.blocks[-1].append(instruction)
            fresh = instruction.name.startswith(ENDS)
        elif re.match(r"(@!?%\w+\s+)?[a-z]", line):  # goes on in the next line
            begun = line
        elif line and not line.startswith(".pragma"):
            raise Unknown(f"{where}:{number + 1}: `{line[:80]}` is not known here")
    raise MlircError(f"{where}: the body of {entry.name} does not end")


def _instruction(text: str, line: int, where: str) -> Instruction:
    guard = _GUARD.match(text)
    text = text[guard.end() :] if guard else text
    op, _, rest = " ".join(text.split()).partition(" ")
    try:
        operands = tuple(_operand(o.strip()) for o in _OPERAND.findall(rest) if o.strip())
    except ValueError as e:
        raise Unknown(f"{where}:{line}: `{text[:80]}` is not known here") from e
    return Instruction(
        tuple(op.strip().split(".")), operands, line, guard[2] if guard else "", bool(guard and guard[1])
    )


def _operand(text: str) -> Operand:
    if text[0] == "{":
        return Operand("list", parts=tuple(_operand(p.strip()) for p in text[1:-1].split(",")))
    if text[0] == "[":
        base, plus, offset = text[1:-1].partition("+")
        return Operand("memory", value=int(offset) if plus else 0, parts=(_operand(base.strip()),))
    if text[0] == "%":
        special = text.split(".")[0] in ("%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid")
        return Operand("special" if special else "reg", text)
    if re.match(r"0[fF][0-9A-Fa-f]{8}$|0[dD][0-9A-Fa-f]{16}$|0x[0-9A-Fa-f]+U?$", text):
        return Operand("number", value=int(text[2:].rstrip("U"), 16), name="f64" if text[1] in "dD" else "")
    if re.match(r"-?\d+$", text):
        return Operand("number", value=int(text))
    if re.match(r"[A-Za-z_$][\w$]*(\|%\w+)?$", text):
        return Operand("symbol", text)
    raise ValueError(text)
