"""`mlirc-async`: from the `tiles` level to the `async` level: rings, and roles of warps, as ops.

What a schedule says by attributes of loops and products (`stages`, `producers`, `copy`) becomes the ops of
`dialects/rings.py`: roles of warps where producers copy (make.py), and rings that those fill who compute
(multistage.py). check.py and check_multistage.py have the rules that rings keep."""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.distribute.emit.blame import blamed
from mlirc.passes.rings.make import make_rings
from mlirc.targets import DEFAULT_TARGET, get_target


@register("mlirc-async")
def run(module: ir.Module, target: str = DEFAULT_TARGET) -> None:
    """Makes rings and roles of every kernel function of the module that `mlirc-distribute` takes further. Raises
    MlircError, at the script's line where one is known, for what the schedule says and cannot have."""
    for op in module.body.operations:
        attributes = op.operation.attributes
        if op.operation.name == "func.func" and "mlirc.kernel" in attributes and "mlirc.lowering" not in attributes:
            with blamed(op):
                make_rings(op, get_target(target))
