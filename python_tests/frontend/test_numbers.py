"""Ops on integers, bits and special floats that torch-mlir lacks or computes otherwise, beside PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.check import check_torch
from mlirc.errors import MlircError
from support.models.levels import outputs
from support.models.together import Calls, below

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(3, 5, generator=G), torch.randn(3, 5, generator=G)
ODD = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, -3.0, 1e-40])
I64, I32 = torch.int64, torch.int32
I8, U8, I16 = torch.int8, torch.uint8, torch.int16


def ints(low, high, *shape, dtype=I64):
    return torch.randint(low, high, shape, generator=G).to(dtype)


def diagonals(x):
    y = x.clone()
    y.diagonal(1, 1, 2).add_(10)
    y.diagonal(-2, 2, 0).mul_(3)
    y.diagonal(0, 0, 1)[2:].zero_()
    y.diagonal(-4, 1, 2).fill_(7)
    return y, x.diagonal_scatter(x[0].T[:, :3], -1, 1, 0)


CASES = {
    "classes of floats": (lambda x: (x.isfinite(), x.isinf(), x.isnan(), x.signbit()), (ODD,)),
    "classes of halves": (lambda x: (x.isfinite(), x.signbit(), torch.isposinf(x)), (ODD.half(),)),
    "nan_to_num": (lambda x: (torch.nan_to_num(x), torch.nan_to_num(x, 1.0, 2.0, 3.0)), (ODD,)),
    "copysign": (lambda x, y: (torch.copysign(x, y), torch.copysign(x, -0.0)), (X, Y)),
    "copysign of integers": (torch.copysign, (ints(-9, 9, 7), ints(-9, 9, 7))),
    "bits of floats": (lambda x: [x.view(d) for d in (I8, U8, I16, I32)], (X,)),
    "bits of halves": (lambda x: (x.view(I16), x.bfloat16().view(I16), x.view(I8)), (X.half(),)),
    "floats of bits": (lambda x: (x.view(I32), x.view(I16), x.view(torch.float32)), (ints(0, 64, 3, 8, dtype=U8),)),
    "bits of 64": (lambda x: (x.view(I32), x.view(I8)), (ints(-(2**60), 2**60, 3),)),
    "clamp between floats": (lambda x: torch.clamp(x, -2.5, 2.5), (ints(-9, 9, 3, 5),)),
    "clamp of bytes": (lambda x: torch.clamp(x, min=-2.5), (ints(-9, 9, 3, 5, dtype=I8),)),
    "clamp keeps NaN": (lambda x, y: (x.clamp(-1, 1), x.clamp(min=y), x.clamp(y, y + 1), x.half().clamp_max(2)), (X, Y)),
    "maximum keeps NaN": (lambda x, y: (torch.maximum(x, y[0]), torch.minimum(x.half(), y)), (X, Y)),
    "activations keep NaN": (lambda x: (F.relu6(x), F.hardtanh(x), F.hardsigmoid(x), F.hardswish(x)), (X,)),
    "near zero": (lambda x: (torch.expm1(x), torch.log1p(x.abs()), F.elu(x), F.selu(x), F.celu(x)), (X,)),
    "powers": (torch.pow, (ints(-9, 9, 3, 5), ints(-3, 70, 3, 5))),
    "powers of bytes": (torch.pow, (ints(0, 9, 3, 5, dtype=U8), ints(0, 9, 5, dtype=U8))),
    "powers of mixed": (torch.pow, (ints(-9, 9, 3, 5, dtype=I8), ints(0, 9, 5))),
    "powers of numbers": (lambda x: (2**x, (-3) ** x, 2.5**x), (ints(0, 9, 3, 5),)),
    "powers of booleans": (
        lambda x: (x**2, x**0, x**True, x**0.5, torch.square(x), 2**x, (-3) ** x, 2.5**x, torch.pow(x, X[0, :1].long())),
        (X > 0,),
    ),
    "scans in a dtype": (
        lambda x: (x.cumprod(0, dtype=x.dtype), torch.masked.cumprod(x, 1, mask=x > 0), x.cumprod(1, dtype=torch.float64),
                   x[:1].cumsum(0, dtype=torch.float64), x.int().cumprod(0, dtype=x.dtype)),
        (X,),
    ),
    "elements of a mask": (
        lambda x, i: (torch.ops.aten._unsafe_masked_index(x, i[..., None] > 0, [i, None], -5.0),
                      torch.ops.aten._unsafe_masked_index_put_accumulate(x, i[..., None] > 0, [i, None], x[:2, None])),
        (X, torch.tensor([[2], [0]])),
    ),
    "floor division": (lambda x, y: (x // y, torch.div(x, 0.1, rounding_mode="floor")), (ODD[3:] * 7, ODD[3:] + 0.1)),
    "floor division is exact": (lambda x: (x // 0.1, x.half() // 0.1), (torch.tensor([1.0, 2.0, -1.0, 0.3, 0.0]),)),
    "remainders": (lambda x, y: (x.fmod(y), x.fmod(0.3), x % y, x.half().fmod(0.3)), (X * 1e7, Y)),
    "remainders of infinity": (torch.fmod, (X, torch.full((5,), float("inf")))),
    "products of bytes": (torch._int_mm, (ints(-128, 127, 17, 16, dtype=I8), ints(-128, 127, 16, 8, dtype=I8))),
    "time first": (lambda x, w, b: torch.conv_tbc(x, w, b, 2), (ints(-9, 9, 9, 4, 5).float(), X.new_ones(3, 5, 6), X.new_ones(6))),
    "norms of complex numbers": (
        lambda x: [torch.ops.aten.norm(torch.view_as_complex(x), 2), torch.ops.aten.norm(torch.view_as_complex(x), None, [0], True)]
        + [torch.linalg.vector_norm(torch.view_as_complex(x), p, 1) for p in (0, 1, 3, float("inf"))],
        (torch.randn(3, 5, 2, generator=G),),
    ),
    "narrow from FP64": (lambda x: (x.half(), x.bfloat16()), (X.double(),)),
    "FP64 numbers beside halves": (
        lambda x, y, n: (x.half() * y, x.bfloat16() + y, x.bfloat16() ** n),
        (X, torch.tensor(1 + 2.0**-9 + 2.0**-40, dtype=torch.float64), torch.tensor(3)),
    ),
    "diagonals written": (diagonals, (torch.randn(3, 5, 7, generator=G),)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_numbers(case):
    function, args = CASES[case]
    result = check_torch(Calls(function), args, levels=["tiles"])
    assert result.ok, result.reason()


@pytest.mark.parametrize("scales", [{"scale_factor": (2.3, 4.7)}, {"size": (11, 3)}, {"scale_factor": 2}])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_pixels(mode, scales):
    result = check_torch(Calls(lambda x: F.interpolate(x, mode=mode, **scales)), (torch.randn(1, 3, 2, 5),), levels=["tiles"])  # fmt: skip
    assert result.ok, result.reason()


def test_remainders_of_quotients_that_floats_do_not_hold():
    """Loops on the device, which end for padding, NaN and zeros, too."""

    def function(x, y):
        return x.fmod(y), (x * 1e25) % 3.0, (x * 1e20 % y.abs()).amax(-1), (x.double() * 1e70).fmod(y.double())

    result = check_torch(Calls(function), (torch.randn(3, 37), torch.randn(3, 37)), levels=["tiles", "gpu"])
    assert result.ok, result.reason()


def put(x, values, accumulate, *indices):
    return torch.ops.aten.index_put(x, list(indices), values, accumulate)


MASK = torch.tensor([True, False, True, True, False])
PUTS = {
    "rows": (lambda x, m, v: put(x, v, False, m), (torch.zeros(5, 7), MASK, torch.randn(3, 7, generator=G))),
    "rows added": (lambda x, m, v: put(x, v, True, m), (torch.ones(5, 7), MASK, torch.randn(3, 7, generator=G))),
    "one row": (lambda x, m, v: put(x, v, False, m), (torch.zeros(5, 7), MASK, torch.randn(7, generator=G))),
    "columns": (lambda x, m, v: put(x, v, False, None, m), (torch.zeros(2, 5, 3), MASK, torch.randn(2, 3, 3, generator=G))),
    "elements": (lambda x, m, v: put(x, v, False, m), (torch.zeros(2, 5), torch.stack([MASK, ~MASK]), torch.randn(5, generator=G))),
    "beside integers": (lambda x, i, m, v: put(x, v, False, i, m), (torch.zeros(5, 5), torch.tensor([0, 2, 4]), MASK, torch.randn(3, generator=G))),
    "two masks": (lambda x, m, n, v: put(x, v, False, m, n), (torch.zeros(5, 5), MASK, MASK.flip(0), torch.randn(3, generator=G))),
}  # fmt: skip


@pytest.mark.parametrize("case", PUTS)
def test_values_put_where_masks_are_true(case):
    """On the mask of the example: PyTorch raises where the values are another number than the true elements."""
    from mlirc import frontend
    from mlirc.host.tensors import run_level

    function, args = PUTS[case]
    imported = frontend.import_torch(frontend.from_torch(Calls(function), args))
    out = run_level(frontend.lower_to_linalg(imported), list(args), imported.constants)[0]
    assert torch.equal(out, function(*args))


VIEWS = {
    "expanded": lambda x: x[0].expand(5, 7).as_strided((2, 3), (0, 1), 0),
    "every other": lambda x: x[::2, 1:].as_strided((2, 3), (14, 2)),
    "diagonal": lambda x: x.diagonal().as_strided((3,), (8,), 1),
    "unfolded": lambda x: x.unfold(1, 3, 2).as_strided((2, 2), (7, 3), 5),
    "strided twice": lambda x: x.as_strided((3, 4), (7, 1), 2).as_strided((2, 2), (1, 9), 0),
    "split": lambda x: x.split(2, 1)[1].as_strided((2, 2), (7, 2)),
    "reshaped to a copy": lambda x: x.T.reshape(-1).as_strided((2, 3), (7, 2), 1),
    "permuted": lambda x: (x + 1).T.as_strided((3, 2), (2, 7)),
}


@pytest.mark.parametrize("level", ["tiles", "gpu"])
def test_views_by_strides(level):
    result = check_torch(Calls(lambda x: [view(x) for view in VIEWS.values()]), (torch.randn(3, 7),), levels=[level])
    assert result.ok, result.reason()


def test_a_result_in_a_tensor_of_another_shape_is_refused():
    with pytest.raises(MlircError, match=r"shape \[12\] into a tensor of shape \[3, 4\]"):
        check_torch(Calls(lambda x: torch.arange(12, out=x)), (torch.zeros(3, 4, dtype=I64),))


def test_bytes_at_the_gpu_level_and_named_tuples():
    def function(x, y):
        return x + 200, x.float(), torch.ops.aten.nll_loss_forward(y, x[:, 0].long() % 5, None, 1, 2)

    result = check_torch(Calls(function), (below(256, 3, 4).to(U8), Y), levels=["tiles", "gpu"])
    assert result.ok, result.reason()


def test_gradients_inside_of_a_model_are_refused_in_pytorchs_words():
    with pytest.raises(MlircError, match="cannot be exported: RuntimeError: Cannot access data pointer"):
        check_torch(Calls(lambda x: torch.func.grad(lambda y: (y**3).sum())(x)), (X,))


@pytest.mark.parametrize("level", ["tiles", "gpu"])
@pytest.mark.parametrize("dtype", [I8, U8, I16, I32, I64])
def test_common_divisors_and_multiples(dtype, level):
    """Every step that the worst numbers need, which are Fibonacci's; sizes that the dtype does not hold."""
    info, worst = torch.iinfo(dtype), [1, 1]
    while sum(worst[-2:]) <= info.max:
        worst.append(sum(worst[-2:]))
    least = info.min + (dtype.itemsize >= 4)  # PyTorch itself divides the least value by -1
    values = torch.tensor([least, info.max, 0, 1, 12, 18, 100, *worst[-2:], *([-1, -6] if info.min else [])])
    pairs = torch.cat([torch.cartesian_prod(values, values), ints(info.min // 2, info.max // 2, 20, 2)]).to(dtype)
    given = pairs[:, 0].contiguous(), pairs[:, 1].contiguous()

    def function(x, y):
        return torch.gcd(x, y), torch.lcm(x, y), torch.gcd(x, torch.tensor(12, dtype=x.dtype))

    for got, want in zip(outputs(function, given, level), function(*given), strict=True):
        assert torch.equal(got, want), pairs[got != want]
