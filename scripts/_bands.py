"""Depthwise convolutions by tensor cores: the tile of a block, and whether they are faster than CUDA cores, by counting
what a multiprocessor issues and moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlirc.errors import MlircError
from mlirc.passes.distribute.layouts.bands import BLOCK, BLOCKS, DEPTH, PAIR, Band
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import ceil_div, product
from mlirc.targets import Target

SCHEDULERS = 4  # of a multiprocessor, each of which issues an instruction a cycle
LANES = 32
GLOBAL_BYTES = 13  # that a multiprocessor moves in a cycle, of what it reads and writes once
SHARED_BYTES = 128  # that a multiprocessor moves in a cycle from or to shared memory
PER_TAP = 4  # cycles of CUDA cores for a tap: 1.8 instructions, of which schedulers issue less than half of the time
MMA_CYCLES = 8  # of a scheduler's tensor core, for one mma.sync
FILL = 12  # instructions for 8 channels of a lane's pixel: a load, 4 stores, the place in the image
DRAIN = 24  # instructions for 8 channels of a result: 4 conversions, 2 stores, 4 loads, a store, their places
FRAGMENT = 14  # instructions for a lane's weights of a row of the window, of two channels
ROW = 12  # instructions for a lane's pixels of a row: 2 loads, and 8 that part their channels
ENDS = 4000  # cycles of a tile's loads, products and stores one after the other: what one takes alone, but its launch
FETCHED_BYTES = 24  # that a multiprocessor gets in a cycle from the L2 cache
ROWS = 8, 7, 6, 5, 4, 3, 2
SMEM = 110 * 1024  # bytes of a block, of which a multiprocessor holds two
REGISTERS = 192  # of a thread, by this count, that 128 are enough for
OTHERS = 40  # registers for something else than sums and weights


@dataclass(frozen=True)
class Cost:
    """Cycles of a multiprocessor for the whole kernel."""

    issue: float
    tensor: float
    shared: float
    fetched: float

    @property
    def total(self) -> float:
        """What it takes where a block's steps follow each other, and those of other blocks fill half of the gaps."""
        parts = sorted((self.issue, self.tensor, self.shared, self.fetched))
        return parts[-1] + sum(parts[:-1]) / 2


def moved(kernel: KernelInfo) -> float:
    """Cycles for the bytes that have to be read and written."""
    assert kernel.depthwise is not None
    rows, columns = kernel.depthwise.image
    *lead, height, width, channels = [d.extent for d in kernel.dims]
    pixels = product(lead) * (rows * columns + height * width)
    return 2 * pixels * channels / GLOBAL_BYTES


def by_cuda_cores(kernel: KernelInfo) -> float:
    """Cycles of one multiprocessor for the taps. Windows that are far apart share less of what is read and widened."""
    assert kernel.depthwise is not None
    results = product([d.extent for d in kernel.dims])
    return results * product(kernel.depthwise.kernel) * kernel.depthwise.strides[1] * PER_TAP / (SCHEDULERS * LANES)


def fits(kernel: KernelInfo) -> bool:
    """Whether tensor cores can make a kernel's windows: 16-bit images of multiples of 8 channels, windows that are as
    far apart along rows as along columns, and of which 8 neighbours cover 16 columns."""
    found = kernel.depthwise
    if found is None or kernel.dims[-1].extent % 8 or found.strides[0] != found.strides[1]:
        return False
    return BLOCK + ceil_div(found.kernel[1], found.strides[1]) - 1 <= DEPTH and kernel.element_bytes == 2


def bands(kernel: KernelInfo, rows: int | None, pairs: int | None, target: Target) -> Iterator[Band]:
    """The tiles that a block may have: of `rows` rows to a lane (None: of any number), and of `pairs` of channels to a
    warp (None: of one)."""
    found = kernel.depthwise
    assert found is not None
    *lead, height, width, channels = [d.extent for d in kernel.dims]
    images = product(lead)
    each = pairs or 1
    together = next((n * each for n in (16, 8) if channels % (n * each) == 0 and LANES % each == 0), 0)
    weights = 4 * found.kernel[0] * found.strides[0]
    for own in [rows] if rows else ROWS:
        if not together or 8 * own + weights + OTHERS > REGISTERS:
            continue
        for blocks in (1, 2, 4, 8, 16):
            for strips in (n for n in (1, 2, 4, 8, 16) if n * blocks <= BLOCKS):
                if (blocks - 1) * BLOCK >= width or own > height or (strips - 1) * own >= height:
                    continue
                tall, wide = min(strips * own, height), min(blocks * BLOCK, width)
                image = found.image[0] if strips == 1 and tall == height else 0
                many = min(BLOCKS // (blocks * strips), images)
                window = own, found.kernel, found.strides[0], image, found.low[0]
                made = Band(many, tall, wide, together, *window, each)
                if made.bytes <= min(SMEM, target.max_smem):
                    yield made


def cost(kernel: KernelInfo, band: Band, target: Target) -> Cost:
    """What a kernel takes with a tile."""
    assert kernel.depthwise is not None
    *lead, height, width, channels = [d.extent for d in kernel.dims]
    tiles = ceil_div(product(lead), band.images) * ceil_div(height, band.height) * ceil_div(width, band.width)
    tiles *= ceil_div(channels, band.channels)
    lines = (band.rows - 1) * band.stride + band.window[0]
    taps = band.rows * band.window[0]
    if band.whole:
        lines = band.whole
        taps = sum(
            0 <= p * band.stride + r - band.low < band.whole for p in range(band.rows) for r in range(band.window[0])
        )
    chunks = band.warps * band.accesses * LANES
    results = band.images * band.height * band.width * band.channels
    products = band.warps * band.pairs * taps * band.stride * PAIR
    issue = (chunks * FILL + results // 8 * DRAIN) / LANES
    issue += band.warps * band.pairs * (lines * band.stride * ROW + band.window[0] * band.stride * FRAGMENT) + products
    words = chunks * 16 + band.warps * band.pairs * lines * band.stride * 2 * 512 + results * 4
    each = max(tiles / target.sms, 1)
    rows, columns = kernel.depthwise.image
    fetched = band.images * min(band.image_rows, rows) * min(band.row_words, columns)
    return Cost(
        each * issue / SCHEDULERS, each * products * MMA_CYCLES / SCHEDULERS, each * words / SHARED_BYTES,
        each * fetched * 2 * band.channels / FETCHED_BYTES,
    )  # fmt: skip


def best(kernel: KernelInfo, rows: int | None, pairs: int | None, target: Target) -> Band | None:
    """The tile of the least cost; None where there is none."""
    made = bands(kernel, rows, pairs, target)
    return min(made, key=lambda b: cost(kernel, b, target).total, default=None)


def pays(kernel: KernelInfo, band: Band, target: Target) -> bool:
    """Whether tensor cores take less than CUDA cores do, where these take longer than the bytes do: strips of threads
    compute while others wait for memory, and a multiprocessor's few tiles hardly do."""
    bytes_ = moved(kernel) / target.sms
    return bytes_ + cost(kernel, band, target).total + ENDS < max(by_cuda_cores(kernel) / target.sms, bytes_)


def chosen(kernel: KernelInfo, rows: int | None, pairs: int | None, target: Target) -> Band | None:
    """The tile of a kernel whose windows tensor cores should make; with `rows` or `pairs` given, of any that they can
    make: raises MlircError for others."""
    found = best(kernel, rows, pairs, target) if fits(kernel) else None
    if rows is None and pairs is None:
        return found if found is not None and pays(kernel, found, target) else None
    if found is None:
        raise MlircError(
            f"kernel '{kernel.name}': band and pairs are of windows of 16-bit images, channel by channel, for whose "
            "blocks of channels and pixels a multiprocessor has room: leave them out"
        )
    return found
