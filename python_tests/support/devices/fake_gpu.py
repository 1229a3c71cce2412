"""A stand-in for `mlirc.runtime.cuda.Driver` on a machine without a GPU.

Device memory is host memory, and a kernel is a Python function of addresses. It checks the order of use: nothing
outside of a context, no access to freed memory, no leaks.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable

import numpy as np

from mlirc.runtime.cuda import CopyCall
from mlirc.runtime.tensor_map import TensorMapSpec


class FakeDriver:
    """`kernels` maps symbols to functions of the launch's addresses; `maps` lists the tensor maps that kernels were
    given, with their addresses."""

    def __init__(self, kernels: dict[str, Callable], cc: int = 90, name: str = "Fake GPU"):
        self.kernels, self.cc, self.name = kernels, cc, name
        self.memory: dict[int, np.ndarray] = {}
        self.depth = 0
        self.graphs: list[FakeGraph] = []
        self.launched: list[tuple[str, int]] = []
        self.maps: list[tuple[TensorMapSpec, int]] = []
        self.grids: list[tuple[int, int, int]] = []
        self.smem: dict[str, int] = {}
        self.streams: set[int] = set()
        self.events: set[int] = set()
        self.modules = 0
        self.synchronized = 0
        self.closed = False

    @contextlib.contextmanager
    def current(self):
        assert not self.closed
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def _used(self):
        assert self.depth > 0 and not self.closed, "driver used outside of its context"

    def close(self):
        assert not self.closed
        self.closed = True

    def alloc(self, size):
        self._used()
        block = np.full(max(size, 1) + 256, 0xCD, np.uint8)
        pointer = -(-block.ctypes.data // 256) * 256
        self.memory[pointer] = block
        return pointer

    def free(self, pointer):
        self._used()
        del self.memory[pointer]

    def copy_in(self, target, host, size, stream):
        self._used()
        ctypes.memmove(target, host, size)

    copy_out = copy_in
    copy = copy_in

    def copy_rows(self, target, target_pitch, source, source_pitch, width, count, stream):
        for i in range(count):
            self.copy(target + i * target_pitch, source + i * source_pitch, width, stream)

    alloc_host, free_host = alloc, free

    def event(self):
        self._used()
        self.events.add(2000 + len(self.events))
        return max(self.events)

    def destroy_event(self, event):
        self.events.remove(event)

    def record(self, event, stream):
        assert event in self.events
        self._used()

    def wait(self, event):
        assert event in self.events
        self._used()

    def stream(self):
        self._used()
        self.streams.add(1000 + len(self.streams))
        return max(self.streams)

    def is_capturing(self, stream):
        return False

    def destroy_stream(self, stream):
        self.streams.remove(stream)

    def synchronize(self, stream=None):
        self._used()
        self.synchronized += 1

    def load(self, ptx, where):
        self._used()
        self.modules += 1
        return ptx

    def unload(self, module):
        self.modules -= 1

    def function(self, module, symbol, smem, cluster=1):
        self.smem[symbol] = smem
        return self.kernels[symbol]

    def launch(self, call, stream):
        self._used()
        if isinstance(call, CopyCall):
            ctypes.memmove(call.target, call.source, call.size)
            self.launched.append(("copy", stream))
        else:
            self.grids.append(call.grid)
            if 0 in call.grid:
                return
            self.maps += [(spec, call.pointers[i]) for i, spec in call.maps.items()]
            call.function(*[self.argument(call, i) for i in range(len(call.pointers))])
            self.launched.append((call.symbol, stream))

    @staticmethod
    def argument(call, number):
        """An address, the bytes of a value, or a list of addresses."""
        if number in call.tables:
            return [call.pointers[number], *call.tables[number]]
        return call.values.get(number, call.pointers[number])

    def graph(self, calls, waits):
        self._used()
        self.graphs.append(FakeGraph(self, calls, waits))
        return self.graphs[-1]


class LateDriver(FakeDriver):
    """Does nothing before somebody waits for it, and then no more than that. There is one stream."""

    def __init__(self, kernels: dict[str, Callable]):
        super().__init__(kernels)
        self.queue: list[tuple[Callable, tuple]] = []
        self.marks: dict[int, int] = {}  # of events: how much of what was ever enqueued is in front of them
        self.done = 0
        self.locked: dict[int, int] = {}  # page-locked memory: its sizes by its addresses
        self.copies_in = 0

    def copy_in(self, target, host, size, stream):
        """From page-locked memory, too, when its turn comes; other memory is the caller's again at once."""
        locked = any(host in range(start, start + most) for start, most in self.locked.items())
        self.copies_in += 1
        self.queue.append((ctypes.memmove, (target, host if locked else ctypes.string_at(host, size), size)))

    def alloc_host(self, size):
        pointer = super().alloc_host(size)
        self.locked[pointer] = max(size, 1)
        return pointer

    def copy_out(self, host, source, size, stream):
        self.queue.append((ctypes.memmove, (host, source, size)))

    copy = copy_out

    def launch(self, call, stream):
        self.queue.append((super().launch, (FakeGraph._copy(call), stream)))

    def record(self, event, stream):
        super().record(event, stream)
        self.marks[event] = self.done + len(self.queue)

    def wait(self, event):
        super().wait(event)
        self._run(self.marks[event] - self.done)

    def synchronize(self, stream=None):
        super().synchronize(stream)
        self._run(len(self.queue))

    def _run(self, count):
        for _ in range(count):
            function, arguments = self.queue.pop(0)
            function(*arguments)
            self.done += 1


class FakeGraph:
    """Holds copies of its calls, as the driver does: only `update` changes what it runs."""

    def __init__(self, driver, calls, waits):
        self.waits = list(waits)
        self.driver, self.updates, self.launches, self.closed = driver, 0, 0, False
        self.calls = [self._copy(call) for call in calls]

    @staticmethod
    def _copy(call):
        if isinstance(call, CopyCall):
            return CopyCall(call.target, call.source, call.size)
        return dataclasses.replace(call, pointers=list(call.pointers))

    def update(self, index, call):
        self.updates += 1
        self.calls[index] = self._copy(call)

    def launch(self, stream):
        self.launches += 1
        for call in self.calls:
            self.driver.launch(call, stream)

    def close(self):
        self.closed = True


def at(pointer: int, count: int, dtype=np.float32) -> np.ndarray:
    """The memory at an address as a NumPy array."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(pointer), dtype)


class CudaArray:
    """A tensor that claims to lie on GPU 0, through `__cuda_array_interface__`; its memory is a NumPy array's."""

    def __init__(self, array: np.ndarray, skew: int = 0):
        raw = np.zeros(array.nbytes + 512, np.uint8)
        start = -raw.ctypes.data % 256 + skew
        self.array = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self.strides = None

    @property
    def __cuda_array_interface__(self):
        pointer = (self.array.ctypes.data, False)
        return {
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": pointer,
            "version": 3,
            "strides": self.strides,
        }
