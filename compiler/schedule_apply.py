"""Applies a schedule script (a transform module) to a kernel, and finds the transform op to blame when it fails."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir, transform_interpreter
from mlirc.schedule_errors import apply_error, script_place
from mlirc.schedule_places import tag

ENTRY = "__transform_main"


def _entry(script: ir.Module) -> ir.Operation | None:
    for op in script.body.operations:
        named = op.operation.name == "transform.named_sequence"
        if named and ir.StringAttr(op.operation.attributes["sym_name"]).value == ENTRY:
            return op.operation
    return None


def apply_script(script: ir.Module, function: ir.Operation, name: str, file: str = "") -> None:
    """Applies the script's `@__transform_main` to the function of kernel `name`, in place.

    `file` is the .mlir file that the script was parsed from, if it was. Raises MlircError that names the script's
    line, the transform op, and the payload op; the function is then left half transformed.
    """
    entry = _entry(script)
    if entry is None:
        raise MlircError(f"{file + ': ' if file else ''}the script for kernel '{name}' has no named_sequence @{ENTRY}")
    before = function.operation.get_asm(enable_debug_info=True)
    try:
        transform_interpreter.apply_named_sequence(function, entry, script)
    except ValueError as e:
        raise apply_error(str(e), name, _failing_op(script, before), file) from e
    place = script_place(str(entry.location))
    if place:  # what upstream's transform ops made has the script's own line
        tag([function], file + place[1:] if file and place.startswith("-:") else place, all_ops=False)
    try:
        valid = function.operation.verify()
    except ir.MLIRError as e:
        raise MlircError(f"kernel '{name}': the script left invalid IR: {' '.join(str(e).split())}") from e
    if not valid:
        raise MlircError(f"kernel '{name}': the script left invalid IR")


def _failing_op(script: ir.Module, kernel: str) -> ir.Operation | None:
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
        payload = ir.Module.parse(kernel)
        try:
            transform_interpreter.apply_named_sequence(payload.body.operations[0].operation, copy, prefix)
        except ValueError:
            return list(entry.regions[0].blocks[0].operations)[length - 1].operation
    return None
