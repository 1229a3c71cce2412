"""Fake quantization by tensor and by channel, beside PyTorch: halves, elements out of range, what is not finite."""

from __future__ import annotations

import pytest
import torch

from mlirc.frontend.decompositions_fake_quantize import FAKE_QUANTIZATIONS
from support.models.together import check_together, randn

aten = torch.ops.aten
ODD = [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 2e19, 0.25, 0.75, -0.25, -0.75, -0.0, 1e10]
ZEROS = torch.tensor([0, 5, -3], dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_elements_and_masks_are_those_of_pytorch(dtype):
    g = torch.Generator().manual_seed(0)
    odd = torch.tensor(ODD if dtype != torch.float16 else [x for x in ODD if abs(x) < 1e4 or x != x])
    x = torch.cat([torch.randn(3, 400, generator=g) * 20, odd.expand(3, -1)], 1).to(dtype)
    scales = torch.rand(3, generator=g) + 0.1
    number, tensors = aten.fake_quantize_per_tensor_affine_cachemask.default, torch.tensor
    given = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    calls = [(number, (x, float(s), int(z), -8, 90)) for s, z in zip(scales, ZEROS, strict=True)]
    calls += [(given, (x, scales[:1], ZEROS[1:2], tensors([on]), 0, 255)) for on in (0, 1)]
    by_channel = aten.fake_quantize_per_channel_affine_cachemask.default
    for zeros in (ZEROS, *(() if dtype == torch.float64 else (ZEROS + 0.25, (ZEROS + 0.25).half()))):
        calls += [(by_channel, (x, scales, zeros, 0, -128, 127)), (by_channel, (x.T, scales, zeros, 1, -4, 11))]
    for op, args in calls:
        for found, expected in zip(FAKE_QUANTIZATIONS[op](*args), op(*args), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_at_every_level():
    x = torch.tensor([[0.25, 0.75, -0.25, -0.75, 1.25], [1.0, 3.0, -1.0, -3.0, 5.0], [300.0, -300.0, 0.0, 1.0, 2.0]])
    scales = torch.tensor([0.5, 2.0, 1.0])
    check_together([
        (lambda x: torch.fake_quantize_per_channel_affine(x, scales, ZEROS, 0, -128, 127), (x,)),
        (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 255), (x,)),
        (lambda x: torch.fake_quantize_per_tensor_affine(x, scales[0], ZEROS[1], -8, 7), (x,)),
        (lambda x: torch.fake_quantize_per_channel_affine(x, scales, ZEROS + 0.5, 1, -4, 11), (randn(2, 3, 5).half(),)),
    ], kinds=["plain", "floats x100", "one NaN"])  # fmt: skip
