"""Applies a schedule script (a transform module) to a kernel, and finds the transform op to blame when it fails."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mlirc.errors import MlircError
from mlirc.mlir import ir, nested, transform_interpreter
from mlirc.schedule import attributes as schedule_attributes
from mlirc.schedule.errors import apply_error, op_place
from mlirc.schedule.places import note_attribute, short_place, tag
from mlirc.schedule.user import ENTRY, is_entry

CHOSEN = "mlirc.chosen"
# Knobs of built-in scripts whose attributes have other names.
_KNOBS = {
    "group": ("group_rows",),
    "blocks": ("persist", "spread"),
    "cluster_size": ("cluster",),
    "warps_m": ("warp_grid",),
    "warps_n": ("warp_grid",),
    "combine": ("last_block",),
    "combine_warps": ("last_block",),
}


def attributes_of(knob: str) -> tuple[str, ...]:
    """The attributes, without `mlirc.`, that a knob of a built-in script decides: its own name, unless others."""
    return _KNOBS.get(knob, (knob,))


@dataclass(frozen=True)
class _Annotation:
    """One `transform.annotate` of a script: the attribute (without `mlirc.`), its value if the script says it, and the
    op's place."""

    name: str
    value: Any
    known: bool  # whether the script says the value
    place: str


def _entry(script: ir.Module) -> ir.Operation | None:
    return next((op.operation for op in script.body.operations if is_entry(op.operation)), None)


def _annotations(script: ir.Module) -> list[_Annotation]:
    found = []
    for op in nested(script.operation):
        if op.name != "transform.annotate":
            continue
        name = ir.StringAttr(op.attributes["name"]).value
        operands = list(op.operands)
        made_by = operands[1].owner if len(operands) > 1 else None
        known = made_by is None or (
            not isinstance(made_by, ir.Block) and made_by.operation.name == "transform.param.constant"
        )
        value: Any = True
        if made_by is not None and known:
            value = schedule_attributes.plain(made_by.operation.attributes["value"])
        found.append(_Annotation(name, value, known, op_place(op)))
    return found


def note_chosen(script: ir.Module, given: Iterable[str]) -> None:
    """Records in a built-in script's module, as `mlirc.chosen`, the annotations that it decided on by itself, that is,
    all but those of the knobs that the user gave: they are offers, and what does not apply to a kernel is no error."""
    demanded = {name for knob in given for name in attributes_of(knob)}
    names: dict[str, ir.Attribute] = {}
    for op in nested(script.operation):
        if op.name == "transform.annotate" and len(list(op.operands)) > 1:
            name = ir.StringAttr(op.attributes["name"]).value.removeprefix(schedule_attributes.PREFIX)
            if name not in demanded:
                names[name] = op.operands[1].owner.attributes["value"]
    if names:
        script.operation.attributes[CHOSEN] = ir.DictAttr.get(names)


def _demands(script: ir.Module, annotations: list[_Annotation]) -> list[str]:
    """The attributes that the script insists on: a value that was edited in a printed script is not its own choice."""
    attributes = script.operation.attributes
    offered = {}
    if CHOSEN in attributes and isinstance(attributes[CHOSEN], ir.DictAttr):
        offered = {n.name: schedule_attributes.plain(n.attr) for n in ir.DictAttr(attributes[CHOSEN])}
    wanted = {a.name.removeprefix(schedule_attributes.PREFIX): a for a in annotations}
    return sorted(n for n, a in wanted.items() if n not in offered or (a.known and a.value != offered[n]))


def _check_annotations(annotations: list[_Annotation], kernel: str) -> None:
    """Raises MlircError, at the script's line, for an attribute that nothing reads, or a wrong value."""
    for a in annotations:
        own = a.name.removeprefix(schedule_attributes.PREFIX)
        if a.name == own and "." in a.name:
            continue  # a user's own mark, under a prefix of theirs
        problem = schedule_attributes.wrong(own, a.value) if a.known else schedule_attributes.unknown(own)
        if a.name == own and not problem:
            problem = f"attribute '{a.name}' is written \"mlirc.{a.name}\""
        if problem:
            raise _blame(a.place, kernel, f"transform.annotate: {problem}")


def _blame(place: str, kernel: str, what: str) -> MlircError:
    return MlircError(f"{place + ': ' if place else ''}schedule of kernel '{kernel}' failed: {what}")


def _check_payload(function: ir.Operation, kernel: str, annotations: list[_Annotation]) -> None:
    """Raises MlircError for an attribute on an op that it says nothing about, with a value that its kind does not take,
    or that the kernel's lowering does not read; notes in the locations which line of the script set it."""
    lowering = schedule_attributes.of(function).get("lowering", "distribute")
    known = schedule_attributes.table()
    for op in [function.operation, *nested(function.operation)]:
        for name, value in schedule_attributes.of(op).items():
            same = [a for a in annotations if a.name.removeprefix(schedule_attributes.PREFIX) == name]
            exact = [a for a in same if a.value == value]
            place = (exact or same)[0].place if same else ""
            at = f" [payload op: {op.name}]"
            problem = schedule_attributes.wrong(name, value)
            if problem:
                raise _blame(place, kernel, f"transform.annotate: {problem}{at}")
            entry = known[name]
            if not schedule_attributes.stands_on(op, entry):
                raise _blame(place, kernel, f"transform.annotate: '{name}' belongs on {entry.on}, not here{at}")
            if entry.read_by and lowering not in entry.read_by and lowering in schedule_attributes.LOWERINGS:
                what = f"mlirc-{lowering}, which takes this kernel down, does not read '{name}': leave it out"
                raise _blame(place, kernel, f"transform.annotate: {what}")
            if place:
                note_attribute(op, name, short_place(place))


def apply_script(script: ir.Module, function: ir.Operation, name: str) -> None:
    """Applies the script's `@__transform_main` to the function of kernel `name`, in place.

    Raises MlircError that names the script's line, the transform op, and the payload op; the function is then left
    half transformed.
    """
    entry = _entry(script)
    if entry is None:
        raise MlircError(f"the script for kernel '{name}' has no named_sequence @{ENTRY}")
    annotations = _annotations(script)
    _check_annotations(annotations, name)
    before = function.operation.clone(ip=False)
    place = op_place(entry)
    try:
        transform_interpreter.apply_named_sequence(function, entry, script)
    except (ValueError, ir.MLIRError) as e:
        raise apply_error(str(e), name, _failing_op(script, before) or entry) from e
    if place:  # what upstream's transform ops made has the script's own line
        tag([function], place, all_ops=False)
    try:
        valid = function.operation.verify()
    except ir.MLIRError as e:
        raise _blame(place, name, f"the script left invalid IR: {' '.join(str(e).split())}") from e
    if not valid:
        raise _blame(place, name, "the script left invalid IR")
    _check_payload(function, name, annotations)
    demands = _demands(script, annotations)
    if demands:
        with function.context:
            listed = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in demands])
            function.attributes[schedule_attributes.DEMANDS] = listed


def _failing_op(script: ir.Module, kernel: ir.Operation) -> ir.Operation | None:
    """The first transform op whose prefix of the script fails: diagnostics of upstream ops carry only the payload's
    location. None when no prefix fails."""
    entry = _entry(script)
    assert entry is not None
    for length in range(1, len(list(entry.regions[0].blocks[0].operations))):
        prefix = script.operation.clone()
        copy = _entry(prefix.opview)
        assert copy is not None
        ops = list(copy.regions[0].blocks[0].operations)
        for op in reversed(ops[length:-1]):
            op.operation.erase()
        payload = ir.Module.create()
        with ir.InsertionPoint(payload.body):
            function = kernel.clone()
        try:
            transform_interpreter.apply_named_sequence(function.operation, copy, prefix)
        except (ValueError, ir.MLIRError):
            return list(entry.regions[0].blocks[0].operations)[length - 1].operation
    return None
