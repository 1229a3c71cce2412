"""`--quantize ...,conv`: convolutions of few bits, beside the quantized PyTorch model in FP64."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import mlirc
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, packed_as
from mlirc.frontend.quantize.convolutions import QuantizedConvolution, ScaledConvolution
from mlirc.targets import get_target

BF16, F32 = torch.bfloat16, torch.float32
CASES = {
    "bytes": ("int8:conv", nn.Conv2d(24, 18, 3, 2, 1), (2, 24, 9, 7), BF16),
    "bytes, groups": ("int8:conv", nn.Conv2d(32, 12, (3, 2), padding=(1, 0), groups=2, bias=False), (1, 32, 5, 7), F32),
    "4 bits of one dimension": ("int4:group=32,asymmetric,conv", nn.Conv1d(17, 9, 4, 3, 1), (2, 17, 26), BF16),
    "8-bit floats": ("fp8:conv", nn.Conv2d(40, 33, 1), (1, 40, 5, 7), BF16),
    "both of 8 bits": ("fp8:dynamic,conv", nn.Conv2d(40, 24, 3, padding="same", dilation=2), (3, 40, 9, 7), BF16),
    "both, in f32": ("fp8:dynamic,conv", nn.Conv3d(16, 5, 2, bias=False), (2, 16, 3, 4, 5), F32),
    "both, mirrored": ("fp8:dynamic,conv", nn.Conv1d(48, 7, 3, padding=2, padding_mode="reflect"), (2, 48, 11), BF16),
    "both, one image": ("fp8:dynamic,conv", nn.Conv2d(16, 7, 3), (16, 6, 5), BF16),
}


def wide(module: nn.Module, scheme: str, x: torch.Tensor) -> torch.Tensor:
    """What the quantized model computes of the same numbers, in FP64 behind its roundings."""
    source = packed_as(from_torch(module, (x,)), scheme)
    with torch.no_grad():
        return copy.deepcopy(source.module).double()(x.double())


@pytest.mark.parametrize("case", CASES)
def test_beside_pytorch(case):
    scheme, layer, shape, dtype = CASES[case]
    module, x = nn.Sequential(layer, nn.SiLU()).eval().to(dtype), torch.randn(shape).to(dtype)
    x[0] *= 30  # each image of a batch has a scale of its own
    found = mlirc.compile(module, (x,), quantize=scheme, device="host")(x)
    assert found.dtype == dtype and relative_error(found, wide(module, scheme, x)) <= gate_of(dtype, 0)
    assert relative_error(found, module(x)) < {"int8": 0.02, "int4": 0.15}.get(scheme[:4], 0.06)


def test_convolutions_are_of_8_bit_floats_where_both_are():
    layer, x = nn.Conv2d(64, 40, 3, padding=1).to(BF16), torch.randn(2, 64, 8, 9).to(BF16)
    job = Compilation("m", get_target("sm_90a"), (), helpers=0)
    job.import_module(layer, (x,), {}, quantize="fp8:dynamic,conv")
    job.lower("kernels")
    (signature,) = re.findall(r"@matmul_0\((%arg0.*?)\) ->", job.text("kernels"))
    assert re.findall(r"x([a-z]\w+)>", signature)[:2] == ["f8E4M3FN"] * 2


def test_which_convolutions_are_taken():
    """With `conv` those of 16 channels and more for each result: no stem, no depthwise one, none without the word."""
    module = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 16, 1)).eval()
    x, layer = torch.randn(1, 3, 9, 9), nn.Linear(5, 4)

    def kinds(scheme: str) -> list[type]:
        return [type(m) for m in packed_as(from_torch(nn.Sequential(module, layer), (x,)), scheme).module[0]]

    assert kinds("int8") == [nn.Conv2d] * 3
    assert kinds("int8:conv") == [nn.Conv2d, nn.Conv2d, QuantizedConvolution]
    assert kinds("fp8:dynamic,conv") == [nn.Conv2d, nn.Conv2d, ScaledConvolution]
    assert isinstance(module[2], nn.Conv2d)
    with pytest.raises(MlircError, match="give int8:conv, which takes its convolutions"):
        packed_as(from_torch(module, (x,)), "int8")
    with pytest.raises(MlircError, match="of its own: leave it out"):
        packed_as(from_torch(module[:2], (x,)), "int8:conv")
