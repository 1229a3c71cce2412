"""Kernels of one's own, written in Python: `@kernel`, and what one is written with. See docs/own-kernels.md."""

from mlirc.kernel import blocks, ops
from mlirc.kernel.definition import Kernel, kernel
from mlirc.kernel.places import KernelError
from mlirc.kernel.tensor import Tensor

__all__ = ["Kernel", "KernelError", "Tensor", "blocks", "kernel", "ops"]
