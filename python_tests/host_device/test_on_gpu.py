"""On the GPU: the host device agrees with the card, bit for bit where nothing but the order of sums could differ and that
is fixed, else within the error of the accumulation."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel
from support.devices.gpu_kernel import on_gpu, run_kernel
from support.kernels.check import assert_close
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import attention, matmul, norm, row_reduction

pytestmark = on_gpu

EXACT = {
    "row_sums": (row_reduction(5, 1000, "f32", "0.0", "addf"), "reduction:warps=4"),
    "f32_matmul": (matmul(65, 72, 96, "f32"), "matmul:block_m=64,block_n=64,block_k=16,stages=3"),
    "f64_matmul": (matmul(17, 33, 35, "f64"), "matmul:block_m=32,block_n=32,block_k=16"),
    "i32_matmul": (matmul(17, 33, 35, "i32"), "matmul:block_m=32,block_n=32,block_k=16"),
}
CLOSE = {
    "bf16_matmul": (matmul(65, 72, 96, "bf16"), "matmul:block_m=64,block_n=64,block_k=32", 1e-2),
    "f16_matmul": (matmul(33, 40, 71, "f16"), "matmul:block_m=32,block_n=32,block_k=16,stages=1", 2e-3),
    "norm": (norm(7, 384), "reduction:warps=4", 1e-5),
    "bf16_attention": (
        attention(lengths=(40, 70), dims=(16, 16), dtype="bf16", causal=True), "attention:block_q=32,block_kv=32", 2e-2,
    ),
    "f32_attention": (
        attention(lengths=(33, 33), dims=(16, 16), window=9, causal=True), "attention:block_q=16,block_kv=16", 1e-5,
    ),
}  # fmt: skip


def on_both(text: str, knobs: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results of a scheduled kernel on the host device and on the GPU."""
    gpu_level, arguments, specs = lowered(text, knobs)
    host = [np.zeros(spec.shape, spec.dtype) for spec in specs]
    card = [np.zeros(spec.shape, spec.dtype) for spec in specs]
    report = DeviceKernel(mlir.parse(gpu_level)).run([*arguments, *host])
    assert report.ok, "\n".join(map(str, report.findings))
    run_kernel(mlir.parse(gpu_level), arguments, card)
    return host, card


@pytest.mark.parametrize("name", EXACT)
def test_bitwise(name):
    host, card = on_both(*EXACT[name])
    for h, c in zip(host, card, strict=True):
        np.testing.assert_array_equal(h, c)


@pytest.mark.parametrize("name", CLOSE)
def test_close(name):
    text, knobs, tolerance = CLOSE[name]
    host, card = on_both(text, knobs)
    assert_close(card, host, tolerance)
