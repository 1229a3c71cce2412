"""Packed weights as the operand of wgmma that lies in registers: their words come by tensor copies, of many rows, of sizes
that tiles do not divide, and right on the host device, where races are found, too."""

from __future__ import annotations

import re

import pytest
import torch
from quantize.test_layers import Layer, kernels, tensor, wide_reference

import mlirc
from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import get_target


def check(module: torch.nn.Module, x: torch.Tensor, scheme: str, knobs: str = "") -> None:
    assert len(kernels(module, x, scheme)) == 1
    schedule = [f"matmul:{knobs}"] if knobs else []
    model = mlirc.compile(module, (x,), quantize=scheme, schedule=schedule, device="host")
    assert relative_error(model(x), wide_reference(module, scheme, x)) <= gate_of(x.dtype, 0)


@pytest.mark.parametrize(
    "m, k, n, dtype, scheme, knobs",
    [
        (17, 264, 137, torch.bfloat16, "int4:group=128", "block_m=24,block_n=64"),  # words, scales and rows cut
        (41, 136, 88, torch.bfloat16, "int4:group=64,asymmetric", ""),  # two groups to a step, which are not carried
        (24, 512, 72, torch.float16, "int4:group=256,asymmetric", ""),  # one group for two steps
        (33, 200, 100, torch.bfloat16, "int4:group=48", ""),
        (40, 328, 131, torch.bfloat16, "int8", "block_n=128,block_k=128"),
        (26, 200, 129, torch.bfloat16, "fp8", "block_m=16,block_n=64,blocks=4"),
        (19, 384, 64, torch.bfloat16, "int8:group=64,asymmetric", "parts=2,block_n=64"),
        (30, 640, 72, torch.bfloat16, "int4:group=row", "parts=3,through=memory,block_n=64"),
        (11, 256, 96, torch.bfloat16, "int4:group=128", ""),
    ],
)
def test_many_rows_of_any_size(m, k, n, dtype, scheme, knobs):
    check(Layer(k, n, dtype), tensor(m, k, dtype=dtype), scheme, knobs)


class Gated(torch.nn.Module):
    def __init__(self, k: int, n: int):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x):
        return torch.nn.functional.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize("scheme", ["int4:group=128", "int8"])
def test_two_products_share_the_rows(scheme):
    check(Gated(264, 72), tensor(21, 264), scheme)


def ptx_of(m: int, k: int, n: int, scheme: str, knobs: str = "") -> str:
    layer = torch.nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    job = Compilation("m", get_target("sm_90a"), (f"matmul:{knobs}",) if knobs else (), helpers=0)
    job.import_module(layer, (torch.zeros(m, k, dtype=torch.bfloat16),), {}, quantize=scheme)
    job.lower("ptx")
    return job.ptx


@pytest.mark.parametrize("scheme, bits", [("int4:group=128", 4), ("int8", 8)])
def test_what_eight_weights_take(scheme, bits):
    """Of eight weights two words are loaded; two neighbours take a shift, an `and` and an `fma` with their scale, of int8
    the choice of a word, too. No weight is stored, and results leave by tensor copies, transposed on the way."""
    ptx = ptx_of(600, 512, 1024, scheme, "block_m=128,block_n=128,blocks=8")
    steps = len(re.findall(r"wgmma\.mma_async", ptx))
    pairs = len(re.findall(r"fma\.rn\.bf16x2", ptx))
    assert pairs == 4 * steps and len(re.findall(r"mul\.rn\.bf16", ptx)) <= 8
    assert len(re.findall(r"selp\.b32", ptx)) <= (4 * steps if bits == 8 else 0) + 8
    assert len(re.findall(r"ld\.shared\.v4\.b32", ptx)) == steps * bits // 4
    assert len(re.findall(r"wgmma\.wait_group\.sync\.aligned\s+2;", ptx)) == steps - 1
    assert "st.shared" not in ptx and "stmatrix.sync.aligned.m8n8.x4.trans" in ptx
    if find_ptxas():
        assert "0 bytes spill stores" in check_ptxas(ptx, get_target("sm_90a"))


def test_few_columns_are_waited_for_together():
    """Of sixteen rows four steps of 16 of k are one group, of which the next is unpacked meanwhile."""
    ptx = ptx_of(24, 1024, 2048, "int4:group=128", "block_m=16,block_n=128,parts=2")
    instructions = re.findall(r"wgmma\.(mma_async|commit_group|wait_group\.sync\.aligned\s+\d)", ptx)
    first = instructions.index("mma_async")
    assert instructions[first : first + 6] == ["mma_async"] * 4 + ["commit_group", "wait_group.sync.aligned \t1"]


@pytest.mark.parametrize("n, by_warpgroups", [(512, False), (32768, True)])
def test_sixteen_rows_go_to_what_reads_less(n, by_warpgroups):
    """Warps that read all rows for each 32 columns, or warpgroups that share them, by the bytes of both."""
    ptx = ptx_of(16, 2048, n, "int4:group=128")
    assert ("wgmma.mma_async" in ptx) == by_warpgroups and ("mma.sync" in ptx) != by_warpgroups


def test_steps_take_whole_blocks_of_words():
    with pytest.raises(MlircError, match="take words in part: more columns to a step"):
        ptx_of(64, 512, 128, "int4:group=128", "block_k=64")
