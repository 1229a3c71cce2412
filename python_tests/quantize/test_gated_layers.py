"""Gated layers with packed weights: two products in one kernel, whose columns share instructions."""

from __future__ import annotations

import copy
import re

import pytest
import torch

import mlirc
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation, compile_model
from mlirc.frontend import from_torch, packed_as
from mlirc.targets import get_target
from support.randomness import generator


class Gated(torch.nn.Module):
    def __init__(self, k: int, n: int, dtype: torch.dtype = torch.bfloat16):
        super().__init__()
        draw = generator()
        self.gate = torch.nn.Linear(k, n, bias=False, dtype=dtype)
        self.up = torch.nn.Linear(k, n, dtype=dtype)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.from_numpy(draw.standard_normal(p.shape) * k**-0.5))

    def forward(self, x):
        return torch.nn.functional.silu(self.gate(x)) * self.up(x)


@pytest.mark.parametrize(
    "m, k, n, dtype, scheme, knobs",
    [
        (1, 200, 77, torch.bfloat16, "int4:group=64", "block_n=8,warps=3,block_k=192"),
        (7, 512, 19, torch.float16, "int4:group=128", "block_n=8,warps=1,block_k=128"),
        (1, 331, 8, torch.bfloat16, "int8", "block_n=8"),
        (16, 97, 3, torch.bfloat16, "int3:group=48,asymmetric", "block_n=8,warps=2"),
        (2, 384, 33, torch.bfloat16, "int4:group=128", "block_n=16,warps=1,block_k=128"),
    ],
)
def test_two_products_of_a_kernel_give_what_pytorch_gives(m, k, n, dtype, scheme, knobs):
    module = Gated(k, n, dtype)
    x = torch.from_numpy(generator().standard_normal((m, k))).to(dtype)
    with torch.no_grad():
        want = copy.deepcopy(packed_as(from_torch(module, (x,)), scheme).module).double()(x.double())
    model = mlirc.compile(module, (x,), quantize=scheme, device="host", schedule=[f"packed_rows:{knobs}"])
    assert relative_error(model(x), want) <= gate_of(dtype, 0)


def ptx_of(knobs: str) -> str:
    job = Compilation("m", get_target("sm_90a"), (f"packed_rows:{knobs}",) if knobs else (), helpers=0)
    job.import_module(Gated(512, 64), (torch.zeros(1, 512, dtype=torch.bfloat16),), {}, quantize="int4:group=128")
    job.lower("ptx")
    return job.ptx


def test_an_instruction_has_columns_of_both():
    """Of a block's two products with eight columns an instruction has both: as many as of one product with 16."""
    own = {
        knobs: len(re.findall(r"\bmma\.sync", ptx_of(f"warps=1,block_k=256,{knobs}")))
        for knobs in ("block_n=8", "block_n=16")
    }
    assert own == {"block_n=8": 256 // 16, "block_n=16": 2 * 256 // 16}


def test_the_ptx_gives_the_same_bits(tmp_path, monkeypatch):
    """Its loads of words, which go past the L1 cache, are executed beside the level that they come from."""
    (tmp_path / "gated.py").write_text(
        "import torch\n"
        "class Gated(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.gate, self.up = (torch.nn.Linear(512, 20, dtype=torch.bfloat16) for _ in range(2))\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.silu(self.gate(x)) * self.up(x)\n"
        "def make():\n"
        "    return Gated(), (torch.ones(1, 512, dtype=torch.bfloat16),)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    job = compile_model("gated:make", tmp_path / "m.ptx", quantize="int4:group=64")
    assert "ld.global.nc.L1::no_allocate.v4.b32" in job.ptx
    x = torch.from_numpy(generator().standard_normal((1, 512))).to(torch.bfloat16)
    with mlirc.load(tmp_path / "m.ptx", device="host") as model:
        model.execute_ptx = True
        model(x)
        assert "the whole plan executed in its arena" in model.summary()


def test_blocks_that_fill_all_multiprocessors_at_once_are_one_warp():
    """18 blocks of 8 columns for each of 132 multiprocessors; of fewer the warps of a block share out k."""
    found = []
    for n in (18 * 132 * 8, 10 * 132 * 8):
        job = Compilation("m", get_target("sm_90a"), helpers=0)
        job.import_module(Gated(512, n), (torch.zeros(1, 512, dtype=torch.bfloat16),), {}, quantize="int4:group=128")
        job.lower("tiles")
        found += re.findall(r"mlirc\.warps = (\d+)", str(job.modules["tiles"]))
    assert found[0] == "1" and int(found[1]) > 1
