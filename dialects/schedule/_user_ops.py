"""Transform ops by name: those of this folder, which the dialect is loaded with, and those of a user's file.

A dialect that is loaded already is extended through IRDL: an op that its context does not know would be built all the
same, and the interpreter would call an interface that it does not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from mlirc.dialects.schedule._dialect import Schedule
from mlirc.mlir import ext, ir
from mlirc.schedule.errors import VerbError


@dataclass
class _Defined:
    function: Callable
    signature: tuple
    file: str


_defined: dict[str, _Defined] = {}
_kept: list[ir.Module] = []  # the IRDL of ops that joined late
_loaded: ir.Context | None = None


def implementation(name: str) -> Callable:
    """The function of `schedule.<name>`."""
    return _defined[name].function


def defined_in(file: str) -> list[str]:
    """Names of the ops that a file defined."""
    return [name for name, op in _defined.items() if op.file == os.path.abspath(file)]


def users_ops() -> list[str]:
    """Names of the ops that users' files defined in this process."""
    from mlirc.schedule.user_code import is_library

    return [name for name, op in _defined.items() if not is_library(op.file)]


def loaded(ctx: ir.Context) -> None:
    """From now on ops join the dialect of this context one by one."""
    global _loaded
    _loaded = ctx


def define(name: str, function: Callable, signature: tuple, make: Callable[[], type], attach: Callable) -> None:
    """Defines `schedule.<name>` with the op class that `make` returns.

    The same file may define it again (a script that is edited and loaded again), with the same operands, results and
    attributes. Raises VerbError for a name that another file has.
    """
    file = os.path.abspath(function.__code__.co_filename)
    known = _defined.get(name)
    if known is not None and known.file != file:
        raise VerbError(
            f"transform_op: schedule.{name} exists, from {os.path.relpath(known.file)}: give yours another name"
        )
    if known is not None and known.signature != signature:
        raise VerbError(
            f"transform_op: schedule.{name} was defined with other operands, results or attributes in this process: "
            "give it another name, or start again"
        )
    _defined[name] = _Defined(function, signature, file)
    if known is None:
        op_class = make()
        if _loaded is not None:
            _join(op_class, _loaded, attach)


def _join(op_class: type, ctx: ir.Context, attach: Callable) -> None:
    with ctx, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            dialect = ext.irdl.dialect(Schedule.name)  # type: ignore[attr-defined]
            with ir.InsertionPoint(dialect.body):
                op_class._emit_operation()  # type: ignore[attr-defined]
        ext.PassManager.parse("builtin.module(canonicalize,cse)").run(module.operation)
        ext.irdl.load_dialects(module)
        _kept.append(module)
        ext._cext.register_operation(Schedule, replace=True)(op_class)
        ext._cext.register_op_adaptor(op_class, replace=True)(op_class.Adaptor)  # type: ignore[attr-defined]
        attach(op_class, ctx)
