"""`mlirc-distribute`: from the `tiles` level to the `gpu` level.

Every `scf.forall` of a kernel becomes a `gpu.func` (`kernel.py`): its tiles are spread over the registers of the
block's threads by layouts (`layouts/`), loads and stores become vector accesses (`memory/`), bodies are replayed on
registers and reductions become shuffles (`tiles/`), products what an instruction makes of them (`products/`,
`instructions/`), and loops carry fragments (`lowerings/`) and run their copies ahead (`copies/`)."""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir, run_passes
from mlirc.passes import register
from mlirc.passes.distribute.kernel import distribute_function
from mlirc.targets import DEFAULT_TARGET, get_target


@register("mlirc-distribute")
def run(module: ir.Module, target: str = DEFAULT_TARGET) -> None:
    """Replaces every kernel function of the module that does not ask for the loops path by its `gpu`-level form, for
    one GPU generation. Raises MlircError, at the script's line where one is known, for a form that it does not know and
    for what the schedule demands and cannot have."""
    _require_kernels_alone(module)
    changed = False
    for op in list(module.body.operations):
        attributes = op.operation.attributes
        if op.operation.name == "func.func" and "mlirc.kernel" in attributes and "mlirc.lowering" not in attributes:
            distribute_function(module, op, get_target(target))
            changed = True
    if changed:
        run_passes(module, "canonicalize,cse")


def _require_kernels_alone(module: ir.Module) -> None:
    """A caller would keep calling the kernels by their old signatures: the driver takes kernels down one by one."""
    functions = {op.name.value: op for op in module.body.operations if op.operation.name == "func.func"}
    for name, function in functions.items():
        if "mlirc.kernel" in function.attributes or function.is_external:
            continue
        for op in function.body.blocks[0].operations:
            callee = op.operation.attributes["callee"].value if op.operation.name == "func.call" else ""
            if callee in functions and "mlirc.kernel" in functions[callee].attributes:
                raise MlircError(
                    f"mlirc-distribute takes kernels without their callers, and @{name} calls @{callee}: give a file "
                    "with the kernel alone, as --dump-dir writes them"
                )
