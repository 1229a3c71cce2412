"""`mlirc-convolutions`: makes contractions of the convolutions of `@main` and of the steps of its loops.

A convolution becomes a contraction of its windows and its weights on tensors that are stored channels last
(`graph/convolutions.py`), and what is between convolutions is computed channels last, too (`graph/channels_last.py`):
transposes are left where others begin. Option:

    whole  `true`: rows of windows have zeros behind their channels, so that tensor copies bring whole ones
"""

from __future__ import annotations

from mlirc.mlir import ir
from mlirc.passes import register
from mlirc.passes.graph.channels_first import view
from mlirc.passes.graph.channels_last import Layouts, sink
from mlirc.passes.graph.convolutions import alone, convolution, is_channels_first
from mlirc.passes.graph.outline import graph_functions

# What reads windows of images.
_WINDOWED = ("linalg.conv_", "linalg.depthwise_conv_", "linalg.pooling_")


@register("mlirc-convolutions")
def run(module: ir.Module, whole: str = "false") -> None:
    """Rewrites a `linalg`-level module in place."""
    with ir.Location.unknown(module.context):
        for function in graph_functions(module):
            _rewrite(function.regions[0].blocks[0], whole == "true")


def _rewrite(block: ir.Block, whole: bool) -> None:
    ops = [o.operation for o in block.operations]
    if not any(op.name.startswith(_WINDOWED) for op in ops):
        return
    layouts = Layouts()
    for op in ops:
        if is_channels_first(op):
            done = alone(op, layouts)
        else:
            done = convolution(op, layouts, whole) or sink(op, layouts) or bool(layouts.rewritten) and view(op, layouts)
        if done:
            layouts.rewritten.append(op)
    layouts.finish()
    if layouts.rewritten:
        _erase_dead(block)


def _erase_dead(block: ir.Block) -> None:
    """Erases what nobody reads: the pads in front of convolutions, and values in orders that nobody takes."""
    for op in reversed([o.operation for o in block.operations]):
        if op.results and op.name != "func.call" and not any(True for r in op.results for _ in r.uses):
            op.erase()
