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
    """Page-locked host memory for one run's outputs, and the event that says when they are there."""

    def __init__(self, held: Resources, outputs: Sequence[DeviceTensor]):
        self._outputs = outputs
        self._sizes = [NUMPY_DTYPES[t.dtype].itemsize * int(np.prod(t.shape, dtype=np.int64)) for t in outputs]
        self._places = [held.alloc_host(size) for size in self._sizes]
        self._event = held.event()

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

    def follow(self, outputs: Sequence[DeviceTensor], stream: int) -> Run:
        """The run that was enqueued last on a stream, into `outputs`."""
        driver = self._held.driver
        landing = self._free.pop() if self._free else Landing(self._held, outputs)
        landing.take(driver, stream)

        def wait() -> list[np.ndarray]:
            with driver.current():
                found = landing.read(driver)
            self._free.append(landing)
            return found

        return Run(wait)
