"""Convolutions of 8-bit floats and bytes, which models widen first, are GEMMs of what is in memory."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, check_together

E4, E5, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


def floats(*shape, dtype=E4):
    return torch.randn(shape).to(dtype)


def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def widened(wide=torch.float32, out=BF16, **how):
    """A convolution of what is widened first."""
    return lambda x, w, *b: CONVOLUTIONS[x.dim()](x.to(wide), w.to(wide), *b, **how).to(out)


def level_of(function, args, level, target="sm_90a"):
    job = Compilation("model", get_target(target), (), helpers=0)
    job.import_module(Calls(function), args, {})
    job.lower(level)
    return job.text(level)


def test_every_level():
    check_together([
        (widened(padding=1), (floats(2, 24, 9, 7), floats(20, 24, 3, 3))),
        (widened(BF16, stride=2, padding=1), (floats(1, 5, 8, 7), floats(6, 5, 3, 3, dtype=E5))),
        (widened(out=torch.float32, padding=1, groups=2), (floats(1, 34, 5, 7), floats(6, 17, 3, 3))),
        (widened(torch.int32, torch.int32, padding=(0, 1)), (integers(2, 17, 6, 5), integers(7, 17, 2, 3))),
        (lambda x, w: F.conv2d(x, w, padding=1, stride=2), (integers(1, 20, 7, 9), integers(5, 20, 3, 3))),
        (widened(out=E4, padding=1), (floats(2, 16, 11, dtype=BF16), floats(7, 16, 3, dtype=BF16))),
        (lambda x, w: F.conv_transpose2d(x.float(), w.float(), stride=2), (floats(1, 16, 4, 5), floats(16, 9, 3, 2))),
    ], kinds=["plain"])  # fmt: skip


F32, I32 = torch.float32, torch.int32
ON_TENSOR_CORES = {  # the type that wgmma reads, and the channels of a tap in the rows that im2col copies bring
    "32 channels": ({"padding": 1}, (F32, BF16), (floats(2, 32, 9, 7), floats(24, 32, 3, 3)), "e4m3", 32),
    "64 of two types": ({"padding": 2, "dilation": 2}, (BF16, BF16),
                        (floats(1, 48, 9, 7), floats(40, 48, 3, 3, dtype=E5)), "e5m2", 64),
    "a stem's three": ({"padding": 3, "stride": 2}, (F32, BF16), (floats(1, 3, 23, 19), floats(16, 3, 7, 7)), "e4m3", 32),
    "one dimension": ({"padding": 1}, (F32, E4), (floats(3, 144, 35), floats(24, 144, 3)), "e4m3", 192),
    "bytes": ({"padding": 1}, (I32, I32), (integers(1, 24, 9, 7), integers(24, 24, 3, 3)), "s8", 32),
}  # fmt: skip


@pytest.mark.parametrize("case", ON_TENSOR_CORES)
def test_im2col_copies_bring_windows_of_8_bits(case):
    """Beside FP64 of the same numbers: off by one rounding to the result's type, and bytes exact."""
    how, types, args, kind, channels = ON_TENSOR_CORES[case]
    function = widened(*types, **how)
    text = level_of(function, args, "gpu")
    assert f"<{kind}>" in text and "wgmma.mma_async" in text and "tma_load_mode<im2col>" in text
    assert f"channels = {channels} " in level_of(function, args, "kernels")
    found = mlirc.compile(Calls(function), args, device="host")(*args)
    wanted = function(*args)
    assert found.dtype == wanted.dtype
    if kind == "s8":
        assert torch.equal(found, wanted)
        return
    exact = CONVOLUTIONS[args[0].dim()](*(v.double() for v in args), **how)
    error = (found.double() - exact).norm() / exact.norm()
    assert error < {BF16: 3e-3, E4: 0.04}[wanted.dtype]


def test_what_widens_operands_is_in_no_kernel_of_its_own():
    def operands(function, *args, target="sm_90a"):
        text = level_of(function, args, "kernels", target)
        (signature,) = re.findall(r"@matmul_0\((%arg0.*?)\) ->", text)
        return re.findall(r"x([a-z]\w+)>", signature)

    x, w = floats(1, 32, 9, 7), floats(24, 32, 3, 3)
    assert operands(widened(padding=1), x, w) == ["f8E4M3FN"] * 2
    assert operands(widened(padding=1), x, w, target="sm_80") == ["f8E4M3FN"] * 2
    assert operands(lambda x, w: F.conv2d(F.pad(x.float(), (1, 2, 0, 1)), w.float().flip(2)), x, w) == ["f8E4M3FN"] * 2
    assert operands(lambda x, w: F.conv_transpose2d(x.float(), w.float(), stride=2), x, floats(32, 24, 3, 3)) == (
        ["f8E4M3FN"] * 2
    )
    assert operands(widened(), x.to(BF16), w.to(BF16)) == ["bf16"] * 2
    # Of two types that no instruction multiplies, and of what is no number of 8 bits any more.
    assert operands(widened(), x, w.to(BF16)) == ["f32"] * 2
    assert operands(lambda x, w: F.conv2d(x.float() * 0.1, w.float()), x, w) == ["f32"] * 2
