"""What decides nothing that a thread can see: prefetches, sleep, the end of an array's life, and fences between proxies
of tensor maps, which kernels here do not change."""

from __future__ import annotations

from mlirc.device.declare import stateful
from mlirc.device.translate import Translator


@stateful("nvvm.prefetch", "nvvm.nanosleep", "nvvm.cp.async.bulk.tensor.prefetch", "nvgpu.tma.prefetch.descriptor",
      "nvgpu.tma.fence.descriptor", "nvvm.fence.proxy.acquire", "nvvm.fence.proxy.release",
      "memref.dealloc")  # fmt: skip
def _nothing(tr: Translator, op):
    return lambda s, *_: None
