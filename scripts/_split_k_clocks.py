"""How long a product takes whose K is divided, by a count of clocks of an H200's multiprocessor: what a block does in a
step of K, how many blocks share a multiprocessor, what all of them read, and what adding the parts costs.

The constants are fitted to the products of 16-bit operands in benchmarks/results/split-k-h200.md, of which the count is
9 % off in the mean, and to the drawn ones of `benchmarks/products.py` (2026-11-23, some 260 schedules of 27): 16 %. Of
the schedules that were measured, those that it takes for the fastest took 3 % and 5 % longer than the fastest.
"""

from __future__ import annotations

import math

from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.verbs import ceil_div
from mlirc.scripts import _fp32_tiles
from mlirc.scripts._block_shape import BlockShape, Sizes
from mlirc.targets import Target

# Of a block; of a slice that tensor copies bring, and its bytes in a clock; what all read from L2 and from memory.
BLOCK, SLOT, ARRIVALS, L2_BYTES, GLOBAL_BYTES = 4300, 41, 58, 6760, 2130
# Of a slice that is loaded when it is needed, and of one that is copied ahead; of an instruction of such copies, by the
# bytes that a thread moves.
LATENCY, AHEAD, INSTRUCTION = 3050, 1380, {1: 4.0, 2: 4.0, 4: 4.0, 8: 2.0, 16: 1.0}
TOGETHER, JOINED, WRITTEN, READ = 1020, 2, 13, 12  # of a cluster's sums: fixed, for each part, and their bytes a clock
SECOND, PART, PART_BYTES = 3690, 29, 2560  # of a second launch, of each part that it adds, and of their bytes
# Of multiprocessors, so many hold blocks of clusters of a size at once: a cluster lies in one GPC.
IN_CLUSTERS = {1: 1.0, 2: 1.0, 4: 0.89, 8: 0.89}
# Sums of products in a clock: by scalar FMA, copies included, by the rows of a tile; by tensor cores (of 8-bit operands
# what the instructions can do: nobody has fitted those).
FMA, CORES = ((128, 18), (64, 28), (32, 28), (16, 24), (1, 5)), {
    "mma": 310, "wgmma": 2048, "mma8": 620, "wgmma8": 4096, "wgmma8_fast": 4096,
}  # fmt: skip


def _rows(c: ContractionInfo, size: Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    """(bytes at once that a row of an operand can be copied by, bytes of an element) of both."""
    lengths = (c.k if c.along_k[0] else size.m), (c.k if c.along_k[1] else size.n)
    elements = [ELEMENT_BYTES.get(t, 4) for t in (c.a_type, c.b_type)]
    found = [(math.gcd(16, n * e), e) for n, e in zip(lengths, elements, strict=True)]
    return found[0], found[1]


def slice_bytes(shape: BlockShape, c: ContractionInfo) -> int:
    """Shared memory of one step's slices."""
    panel = 128 // c.element_bytes if shape.copy == "tma" else 1
    rows, columns = (
        extent if along else ceil_div(extent, panel) * panel
        for extent, along in zip((shape.block_m, shape.block_n), c.along_k, strict=True)
    )
    return (rows + columns) * shape.block_k * c.element_bytes


def resident(shape: BlockShape, c: ContractionInfo, target: Target) -> int:
    """Blocks that a multiprocessor holds at once."""
    held = shape.stages * slice_bytes(shape, c) + 2048 + (16384 if shape.store == "tma" else 0)
    threads = 32 * (shape.warps_m * shape.warps_n * shape.warps_k + (shape.producers if shape.copy == "tma" else 0))
    return max(min(target.sm_smem // held, 1536 // threads, 8), 1)


def _step(shape: BlockShape, size: Sizes, c: ContractionInfo, beside: int) -> float:
    """Clocks of one step of a block, with so many on its multiprocessor."""
    filled = slice_bytes(shape, c)
    sums = shape.block_m * shape.block_n * shape.block_k
    if shape.mma == "fma":
        made = sums / next(rate for rows, rate in FMA if shape.block_m >= rows)
    elif shape.mma in ("tf32", "tf32x3"):
        made = sums / _fp32_tiles.rate(shape)
    else:
        made = sums / CORES[shape.mma]
    if shape.mma == "wgmma":  # which reads shared memory for each instruction
        made = max(made, shape.block_m / 64 * shape.block_k * 2 / 32 * 32 * (64 + shape.block_n) / 128)
    if shape.copy == "tma":
        alone = max(SLOT + filled / ARRIVALS, made)
        return max(alone, beside * filled / ARRIVALS, beside * made)
    issued, waits = 0.0, 0
    for extent, (width, element) in zip((shape.block_m, shape.block_n), _rows(c, size), strict=True):
        if shape.mma != "fma":
            issued += extent * shape.block_k * element / (32 * width) * INSTRUCTION[width]
        if width < 4 or not c.direct and element < 4:
            waits = LATENCY
    alone = max(waits, AHEAD / max(shape.stages - 1, 1)) + issued + made
    return max(alone, beside * (issued + made))


def clocks(shape: BlockShape, size: Sizes, c: ContractionInfo, target: Target) -> float:
    """How many clocks a product takes with this tile, its parts, and the way they are added."""
    tiles = size.batch * ceil_div(size.m, shape.block_m) * ceil_div(size.n, shape.block_n)
    together = shape.parts > 1 and shape.through == "cluster"
    places = target.sms * (IN_CLUSTERS[shape.parts] if together else 1.0)
    blocks = tiles * shape.parts
    room = resident(shape, c, target)
    rounds = math.ceil(blocks / math.floor(places * room))
    beside = min(room, math.ceil(blocks / places))
    steps = max(c.k / shape.block_k / shape.parts, 1.0)
    each = (steps if beside * rounds > 1 else math.ceil(steps)) * _step(shape, size, c, beside) + BLOCK
    moved = c.element_bytes * size.batch * (size.m * c.k + size.n * c.k + size.m * size.n)
    total = max(rounds * each, moved / GLOBAL_BYTES + BLOCK)
    if shape.copy == "tma":
        total = max(total, slice_bytes(shape, c) * tiles * ceil_div(c.k, shape.block_k) / L2_BYTES + BLOCK)
    sums = 4 * shape.block_m * shape.block_n
    if together:
        total += TOGETHER + JOINED * shape.parts + sums / WRITTEN
        total += rounds * beside**0.56 * sums / READ * (shape.parts - 1) / shape.parts
    elif shape.parts > 1:
        total += SECOND + PART * shape.parts + 8 * shape.parts * size.m * size.n * size.batch / PART_BYTES
    return total
