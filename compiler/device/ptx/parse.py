"""PTX text as entries of basic blocks of instructions (PTX ISA, "Syntax"): what LLVM's NVPTX back end writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlirc.errors import MlircError

_WIDTHS = {"pred": 1, "b16": 16, "b32": 32, "b64": 64, "f32": 32, "f64": 64, "s32": 32, "u32": 32}
_ENTRY = re.compile(r"\.visible\s+\.entry\s+([\w$]+)\s*\(")
_POINTER = r"\.(?:u64|b64)\s+(?:\.ptr\s+)?(?:\.\w+\s+)*?(?:\.align\s+\d+\s+)?([\w$]+)"
_VALUE = r"\.[bsuf](?:8|16|32|64)\s+([\w$]+)"
_PARAM = re.compile(rf"\.param\s+(?:{_POINTER}|{_VALUE}|\.align\s+\d+\s+\.b8\s+([\w$]+)\[\d+\])")
_REG = re.compile(r"^\.reg\s+\.(\w+)\s+(%?[\w$]+)(?:<(\d+)>)?;$")
_SHARED = re.compile(r"^(\.extern\s+)?\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)\[(\d*)\];$")
_GLOBAL = re.compile(r"^\.global\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[(\d+)\];$")  # zeros
_GUARD = re.compile(r"^@(!?)(%?[\w$]+)\s+")
_CLUSTER = re.compile(r"\.reqnctapercluster (\d+), (\d+), (\d+)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+")
# Instructions that begin a basic block: lanes come to them together.
TOGETHER = ("shfl.", "ldmatrix.", "mma.", "vote.", "redux.", "elect.", "match.",
            "stmatrix.", "wgmma.mma_async.", "bar.warp.")  # fmt: skip
# Instructions that begin one because they wait: threads come back to them.
WAITS = ("mbarrier.try_wait.", "barrier.cluster.wait")
# Instructions that ask for what other threads do: behind them others go first.
ASKS = ("mbarrier.test_wait.", "ld.acquire.", "ld.relaxed.", "ld.volatile.", "atom.")
# Instructions that end one.
ENDS = ("bra", "ret", "exit", "bar.", "barrier.", *ASKS)
SPECIAL = ("%tid", "%ctaid", "%ntid", "%nctaid", "%laneid", "%warpid", "%clusterid", "%nclusterid", "%cluster_ctaid",
           "%cluster_nctaid", "%cluster_ctarank", "%cluster_nctarank", "%lanemask_lt", "%lanemask_le", "%lanemask_eq",
           "%lanemask_ge", "%lanemask_gt")  # fmt: skip


class Unknown(MlircError):
    """Something that is not executed here, which says nothing against the PTX."""


@dataclass(frozen=True)
class Operand:
    """`kind`: reg, special, number (its bits in `value`), symbol, memory (`parts` is the base, and for a tensor map a
    list of coordinates; `value` the offset), or list (`parts`)."""

    kind: str
    name: str = ""
    value: int = 0
    parts: tuple[Operand, ...] = ()


@dataclass
class Instruction:
    """`op` is the opcode with its dots, split; `guard` a predicate register's name, `negated` whether its opposite
    decides; `line` counts from 1 in the text; `scopes` are the braces that it stands in, from the outside."""

    op: tuple[str, ...]
    operands: tuple[Operand, ...]
    line: int
    guard: str = ""
    negated: bool = False
    scopes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.op)


@dataclass
class Entry:
    """A kernel: its parameters (pointers, and tensor maps, numbers and tables of pointers by value), the widths in bits
    of its registers, the bytes of its static shared arrays with their alignment, the dynamic one's name, the bytes of
    the `module`'s arrays of zeros in global memory, and its basic blocks; `labels` says where each label's begins;
    `cluster` is the one that it is for."""

    name: str
    parameters: list[str]
    registers: dict[str, int] = field(default_factory=dict)
    shared: dict[str, tuple[int, int]] = field(default_factory=dict)
    dynamic: dict[str, int] = field(default_factory=dict)
    module: dict[str, int] = field(default_factory=dict)
    blocks: list[list[Instruction]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    cluster: tuple[int, int, int] = (1, 1, 1)


def parse(text: str, where: str = "PTX") -> dict[str, Entry]:
    """The entries of a PTX text by name. Raises MlircError, with the line, for what is not understood."""
    lines = [re.sub(r"//.*", "", line).strip() for line in text.split("\n")]
    dynamic: dict[str, int] = {}
    shared: dict[str, tuple[int, int]] = {}
    module: dict[str, int] = {}
    entries: dict[str, Entry] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        if match := _SHARED.match(line):
            if match[1]:
                dynamic[match[3]] = int(match[2])
            else:
                shared[match[3]] = (int(match[4]), int(match[2]))
        elif match := _GLOBAL.match(line):
            module[match[1]] = int(match[2])
        elif match := _ENTRY.match(line):
            end = next(i for i in range(number, len(lines)) if lines[i] == "{")
            entry = Entry(
                match[1],
                ["".join(found) for found in _PARAM.findall(" ".join(lines[number:end]))],
                shared=dict(shared),
                dynamic=dynamic,
                module=module,
            )
            if found := _CLUSTER.search(" ".join(lines[number:end])):
                entry.cluster = int(found[1]), int(found[2]), int(found[3])
            number = _body(entry, lines, end + 1, where)
            entries[entry.name] = entry
        elif line and not line.startswith((".version", ".target", ".address_size")):
            raise Unknown(f"{where}:{number + 1}: `{line[:80]}` is not known here")
        number += 1
    return entries


def module_memory(entries: Mapping[str, Entry]) -> dict[str, int]:
    """The arrays of zeros in global memory that a text declares: their bytes."""
    return next((entry.module for entry in entries.values()), {})


def _body(entry: Entry, lines: list[str], start: int, where: str) -> int:
    """Reads an entry's body into it; returns the number of its last line."""
    scopes, opened, fresh, begun = list[int](), 0, True, ""
    for number, text in ((n, text) for n in range(start, len(lines)) for text in _statements(lines[n])):
        line, begun = f"{begun} {text}".strip(), ""
        if line in ("{", "}"):
            if line == "}" and not scopes:
                _resolve(entry)
                _check_registers(entry, where)
                return number
            opened += line == "{"
            scopes = [*scopes, opened] if line == "{" else scopes[:-1]
        elif match := _REG.match(line):
            if match[1] not in _WIDTHS:
                raise Unknown(f"{where}:{number + 1}: registers of type .{match[1]} are not known here")
            names = [f"{match[2]}{i}" for i in range(int(match[3]))] if match[3] else [match[2]]
            width = _WIDTHS[match[1]]
            if any(entry.registers.get(name, width) != width for name in names):
                raise Unknown(
                    f"{where}:{number + 1}: {names[0]} has another width in other braces, which is not known here"
                )
            entry.registers.update(dict.fromkeys(names, width))
        elif match := _SHARED.match(line):
            entry.shared[match[3]] = (int(match[4]), int(match[2]))
        elif line.endswith(":"):
            entry.labels[_scoped(line[:-1], tuple(scopes))] = len(entry.blocks)
            fresh = True
        elif line.endswith(";") and not line.startswith("."):
            instruction = _instruction(line[:-1], number + 1, where)
            instruction.scopes = tuple(scopes)
            if fresh or instruction.name.startswith((*TOGETHER, *WAITS)):
                entry.blocks.append([])
            entry.blocks[-1].append(instruction)
            fresh = instruction.name.startswith(ENDS)
        elif re.match(r"(@!?%?\w+\s+)?[a-z]", line):  # goes on in the next line
            begun = line
        elif line and not line.startswith(".pragma"):
            raise Unknown(f"{where}:{number + 1}: `{line[:80]}` is not known here")
    raise MlircError(f"{where}: the body of {entry.name} does not end")


def _statements(line: str) -> list[str]:
    """A line as it is, or, where inline assembly has several instructions in one, each of them and its braces."""
    if line.count(";") < 2:
        return [line]
    *parts, rest = line.split(";")
    found = []
    for part in map(str.strip, parts):
        if part.startswith("{"):
            found.append("{")
        found.append(part.removeprefix("{").strip() + ";")
    return [*found, *rest.split()]


def _scoped(label: str, scopes: tuple[int, ...]) -> str:
    return f"{label} {scopes[-1]}" if scopes else label


def _resolve(entry: Entry) -> None:
    """Gives branches the names of the labels that they mean: the innermost braces' around them."""
    for instruction in (i for block in entry.blocks for i in block if i.op[0] == "bra"):
        name, scopes = instruction.operands[0].name, instruction.scopes
        while _scoped(name, scopes) not in entry.labels:
            if not scopes:
                raise MlircError(f"{entry.name}: line {instruction.line}: there is no label {name}")
            scopes = scopes[:-1]
        instruction.operands = (Operand("symbol", _scoped(name, scopes)), *instruction.operands[1:])


def _check_registers(entry: Entry, where: str) -> None:
    """Raises Unknown for an operand that is no register of the entry's, such as a special one."""
    for instruction in (i for block in entry.blocks for i in block):
        work = list(instruction.operands)
        while work:
            operand = work.pop()
            work += operand.parts
            if operand.kind == "reg" and any(x not in entry.registers for x in operand.name.split("|") if x != "_"):
                raise Unknown(f"{where}:{instruction.line}: {operand.name} is not known here")


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
        text, _, coordinates = text[1:-1].partition(",")
        base, plus, offset = text.partition("+")
        parts = [_operand(base.strip())] + ([_operand(coordinates.strip())] if coordinates else [])
        return Operand("memory", value=int(offset) if plus else 0, parts=tuple(parts))
    if text[0] == "%":
        special = text.split(".")[0] in SPECIAL
        return Operand("special" if special else "reg", text)
    if re.match(r"0[fF][0-9A-Fa-f]{8}$|0[dD][0-9A-Fa-f]{16}$|0x[0-9A-Fa-f]+U?$", text):
        return Operand("number", value=int(text[2:].rstrip("U"), 16), name="f64" if text[1] in "dD" else "")
    if re.match(r"-?\d+$", text):
        return Operand("number", value=int(text))
    if re.match(r"[A-Za-z_$][\w$]*(\|%?\w+)?$", text):
        return Operand("symbol", text)
    raise ValueError(text)
