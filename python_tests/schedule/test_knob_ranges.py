"""A knob out of its range is refused by the knob's name and value, not by a line of a built-in script."""

from __future__ import annotations

import pytest

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.kernels import payloads

REFUSED = {
    "stages=200": "--schedule 'matmul:stages=200': kernel 'matmul_0': stages = 200: takes 1 to 16",
    "group=100000": "--schedule 'matmul:group=100000': kernel 'matmul_0': group_rows = 100000: takes 1 to 65535",
    "cluster_size=3": "--schedule 'matmul:cluster_size=3': kernel 'matmul_0': cluster = 3: takes 1, 2, 4 or 8",
    "blocks=100000": "--schedule 'matmul:blocks=100000': kernel 'matmul_0': persist = 100000: takes 1 to 65535",
    "min_blocks=50": "--schedule 'matmul:min_blocks=50': kernel 'matmul_0': min_blocks = 50: takes 1 to 32",
    "copy=tma,producers=7": "--schedule 'matmul:producers=7': kernel 'matmul_0': producers = 7: takes 1 or 4",
    "warps_m=64": "--schedule 'matmul:warps_m=64': kernel 'matmul_0': warp_grid = [64, 1]: takes a list of two numbers",
    "block_m=100000": "--schedule 'matmul:block_m=100000': kernel 'matmul_0': warp",
    "warps_m=32,warps_n=1,copy=tma,mma=wgmma": "mlirc.producers = 1: 32 warps compute, and a block has at most 32 in all",
}


@pytest.mark.parametrize("knobs", REFUSED)
def test_a_knob_out_of_range_is_named(knobs):
    job = Compilation("kernel", get_target("sm_90a"), [f"matmul:{knobs}"], helpers=0)
    job.modules["kernels"] = mlir.parse(payloads.matmul(512, 512, 512, "bf16", epilogue=False))
    with pytest.raises(MlircError) as error:
        job.lower("gpu")
    assert REFUSED[knobs] in str(error.value)
