"""Which word of the generator an element of a tensor gets, as PyTorch's CUDA kernels deal them out.

A kernel of T threads gives thread t the generator's subsequence t: one Philox block of four words per call. Threads
stride over the elements (`strided`: `per` elements per call, T apart), or each takes `per` elements that lie side by
side (`side_by_side`). T follows from the number of elements and the GPU's size, here that of an H100 or H200.
"""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = 132
THREADS_PER_MULTIPROCESSOR = 2048
BLOCK = 256  # threads
WORDS = 4  # of one call of the generator


@dataclass(frozen=True)
class Layout:
    """`threads` threads, of which each takes `per` elements (a power of two) at a time, side by side if `vector`;
    `advance` is what the kernel adds to the generator's offset, in words."""

    threads: int
    per: int
    vector: bool
    advance: int


def _threads(count: int) -> int:
    blocks = -(-count // BLOCK)
    return BLOCK * min(blocks, MULTIPROCESSORS * (THREADS_PER_MULTIPROCESSOR // BLOCK))


def strided(count: int, per: int) -> Layout:
    """Of a distribution's kernel over `count` elements: `per` is 4 for 32-bit numbers and 2 for 64-bit ones."""
    threads = _threads(count)
    return Layout(threads, per, False, ((count - 1) // (threads * per) + 1) * WORDS)


def dropout(count: int, itemsize: int, dense: bool) -> Layout:
    """Of dropout's kernel on `count` elements of `itemsize` bytes: vectors of at most 16 bytes, of elements that follow
    each other in memory if the tensor is dense."""
    threads = _threads(count)
    advance = ((count - 1) // (threads * WORDS) + 1) * WORDS
    per = 16 // itemsize if dense else 1
    while count % per:
        per //= 2
    return Layout(threads, per, True, advance) if per > 1 else Layout(threads, WORDS, False, advance)


def side_by_side(count: int) -> Layout:
    """Of a kernel that has a probability per element: four to a thread, and threads for all."""
    return Layout(-(-count // WORDS), WORDS, True, 12)  # PyTorch asks for 10 words, and takes blocks of 4
