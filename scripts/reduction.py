"""Row reductions: norms, softmax, sums. A block holds whole rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.mlir import ir
from mlirc.schedule import register
from mlirc.schedule.kernel_info import KernelInfo, RootDim
from mlirc.schedule.verbs import (
    annotate,
    ceil_div,
    collapse_dims,
    generalize,
    handed_on,
    match,
    match_reductions,
    match_root,
    partial_results,
    place_results,
    power_of_two,
    product,
    read_first,
    read_matrices,
    reduce_together,
    roll,
    script,
    spread,
    tidy,
    tile_to_blocks,
)
from mlirc.scripts._registers import row_blocks
from mlirc.scripts.generic import generic
from mlirc.targets import Target

MAX_ROW = 32 * 1024  # elements of a row that one block can hold in registers
MAX_BYTES = 256  # of a row that is read once, in one thread
SPREAD, LONG = 8, 16 * 1024  # blocks of a cluster that share a row of so many elements, where rows are few
LARGE = 16  # blocks of a cluster that is not portable


def is_row_reduction(kernel: KernelInfo) -> bool:
    """Reduces the last dimension, has rows, and its rows fit one block, or a cluster."""
    return (
        not kernel.obstacle
        and kernel.contraction is None
        and kernel.row_length > 0
        and any(not d.whole for d in kernel.dims)
        and kernel.row_length <= LARGE * MAX_ROW
    )


def few_rows(kernel: KernelInfo) -> bool:
    """Whether a cluster for each row leaves multiprocessors idle on every target that has clusters."""
    return SPREAD * product([d.extent for d in kernel.dims if not d.whole]) <= 128


def rows_and_warps(length: int, rows: int, sms: int) -> tuple[int, int]:
    """(rows per block, warps per block): a warp per short row, several warps on a long one."""
    if length <= 1024:
        block_rows = 4
        while block_rows > 1 and ceil_div(rows, block_rows) < sms:
            block_rows //= 2
        return block_rows, block_rows
    return 1, min(max(power_of_two(length // 512), 4), 32)


def load_width(element: int, length: int) -> int:
    """Elements of a load of 16 bytes, or of fewer where rows would not stay aligned."""
    width = max(16 // element, 1)
    while length % width:
        width //= 2
    return width


def rows_and_warps_once(length: int, element: int, vector: int, rows: int, sms: int) -> tuple[int, int]:
    """(rows per block, warps per block) for rows of `length` elements of so many bytes that are read once, in loads of
    `vector` elements.

    A row is divided among the warps that leave the fewest lanes idle, each lane with two loads under way or more: on an
    H200 that reads [N, 2048..18944] of 16 and of 32 bits within 2 us of the memory's speed, and more rows per warp or a
    load per lane do not. Of short rows a block takes several.
    """
    loads = ceil_div(length, 32 * vector)  # of a row's lanes, were they one warp's
    least = ceil_div(length * element, 32 * MAX_BYTES)

    def idle(warps: int) -> float:
        return ceil_div(loads, warps) * warps / loads

    fitting = range(max(least, 1), max(min(loads // 2, 12), least, 1) + 1)
    best = min(idle(w) for w in fitting)
    warps = max(w for w in fitting if idle(w) <= best + 0.02)
    lanes = 1 << max(ceil_div(length, vector) - 1, 0).bit_length()
    block_rows = max(32 // lanes, 1) * max(power_of_two(4 // warps), 1)
    while block_rows > 1 and ceil_div(rows, block_rows) < 2 * sms:
        block_rows //= 2
    return block_rows, warps * max(block_rows * lanes // 32, 1) if lanes < 32 else warps * block_rows


def read_once(kernel: KernelInfo, rows: int) -> int:
    """Bytes of an element of the largest argument, where the results have one element per row: sums, but no norms."""
    if any(product(r.shape) > rows for r in kernel.results):
        return 0
    return max(((product(a.shape), ELEMENT_BYTES.get(a.dtype, 8)) for a in kernel.arguments), default=(0, 0))[1]


def row_bytes(kernel: KernelInfo, rows: int) -> int:
    """Bytes of an element of the widest tensor that has whole rows; labels and sums, one for each row, do not count."""
    whole = [t for t in (*kernel.arguments, *kernel.results) if 2 * product(t.shape) >= rows * kernel.row_length]
    return max((ELEMENT_BYTES.get(t.dtype, 8) for t in whole), default=kernel.element_bytes)


@register(matches=is_row_reduction, priority=10)
def reduction(
    kernel: KernelInfo,
    target: Target,
    *,
    rows: int | None = None,
    warps: int | None = None,
    vector: int | None = None,
    min_blocks: int | None = None,
    blocks: int | None = None,
) -> ir.Module:
    """Each block takes `rows` rows with their whole length in one tile, so that every operand is read once. A cluster
    of `blocks` takes one that no block holds, or that is long where there are few.

    Knobs:
      rows: rows of a block.
      warps: warps of a block.
      vector: elements of a thread along the row.
      min_blocks: blocks that a multiprocessor should hold.
      blocks: blocks of a cluster that share a row: 1, 2, 4, 8 or (on sm_90a and sm_100a) 16.
    """
    if blocks is None and kernel.row_length >= LONG and rows in (None, 1) and target.has_clusters:
        blocks = SPREAD if few_rows(kernel) or kernel.row_length > MAX_ROW else 1
        blocks = LARGE if kernel.row_length > SPREAD * MAX_ROW else blocks
        if blocks > target.max_cluster:
            why = f"its rows of {kernel.row_length} are longer than a cluster of {target.name} holds"
            return handed_on(generic(kernel, target), "generic", why)
    if blocks and blocks > 1:
        return spread_rows(kernel, target, blocks, warps=warps, vector=vector, min_blocks=min_blocks)
    if kernel.row_length > MAX_ROW:
        why = f"its rows of {kernel.row_length} are longer than a block holds, and {target.name} has no clusters"
        return handed_on(generic(kernel, target), "generic", why)
    extents = [d.extent for d in kernel.dims]
    row_dims = [i for i, d in enumerate(kernel.dims) if not d.whole]
    total_rows = product([extents[i] for i in row_dims])
    element = read_once(kernel, total_rows)
    if element and (kernel.reductions == 1 or kernel.row_length <= 32 * load_width(element, kernel.row_length)):
        vector = vector or load_width(element, kernel.row_length)
        default_rows, default_warps = rows_and_warps_once(kernel.row_length, element, vector, total_rows, target.sms)
    else:
        size = row_bytes(kernel, total_rows)
        vector = vector or load_width(size, kernel.row_length)
        default_rows, default_warps = rows_and_warps(kernel.row_length, total_rows, target.sms)
        if element and size == 2 and default_warps == 32 and warps is None:
            # Nothing but reductions of a row that is held: two blocks of half as many warps, so that one reads while
            # the other one computes. An H200 takes 88 us for 4,096 losses of 32,000 classes so, 117 us with one block.
            default_warps, min_blocks = 16, min_blocks or 2
    rows = rows or min(default_rows, extents[row_dims[-1]])
    warps = warps or default_warps
    if min_blocks is None:
        widest = max((ELEMENT_BYTES.get(x.dtype, 8) for x in kernel.arguments), default=0)
        min_blocks = row_blocks(target, rows, warps, kernel.row_length, widest)
    return whole_rows(kernel.dims, collapse_dims, rows=rows, warps=warps, vector=vector, min_blocks=min_blocks)


def spread_rows(
    kernel: KernelInfo, target: Target, blocks: int, *, warps: int | None, vector: int | None, min_blocks: int | None
) -> ir.Module:
    """The script of rows that a cluster of `blocks` takes, one at a time."""
    part = ceil_div(kernel.row_length, blocks)
    rows = product([d.extent for d in kernel.dims if not d.whole])
    vector = vector or load_width(row_bytes(kernel, rows), kernel.row_length)
    warps = warps or min(max(power_of_two(part // 256), 4), 16)
    if min_blocks is None:
        widest = max((ELEMENT_BYTES.get(x.dtype, 8) for x in kernel.arguments), default=0)
        min_blocks = row_blocks(target, 1, warps, part, widest)
        if blocks == LARGE and 16 * 1024 < part <= 24 * 1024:
            min_blocks = 2  # ptxas would take registers for one block, where those for two are enough
    return whole_rows(
        kernel.dims, collapse_dims, rows=1, warps=warps, vector=vector, min_blocks=min_blocks, blocks=blocks
    )


def sizes_of_rows(dims: Sequence[RootDim], rows: int) -> tuple[list[int], int]:
    """(tile sizes of `rows` rows, which are neighbours along one dimension; that dimension)."""
    row_dims = [i for i, d in enumerate(dims) if not d.whole]
    return [0 if d.whole else rows if i == row_dims[-1] else 1 for i, d in enumerate(dims)], row_dims[-1]


def lanes_width(parts: int) -> int:
    """Elements of a thread's access to the parts of a row, so that one warp has them all."""
    width = 1
    while 32 * width < parts and parts % (2 * width) == 0 and width < 16:
        width *= 2
    return width


def whole_rows(
    dims: Sequence[RootDim], collapse: Callable, *, rows: int, warps: int, vector: int, min_blocks: int | None,
    chosen: bool = False, read: bool = False, blocks: int | None = None, places: bool = False, partial: bool = False,
    parts: int = 0,
) -> ir.Module:  # fmt: skip
    """The script of blocks that take `rows` whole rows each, of matrices that are `chosen` or given; `dims` are the
    root's after the verb `collapse`. `read`: a block reads all that it reads before it computes anything; so many
    `blocks` share each row; `places`: the kernel's last ops say where rows go;
    `partial`: they reduce the result in parts; `parts` of a row are added up."""
    sizes, innermost = sizes_of_rows(dims, rows)
    with script(rows=rows, warps=warps, vector=vector, min_blocks=min_blocks, blocks=blocks) as (module, function):
        generalize(function)
        collapse(function)
        root = match_root(function)
        forall = tile_to_blocks(root, sizes=sizes, keep=[innermost], order=[])
        if chosen:
            read_matrices(forall)
        if places:
            forall = place_results(forall)
        if partial:
            forall = partial_results(forall)
        annotate(match(forall, "linalg.generic"), vector=vector)
        if parts:
            annotate(match_reductions(forall), vector=lanes_width(parts))
        if read:
            read_first(forall)
        if blocks:
            spread(forall, blocks=blocks)
        annotate(function, warps=warps, min_blocks=min_blocks)
        tidy(function, forall)
        roll(forall)
        if blocks:
            reduce_together(forall)
    return module
