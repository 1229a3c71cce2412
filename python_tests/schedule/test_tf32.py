"""FP32 products made of one TF32 product (`mma=tf32`), and the choice between the ways to make them (`--fp32`)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from mlirc.tools import mlirc as program
from support.kernels.check import check_schedule
from support.kernels.fp32 import assert_not_finite_where_fp32_is_not, computed, factors, spoiled
from support.kernels.payloads import attention, matmul
from support.randomness import generator

TILE = "mma=tf32,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=2"


def rounded(x: np.ndarray) -> np.ndarray:
    """f32 to TF32, halves away from zero, as FP64."""
    bits = x.view(np.uint32).astype(np.int64) + 0x1000 & 0xFFFFE000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    "shape, knobs",
    [
        ((40, 72, 136), TILE + ",stages=3"),  # tensor copies, over every edge
        ((33, 61, 67), TILE + ",copy=cp_async,stages=1"),
        ((33, 72, 300), "mma=tf32,block_m=32,block_n=32,block_k=128,warps_m=2,warps_n=1,warps_k=4,blocks=2"),
        ((17, 61, 67), "mma=tf32,block_m=32,block_n=32,block_k=32,warps_m=1,warps_n=1,warps_k=3"),
        ((2, 3, 5), "mma=tf32"),
    ],
)
def test_factors_are_rounded_to_tf32(shape, knobs):
    m, n, k = shape
    x, w = factors(m, n, k, seed=k)
    want, exact = rounded(x) @ rounded(w), x.astype(np.float64) @ w
    found = computed(x, w, f"matmul:{knobs}")
    assert np.linalg.norm(found - want) <= 2e-6 * np.linalg.norm(want)
    assert 2e-5 * np.linalg.norm(exact) <= np.linalg.norm(found - exact) <= 1e-3 * np.linalg.norm(exact)


@pytest.mark.parametrize("layout", [{}, {"transposed": False}, {"left": True}, {"batch": 3}, {"gates": True}])
def test_every_layout(layout):
    check_schedule(matmul(37, 41, 43, **layout), (f"matmul:{TILE},copy=cp_async",), tolerance=1e-3)


def test_what_is_not_finite_stays_so():
    x, w = spoiled(48)
    x[18, 65] = 1  # which TF32 would round to infinity
    x[13, 1] = np.uint32(0x7FFFFFFF).view(np.float32)
    assert_not_finite_where_fp32_is_not(x, w, f"matmul:{TILE}", 1e-3)


@pytest.mark.parametrize("knobs", ["mma=tf32", "mma=tf32,copy=tma"])
def test_attention(knobs):
    text = attention(lengths=(33, 47), dims=(32, 32), causal=True)
    check_schedule(text, (f"attention:{knobs}",), tolerance=2e-3)
    with pytest.raises(AssertionError):
        check_schedule(text, (f"attention:{knobs}",), tolerance=1e-6)


@pytest.mark.parametrize("fp32, large, small, heads", [
    ("ieee", "fma", "fma", "fma"), ("tf32x3", "tf32x3", "fma", "tf32x3"), ("tf32", "tf32", "tf32", "tf32"),
])  # fmt: skip
def test_the_choice_holds_for_every_product(fp32, large, small, heads):
    for text, wanted in ((matmul(640, 640, 128), large), (matmul(37, 41, 43), small), (attention(), heads)):
        _, record = Schedules(fp32=fp32).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
        assert record.knobs["mma"] == wanted
    _, record = Schedules(fp32=fp32).schedule_kernel(
        mlir.parse(matmul(640, 640, 256, "bf16", epilogue=False)), get_target("sm_90a")
    )
    assert record.knobs["mma"] == "wgmma"
    _, record = Schedules(["matmul:mma=fma"], fp32).schedule_kernel(
        mlir.parse(matmul(37, 41, 43)), get_target("sm_90a")
    )
    assert record.knobs["mma"] == "fma"  # what a knob says is more specific


class TwoLayers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        draw = generator().standard_normal
        self.up, self.down = (torch.from_numpy(draw(s).astype(np.float32)) for s in ((64, 37), (41, 64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.up.T) @ self.down.T


def test_the_gates_follow_it():
    x = torch.from_numpy(generator().standard_normal((19, 37)).astype(np.float32))
    for fp32, schedule, right in (("tf32", (), True), ("tf32x3", ("matmul:mma=tf32",), False)):
        result = check_torch(
            TwoLayers(), (x,), None, ("gpu",), target="sm_90a", fp32=fp32, schedule=schedule, kinds=("plain",)
        )
        assert result.ok == right, result.table()


def test_the_programs_and_the_cache_know_it(ran, tmp_path):
    x = torch.from_numpy(generator().standard_normal((19, 37)).astype(np.float32))
    module = TwoLayers()
    model = mlirc.compile(module, (x,), fp32="tf32", device="host")
    again = mlirc.compile(module, (x,), device="host")  # of the same kernels, by the same cache
    want = module(x)
    errors = [float((torch.as_tensor(m(x)) - want).norm() / want.norm()) for m in (model, again)]
    assert 2e-5 < errors[0] < 1e-3 and errors[1] < 1e-6
    with pytest.raises(MlircError, match="fp32 = 'tf19': choose ieee, tf32x3, tf32"):
        mlirc.compile(module, (x,), fp32="tf19", device="host")
    kernel = tmp_path / "kernel.mlir"
    kernel.write_text(matmul(37, 41, 43))
    assert 'mlirc.mma = "tf32"' in ran(program.main, kernel, "--emit", "tiles", "--fp32", "tf32").out
    ptx = ran(program.main, kernel, "--emit", "ptx", "--fp32", "tf32").out
    assert "cvt.rna.tf32.f32" in ptx and "m16n8k8.row.col.f32.tf32.tf32.f32" in ptx


def test_the_ptx_gives_the_same(tmp_path):
    x = torch.from_numpy(generator().standard_normal((19, 37)).astype(np.float32))
    job = Compilation("model", get_target("sm_90a"), helpers=0, fp32="tf32")
    job.import_module(TwoLayers(), (x,), {})
    job.lower("ptx")
    job.write(tmp_path / "model.ptx")
    found = []
    for execute in (False, True):
        with mlirc.load(tmp_path / "model.ptx", device="host") as model:
            model.match, model.execute_ptx = not execute, execute
            found.append(torch.as_tensor(model(x)))
            assert not execute or "PTX executed in 2 of 2 calls" in model.summary(), model.summary()
    assert torch.equal(*found)
