"""Softmaxes whose results are 16-bit floats: powers of two and one reciprocal a row; beside FP64 on the host device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.ir import levels
from mlirc.targets import get_target
from support.models.together import Calls
from support.randomness import generator


def compiled(compute, x, level="ptx"):
    job = Compilation("narrow", get_target("sm_90a"), helpers=0)
    job.import_module(Calls(compute).eval(), (x,), {})
    job.lower(level)
    return job, "\n".join(map(str, levels.functions(job.modules["kernels"]).values()))


def ran(job, x, path):
    job.write(path)
    with mlirc.load(path, device="host") as model:
        return torch.as_tensor(model(x))


@pytest.mark.parametrize("dtype, ulps", [(torch.bfloat16, 8), (torch.float16, 11)], ids=str)
@pytest.mark.parametrize("scale", [1, 30, 1000])
def test_errors_are_those_of_rounding(dtype, ulps, scale, tmp_path):
    """Half a unit of the last place of the result, and a tenth of that: also where many terms are far below the largest."""
    x = (torch.from_numpy(generator().standard_normal((5, 301), "f4")) * scale).to(dtype)
    job, text = compiled(lambda x: torch.softmax(x, -1), x)
    assert "math.exp2" in text and "math.exp " not in text
    found, right = ran(job, x, tmp_path / "n.ptx").double(), torch.softmax(x.double(), -1)
    least = max(torch.finfo(dtype).smallest_normal * 2.0**-ulps, 2.0**-126)  # below which f32 powers are 0
    assert ((found - right).abs() <= 0.55 * 2.0 ** (1 - ulps) * right + least).all()
    assert (found.sum(-1) - 1).abs().max() <= 2.0 ** -(ulps - 1)


def test_rows_that_are_not_finite(tmp_path):
    """As PyTorch: NaN where a NaN or an infinity is, and where all is -inf; zeros for other elements of -inf."""
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[1, -inf, 2, 0], [-inf] * 4, [1, nan, 2, 3], [inf, 0, 1, 2], [-inf, -inf, 5, -inf]]).bfloat16()
    job, _ = compiled(lambda x: torch.softmax(x, -1), x)
    found, right = ran(job, x, tmp_path / "n.ptx"), torch.softmax(x.float(), -1).bfloat16()
    torch.testing.assert_close(found, right, rtol=2e-2, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    "compute", [torch.nn.Softmax(-1), lambda x: torch.softmax(x.bfloat16(), -1).float()], ids=["f32", "cast"]
)
def test_wider_results_keep_exact_exponentials(compute):
    _, text = compiled(compute, torch.zeros(3, 40), "kernels")
    assert "math.exp " in text and "math.exp2" not in text


def test_sums_that_may_be_small_are_divided_by():
    """Without a maximum that is taken off, a sum may be so small that it has no finite reciprocal."""
    _, text = compiled(lambda x: x.float().exp().div(x.float().exp().sum(-1, keepdim=True)).bfloat16(),
                       torch.zeros(3, 40, dtype=torch.bfloat16), "kernels")  # fmt: skip
    assert "math.exp2" not in text and "arith.divf %cst" not in text


def test_losses(tmp_path):
    x = torch.from_numpy(generator().standard_normal((6, 999), "f4")).bfloat16() * 4
    job, text = compiled(lambda x: F.log_softmax(x, -1), x)
    assert "math.exp2" in text
    found = ran(job, x, tmp_path / "n.ptx")
    torch.testing.assert_close(found.double(), F.log_softmax(x.double(), -1), rtol=2.0**-8, atol=1e-5)
