"""The integer and boolean ops that every level must compute exactly as PyTorch does, and inputs with all extremes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch

from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target

DTYPES = {
    "bool": torch.bool, "u8": torch.uint8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64,
}  # fmt: skip
NOT_BOOL = tuple(d for d in DTYPES if d != "bool")


def extremes(dtype: torch.dtype) -> list[int]:
    """Values at which integer arithmetic goes wrong."""
    if dtype == torch.bool:
        return [0, 1]
    info = torch.iinfo(dtype)
    near = {0, 1, 2, 3, 7, 100, -1, -2, -3, -7, -100, info.min, info.min + 1, info.max, info.max - 1, info.max // 2}
    near |= {128, 200, 255, 8589934591, -8589934591, (1 << 53) + 1, -(1 << 53) - 1, (1 << 31) + 5, 65537, -65537}
    return sorted(v for v in near if info.min <= v <= info.max)


def pairs(dtype: torch.dtype, *, divisors: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Every pair of extremes as two vectors; with `divisors` only the pairs that PyTorch can divide."""
    least = None if dtype == torch.bool else torch.iinfo(dtype).min
    found = [
        (a, b)
        for a, b in product(extremes(dtype), repeat=2)
        if not divisors or (b != 0 and not (b == -1 and a == least))
    ]
    return tuple(torch.tensor(side, dtype=torch.int64).to(dtype) for side in zip(*found, strict=True))  # type: ignore


def ranks(dtype: torch.dtype) -> torch.Tensor:
    """A [3, n] tensor of extremes in three orders, for what reduces and orders."""
    values = torch.tensor(extremes(dtype), dtype=torch.int64)
    count = len(values)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(count))
    return torch.stack([values, values.flip(0), values[order]]).to(dtype)


Op = tuple[Callable, tuple[str, ...]]

BINARY: dict[str, Op] = {
    "add": (lambda x, y: x + y, tuple(DTYPES)),
    "sub": (lambda x, y: x - y, NOT_BOOL),
    "mul": (lambda x, y: x * y, tuple(DTYPES)),
    "maximum": (torch.maximum, tuple(DTYPES)),
    "minimum": (torch.minimum, tuple(DTYPES)),
    "lt": (lambda x, y: x < y, tuple(DTYPES)),
    "le": (lambda x, y: x <= y, tuple(DTYPES)),
    "gt": (lambda x, y: x > y, tuple(DTYPES)),
    "ge": (lambda x, y: x >= y, tuple(DTYPES)),
    "eq": (lambda x, y: x == y, tuple(DTYPES)),
    "ne": (lambda x, y: x != y, tuple(DTYPES)),
    "and": (lambda x, y: x & y, tuple(DTYPES)),
    "or": (lambda x, y: x | y, tuple(DTYPES)),
    "xor": (lambda x, y: x ^ y, tuple(DTYPES)),
    "logical_and": (torch.logical_and, tuple(DTYPES)),
    "logical_or": (torch.logical_or, tuple(DTYPES)),
    "logical_xor": (torch.logical_xor, tuple(DTYPES)),
    "where": (lambda x, y: torch.where(x > y, x, y), tuple(DTYPES)),
    "where_scalar": (lambda x, y: torch.where(x != y, x, 1), tuple(DTYPES)),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=3), NOT_BOOL),
    "sub_alpha": (lambda x, y: torch.sub(x, y, alpha=2), NOT_BOOL),
    "mixed_float": (lambda x, y: x.float() * y, tuple(DTYPES)),
    "mixed_add_float": (lambda x, y: x + y.float() * 0.5, tuple(DTYPES)),
    "mixed_i64": (lambda x, y: x + y.long(), tuple(DTYPES)),
    "mixed_i32": (lambda x, y: x * y.int(), tuple(DTYPES)),
    "mixed_i8": (lambda x, y: x + y.to(torch.int8), tuple(DTYPES)),
    "mixed_bool": (lambda x, y: x + (y > 1), tuple(DTYPES)),
    "mixed_lt": (lambda x, y: x < y.long(), tuple(DTYPES)),
    "mixed_lt_i8": (lambda x, y: x < y.to(torch.int8), tuple(DTYPES)),
    "true_divide": (lambda x, y: x / y, tuple(DTYPES)),
    "squared_difference": (lambda x, y: (x - y) ** 2, NOT_BOOL),
    "masked_fill": (lambda x, y: x.masked_fill(y > 1, 1), tuple(DTYPES)),
    "clamp_tensor": (lambda x, y: torch.clamp(x, min=y), NOT_BOOL),
    "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=2), NOT_BOOL),
    "rsub": (lambda x, y: torch.rsub(x, y), NOT_BOOL),
    "stacked_max": (lambda x, y: torch.stack([x, y]).amax(0), tuple(DTYPES)),
    "shift_left": (lambda x, y: x << (y & 7), NOT_BOOL),
    "shift_right": (lambda x, y: x >> (y & 7), NOT_BOOL),
}

DIVIDING: dict[str, Op] = {
    "floordiv": (lambda x, y: x // y, NOT_BOOL),
    "mod": (lambda x, y: x % y, NOT_BOOL),
    "div_floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), NOT_BOOL),
    "div_trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), NOT_BOOL),
    "fmod": (lambda x, y: torch.fmod(x, y), NOT_BOOL),
    "remainder": (torch.remainder, NOT_BOOL),
    "floor_divide": (torch.floor_divide, NOT_BOOL),
    "floordiv_mixed": (lambda x, y: x // y.long(), NOT_BOOL),
    "mod_mixed": (lambda x, y: x.long() % y, NOT_BOOL),
    "scalar_floordiv": (lambda x, y: [x // 3, x // 7, x // 100], tuple(DTYPES)),
    "negative_floordiv": (lambda x, y: [x // -3, x % -7], tuple(d for d in NOT_BOOL if d != "u8")),
    "scalar_mod": (lambda x, y: [x % 3, x % 7, torch.fmod(x, 5)], NOT_BOOL),
    "scalar_div_floor": (lambda x, y: torch.div(x, 3, rounding_mode="floor"), NOT_BOOL),
    "scalar_div_trunc": (lambda x, y: torch.div(x, 3, rounding_mode="trunc"), NOT_BOOL),
    "scalar_remainder": (lambda x, y: torch.remainder(100, y), NOT_BOOL),
    "scalar_over": (lambda x, y: 100 // y, NOT_BOOL),
    "float_floordiv": (lambda x, y: x // 2.5, NOT_BOOL),
}

UNARY: dict[str, Op] = {
    "neg": (lambda x: -x, NOT_BOOL),
    "abs": (torch.abs, NOT_BOOL),
    "relu": (torch.relu, NOT_BOOL),
    "sign": (torch.sign, tuple(DTYPES)),
    "square": (torch.square, NOT_BOOL),
    "not": (lambda x: ~x, tuple(DTYPES)),
    "logical_not": (torch.logical_not, tuple(DTYPES)),
    "clamp": (lambda x: x.clamp(3, 100), NOT_BOOL),
    "clamp_min": (lambda x: x.clamp(min=2), NOT_BOOL),
    "clamp_max": (lambda x: x.clamp(max=2), NOT_BOOL),
    "float": (lambda x: x.float(), tuple(DTYPES)),
    "double": (lambda x: x.double(), tuple(DTYPES)),
    "to_bool": (lambda x: x.bool(), tuple(DTYPES)),
    "to_i8": (lambda x: x.to(torch.int8), tuple(DTYPES)),
    "to_u8": (lambda x: x.to(torch.uint8), tuple(DTYPES)),
    "to_i16": (lambda x: x.to(torch.int16), tuple(DTYPES)),
    "to_i32": (lambda x: x.to(torch.int32), tuple(DTYPES)),
    "to_i64": (lambda x: x.to(torch.int64), tuple(DTYPES)),
    "through_u8": (lambda x: x.to(torch.uint8).to(torch.int64) + 1, tuple(DTYPES)),
    "add_scalar": (lambda x: x + 5, tuple(DTYPES)),
    "sub_scalar": (lambda x: x - 5, NOT_BOOL),
    "rsub_scalar": (lambda x: 5 - x, NOT_BOOL),
    "mul_scalar": (lambda x: x * 3, tuple(DTYPES)),
    "float_scalar": (lambda x: x * 0.5 + 1, tuple(DTYPES)),
    "lt_scalar": (lambda x: [x < 3, x > 100, x >= 1, x <= 2, x == 1, x != 1], tuple(DTYPES)),
    "lt_negative": (lambda x: [x < -1, x > -3, x == -1], tuple(d for d in NOT_BOOL if d != "u8")),
    "lt_float": (lambda x: [x < 2.5, x > 0.5], tuple(DTYPES)),
    "pow2": (lambda x: x**2, NOT_BOOL),
    "pow3": (lambda x: x**3, NOT_BOOL),
    "pow_half": (lambda x: (x & 63) ** 0.5, NOT_BOOL),
    "shift_scalar": (lambda x: [x << 2, x >> 2], NOT_BOOL),
    "and_scalar": (lambda x: [x & 3, x | 8, x ^ 5], NOT_BOOL),
    "sqrt": (lambda x: torch.sqrt(x & 63), NOT_BOOL),
    "isin": (lambda x: torch.isin(x, torch.tensor([1, 3])), NOT_BOOL),
    "full_like": (lambda x: torch.full_like(x, 1) + x, tuple(DTYPES)),
    "zeros_like": (lambda x: x * torch.zeros_like(x), tuple(DTYPES)),
    "floor": (lambda x: [torch.floor(x), torch.ceil(x), torch.round(x), torch.trunc(x)], NOT_BOOL),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 2), value=1), tuple(DTYPES)),
    "isnan": (lambda x: [torch.isnan(x), torch.isfinite(x)], tuple(DTYPES)),
    "nonzero_count": (lambda x: torch.count_nonzero(x), tuple(DTYPES)),
    "iota": (lambda x: x + torch.arange(x.shape[0], dtype=x.dtype, device=x.device), NOT_BOOL),
}

REDUCING: dict[str, Op] = {
    "sum": (lambda x: [x.sum(), x.sum(1), x.sum(0, keepdim=True)], tuple(DTYPES)),
    "sum_narrow": (lambda x: x.sum(1, dtype=x.dtype), NOT_BOOL),
    "sum_i32": (lambda x: x.sum(1, dtype=torch.int32), tuple(DTYPES)),
    "sum_float": (lambda x: (x & 7).sum(1, dtype=torch.float32), NOT_BOOL),
    "prod": (lambda x: [x.prod(), x.prod(1)], tuple(DTYPES)),
    "mean_float": (lambda x: (x & 63).mean(1, dtype=torch.float32), NOT_BOOL),
    "mean_double": (lambda x: (x & 63).double().mean(1), NOT_BOOL),
    "var": (lambda x: (x & 63).double().var(1), NOT_BOOL),
    "amax": (lambda x: [x.amax(1), x.amax()], tuple(DTYPES)),
    "amin": (lambda x: [x.amin(1), x.amin(0)], tuple(DTYPES)),
    "max_all": (lambda x: [x.max(), x.min()], tuple(DTYPES)),
    "max_dim": (lambda x: list(x.max(1)), tuple(DTYPES)),
    "min_dim": (lambda x: list(x.min(1)), tuple(DTYPES)),
    "aminmax": (lambda x: list(torch.aminmax(x)), tuple(DTYPES)),
    "argmax": (lambda x: [x.argmax(1), x.argmin(1), x.argmax()], NOT_BOOL),
    "any": (lambda x: [x.any(), x.any(1)], tuple(DTYPES)),
    "all": (lambda x: [x.all(), x.all(1)], tuple(DTYPES)),
    "cumsum": (lambda x: x.cumsum(1), tuple(DTYPES)),
    "cumsum_narrow": (lambda x: x.cumsum(1, dtype=x.dtype), NOT_BOOL),
    "cumprod": (lambda x: x.cumprod(1), NOT_BOOL),
    "sort": (lambda x: x.sort(1)[0], tuple(DTYPES)),
    "sort_down": (lambda x: x.sort(1, descending=True)[0], tuple(DTYPES)),
    "stable_sort": (lambda x: list(torch.sort(x, dim=1, stable=True)), tuple(DTYPES)),
    "argsort": (lambda x: torch.argsort(x, dim=1, stable=True), tuple(DTYPES)),
    "topk": (lambda x: x.topk(2, 1)[0], NOT_BOOL),
    "bottomk": (lambda x: x.topk(2, 1, largest=False)[0], NOT_BOOL),
    "kthvalue": (lambda x: x.kthvalue(2, 1)[0], NOT_BOOL),
    "index": (lambda x: x[:, torch.tensor([1, 0, 1])], tuple(DTYPES)),
    "gather": (lambda x: x.gather(1, x.new_zeros((3, 2), dtype=torch.int64) + 1), tuple(DTYPES)),
    "cat": (lambda x: torch.cat([x, x.flip(1)], 1), tuple(DTYPES)),
    "cat_mixed": (lambda x: torch.cat([x, torch.ones(3, 1, dtype=torch.int32)], 1), tuple(DTYPES)),
    "movement": (lambda x: x.t().reshape(-1)[1:].roll(1), tuple(DTYPES)),
    "matmul": (lambda x: x @ x.t(), NOT_BOOL),
    "diff": (lambda x: torch.diff(x), tuple(DTYPES)),
    "tril": (lambda x: [x.tril(), x.triu(1)], tuple(DTYPES)),
    "scatter": (lambda x: x.scatter(1, torch.tensor([[1], [0], [1]]), x[:, :1]), tuple(DTYPES)),
    "scatter_add": (lambda x: x.scatter_add(1, torch.tensor([[1], [0], [1]]), x[:, :1]), NOT_BOOL),
    "one_hot": (lambda x: torch.nn.functional.one_hot((x & 3).long(), 4), NOT_BOOL),
    "equals": (lambda x: (x[:, :, None] == x[:, None, :]).sum(-1), tuple(DTYPES)),
    "flip": (lambda x: x.flip(0), tuple(DTYPES)),
    "repeat": (lambda x: x.repeat(2, 1).repeat_interleave(2, 1), tuple(DTYPES)),
}  # fmt: skip


def cases(name: str) -> dict[str, tuple[Callable, tuple[torch.Tensor, ...]]]:
    """By op: the function and its inputs of dtype `name`."""
    dtype = DTYPES[name]
    found: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]] = {}
    groups = ((BINARY, pairs(dtype)), (DIVIDING, pairs(dtype, divisors=True)), (UNARY, pairs(dtype)[:1]),
              (REDUCING, (ranks(dtype),)))  # fmt: skip
    for table, inputs in groups:
        found |= {op: (function, inputs) for op, (function, known) in table.items() if name in known}
    return found


class Calls(torch.nn.Module):
    """Calls functions, each with inputs of its own."""

    def __init__(self, functions: dict[str, Callable], counts: list[int]):
        super().__init__()
        self.functions, self.counts = functions, counts

    def forward(self, *inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        found, at = {}, 0
        for (name, function), count in zip(self.functions.items(), self.counts, strict=True):
            out = function(*inputs[at : at + count])
            at += count
            for i, part in enumerate([out] if isinstance(out, torch.Tensor) else out):
                found[f"{name}_{i}"] = part
        return found


def together(found: dict[str, tuple[Callable, tuple[torch.Tensor, ...]]]) -> tuple[Calls, tuple[torch.Tensor, ...]]:
    functions = {name: function for name, (function, _) in found.items()}
    module = Calls(functions, [len(inputs) for _, inputs in found.values()]).eval()
    return module, tuple(t for _, inputs in found.values() for t in inputs)


def compiled(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], level: str) -> Compilation:
    job = Compilation("model", get_target("sm_80"))
    job.import_module(module, inputs, {})
    job.lower(level)
    return job


def differences(want: dict[str, torch.Tensor], got: list[torch.Tensor]) -> list[str]:
    """What is not exactly PyTorch's; floats of sums and quotients may differ in their last bits."""
    assert len(want) == len(got)
    found = []
    for (name, theirs), ours in zip(want.items(), got, strict=True):
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            found.append(f"{name}: {ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}")
        elif theirs.is_floating_point():
            if not torch.allclose(ours.double(), theirs.double(), rtol=1e-6, atol=0, equal_nan=True):
                found.append(f"{name}: {ours} not {theirs}")
        elif not torch.equal(ours, theirs):
            at = (ours != theirs).nonzero()[0].tolist()
            found.append(f"{name}: {ours[tuple(at)]} not {theirs[tuple(at)]} at {at}")
    return found
