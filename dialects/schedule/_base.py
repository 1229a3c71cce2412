"""How a transform op of ours is written: a decorated Python function over the payload ops of its handles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlirc.mlir import ext, ir, transform
from mlirc.schedule_errors import script_place
from mlirc.schedule_places import tag, without_tag


class Schedule(ext.Dialect, name="schedule"):  # type: ignore[call-arg]
    """The dialect object; ops join it through `transform_op`."""


class PayloadError(Exception):
    """What a transform op met and could not handle: becomes an error at the script's line, naming the payload op."""

    def __init__(self, message: str, payload: ir.Operation | None = None) -> None:
        if payload is not None:
            operation = payload.operation
            message += f" [payload op: {operation.name} at {_where(operation)}]"
        super().__init__(message)


def _where(operation: ir.Operation) -> str:
    return without_tag(str(operation.location).removeprefix("loc(").removesuffix(")"))


# IRDL has no name for array attributes: those are left unconstrained, and checked when they are read.
_ATTRIBUTE_CLASSES = {int: ir.IntegerAttr, str: ir.StringAttr, bool: Any, list: Any}


def _to_attribute(value: Any) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    return ir.DenseI64ArrayAttr.get(list(value))


def _to_python(attribute: ir.Attribute) -> Any:
    return list(attribute) if isinstance(attribute, ir.DenseI64ArrayAttr) else attribute.value


def _handle(value: Any) -> ir.Value:
    """A handle from a value, or from an op with one result."""
    return value if isinstance(value, ir.Value) else value.results[0]


def transform_op(
    name: str,
    *,
    operands: Sequence[str] = ("target",),
    consumes: Sequence[str] = (),
    results: Sequence[str] = (),
    attributes: dict[str, type] | None = None,
    modifies: bool = True,
) -> Callable[[Callable], Callable]:
    """Turns `f(rewriter, *payload_lists, **attributes)` into the transform op `schedule.<name>`.

    `f` gets one list of payload ops per operand, and the attributes as Python values (int, str, bool, list of int, as
    declared in `attributes`). It returns one list of payload ops per result (None if the op has no result), and raises
    `PayloadError` for what it cannot handle. Handles named in `consumes` are dead after the op.

    The decorated name becomes the builder: `builder(*handles, **attributes)` adds the op at the current insertion
    point and returns its result, the tuple of its results, or None.
    """
    fields = attributes or {}

    def decorate(function: Callable) -> Callable:
        op_class = _make_class(name, operands, results, fields)
        op_class.mlirc_apply = staticmethod(function)  # type: ignore[attr-defined]
        op_class.mlirc_signature = (tuple(operands), tuple(consumes), tuple(results), fields, modifies)  # type: ignore[attr-defined]

        def builder(*handles: Any, **values: Any) -> Any:
            unknown = set(values) ^ set(fields)
            if unknown or len(handles) != len(operands):
                raise TypeError(f"schedule.{name} takes handles {tuple(operands)} and attributes {tuple(fields)}")
            # not through op_class: its constructor takes an empty array attribute for a missing one
            op = ir.Operation.create(
                f"schedule.{name}",
                [transform.AnyOpType.get()] * len(results),
                [_handle(h) for h in handles],
                {k: _to_attribute(v) for k, v in values.items()},
            )
            found = tuple(op.results)
            return found[0] if len(found) == 1 else found or None

        builder.__name__ = name
        builder.__doc__ = function.__doc__
        builder.apply = function  # type: ignore[attr-defined]
        return builder

    return decorate


def _make_class(name: str, operands: Sequence[str], results: Sequence[str], fields: dict[str, type]) -> type:
    annotations: dict[str, Any] = {o: ext.Operand[transform.AnyOpType] for o in operands}
    annotations |= {a: _ATTRIBUTE_CLASSES[t] for a, t in fields.items()}
    annotations |= {r: ext.Result[transform.AnyOpType[()]] for r in results}
    body: dict[str, Any] = {"__annotations__": annotations} | {r: ext.infer_result() for r in results}

    class_name = "".join(part.capitalize() for part in name.split("_")) + "Op"
    # `type(...)` with keywords: the class keyword `name` is how the bindings learn the op's name.
    return type(class_name, (Schedule.Operation,), body, name=name)


def attach(op_class: type, ctx: ir.Context) -> None:
    """Attaches the transform interface and the memory effects to an op class made by `transform_op`."""
    operands, consumes, results, fields, modifies = op_class.mlirc_signature  # type: ignore[attr-defined]

    class Model(transform.TransformOpInterface):
        @staticmethod
        def apply(op, rewriter, found, state):
            payload = [list(state.get_payload_ops(getattr(op, o))) for o in operands]
            values = {a: _to_python(op.operation.attributes[a]) for a in fields}
            try:
                produced = op_class.mlirc_apply(rewriter, *payload, **values)  # type: ignore[attr-defined]
            except Exception as e:  # an exception must not unwind through the interpreter's C++ frames
                kind = "" if isinstance(e, PayloadError) else f"{type(e).__name__}: "
                op.operation.location.emit_error(f"{op.operation.name}: {kind}{e}")
                return transform.DiagnosedSilenceableFailure.DefiniteFailure
            place = script_place(str(op.operation.location)) if modifies else ""
            for result, ops in zip(op.operation.results, produced or (), strict=True):
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
