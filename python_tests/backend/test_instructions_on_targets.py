"""Every instruction for products on every target: refused in a line, or assembled by ptxas without spilling."""

from __future__ import annotations

import pytest
import torch

from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import TARGETS
from support.models.together import Calls

OPERANDS = {
    "mma": torch.bfloat16, "wgmma": torch.bfloat16, "tf32": torch.float32, "tf32x3": torch.float32, "fma": torch.float32,
    "wgmma_tf32": torch.float32, "wgmma_tf32x3": torch.float32, "mma8": torch.int8, "wgmma8": torch.int8,
    "wgmma8_fast": torch.float8_e4m3fn, "mma_direct": torch.bfloat16,
}  # fmt: skip


def product(a, b):
    if a.dtype == torch.int8:
        return torch._int_mm(a, b.t())
    return (a.float() @ b.float().t()).bfloat16() if a.dtype == torch.float8_e4m3fn else a @ b.t()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", OPERANDS)
def test_every_instruction_on_every_target(name, target):
    args = (torch.zeros(128, 512).to(OPERANDS[name]), torch.zeros(64, 512).to(OPERANDS[name]))
    job = Compilation("model", TARGETS[target], (f"matmul:mma={name}",), helpers=0)
    job.import_module(Calls(product), args, {})
    if name.startswith("wgmma") and target != "sm_90a":
        with pytest.raises(MlircError, match=f"{target} has no {name}: use "):
            job.lower("ptx")
        return
    job.lower("ptx")
    if find_ptxas():
        assert "0 bytes spill stores" in check_ptxas(job.ptx, job.target)


def test_all_instructions_are_tried():
    from mlirc.passes.distribute.instructions import all_instructions, users_instructions

    assert set(OPERANDS) == set(all_instructions()) - set(users_instructions())
