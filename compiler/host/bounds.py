"""Indices that depend on data, on the CPU: one outside of its tensor is noted and keeps off memory that is not there.

PyTorch raises an error for such an index, a compiled kernel reads the nearest element and leaves a store out. So do the
levels here, and `Strays` tells which indices those were."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.ir.levels import INDEX_BELOW
from mlirc.mlir import arith, func, ir, nested, scf
from mlirc.passes.loops.guards import ACCESSES, keep_inside
from mlirc.schedule.places import without_tag

_NOTE = "mlirc_note_stray"
NOTE = f"_mlir_ciface_{_NOTE}"  # what compiled code calls


@dataclass
class Stray:
    """An index outside of [0, extent): the first one seen at `location`, and how many there were."""

    index: int
    extent: int
    location: str
    count: int = 1

    def __str__(self) -> str:
        return f"index {self.index} is out of range for a dimension of {self.extent}"


class Strays:
    """What a module's checks found: the places with a check (extent and location), and the strays of the last run.
    `source`: the name of the text that the module was parsed from."""

    def __init__(self, source: str = "", places: Sequence[tuple[int, str]] = ()) -> None:
        self.source = source
        self.places = list(places)
        self.found: dict[int, Stray] = {}
        self._callback = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)(self._note)

    def place(self, extent: int, location: str) -> int:
        """The number of a place with a check; one operation that loads and stores is one place."""
        if (extent, location) not in self.places:
            self.places.append((extent, location))
        return self.places.index((extent, location))

    def _note(self, index: int, place: int) -> None:
        if place in self.found:
            self.found[place].count += 1
        else:
            self.found[place] = Stray(index, *self.places[place])

    @property
    def address(self) -> int:
        """Of what the compiled code calls as NOTE; it lives as long as this object."""
        return ctypes.cast(self._callback, ctypes.c_void_p).value or 0

    def register(self, engine) -> None:
        """Makes the callback known to the compiled code."""
        if self.places:
            engine.register_runtime(_NOTE, self._callback)

    def take(self) -> list[Stray]:
        """The strays since the last call, in the order in which they were met: one per place in the source."""
        found = list(self.found.values())
        self.found = {}
        return found

    def raise_if_any(self, name: str) -> None:
        """Raises MlircError for the first stray of the last run of function `name`."""
        found = self.take()
        if found:
            others = f"; {len(found) - 1} further findings" if len(found) > 1 else ""
            more = f" (and {found[0].count - 1} more)" if found[0].count > 1 else ""
            raise MlircError(f"{name}: {found[0]}{more} at {found[0].location}, where PyTorch raises an error{others}")


def guard(module: ir.Module, source: str = "") -> Strays:
    """Adds checks, in place, to every load, store and view of a buffer at an index that depends on data, and to every
    clamp that stands for one. The module is lowered to loops over buffers."""
    strays = Strays(source)
    functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
    for function in functions:
        for op in list(nested(function)):
            if op.name in ("arith.maxsi", "arith.minsi") and INDEX_BELOW in op.attributes:
                _check_clamp(op, strays)
            elif op.name in ACCESSES:
                keep_inside(op, lambda op, index, extent: _note_outside(op, index, extent, strays))
    if strays.places:
        i64 = ir.IntegerType.get_signless(64)
        with ir.InsertionPoint(module.body):
            declared = func.FuncOp(_NOTE, ([i64, i64], []), visibility="private")
        declared.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    return strays


def _check_clamp(op: ir.Operation, strays: Strays) -> None:
    with op.location, ir.InsertionPoint(op):
        _note_outside(op, op.operands[0], ir.IntegerAttr(op.attributes[INDEX_BELOW]).value, strays,
                      low=op.name == "arith.maxsi")  # fmt: skip


def _note_outside(op: ir.Operation, value: ir.Value, extent: int, strays: Strays, low: bool = False) -> None:
    """Calls the callback for an index outside of [0, extent); with `low` for one below 0."""
    i64 = ir.IntegerType.get_signless(64)
    location = without_tag(re.sub(r"^loc\((.*)\)$", r"\1", str(op.location)))
    number = strays.place(extent, location.replace('"-":', f"{strays.source}:") if strays.source else location)
    limit = arith.constant(ir.IndexType.get(), 0 if low else extent)
    # unsigned: a negative index is above every extent
    bad = arith.cmpi(arith.CmpIPredicate.slt if low else arith.CmpIPredicate.uge, value, limit)
    branch = scf.IfOp(bad)
    with ir.InsertionPoint(branch.then_block):
        place = arith.constant(i64, number)
        func.CallOp([], ir.FlatSymbolRefAttr.get(_NOTE), [arith.index_cast(i64, value), place])
        scf.YieldOp([])
