"""`mlirc-distribute`: from the `tiles` level to the `gpu` level.

Every `scf.forall` of a kernel becomes a `gpu.func`: its tiles are spread over the registers of the block's threads by
layouts (layout.py), loads and stores become vector accesses (memory.py), bodies are replayed on registers
(elementwise.py), reductions become shuffles (reduction.py), products mma.sync or FMA (contraction.py, staging.py),
loops carry fragments and pipeline their copies (loop.py)."""

from __future__ import annotations

from mlirc.mlir import ir, run_passes
from mlirc.passes import register
from mlirc.passes.distribute.kernel import distribute_function


@register("mlirc-distribute")
def run(module: ir.Module, **_: str) -> None:
    """Replaces every kernel function of the module that does not ask for the loops path by its `gpu`-level form."""
    changed = False
    for op in list(module.body.operations):
        attributes = op.operation.attributes
        if op.operation.name == "func.func" and "mlirc.kernel" in attributes and "mlirc.lowering" not in attributes:
            distribute_function(module, op)
            changed = True
    if changed:
        run_passes(module, "canonicalize,cse")
