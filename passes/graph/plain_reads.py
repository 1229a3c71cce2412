"""Which moves of elements a contraction or attention may look through to the tensor in memory that it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.ir.tensors import shape_of
from mlirc.mlir import ir
from mlirc.passes.graph.demands import Demand, Kernel
from mlirc.passes.graph.evaluate import Evaluator, is_move
from mlirc.passes.graph.facts import dims_in, inner_loops, is_plain_copy, is_widening_cast, without_cast
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.outline import is_contiguous_slice
from mlirc.passes.graph.scalar import Scalars


class PlainReads:
    """Answers for one grouping, and remembers what it looked through."""

    def __init__(self) -> None:
        self._through: dict[tuple[ir.Operation, Kernel], set[ir.Operation]] = {}

    def is_plain(self, op: ir.Operation, kernel: Kernel, demand: Demand) -> bool:
        """Whether the reads of a moved (for a contraction, also widened) tensor are plain reads of its source."""
        through = self._through[op, kernel] = set()

        def look(o: ir.Operation) -> bool:
            through.add(o)
            return True

        if _reads_plainly(op, kernel, demand, look):
            return True
        through.clear()
        # A part of a tensor that lies in one piece is a source: it costs no copy.
        return not is_contiguous_slice(op) and _reads_plainly(
            op, kernel, demand, lambda o: not is_contiguous_slice(o) and look(o)
        )

    def stranded(
        self, kernels_of: Mapping[ir.Operation, Collection[Kernel]], demand_of: Callable[[ir.Value], Demand]
    ) -> set[ir.Operation]:
        """The ops whose reads are not plain, as something that they looked through has a kernel of its own after all:
        another user, which was looked at later, does not read it plainly."""
        found: set[ir.Operation] = set()
        for (op, kernel), through in self._through.items():
            joined = {o for o in through if kernel in kernels_of.get(o, ())}
            if kernel not in kernels_of.get(op, ()) or joined == through:
                continue
            if not _reads_plainly(op, kernel, demand_of(op.results[0]), joined.__contains__):
                found.add(op)
        return found


def _reads_plainly(op: ir.Operation, kernel: Kernel, demand: Demand, look: Callable[[ir.Operation], bool]) -> bool:
    """The same, through those moves, copies and casts that `look` allows; through `op` in any case."""
    casts = bool(kernel.contractions)

    def looks_through(o: ir.Operation) -> bool:
        if not (is_move(o) or is_plain_copy(o) or (casts and is_widening_cast(o))):
            return False
        return o == op or look(o)

    evaluator = Evaluator(Scalars(), looks_through)
    for read in demand.indices[kernel]:
        if read is None:
            return False
        scalar = evaluator.element(op.results[0], read)
        if casts:
            scalar = without_cast(scalar)
        dims = plain_dims(scalar.data[1], shape_of(scalar.data[0])) if scalar.kind == "load" else None
        if dims is None or (kernel in demand.ordered and dims != sorted(dims)):
            return False
        if not inner_loops(read) <= dims_in(scalar.data[1]):
            return False  # a broadcast along them: two of those would leave the loop without a size
        if kernel.root.name in ATTENTIONS and sorted(dims) != plain_dims(read, shape_of(op.results[0])):
            return False  # a broadcast: the op has no layout without one of its dimensions
    return True
