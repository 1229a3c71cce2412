"""Runs the `linalg`, `kernels` and `tiles` levels on the CPU through MLIR's JIT, to pin a wrong answer to its step."""

from mlirc.host.jit import HostFunction, TensorSpec, run_module, tensor_spec
from mlirc.host.tensors import run_level

__all__ = ["HostFunction", "TensorSpec", "run_level", "run_module", "tensor_spec"]
