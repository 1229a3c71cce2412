"""From a kernel's Python function to its module, at level `kernels` or `tiles`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.ir.contractions import multiply_accumulate
from mlirc.kernel.places import KernelError, shown, user_code, user_locations
from mlirc.kernel.scalar import element_type
from mlirc.kernel.signature import Shaped, Signature
from mlirc.kernel.state import Building, building
from mlirc.kernel.tensor import Tensor, axes_of, collapsed, described, full
from mlirc.mlir import context, func, ir, nested
from mlirc.schedule.attributes import DEMANDS
from mlirc.schedule.places import tag_one
from mlirc.schedule.stated import state_instructions


def trace(
    function: Callable[..., Any],
    signature: Signature,
    inputs: Sequence[Shaped],
    results: Sequence[Shaped | None],
    constants: Mapping[str, Any],
    level: str = "kernels",
) -> ir.Module:
    """The module of a kernel for inputs of these dtypes and shapes: its function, and `@main`, which calls it.

    Results are rounded to the annotated dtypes. Raises KernelError, at the user's line, for what cannot be built."""
    file = os.path.abspath(function.__code__.co_filename)
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        types = [ir.RankedTensorType.get(list(shape), element_type(dtype)) for dtype, shape in inputs]
        line = ir.Location.file(shown(file), function.__code__.co_firstlineno, 0)
        with line, ir.InsertionPoint(module.body):
            made = func.FuncOp(signature.name, (types, []), visibility="private")
            entry = made.add_entry_block()
        with line, ir.InsertionPoint(entry):
            given = [
                Tensor(collapsed(value), shape, axes_of(shape))
                for value, (_, shape) in zip(entry.arguments, inputs, strict=True)
            ]
            with user_locations(), user_code(file, signature.name), building(Building(level, results)) as state:
                found = function(*given, **constants)
            values = _results(found, signature, results)
            func.ReturnOp(values)
        outputs = [v.type for v in values]
        made.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, outputs))
        made.attributes["mlirc.kernel"] = ir.UnitAttr.get()
        made.attributes["mlirc.kind"] = ir.StringAttr.get(_kind(made))
        made.attributes["mlirc.origin"] = ir.ArrayAttr.get([ir.StringAttr.get(signature.name)])
        _note_demands(made, state)
        _add_main(module, signature, types, outputs)
        _verify(module, signature)
    return module


def _results(found: Any, signature: Signature, results: Sequence[Shaped | None]) -> list[ir.Value]:
    """What the function returned as values of the annotated types."""
    listed = list(found) if isinstance(found, (tuple, list)) else [found]
    if not listed or not all(isinstance(x, Tensor) for x in listed):
        kinds = ", ".join(type(x).__name__ for x in listed) or "nothing"
        raise signature.wrong(f"a kernel returns a tensor or a tuple of tensors, not {kinds}")
    if signature.results and len(listed) != len(results):
        raise signature.wrong(f"returns {len(listed)} tensors, and its annotation has {len(results)}")
    values = []
    for x, wanted, annotation in zip(listed, results or [None] * len(listed), signature.results or listed, strict=True):
        if wanted is not None:
            dtype, shape = wanted
            if tuple(x.shape) != shape:
                raise signature.wrong(f"returns {described(x)}, and its annotation {annotation.text} is {list(shape)}")
            x = x.to(dtype)
        values.append(full(x))
    return values


def _note_demands(function: ir.OpView, state: Building) -> None:
    """Writes what a block program asks for on its function, and the user's line on all that it is made of."""
    for name, value in state.attributes.items():
        function.attributes[name] = value
    if state.level != "tiles":
        return
    state_instructions(function.operation)
    if state.demands:
        function.attributes[DEMANDS] = ir.ArrayAttr.get([ir.StringAttr.get(n) for n in sorted(state.demands)])
    for op in [function.operation, *nested(function.operation)]:
        if place := _file_line(op.location):
            tag_one(op, place)


def _kind(function: ir.OpView) -> str:
    """What a kernel is called by in `--schedule`: its most demanding operation."""
    names = [op.name for op in nested(function.operation)]
    generics = [op for op in nested(function.operation) if op.name == "linalg.generic"]
    if any(name in ATTENTIONS for name in names):
        return "attention"
    if any(multiply_accumulate(op) is not None for op in generics):
        return "matmul"
    if any("reduction" in str(op.attributes["iterator_types"]) for op in generics):
        return "reduction"
    return "gather" if "tensor.extract" in names else "elementwise" if generics else "generic"


def _add_main(module: ir.Module, signature: Signature, inputs: list[ir.Type], outputs: list[ir.Type]) -> None:
    with ir.InsertionPoint(module.body):
        main = func.FuncOp("main", (inputs, outputs))
    with ir.InsertionPoint(main.add_entry_block()):
        call = func.CallOp(outputs, ir.FlatSymbolRefAttr.get(signature.name), list(main.arguments))
        func.ReturnOp(list(call.operation.results))
    about = [{"mlirc.name": ir.StringAttr.get(n), "mlirc.kind": ir.StringAttr.get("input")} for n in signature.inputs]
    main.arg_attrs = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in about])
    names = [{"mlirc.name": ir.StringAttr.get(n)} for n in output_names(len(outputs))]
    main.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in names])


def output_names(count: int) -> list[str]:
    """What a kernel's results are called."""
    return ["output"] if count == 1 else [f"output_{i}" for i in range(count)]


def _verify(module: ir.Module, signature: Signature) -> None:
    try:
        module.operation.verify()
    except ir.MLIRError as e:
        where = next((d for d in e.error_diagnostics), None)
        place = _file_line(where.location) if where is not None else ""
        text = " ".join((where.message if where is not None else str(e)).split())
        raise KernelError(f"{place or signature.place}: {signature.name}: {text}") from e


def _file_line(location: ir.Location) -> str:
    found = re.search(r'"([^"]+\.py)":(\d+)', str(location))
    return f"{shown(found[1])}:{found[2]}" if found else ""
