"""`mlirc-recurrence`: a kernel of kind `recurrence` becomes one launch, of blocks that wait for each other.

Each block keeps the rows of the matrix that its units need in its threads' registers, over all steps:

    the matrix's rows into registers
    for each step   what the gates read of this step, into registers
                    all blocks have written the state of the step before: one thread waits, and the block meets
                    products of that state, from L2; sums over lanes by shuffles, over warps through shared memory
                    gates of the block's units, each by a thread, which has that unit's states in registers
                    the new state to memory; the block meets, and one thread says so: a counter of all blocks
    last states     to memory

The state lies in a workspace twice, in turn: who waits for step t has read that of step t - 1, so that it may be
written anew (`barrier.py`).
All blocks have to be resident at once: the launch is cooperative. (Persistent RNNs: Diamos et al., ICML 2016.)
"""

from __future__ import annotations

from mlirc.errors import MlircError
from mlirc.ir.recurrences import read
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.distribute.emit.blame import blamed
from mlirc.passes.recurrence.launch import lower
from mlirc.targets import DEFAULT_TARGET, get_target


@register("mlirc-recurrence")
def run(module: ir.Module, target: str = "") -> None:
    """Lowers every function of the module that asks for it, in place. Raises MlircError for one of another form."""
    with module.context, ir.Location.unknown():
        for op in [o.operation for o in module.body.operations]:
            if op.name != "func.func" or "mlirc.lowering" not in op.attributes:
                continue
            if ir.StringAttr(op.attributes["mlirc.lowering"]).value != "recurrence":
                continue
            name = ir.StringAttr(op.attributes["sym_name"]).value
            recurrences = read(op.opview)
            if not recurrences:
                raise MlircError(f"kernel {name}: mlirc-recurrence: it is no loop over the steps of a cell")
            with blamed(op.opview):
                lower(module, op.opview, name, recurrences, get_target(target or DEFAULT_TARGET))
