"""gpu on arrays: ids, barriers, shared memory."""

from __future__ import annotations

from mlirc.host.device.declare import rule, stateful, waiting
from mlirc.host.device.machine import State
from mlirc.host.device.memory import MemRef
from mlirc.host.device.sync import block_barrier
from mlirc.host.device.translate import Translator


@rule("gpu.barrier")
def _barrier(tr: Translator, op):
    return waiting(lambda s: block_barrier(s, op))


@stateful("gpu.dynamic_shared_memory")
def _dynamic_shared(tr: Translator, op):
    def window(s: State) -> MemRef:
        buffer = s.m.dynamic_shared
        assert buffer is not None  # a launch without dynamic shared memory has an empty one
        return MemRef(buffer, 0, (buffer.nbytes,), (1,), 1)

    return window
