"""`mlirc-sort`: a kernel that is one `mlirc.sort` becomes launches, by one of three ways that its schedule names:

    network   rows of up to 4,096 elements: bitonic sorts (Batcher, 1968) in registers, by shuffles, by shared memory
    select    the first up to 4,096 elements: a block finds by counting digits which these are (radix select: Alabi et
              al., 2012), and sorts them so
    radix     rows of any length: stable passes over digits of 8 bits, from the least one on; each counts its tiles'
              digits, adds up the counts, and moves the elements (Satish, Harris, Garland, 2009)

What is sorted are keys, integers in the order of the elements, with places; values are read from the row at the end.
Which of equal elements comes first, places say: results are the same from run to run, and those of a stable sort.
"""

from __future__ import annotations

from mlirc.dialects.sort import SORT, SortInfo
from mlirc.errors import MlircError
from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.distribute.emit.blame import blamed
from mlirc.passes.sort.launch import lower
from mlirc.targets import DEFAULT_TARGET, get_target


@register("mlirc-sort")
def run(module: ir.Module, target: str = "") -> None:
    """Lowers every function of the module that asks for it, in place. Raises MlircError for one of another form."""
    with module.context, ir.Location.unknown():
        for op in [o.operation for o in module.body.operations]:
            if op.name != "func.func" or "mlirc.lowering" not in op.attributes:
                continue
            if ir.StringAttr(op.attributes["mlirc.lowering"]).value != "sort":
                continue
            name = ir.StringAttr(op.attributes["sym_name"]).value
            ops = [o.operation for o in op.regions[0].blocks[0].operations]
            alone = len(ops) == 2 and ops[0].name == SORT and list(ops[1].operands) == list(ops[0].results)
            if not alone or ops[0].operands[0] != op.regions[0].blocks[0].arguments[0]:
                raise MlircError(f"kernel {name}: mlirc-sort: it is no {SORT} of its argument alone")
            with blamed(op.opview):
                lower(module, op.opview, name, SortInfo.of(ops[0]), get_target(target or DEFAULT_TARGET))
