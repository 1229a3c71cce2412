"""What a loaded model holds on the GPU."""

from __future__ import annotations

import contextlib
from typing import Any

from mlirc.errors import MlircError
from mlirc.runtime.arrays import View
from mlirc.runtime.cuda import Graph


def upload(driver: Any, target: int, seen: View, stream: int) -> None:
    """Copies a tensor, from the host or from the GPU, to device memory."""
    if seen.nbytes == 0:
        return
    if seen.device is None:
        driver.copy_in(target, seen.pointer, seen.nbytes, stream)
    else:
        driver.copy(target, seen.pointer, seen.nbytes, stream)


class Resources:
    """What a model holds on the device, apart from the model, so that it is freed however the model goes away."""

    def __init__(self, driver: Any):
        self.driver = driver
        self.pointers: list[int] = []
        self.modules: list[Any] = []
        self.streams: list[int] = []
        self.hosts: list[int] = []  # page-locked memory
        self.events: list[Any] = []
        self.graph: Graph | None = None
        self.lent = 0  # output tensors that outlive their call
        self.closed = False

    def alloc(self, size: int) -> int:
        self.pointers.append(self.driver.alloc(size))
        return self.pointers[-1]

    def free(self, pointer: int) -> None:
        """Gives back what `alloc` gave."""
        self.pointers.remove(pointer)
        self.driver.free(pointer)

    def alloc_host(self, size: int) -> int:
        self.hosts.append(self.driver.alloc_host(size))
        return self.hosts[-1]

    def event(self) -> Any:
        self.events.append(self.driver.event())
        return self.events[-1]

    def lend(self, size: int) -> int:
        """Memory that `take_back` frees, maybe after `close`: the context stays until then."""
        pointer = self.driver.alloc(size)
        self.lent += 1
        return pointer

    def take_back(self, pointer: int) -> None:
        with self.driver.current():
            self.driver.free(pointer)
        self.lent -= 1
        self._leave()

    def close(self) -> None:
        with self.driver.current():
            # After a failed kernel everything fails; what is left is freed with the context.
            with contextlib.suppress(MlircError):
                self.driver.synchronize()
            if self.graph is not None:
                self.graph.close()
            for module in self.modules:
                self.driver.unload(module)
            for event in self.events:
                self.driver.destroy_event(event)
            for pointer in self.hosts:
                self.driver.free_host(pointer)
            for stream in self.streams:
                self.driver.destroy_stream(stream)
            for pointer in self.pointers:
                self.driver.free(pointer)
        self.closed = True
        self._leave()

    def _leave(self) -> None:
        if self.closed and self.lent == 0:
            self.driver.close()
