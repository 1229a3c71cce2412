"""Decides which ops of `@main` are computed in which kernel.

One pass over the ops, last to first. A kernel starts at a root op, whose result it writes; a producer joins the kernels
of its users when that costs no more than writing its result and reading it back would:

- data movement (transpose, broadcast, slice, concat, pad) joins all its users;
- a map joins its only user kernel, and cheap ones (casts, index computations) every user kernel; expensive maths is not
  repeated: it joins only where each of its elements is computed once;
- small maps of integers (positions, and angles made of them) join small kernels of maps, also where others need their
  results in memory: so those kernels do not wait for each other, and can share a launch;
- a contraction claims the chain of maps that follows it as its epilogue, before all else. Two contractions of the same
  left operand that meet in one map (SwiGLU) share a kernel;
- a reduction joins the kernel of its only user when its rows are rows of that kernel: a norm or softmax is one kernel;
- a map whose result others need, too, joins the first kernel that reduces its rows, which writes both (`kept`);
- a scan joins the kernel of the maps that read it, element by element.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from mlirc.dialects.mlirc_dialect import ATTENTIONS
from mlirc.ir.scans import is_scan
from mlirc.ir.tensors import VIEWS, shape_of
from mlirc.mlir import ir
from mlirc.passes.graph import classify, gathers, kept, scans
from mlirc.passes.graph.demands import LONGEST_ROW, Demand, Kernel, reads_again
from mlirc.passes.graph.epilogue import Epilogues, Uses
from mlirc.passes.graph.evaluate import Indices, is_move, map_results, sources
from mlirc.passes.graph.facts import (
    attention_reads,
    contraction_reads,
    dims_in,
    first_element,
    has_few_rows,
    is_constant,
    is_dequantization,
    is_expensive,
    is_free,
    is_gather_of_matrices,
    is_generator_row,
    is_linear,
    is_made_of_numbers,
    is_map,
    is_of_log_sums,
    is_plain_copy,
    is_small_index_map,
    is_unpacked_in_registers,
    is_widening_cast,
    kind,
    loop_sizes,
    makes_halves,
    owner_through_views,
    reads_many,
    reduction_loops,
    tensors_read,
)
from mlirc.passes.graph.gathers import computes_there, gathers_from, is_gathered
from mlirc.passes.graph.index import Index, dim
from mlirc.passes.graph.layout import plain_dims
from mlirc.passes.graph.outline import is_recomputed
from mlirc.passes.graph.plain_reads import PlainReads
from mlirc.passes.graph.windows import is_windows, reads_windows

UNPACKED_ONCE = 128  # rows of products (of two: together) up to which packed weights are unpacked in their kernels
SMALL_READER = 1 << 16  # elements of a kernel that may compute small maps again
MAX_EVALUATIONS = 3  # how many different elements of a cheap map a kernel may compute per element of its result


@dataclass(frozen=True)
class Options:
    """Which fusions are allowed; see `mlirc.scripts.graph.graph`. `unpack_rows`: of products that take packed weights
    through registers, those up to which they do."""

    epilogue: bool = True
    siblings: bool = True
    reductions: bool = True
    maps: bool = True
    unpack_rows: int = 0


class Grouping:
    """The kernels of a function's body and, for each op, the kernels that compute it. The ops `apart` have kernels of
    their own."""

    def __init__(self, ops: list[ir.Operation], options: Options, apart: Collection[ir.Operation] = ()) -> None:
        self._apart = apart
        self.options, self.ops = options, ops
        self.kernels: list[Kernel] = []
        self.kernels_of: dict[ir.Operation, list[Kernel]] = {}
        self.root_of: dict[ir.Operation, Kernel] = {}
        self.kept_by: dict[ir.Operation, Kernel] = {}
        self._demands: dict[ir.Value, Demand] = {}
        self._uses = Uses(ops)
        self._epilogues = Epilogues(self._uses, ops if options.epilogue else [], options.siblings)
        self._after_reduction = self._find_after_reduction()
        self._heavy = self._find_heavy()
        self._plain = PlainReads()
        for op in reversed(ops):
            self._place(op)
        self.stranded = self._plain.stranded(self.kernels_of, self.demand)  # to be grouped again with these apart

    # What is known of the ops before any kernel exists.

    def _find_after_reduction(self) -> set[ir.Operation]:
        """Maps that continue a reduction's result and have one user: they belong to the reduction's kernel."""
        found: set[ir.Operation] = set()
        for op in self.ops:
            if is_map(op):
                producers = [owner_through_views(v) for v in op.operands]
                if any(p is not None and (classify.is_reduction_generic(p) or p in found) for p in producers):
                    if len(self._uses.of(op.results[0])) == 1:
                        found.add(op)
        return found

    def _find_heavy(self) -> set[ir.Operation]:
        """Maps that compute expensive maths, or read many tensors, as those of windows do; and such as continue a map
        of as many elements that does."""
        found: set[ir.Operation] = set()
        for op in self.ops:
            if is_map(op):
                size = prod(shape_of(op.results[0]))
                producers = [owner_through_views(v) for v in op.operands]
                dear = is_expensive(op) or reads_many(op)
                if dear or any(p in found and prod(shape_of(p.results[0])) == size for p in producers if p):
                    found.add(op)
        return found

    # Placement, last op to first.

    def demand(self, value: ir.Value) -> Demand:
        return self._demands.setdefault(value, Demand())

    def _place(self, op: ir.Operation) -> None:
        if op.name == "func.return":
            for value in op.operands:
                self.demand(value).whole = True
        elif op.name == "func.call":  # a loop over time steps
            for value in op.operands if any(self._is_read(r) for r in op.results) else ():
                self.demand(value).whole = True
        elif op.name in (*VIEWS, "tensor.cast"):
            self._pass_through(op)
        elif is_recomputed(op):
            for value in op.operands:
                if isinstance(value.type, ir.RankedTensorType):
                    self.demand(value).whole = True
        elif not any(self._is_read(r) for r in op.results):
            pass  # dead
        elif is_generator_row(op):  # a free view, so that equal draws are one kernel
            self.demand(op.results[0]).whole = True
            self._start(op)
        elif self._joins(op):
            kernels = {k: None for r in op.results for k in self.demand(r).indices}
            self.kernels_of[op] = list(kernels)
            for kernel in kernels:
                self._enter(op, kernel)
        elif keeper := self._keeper(op):
            self.kernels_of[op], self.kept_by[op] = [keeper], keeper
            self._enter(op, keeper)
        else:
            self._start(op)

    def _keeper(self, op: ir.Operation) -> Kernel | None:
        """The kernel that computes a map which others read, and writes its result beside its own."""
        if not (self.options.maps and self.options.reductions) or self._is_claimed(op) or not kept.may_be_kept(op):
            return None
        found = kept.keeper(op, self.demand(op.results[0]), self._uses, self.kernels_of)
        return found if found is not None and not found.scan and self._may_compute(op, found) else None

    def _is_claimed(self, op: ir.Operation) -> bool:
        return op in self._apart or op in self._epilogues.last_of or op in self._epilogues.root_of

    def _is_read(self, value: ir.Value) -> bool:
        demand = self._demands.get(value)
        return demand is not None and (demand.whole or bool(demand.indices))

    def _pass_through(self, op: ir.Operation) -> None:
        demand, source = self.demand(op.results[0]), self.demand(op.operands[0])
        source.whole |= demand.whole
        for kernel, reads in demand.indices.items():
            found = source.indices.setdefault(kernel, set())
            for read in reads:
                if read is None or op.name == "tensor.cast":
                    found.add(read)
                else:
                    found.add(sources(op, read)[0][1])
        source.plain |= demand.plain
        source.ordered |= demand.ordered

    def _joins(self, op: ir.Operation) -> bool:
        """Whether the op is computed in the kernels that read it, rather than in one of its own."""
        demands = [self.demand(r) for r in op.results]
        kernels = {k for d in demands for k in d.indices}
        if any(d.whole for d in demands) or not kernels or op in self._apart or any(k.opaque for k in kernels):
            return False
        if op in self._epilogues.last_of:
            return self._epilogues.last_of[op] is not op and kernels == {self.root_of.get(self._epilogues.last_of[op])}
        if op in self._epilogues.root_of:
            return self._joins_epilogue(op, kernels)
        if is_windows(op):
            return True
        if is_move(op) or is_plain_copy(op):
            return self.options.maps and all(self._may_move(op, k, demands[0]) for k in kernels)
        if classify.is_reduction_generic(op):
            return self.options.reductions and len(kernels) == 1 and self._may_reduce(op, next(iter(kernels)))
        if is_scan(op):
            return self.options.maps and len(kernels) == 1 and self._may_scan(op, next(iter(kernels)))
        if not is_map(op) or not self.options.maps:
            return False
        if reads_many(op) and any(k.rows is not None for k in kernels):
            return False  # in a kernel of its own, neighbours share what they read
        if op in self._heavy and any(k.has_few_long_rows for k in kernels) and is_made_of_numbers(op):
            return False  # a few multiprocessors reduce such rows, all can make the numbers
        if is_dequantization(op) or is_gather_of_matrices(op):
            return all(self._unpacks(op, k, demands[0]) for k in kernels)
        for kernel in kernels:
            if kernel in demands[0].plain:
                if not (kernel.contractions and is_widening_cast(op) and self._plain.is_plain(op, kernel, demands[0])):
                    return False
                if makes_halves(op) and not any(map(has_few_rows, kernel.contractions)):
                    return False  # tensor cores multiply 16-bit floats, and nothing does 8-bit ones with 16-bit ones
        again = (
            is_free(op) or reads_again(op, kernels) or all(self._repeats(op, k) for k in kernels) or is_of_log_sums(op)
        )
        if len(kernels) > 1 and not again:
            return False
        # A product's widened operand is read as it was before, however dear what comes before it is: that stays apart.
        return all(k in demands[0].plain and k.contractions or self._may_compute(op, k) for k in kernels)

    def _repeats(self, op: ir.Operation, kernel: Kernel) -> bool:
        """Whether a small kernel of maps may as well compute a small map of integers again."""
        if not self.options.maps or kernel.size > SMALL_READER:
            return False
        if kernel.opaque or kernel.contractions or kind(kernel.root) not in ("map", "move"):
            return False
        return is_small_index_map(op)

    def _unpacks(self, op: ir.Operation, kernel: Kernel, demand: Demand) -> bool:
        """Whether a kernel computes a packed weight, or chosen matrices, where its product reads them: as a whole,
        dimension by dimension. For many rows a weight that warpgroups do not unpack on its way is unpacked once, by a
        kernel of its own: each block of rows would do it again."""
        reads = demand.indices[kernel]
        if kernel not in demand.plain or not kernel.contractions or len(reads) != 1 or None in reads:
            return False
        if is_dequantization(op):
            rows = max(prod(shape_of(c.results[0])) for c in kernel.contractions) // shape_of(op.results[0])[0]
            many = rows * len(kernel.contractions) > UNPACKED_ONCE
            if many and (rows > self.options.unpack_rows or not is_unpacked_in_registers(op)):
                return False
            if any(map(reads_windows, kernel.contractions)):
                return False
        dims = plain_dims(next(iter(reads)), shape_of(op.results[0]))  # type: ignore[arg-type]
        return dims is not None and len(dims) == sum(n != 1 for n in shape_of(op.results[0]))

    def _joins_epilogue(self, op: ir.Operation, kernels: set[Kernel]) -> bool:
        kernel = self.root_of.get(self._epilogues.root_of[op])
        return kernel is not None and kernels == {kernel} and len(self.demand(op.results[0]).indices[kernel]) == 1

    def _may_move(self, op: ir.Operation, kernel: Kernel, demand: Demand) -> bool:
        reads = demand.indices[kernel]
        if kernel in demand.plain and not self._plain.is_plain(op, kernel, demand):
            return False
        if kernel.contractions or self._has_claim(kernel):
            return all(is_linear(i) for read in reads if read for _, i in sources(op, read)) and None not in reads
        return len(reads) <= 2 * MAX_EVALUATIONS

    def _has_claim(self, kernel: Kernel) -> bool:
        return self._epilogues.last_of.get(kernel.root) is kernel.root

    def _may_compute(self, op: ir.Operation, kernel: Kernel) -> bool:
        reads = {r for result in op.results for r in self.demand(result).indices.get(kernel, ())}
        loads_nothing = not any(
            isinstance(v, ir.Value) and not is_constant(v) for v, _ in sources(op, first_element(op))
        )
        gathered = {r for r in reads if r is not None and is_gathered(r)}
        if None in reads or gathered and not computes_there(op, kernel, gathered, self._reductions_before):
            return loads_nothing and not is_expensive(op)
        if kernel.rows is not None and not all(dims_in(r) <= kernel.rows for r in reads):
            if any(map(self._reduced_alone, gathers_from(op))):
                return False  # rows of its own are reduced for it, by a kernel that has one result for each
        reads -= gathered
        if not reads:
            return not self._has_claim(kernel)
        if self._has_claim(kernel) and (op in self._after_reduction or not all(map(is_linear, reads))):
            return False
        if op not in self._heavy or self._repeats(op, kernel) or is_of_log_sums(op):
            return len(reads) <= MAX_EVALUATIONS
        if len(reads) == 1 and self._is_per_row(op, kernel, next(iter(reads))):
            return True
        return len(reads) == 1 and prod(shape_of(op.results[0])) >= kernel.size

    def _reduced_alone(self, op: ir.Operation) -> bool:
        """Whether an op is made of reductions, and nobody is known to need its whole result."""
        return not self.demand(op.results[0]).whole and bool(self._reductions_before(op))

    def _is_per_row(self, op: ir.Operation, kernel: Kernel, read: Indices | None) -> bool:
        """Whether the kernel computes the op once per row, because the op follows a reduction that is in the kernel or
        will be."""
        if kernel.rows is not None:
            return dims_in(read) <= kernel.rows
        rest = [d.range()[1] + 1 for d in kernel.dims if not dims_in((d,)) <= dims_in(read)]
        return not self._has_claim(kernel) and any(loop_sizes(r) == rest for r in self._reductions_before(op))

    def _reductions_before(self, op: ir.Operation) -> list[ir.Operation]:
        """The reductions whose results reach a map through maps of no larger size."""
        found: list[ir.Operation] = []
        pending, seen = [op], {op}
        while pending:
            current = pending.pop()
            for value in current.operands:
                producer = owner_through_views(value)
                if producer is None or producer in seen:
                    continue
                seen.add(producer)
                if classify.is_reduction_generic(producer):
                    found.append(producer)
                elif is_map(producer) and prod(shape_of(producer.results[0])) <= prod(shape_of(op.results[0])):
                    pending.append(producer)
        return found

    def _may_reduce(self, op: ir.Operation, kernel: Kernel) -> bool:
        """Whether the reduction's rows are rows of the kernel, and what it reduces the rest of the kernel's loops."""
        reads = self.demand(op.results[0]).indices[kernel]
        if self._has_claim(kernel) or kernel.scan or kind(kernel.root) not in ("map", "move", "reduction"):
            return False
        if len(reads) != 1 or None in reads:
            return False
        (read,) = reads
        rows = dims_in(read)
        if not all(i == Index() or (len(i.terms) == 1 and i.is_linear() and not i.const) for i in read):  # type: ignore[union-attr]
            return False
        if sum(len(i.terms) for i in read) != len(rows) or any(c != 1 for i in read for c in i.terms.values()):  # type: ignore[union-attr,misc]
            return False
        sizes = loop_sizes(op)
        if prod(sizes) > LONGEST_ROW and kind(kernel.root) != "reduction":
            return False  # what reads the row again is a map of its own, which many threads compute
        if kernel.rows is not None:
            return kernel.rows == rows and kernel.reduction_sizes == sizes
        rest = [d for d in kernel.dims if not dims_in((d,)) <= rows]
        if rest and [d.range()[1] + 1 for d in rest] != sizes:
            return False
        self._set_rows(kernel, rows, rest, sizes)
        return True

    def _may_scan(self, op: ir.Operation, kernel: Kernel) -> bool:
        claimed = self._has_claim(kernel) or kernel in self.kept_by.values()
        reads = {r for result in op.results for r in self.demand(result).indices.get(kernel, ())}
        return not claimed and scans.may_scan(op, kernel, reads)

    def _set_rows(self, kernel: Kernel, rows: frozenset, cols: list[Index], sizes: list[int]) -> None:
        if not cols:
            cols = [dim(1000 + i, n) for i, n in enumerate(sizes)]
            kernel.dims = kernel.dims + cols
        kernel.rows, kernel.cols, kernel.reduction_sizes = rows, cols, sizes

    def _start(self, op: ir.Operation) -> None:
        shape = shape_of(op.results[0])
        dims = [dim(i, n) for i, n in enumerate(shape)]
        kernel = Kernel(len(self.kernels), op, [d for d in dims if d.terms])
        kernel.opaque = kind(op) == "generic"
        self.kernels.append(kernel)
        again = self._repeating(op)
        self.kernels_of[op] = [kernel, *again]
        self.root_of[op] = kernel
        for other in again:
            self._enter(op, other)
        for result in op.results:
            self.demand(result).indices[kernel] = set()
        self.demand(op.results[0]).indices[kernel] = {tuple(dims)}
        if classify.is_reduction_generic(op):
            self._set_rows(kernel, dims_in(dims), [], loop_sizes(op))
        self._enter(op, kernel)

    def _repeating(self, op: ir.Operation) -> list[Kernel]:
        """The kernels that compute an op again which has one of its own."""
        if self._is_claimed(op) or not is_map(op) or len(op.results) != 1:
            return []
        demand = self.demand(op.results[0])
        return [
            kernel
            for kernel in demand.indices
            if kernel not in demand.plain and self._repeats(op, kernel) and self._may_compute(op, kernel)
        ]

    def _enter(self, op: ir.Operation, kernel: Kernel) -> None:
        """Adds the op to the kernel and records what it reads."""
        kernel.members.append(op)
        if kernel.opaque or is_windows(op):
            for value in tensors_read(op):
                self.demand(value).whole = True
        elif op.name in ATTENTIONS:
            self._read_attention(op, kernel)
        elif classify.is_contraction(op):
            self._read_contraction(op, kernel)
        elif classify.is_reduction_generic(op):
            self._read_reduction(op, kernel)
        elif is_scan(op):
            self._read_scan(op, kernel)
        else:
            for number, result in enumerate(op.results):
                demand = self.demand(result)
                for read in demand.indices.get(kernel, ()):
                    for value, where in gathers.reads(op, read if read is not None else first_element(op), number):
                        source = self._read(value, kernel, where if read is not None else None)
                        source.plain |= demand.plain & {kernel}
                        source.ordered |= demand.ordered & {kernel}

    def _read(self, value: ir.Value, kernel: Kernel, indices: Indices | None) -> Demand:
        demand = self.demand(value)
        demand.indices.setdefault(kernel, set()).add(indices)
        return demand

    def _read_reduction(self, op: ir.Operation, kernel: Kernel) -> None:
        (read,) = self.demand(op.results[0]).indices[kernel]
        assert read is not None  # roots are read at known indices
        loops = reduction_loops(op, read, kernel.cols)
        self._read(op.operands[0], kernel, tuple(f(loops) for f in map_results(classify.maps(op)[0])))
        self._read(op.operands[1], kernel, read)

    def _read_scan(self, op: ir.Operation, kernel: Kernel) -> None:
        reads = {r for result in op.results for r in self.demand(result).indices.get(kernel, ())}
        for value, indices in scans.reads_of_scan(op, kernel, reads):
            self._read(value, kernel, indices)
        kernel.scan = op

    def _read_contraction(self, op: ir.Operation, kernel: Kernel) -> None:
        kernel.contractions.append(op)
        (read,) = self.demand(op.results[0]).indices[kernel]
        if kernel.root is not op:  # in an epilogue the kernel's loops are those of the contraction
            read = tuple(dim(i, n) for i, n in enumerate(shape_of(op.results[0])))
        assert read is not None  # contractions are read at known indices
        for value, where in zip(list(op.operands)[:2], contraction_reads(op, read), strict=True):
            self._read(value, kernel, where).plain.add(kernel)
        self._read(op.operands[2], kernel, read)

    def _read_attention(self, op: ir.Operation, kernel: Kernel) -> None:
        for i, (value, where) in enumerate(zip(op.operands, attention_reads(op), strict=False)):
            demand = self._read(value, kernel, where)
            demand.plain.add(kernel)
            if i >= 3:  # the mask has no layout, nor have the score's inputs
                demand.ordered.add(kernel)
