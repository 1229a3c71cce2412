"""What a launch may ask for and how long it may take: what a GPU refuses is a finding, and a run that does not end is
stopped."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mlirc.device.report import Report
from mlirc.errors import MlircError

# "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, 9.0.
MAX_GRID = ((1 << 31) - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024  # of a block
MAX_SHARED = 227 << 10  # bytes of a block
MAX_LOCAL = 512 << 10  # bytes of a thread
MAX_CLUSTER = 16  # blocks
SMS = 132  # of an H200
SM_THREADS = 2048
SM_BLOCKS = 32
SM_SHARED = 228 << 10  # bytes, of which every block takes RESERVED_SHARED more than it asks for
RESERVED_SHARED = 1 << 10

SECONDS = 120.0  # of one launch
SECONDS_AFTER = 10.0  # once something was found
TURNS = 10_000_000  # of a loop in a second: more than there can be


def most_turns(seconds: float) -> float:
    """The turns of a loop that no launch can come to the end of."""
    return max(seconds, 1.0) * TURNS


MAX_NESTING = 500  # regions in regions of a kernel
_FRAMES = 12  # of Python's stack for each, at the most


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """Lets Python call as deep as kernels may nest."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, 2000 + _FRAMES * MAX_NESTING))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Stop(Exception):
    """The launch cannot go on: it has been reported."""


@dataclass
class Deadline:
    """When a launch has to end: after `seconds`, and soon after its first finding."""

    report: Report
    seconds: float = SECONDS
    start: float = field(default_factory=lambda: time.monotonic())

    def passed(self) -> bool:
        """Whether the launch has to end now."""
        spent, limit = time.monotonic() - self.start, self.seconds
        bad = self.report.bad_since
        if bad is not None:
            limit = min(limit, max(bad - self.start, 0) + SECONDS_AFTER)
        return spent > limit

    def check(self, machine: Any, mask, op) -> None:
        """Stops the launch if it has to end now; `op` is where it is."""
        if self.passed():
            machine.complain("stopped", machine.everyone(mask), self.why(), op)
            raise Stop

    def why(self) -> str:
        """What to do about a launch that takes too long, in words."""
        if self.report.bad_since is not None and time.monotonic() - self.start <= self.seconds:
            return f"goes on {SECONDS_AFTER:g} s after the first finding: the launch ends here"
        return (
            f"is still at work after {self.seconds:g} s: run fewer blocks (--blocks) or allow more (--seconds), "
            "unless it would never end"
        )


def cannot_go_on(error: Exception, check: bool, threads: int) -> str:
    """Why a kernel cannot go on after an error in one of its operations, in words. `threads`: of a block."""
    if isinstance(error, MlircError):
        return str(error).removeprefix("host device: ")
    if isinstance(error, IndexError) and not check:
        return "an address is outside of its memory: run with check=True to see whose"
    if isinstance(error, RecursionError):
        return "its operations nest too deep for this machine"
    if isinstance(error, MemoryError):
        return f"its values or buffers take more memory than there is: {error}"
    if threads % 32:
        return f"it is executed by whole warps, and a block has {threads} threads: take a multiple of 32"
    return f"{type(error).__name__}: {error}"


def launch_problem(grid, block, smem: int, cluster, static: int, local: int) -> str:
    """Why a GPU would refuse a launch; empty if it would not. `smem`, `static`: bytes of a block's dynamic and other
    shared memory; `local`: bytes of a thread's local memory."""
    for what, shape, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
        for d, n, top in zip("xyz", shape, most, strict=True):
            if not 1 <= n <= top:
                return f"the {what} is {list(shape)}: {d} must be from 1 to {top}"
    if (threads := math.prod(block)) > MAX_THREADS:
        return f"a block of {list(block)} has {threads} threads: {MAX_THREADS} are the most"
    if not 0 <= smem <= MAX_SHARED:
        return f"{smem} bytes of dynamic shared memory: {MAX_SHARED} are the most of a block"
    if smem + static > MAX_SHARED:
        return f"{smem + static} bytes of shared memory, {smem} of them dynamic: {MAX_SHARED} are the most of a block"
    if local > MAX_LOCAL:
        return f"{local} bytes of local memory: {MAX_LOCAL} are the most of a thread"
    if any(c < 1 or g % c for g, c in zip(grid, cluster, strict=True)):
        return f"clusters of {list(cluster)} do not divide the grid {list(grid)}"
    if math.prod(cluster) > MAX_CLUSTER:
        return f"a cluster of {list(cluster)} has {math.prod(cluster)} blocks: {MAX_CLUSTER} are the most"
    return ""


def resident_blocks(threads: int, shared: int) -> int:
    """How many blocks of so many threads and bytes of shared memory an H200 holds at once. Registers, which may allow
    fewer, are not known at the `gpu` level."""
    warps = -(-threads // 32)
    return SMS * max(1, min(SM_BLOCKS, SM_THREADS // (32 * warps), SM_SHARED // (shared + RESERVED_SHARED)))
