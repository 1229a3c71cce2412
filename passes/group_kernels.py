"""`mlirc-group-kernels`: marks each op of `@main` with the kernels that compute it.

`mlirc.kernels = array<i64>` lists an op's kernels; `mlirc.root = N` marks the op whose results kernel N writes. An op
without `mlirc.kernels` is dead, or costs nothing (views, constants). Options, each `true` or `false`:

    epilogue    maps after a contraction join its kernel
    siblings    two contractions of one left operand that meet in a map share a kernel (needs epilogue)
    reductions  reductions join the kernel of their only user
    maps        maps and data movement join the kernels of their users
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.graph.grouping import Grouping, Options
from mlirc.passes.graph.outline import KERNELS, ROOT, main_function


@register("mlirc-group-kernels")
def run(module: ir.Module, **options: str) -> None:
    """Computes the grouping and writes it as attributes. Raises MlircError for an unknown option."""
    chosen = {name: _boolean(name, value) for name, value in options.items()}
    unknown = set(chosen) - set(Options.__dataclass_fields__)
    if unknown:
        raise MlircError(f"mlirc-group-kernels: unknown option '{min(unknown)}'")
    block = main_function(module).regions[0].blocks[0]
    ops = [op.operation for op in block.operations]
    with ir.Location.unknown(module.context):
        grouping = Grouping(ops, Options(**chosen))
        i64 = ir.IntegerType.get_signless(64)
        for op, kernels in grouping.kernels_of.items():
            op.attributes[KERNELS] = ir.DenseI64ArrayAttr.get(sorted(k.number for k in kernels))
        for op, kernel in grouping.root_of.items():
            op.attributes[ROOT] = ir.IntegerAttr.get(i64, kernel.number)


def _boolean(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise MlircError(f"mlirc-group-kernels: option {name} is true or false, not '{value}'")
    return value == "true"
