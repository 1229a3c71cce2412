"""Ops of a tile program that a loop, or a role, has a way of its own for."""

from __future__ import annotations

from mlirc.mlir import ir


class Pipeline:
    """What fills the slots that a loop's products read: of no loop, nothing."""

    def lower(self, scope, op: ir.Operation) -> bool:
        """Lowers an op that it has a way of its own for; False for others."""
        return False
