"""Launches that depend on each other (PTX ISA, "Parallel Synchronization and Communication Instructions":
griddepcontrol)."""

from __future__ import annotations

from mlirc.device.attributes import word
from mlirc.device.declare import stateful
from mlirc.device.machine import State
from mlirc.device.translate import Translator


@stateful("nvvm.griddepcontrol")
def _grid_control(tr: Translator, op):
    waits = word(op, "kind") == "wait"  # else: which launch goes first decides nothing here
    tr.grid_waits = tr.grid_waits or waits

    def control(s: State) -> None:
        if waits and s.m.waited is not None:
            s.m.waited |= True if s.mask is None else s.mask

    return control
