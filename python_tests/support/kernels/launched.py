"""Launches: a kernel of one at the `gpu` level, and how many a product becomes."""

from __future__ import annotations

from mlirc import mlir
from mlirc.driver.kernel_build import to_gpu
from mlirc.mlir import ir
from mlirc.targets import get_target


def launches(tiles: str) -> int:
    """How many launches the kernel `matmul_0` has below the `tiles` level."""
    module = mlir.parse(tiles)
    with mlir.context(), ir.Location.unknown():
        to_gpu(module, "matmul_0", get_target("sm_90a"))
    return str(module).count("gpu.launch_func")


def gpu_level(
    body: str, arguments: dict[str, str], passed: dict[str, str] | None = None, *, name: str = "k", smem: int = 0,
    allocate: str = "",
) -> str:  # fmt: skip
    """A kernel of one launch: `arguments` are the gpu.func's, bound to the host's of the same name unless `passed`."""
    bound = passed or {n: n for n in arguments}
    signature = ", ".join(f"%{n}: {t}" for n, t in arguments.items())
    operands = ", ".join(f"%{bound[n]} : {t}" for n, t in arguments.items())
    host = ", ".join(f"%{n}: {t}" for n, t in arguments.items())
    shared = "dynamic_shared_memory_size %smem" if smem else ""
    return f"""
module attributes {{gpu.container_module}} {{
  gpu.module @{name}_gpu {{
    gpu.func @{name}_0({signature}) kernel attributes {{known_block_size = array<i32: 128, 1, 1>}} {{
      %tx = gpu.thread_id x
      %bx = gpu.block_id x
      %c0 = arith.constant 0 : index
      {body}
      gpu.return
    }}
  }}
  func.func @{name}({host}) {{
    %one = arith.constant 1 : index
    %threads = arith.constant 128 : index
    %smem = arith.constant {smem} : i32
    {allocate}
    gpu.launch_func @{name}_gpu::@{name}_0 blocks in (%one, %one, %one) threads in (%threads, %one, %one)
      {shared} args({operands})
    return
  }}
}}"""
