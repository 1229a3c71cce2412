"""Which line of a schedule script made an operation: kept in locations through the lowering, and in the `gpu` level's
text as comments, so that a finding on the host device names the script's line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from mlirc.mlir import ir

MARK = "// schedule: "
_PREFIX = "schedule "
_SET = "attribute "  # before an attribute's name and the line that set it
_TAG = re.compile(rf'"{_PREFIX}([^"]+)"')
_LINE = re.compile(r'":(\d+):\d+')
_USE = re.compile(r"loc\((#loc\d*)\)\s*$")
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")


def short_place(place: str) -> str:
    """A script's `file:line` as people name it: `scripts/matmul.py:12` for ours, else the file's own name."""
    file, _, line = place.rpartition(":")
    folder, name = os.path.split(file)
    return f"scripts/{name}:{line}" if os.path.basename(folder) == "scripts" else f"{name}:{line}"


def tag(operations: Iterable[ir.Operation], place: str, all_ops: bool = True) -> None:
    """Notes in the locations of operations, and of all that they contain, that the script's line `place` made them: the
    latest line comes first. With `all_ops` false only where no line has been noted."""
    name = _PREFIX + short_place(place)

    def visit(op: ir.Operation) -> ir.WalkResult:
        if all_ops or not _TAG.search(str(op.location)):
            op.location = ir.Location.name(name, op.location)
        return ir.WalkResult.ADVANCE

    for operation in operations:
        operation.operation.walk(visit)


def tag_one(op: ir.Operation, place: str) -> None:
    """Notes in the location of one operation that the line `place` made it."""
    op.location = ir.Location.name(_PREFIX + short_place(place), op.location)


def script_line(location: str) -> str:
    """The script's `file:line` in a printed location; "" where there is none."""
    found = _TAG.search(location)
    return found[1] if found else ""


def without_tag(location: str) -> str:
    """A printed location without the script's lines."""
    while found := re.fullmatch(rf'"(?:{_PREFIX}|{_SET})[^"]+"\((.*)\)', location):
        location = found[1]
    return location


def note_attribute(op: ir.Operation, name: str, place: str) -> None:
    """Notes in an op's location that the script's line `place` set its attribute `name`. The lines that made the op
    stay outermost."""
    location, outer = op.location, []
    while isinstance(location, ir.NameLoc) and location.name_str.startswith(_PREFIX):
        outer.append(location.name_str)
        location = location.child_loc
    location = ir.Location.name(f"{_SET}{name} {place}", location)
    for made_by in reversed(outer):
        location = ir.Location.name(made_by, location)
    op.location = location


def attribute_place(op: ir.Operation, name: str) -> str:
    """The script's line that set an attribute of an op; "" where none is noted."""
    found = re.search(rf'"{_SET}{name} ([^"]+)"', str(op.operation.location))
    return found[1] if found else ""


def annotated(module: ir.Module) -> str:
    """A module's text with a comment `// schedule: file:line` wherever another line of the script begins to speak."""
    plain = str(module).split("\n")
    located = module.operation.get_asm(enable_debug_info=True).split("\n")
    aliases = {m.group(1): m.group(2) for m in map(_ALIAS.match, located) if m}
    places = {alias: script_line(text) for alias, text in aliases.items()}
    located = [line for line in located if not line.startswith("#loc")]
    if not any(places.values()) or len(located) < len(plain):
        return "\n".join(plain)
    lines, last = [], ""
    for text, line in zip(plain, located, strict=False):
        found = _USE.search(line)
        place = places.get(found[1], "") if found else ""
        quiet = " = arith.constant " in text or text.lstrip().startswith("}")  # the latter is where an op ends
        if place and place != last and not quiet:
            lines.append(" " * (len(text) - len(text.lstrip())) + MARK + place)
            last = place
        lines.append(text)
    return "\n".join(lines)


def places_by_line(text: str) -> list[str]:
    """For each line of an annotated text the script's line that speaks there."""
    current, found = "", []
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped.startswith(MARK):
            current = stripped.removeprefix(MARK)
        elif stripped.startswith("// -----"):
            current = ""
        found.append(current)
    return found


def restore(module: ir.Module, text: str) -> ir.Module:
    """Gives a module that was parsed from an annotated text the script's lines back in its locations."""
    if MARK not in text:
        return module
    places = places_by_line(text)

    def visit(op: ir.Operation) -> ir.WalkResult:
        found = _LINE.search(str(op.location))
        place = places[int(found[1]) - 1] if found and 0 < int(found[1]) <= len(places) else ""
        if place:
            op.location = ir.Location.name(_PREFIX + place, op.location)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
    return module
