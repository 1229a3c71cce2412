"""Times on the GPU: graph replays, interleaved, with the L2 cache cold. Times are in microseconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

L2_BYTES = 60e6
COLD_BYTES = 4 * L2_BYTES
SHORT_US = 50.0  # below this, several copies share one graph
MIN_COPIES, MAX_COPIES = 20, 2048


@dataclass
class Arm:
    """One contender: `replay` enqueues `copies` runs on the current stream; `keep` stays alive with it."""

    name: str
    replay: Callable[[], Any]
    copies: int
    keep: Any = None


@dataclass(frozen=True)
class Sampled:
    """Microseconds per run: median, 10th and 90th percentile, number of samples."""

    median: float
    p10: float
    p90: float
    samples: int

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"median_us": self.median, "p10_us": self.p10, "p90_us": self.p90, "samples": self.samples}


def summarize(times: Sequence[float]) -> Sampled:
    """Median and percentiles (nearest rank) of at least one time."""
    ordered = sorted(times)
    last = len(ordered) - 1
    return Sampled(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], len(ordered))


def copies_for(io_bytes: int, run_us: float) -> tuple[int, int]:
    """(input sets, runs per graph): enough sets that they exceed the L2 cache four times, and enough runs that a short
    one fills a graph."""
    sets = min(MAX_COPIES, max(1, -(-int(COLD_BYTES) // max(io_bytes, 1))))
    runs = max(sets, MIN_COPIES) if run_us < SHORT_US else min(sets, 64)
    return min(sets, runs), runs


class Flusher:
    """Evicts the L2 cache by writing a buffer of more than four times its size."""

    def __init__(self) -> None:
        self.buffer = torch.empty(int(COLD_BYTES) + (1 << 24), dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        self.buffer.zero_()


def capture(name: str, run: Callable[[Any], Any], sets: Sequence[Any], runs: int) -> Arm:
    """A CUDA graph of `runs` runs, each on the next of the input sets."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(3):
            run(sets[i % len(sets)])
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
        keep = [run(sets[i % len(sets)]) for i in range(runs)]
    torch.cuda.synchronize()
    return Arm(name, graph.replay, runs, (graph, keep, sets, run))  # a graph keeps nothing of what it reads


def interleave(arms: Sequence[Arm], samples: int, flush: Callable[[], None]) -> dict[str, Sampled]:
    """Times the arms in turn, A B C A B C, the cache flushed before every replay."""
    for arm in arms:
        for _ in range(3):
            arm.replay()
    torch.cuda.synchronize()
    events: dict[str, list[tuple[Any, Any]]] = {arm.name: [] for arm in arms}
    for _ in range(samples):
        for arm in arms:
            events[arm.name].append(_timed(arm, flush))
        if len(events[arms[0].name]) % 16 == 0:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    copies = {arm.name: arm.copies for arm in arms}
    return {n: summarize([a.elapsed_time(b) * 1e3 / copies[n] for a, b in pairs]) for n, pairs in events.items()}


def turn(arm: Arm, samples: int, flush: Callable[[], None]) -> list[float]:
    """Microseconds of so many replays of a contender that is alone in its process: each behind one that is not timed,
    as they follow each other in use, and behind a flush of the cache."""
    events = []
    for _ in range(samples):
        arm.replay()
        events.append(_timed(arm, flush))
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e3 / arm.copies for a, b in events]


def _timed(arm: Arm, flush: Callable[[], None]) -> tuple[Any, Any]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    flush()
    start.record()
    arm.replay()
    end.record()
    return start, end


def quick_us(run: Callable[[], Any], samples: int = 5) -> float:
    """A first idea of how long one enqueued run takes, launch overhead of the host included."""
    run()
    torch.cuda.synchronize()
    times = []
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return min(times)
