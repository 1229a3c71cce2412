"""8-bit floats in models: conversions, what PyTorch computes with them, products with scales."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mlirc.check import check_torch
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from mlirc.frontend.inputs import parse_input
from mlirc.frontend.weights import write_weights
from mlirc.host.tensors import run_level
from mlirc.runtime.arrays import NUMPY_DTYPES, view
from mlirc.runtime.weights import WeightFile
from support.models.integer_ops import compiled
from support.models.together import Calls, check_together

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
G = torch.Generator().manual_seed(0)


def randn(*shape, dtype=E4, size=1.0):
    return (torch.randn(shape, generator=G) * size).to(dtype)


A, B = randn(5, 7), randn(5, 7)
X = randn(13, 5, dtype=torch.float32, size=200.0)
MOVES = [
    (lambda a, b: (torch.cat([a, b]), torch.where(a == b, a, b), torch.stack([a, b])), (A, B)),
    (lambda a: (nn.functional.pad(a, (1, 2)), a.flip(0), a.roll(1, 0), a[:, ::2], a.t().contiguous()), (A,)),
    (lambda i, w: nn.functional.embedding(i, w), (torch.tensor([1, 0, 4]), A)),
    (lambda a: (a.view(torch.uint8), a[:, :6].contiguous().view(torch.int16)), (A,)),
    (lambda i: (i.view(E4).float(), i.view(E5).float()), (torch.arange(256, dtype=torch.uint8),)),
]
COMPUTED = [
    (lambda a, b: (a.abs(), a * b, a == b, a.isnan()), (A, B)),
    (lambda a: (a.to(E5), a.bool(), a.half(), a.bfloat16(), a.double()), (A,)),
    (lambda x: (x.to(E4), x.to(E5), x.half().to(E4), x.bfloat16().to(E5), (x > 0).to(E4)), (X,)),
    (lambda i, d: (i.to(E4), d.to(E5)), (torch.arange(-7, 8) * 99, torch.randn(7, dtype=torch.float64) * 1e4)),
]


def test_moves():
    check_together(MOVES)


def test_computed_in_f32():
    check_together(COMPUTED, kinds=("plain", "floats x100", "one NaN", "one infinity"))


def test_too_large_is_the_largest_number():
    numbers = torch.tensor([464.0, 464.1, 480.0, 1e30, -1e30, torch.inf, -torch.inf, torch.nan])
    numbers = torch.cat([numbers, torch.tensor([61439.0, 61440.0, 65536.0])])
    result = check_torch(
        Calls(lambda x: (x.to(E4).view(torch.uint8), x.to(E5).view(torch.uint8))), (numbers,), levels=["tiles"]
    )
    assert result.ok, result.reason()
    # And on the very numbers: the check makes up its own.
    job = compiled(Calls(lambda x: (x.to(E4), x.to(E5))), (numbers,), "linalg")
    found = run_level(job.modules["linalg"], (numbers,), job.tensors())
    for out, dtype in zip(found, (E4, E5), strict=True):
        wanted = numbers.to(dtype)
        torch.testing.assert_close(out.float(), wanted.float(), rtol=0, atol=0, equal_nan=True)


def scaled(out_dtype, **more):
    def function(a, b, scale_a, scale_b, bias=None):
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, bias, out_dtype=out_dtype, **more)

    return function


ONE, TWO = torch.tensor(0.5), torch.tensor(0.25)
PRODUCTS = {
    "per tensor": (scaled(torch.bfloat16), (randn(33, 64), randn(48, 64), ONE, TWO)),
    "rows, bias": (
        scaled(torch.bfloat16),
        (randn(37, 80), randn(48, 80), torch.rand(37, 1), torch.rand(1, 48), randn(48, dtype=torch.bfloat16)),
    ),
    "of two types": (scaled(torch.float16, use_fast_accum=True), (randn(16, 32, dtype=E5), randn(16, 32), ONE, TWO)),
    "in 8 bits": (scaled(E4), (randn(33, 64), randn(16, 64), ONE, TWO)),
    "in f32": (scaled(torch.float32), (randn(33, 64), randn(16, 64), ONE, TWO)),
    "written out": (lambda a, b: (a.float() @ b.float()).bfloat16(), (randn(33, 67), randn(67, 41))),
    "in bf16": (lambda a, b: a.bfloat16() @ b.bfloat16(), (randn(7, 64), randn(64, 40))),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case):
    function, args = PRODUCTS[case]
    result = check_torch(Calls(function), args, levels=["tiles", "gpu"], kinds=["plain", "one NaN"])
    assert result.ok, result.reason()


@pytest.mark.parametrize(
    ("recipe", "scales"),
    [("TensorWise", (ONE, TWO)), ("RowWise", (torch.rand(33, 1, generator=G), torch.rand(1, 48, generator=G)))],
)
def test_the_public_function(recipe, scales):
    """`torch.nn.functional.scaled_mm`, which PyTorch has for CUDA alone."""
    kind, a, b = getattr(nn.functional.ScalingType, recipe), randn(33, 64), randn(48, 64)
    module = Calls(lambda a, b, x, y: nn.functional.scaled_mm(a, b.t(), x, kind, y, kind, output_dtype=torch.bfloat16))
    job = compiled(module, (a, b, *scales), "linalg")
    (found,) = run_level(job.modules["linalg"], (a, b, *scales), job.tensors())
    wanted = (a.float() @ b.float().t() * scales[0] * scales[1]).bfloat16()
    torch.testing.assert_close(found, wanted)


def test_weights_in_files(tmp_path):
    tensors = {"e4m3": randn(3, 5), "e5m2": randn(7, dtype=E5)}
    write_weights(tmp_path / "w.safetensors", tensors)
    file = WeightFile(tmp_path / "w.safetensors")
    assert {name: e.dtype for name, e in file.entries.items()} == {"e4m3": "f8E4M3FN", "e5m2": "f8E5M2"}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(file.array(name).view(np.uint8), tensor.view(torch.uint8).numpy())


class Quantized(nn.Module):
    """A linear layer with its weights in 8 bits, and its input rounded to them by its largest element."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(randn(48, 80), requires_grad=False)
        self.register_buffer("scale", torch.tensor(0.125))

    def forward(self, x):
        scale = x.abs().amax().float() / 448
        rounded = (x.float() / scale).clamp(-448, 448).to(E4)
        return torch._scaled_mm(rounded, self.weight.t(), scale, self.scale, out_dtype=torch.bfloat16)


def test_a_quantized_layer():
    result = check_torch(Quantized(), (randn(17, 80, dtype=torch.bfloat16),), levels=["tiles", "gpu"], kinds=["plain"])
    assert result.ok, result.reason()


def test_scales_of_blocks_are_refused():
    blocks = torch.rand(2, 128).t()  # of 128 along k, whose strides PyTorch looks at
    source = from_torch(Calls(scaled(torch.bfloat16)), (randn(128, 256), randn(128, 256), blocks, blocks.t()))
    with pytest.raises(MlircError, match=r"scale_a has shape \[128, 2\]: supported are one number and \[128, 1\]"):
        import_torch(source)


def test_names():
    assert parse_input("x=f8e4m3[2,3]").dtype == parse_input("x=float8_e4m3fn[2,3]").dtype == E4
    assert str(parse_input("x=f8e5m2[2]")) == "x=f8E5M2[2]"


@pytest.mark.parametrize(("name", "dtype"), [("f8E4M3FN", E4), ("f8E5M2", E5)])
def test_tensors_are_seen_where_they_lie(name, dtype):
    tensor = randn(3, 5, dtype=dtype)
    seen = view(tensor, "x")
    assert (seen.dtype, seen.shape, seen.pointer, seen.nbytes) == (name, (3, 5), tensor.data_ptr(), 15)
    array = tensor.view(torch.uint8).numpy().view(NUMPY_DTYPES[name])
    assert view(array, "x").dtype == name
    np.testing.assert_array_equal(array.astype(np.float32), tensor.float().numpy())
