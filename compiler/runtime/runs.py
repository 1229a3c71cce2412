"""Runs that were started and not waited for: their outputs come to the host behind them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirc.runtime.arrays import NUMPY_DTYPES, DeviceTensor
from mlirc.runtime.resources import Resources


class Run:
    """A run under way; `result` waits for it."""

    def __init__(self, wait: Callable[[], list[np.ndarray]]):
        self._wait: Callable[[], list[np.ndarray]] | None = wait
        self._arrays: list[np.ndarray] = []

    def result(self) -> Any:
        """The outputs as NumPy arrays: one as it is, several as a tuple. Waits for this run, and for none behind it."""
        if self._wait is not None:
            self._arrays, self._wait = self._wait(), None
        return self._arrays[0] if len(self._arrays) == 1 else tuple(self._arrays)


class Landing:
    """Page-locked host memory for one run's inputs from the host and for its outputs, and the event that says when
    those are there."""

    def __init__(self, held: Resources, room: int, outputs: Sequence[DeviceTensor]):
        self._outputs = outputs
        self._sizes = [NUMPY_DTYPES[t.dtype].itemsize * int(np.prod(t.shape, dtype=np.int64)) for t in outputs]
        self._places = [held.alloc_host(size) for size in self._sizes]
        self._event = held.event()
        self._held, self._room, self._inputs = held, room, 0

    @property
    def inputs(self) -> int:
        """Where inputs are put that the run is to copy: as many bytes as all of the model's take."""
        self._inputs = self._inputs or self._held.alloc_host(self._room)
        return self._inputs

    def take(self, driver: Any, stream: int) -> None:
        """Enqueues the copies of the outputs."""
        for tensor, place, size in zip(self._outputs, self._places, self._sizes, strict=True):
            if size:
                driver.copy_out(place, tensor.pointer, size, stream)
        driver.record(self._event, stream)

    def read(self, driver: Any) -> list[np.ndarray]:
        """Waits for the copies: arrays of their own."""
        driver.wait(self._event)
        found = []
        for tensor, place, size in zip(self._outputs, self._places, self._sizes, strict=True):
            raw = ctypes.string_at(place, size)
            found.append(np.frombuffer(raw, NUMPY_DTYPES[tensor.dtype]).reshape(tensor.shape).copy())
        return found


class Runs:
    """The started runs of one model. Memory of runs that were read is used again."""

    def __init__(self, held: Resources):
        self._held = held
        self._free: list[Landing] = []

    def next(self, room: int, outputs: Sequence[DeviceTensor]) -> Landing:
        """Of the run that is to be enqueued next, into `outputs`, with inputs of up to `room` bytes."""
        if not self._free:
            self._free.append(Landing(self._held, room, outputs))
        return self._free[-1]

    def follow(self, stream: int, inputs: Any, finish: Callable[[list[np.ndarray]], list[np.ndarray]]) -> Run:
        """The run that was enqueued last on a stream, with the landing that was `next`; `inputs` live as long. `finish`
        makes what it gives of the outputs at their bound."""
        driver = self._held.driver
        landing = self._free.pop()
        landing.take(driver, stream)
        kept = [inputs]

        def wait() -> list[np.ndarray]:
            with driver.current():
                found = landing.read(driver)
            kept.clear()
            self._free.append(landing)
            return finish(found)

        return Run(wait)
