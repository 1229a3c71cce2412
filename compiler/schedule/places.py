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
_STRING = r'"(?:[^"\\]|\\.)*+"'
_INNER = ""
for _ in range(8):  # a location may hold others
    _INNER = rf'(?:[^()"]++|{_STRING}|\({_INNER}\))*+'
_LOCATION = re.compile(rf"({_STRING})| loc\({_INNER}\)")
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


def annotated(module: ir.Module, located: str = "") -> str:
    """A module's text with a comment `// schedule: file:line` wherever another line of the script begins to speak.
    `located`: its text with locations, for who has it."""
    located = located or module.operation.get_asm(enable_debug_info=True)
    lines = located.split("\n")
    places = {m.group(1): script_line(m.group(2)) for m in map(_ALIAS.match, lines) if m}
    annotate, last, written = any(places.values()), "", []
    for line in lines:
        if line.startswith("#loc"):
            continue
        text, found, alias = line.rpartition(" loc(")
        if not found or " loc(" in text or not alias.endswith(")"):  # none at the end, or those of arguments
            text = _LOCATION.sub(lambda m: m[1] or "", line)
        place = places.get(alias[:-1], "") if annotate else ""
        quiet = " = arith.constant " in text or text.lstrip().startswith("}")  # the latter is where an op ends
        if place and place != last and not quiet:
            written.append(" " * (len(text) - len(text.lstrip())) + MARK + place)
            last = place
        written.append(text)
    return "\n".join(written)


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
