"""How a transform op of ours is written: a decorated Python function over the payload ops of its handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirc.dialects.schedule import _user_ops
from mlirc.dialects.schedule._dialect import Schedule
from mlirc.mlir import ext, ir, transform
from mlirc.schedule.errors import VerbError, exception_text, script_place
from mlirc.schedule.places import tag, without_tag


class PayloadError(Exception):
    """What a transform op met and could not handle: becomes an error at the script's line, naming the payload op."""

    def __init__(self, message: str, payload: ir.Operation | None = None) -> None:
        if payload is not None:
            operation = payload.operation
            message += f" [payload op: {operation.name} at {_where(operation)}]"
        super().__init__(message)


def _where(operation: ir.Operation) -> str:
    return without_tag(str(operation.location).removeprefix("loc(").removesuffix(")"))


# Attributes are left unconstrained in IRDL, and checked when they are read: its own messages name no line.
_WORDS = {int: "a whole number of 64 bits", str: "a string", bool: "true or false", list: "a list of whole numbers"}
_INT64 = range(-(2**63), 2**63)


def is_int(value: Any, allowed: range = _INT64) -> bool:
    """Whether a Python value is a whole number (a bool is none) that fits."""
    return isinstance(value, int) and not isinstance(value, bool) and value in allowed


def _to_attribute(name: str, value: Any, kind: type) -> ir.Attribute:
    """A Python value as the attribute `name` of its declared kind; raises VerbError for a value of another kind."""
    if kind is list and isinstance(value, list | tuple) and all(map(is_int, value)):
        return ir.DenseI64ArrayAttr.get(list(value))
    if kind is int and is_int(value):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if kind is bool and isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if kind is str and isinstance(value, str):
        return ir.StringAttr.get(value)
    raise VerbError(f"{name} takes {_WORDS[kind]}, not {short(value)}")


def short(value: Any) -> str:
    """A value in a message: its repr, cut to a readable length."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


_WRITTEN = {int: "3 : i64", str: '"word"', bool: "true", list: "array<i64: 1, 0>"}
_ATTRIBUTE_CLASSES = {int: ir.IntegerAttr, str: ir.StringAttr, bool: ir.BoolAttr, list: ir.DenseI64ArrayAttr}


def _to_python(op: ir.Operation, name: str, kind: type) -> Any:
    """The attribute of an op as a Python value; raises PayloadError where a hand-written script has another kind."""
    found = op.attributes[name] if name in op.attributes else None
    if not isinstance(found, _ATTRIBUTE_CLASSES[kind]) or (kind is int and isinstance(found, ir.BoolAttr)):
        shown = "which is missing" if found is None else f"not {short(str(found))[1:-1]}"
        raise PayloadError(f"{name} takes {_WORDS[kind]}, written {_WRITTEN[kind]}, {shown}")
    return list(found) if kind is list else found.value


def handle(verb: str, value: Any) -> ir.Value:
    """A handle from a value, or from an op with one result; raises VerbError for anything else."""
    if isinstance(value, ir.Value):
        found = value
    elif isinstance(value, ir.OpView | ir.Operation) and len(value.operation.results) == 1:
        found = value.operation.results[0]
    else:
        many = isinstance(value, tuple | list) and value and all(isinstance(v, ir.Value) for v in value)
        hint = f": it is {len(value)} handles, take one" if many else ""
        raise VerbError(f"{verb} takes a handle, not {'a tuple' if many else short(value)}{hint}")
    if not str(found.type).startswith("!transform."):
        raise VerbError(f"{verb} takes a handle, not a value of type {found.type}")
    return found


def _kind_fits(op: ir.Operation, kind: str) -> bool:
    name = op.operation.name
    return name.startswith("linalg.") if kind == LINALG else name == kind


LINALG = "a linalg op"  # of `takes`: any op of that dialect


def transform_op(
    name: str,
    *,
    operands: Sequence[str] = ("target",),
    consumes: Sequence[str] = (),
    results: Sequence[str] = (),
    attributes: dict[str, type] | None = None,
    modifies: bool = True,
    takes: str = "",
    defaults: dict[str, Any] | None = None,
) -> Callable[[Callable], Callable]:
    """Turns `f(rewriter, *payload_lists, **attributes)` into the transform op `schedule.<name>`.

    `f` gets one list of payload ops per operand, and the attributes as Python values (int, str, bool, list of int, as
    declared in `attributes`). It returns one list of payload ops per result (None if the op has no result), and raises
    `PayloadError` for what it cannot handle. Handles named in `consumes` are dead after the op. `takes` is the kind of
    payload op that every operand wants (`func.func`, or LINALG for any linalg op); without it `f` looks for itself.
    Attributes in `defaults` may be left out.

    An op that a `--schedule FILE.py` defines joins the dialect when its file is loaded; it needs a name of its own.

    The decorated name becomes the builder: `builder(*handles, **attributes)` adds the op at the current insertion
    point and returns its result, the tuple of its results, or None.
    """
    fields = attributes or {}
    for kind in fields.values():
        if kind not in _WORDS:
            raise VerbError(f"schedule.{name}: attributes are of int, str, bool or list, not {short(kind)}")

    def decorate(function: Callable) -> Callable:
        signature = (tuple(operands), tuple(consumes), tuple(results), fields, modifies, takes, defaults or {})

        def make() -> type:
            op_class = _make_class(name, operands, results, [f for f in fields if f not in (defaults or {})])
            op_class.mlirc_name, op_class.mlirc_signature = name, signature  # type: ignore[attr-defined]
            return op_class

        _user_ops.define(name, function, signature, make, attach)

        def builder(*handles: Any, **values: Any) -> Any:
            optional = defaults or {}
            unknown = set(values) ^ (set(fields) - (set(optional) - set(values)))
            if unknown or len(handles) != len(operands):
                listed = [*operands, *(f"{f}=..." for f in fields)]
                raise VerbError(f"{name} takes ({', '.join(listed)}), {_mismatch(handles, values, operands, fields)}")
            # not through op_class: its constructor takes an empty array attribute for a missing one
            op = ir.Operation.create(
                f"schedule.{name}",
                [transform.AnyOpType.get()] * len(results),
                [handle(name, h) for h in handles],
                {k: _to_attribute(f"{name}: {k}", v, fields[k]) for k, v in values.items()},
            )
            found = tuple(op.results)
            return found[0] if len(found) == 1 else found or None

        builder.__name__ = name
        builder.__doc__ = function.__doc__
        builder.apply = function  # type: ignore[attr-defined]
        return builder

    return decorate


def _mismatch(handles: Sequence, values: dict, operands: Sequence[str], fields: dict) -> str:
    if len(handles) != len(operands):
        return f"not {len(handles)} handles"
    unknown = [v for v in values if v not in fields]
    return f"not {unknown[0]}" if unknown else f"{next(f for f in fields if f not in values)} is missing"


def _make_class(name: str, operands: Sequence[str], results: Sequence[str], fields: Sequence[str]) -> type:
    annotations: dict[str, Any] = {o: ext.Operand[transform.AnyOpType] for o in operands}
    annotations |= {a: Any for a in fields}
    annotations |= {r: ext.Result[transform.AnyOpType[()]] for r in results}
    body: dict[str, Any] = {"__annotations__": annotations} | {r: ext.infer_result() for r in results}

    class_name = "".join(part.capitalize() for part in name.split("_")) + "Op"
    # `type(...)` with keywords: the class keyword `name` is how the bindings learn the op's name.
    return type(class_name, (Schedule.Operation,), body, name=name)


def _run(op: ir.Operation, rewriter: Any, state: Any, signature: tuple) -> list[list]:
    """Applies an op's function to the payload; returns one list of payload ops per result. Raises PayloadError for
    what the script's author got wrong, and whatever the function raises."""
    operands, _, results, fields, _, takes, defaults = signature
    payload = [list(state.get_payload_ops(v)) for v in op.operands]
    for ops in payload if takes else ():
        for target in ops:
            if not _kind_fits(target, takes):
                raise PayloadError(f"takes a handle of {takes}, this one is of {target.operation.name}", target)
    values = {
        a: defaults[a] if a in defaults and a not in op.attributes else _to_python(op, a, kind)
        for a, kind in fields.items()
    }
    produced = _user_ops.implementation(op.name.removeprefix("schedule."))(rewriter, *payload, **values)
    produced = [] if produced is None else produced
    shown = f"{len(produced)}" if isinstance(produced, list | tuple) else short(produced)
    if not isinstance(produced, list | tuple) or len(produced) != len(results):
        raise PayloadError(f"its function returns one list of payload ops per result: {len(results)}, not {shown}")
    for ops in produced:
        wrong = [o for o in ops if not isinstance(o, ir.OpView | ir.Operation)] if isinstance(ops, list) else [ops]
        if wrong:
            raise PayloadError(f"its function returns lists of payload ops, not {short(wrong[0])}")
    return list(produced)


def attach(op_class: type, ctx: ir.Context) -> None:
    """Attaches the transform interface and the memory effects to an op class made by `transform_op`."""
    signature = op_class.mlirc_signature  # type: ignore[attr-defined]
    operands, consumes, results, _, modifies, _, _ = signature

    class Model(transform.TransformOpInterface):
        @staticmethod
        def apply(op, rewriter, found, state):
            operation = op.operation
            try:
                produced = _run(operation, rewriter, state, signature)
            except (Exception, SystemExit) as e:  # an exception must not unwind through the interpreter's C++ frames
                text = str(e) if isinstance(e, PayloadError) else exception_text(e)
                operation.location.emit_error(f"{operation.name}: {text}")
                return transform.DiagnosedSilenceableFailure.DefiniteFailure
            place = script_place(str(operation.location)) if modifies else ""
            for result, ops in zip(operation.results, produced, strict=True):
                found.set_ops(result, ops)
                if place:
                    tag(ops, place)
            return transform.DiagnosedSilenceableFailure.Success

        @staticmethod
        def allow_repeated_handle_operands(op):
            return False

    class Effects(ir.MemoryEffectsOpInterface):
        @staticmethod
        def get_effects(op, effects):
            for name, operand in zip(operands, op.op_operands, strict=True):
                effect = transform.consumes_handle if name in consumes else transform.only_reads_handle
                effect([operand], effects)
            if results:
                transform.produces_handle(op.results, effects)
            (transform.modifies_payload if modifies else transform.only_reads_payload)(effects)

    Model.attach(op_class.OPERATION_NAME, context=ctx)  # type: ignore[attr-defined]
    Effects.attach(op_class.OPERATION_NAME, context=ctx)  # type: ignore[attr-defined]


def build(name: str) -> Callable:
    """The builder of `schedule.<name>`, for scripts that refer to an op by name."""
    import importlib

    return getattr(importlib.import_module(f"mlirc.dialects.schedule.{name}"), name)
