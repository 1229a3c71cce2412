"""Norms between products are reduced in parts by the products: beside PyTorch, at odd shapes, and where they stay launches."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.generate.compilation import compile_generation
from mlirc.passes import get_pass
from mlirc.targets import DEFAULT_TARGET, get_target
from support.generation import greedy, tiny
from support.randomness import generator


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.from_numpy(generator().standard_normal(shape)).to(dtype)


class Net(torch.nn.Module):
    """A product with a residual, a norm, and products with what it gives; `way` says which norm and what else."""

    def __init__(self, k: int, n: int, dtype: torch.dtype, way: str = "gate") -> None:
        super().__init__()
        self.way = way
        shapes = dict(first=(n, k), gate=(k, n), up=(k, n))
        for name, (rows, columns) in shapes.items():
            layer = torch.nn.Linear(columns, rows, bias=False, dtype=dtype)
            with torch.no_grad():
                layer.weight.copy_(drawn(rows, columns, dtype=dtype) * columns**-0.5)
            setattr(self, name, layer)
        self.scale = torch.nn.Parameter(1 + drawn(n, dtype=dtype) / 4)

    def norm(self, y: torch.Tensor) -> torch.Tensor:
        if self.way == "layer":
            return F.layer_norm(y, y.shape[-1:], self.scale, None, 1e-5)
        wide = y if y.dtype is torch.float64 else y.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.way == "gemma":
            return (wide * (1 + self.scale.to(wide.dtype))).to(y.dtype)
        if self.way == "inside":  # the scaled row is inside of a function
            return (wide * torch.sigmoid(wide)).to(y.dtype) * self.scale
        return self.scale * wide.to(y.dtype)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.first(x)
        if self.way == "sandwich":  # the norm stands behind the product alone, in front of the residual
            return (residual + self.norm(y),)
        y = residual + y
        z = self.norm(y)
        if self.way == "single":
            return y, self.gate(z)
        found = F.silu(self.gate(z)) * self.up(z)
        return (y, found, z) if self.way == "returned" else (y, found)


def called(net: Net, rows: int, *schedules: str, quantize: str | None = None) -> tuple[list[str], str]:
    """(the kernels that a model launches, the text of all)."""
    k, dtype = net.first.in_features, net.scale.dtype
    job = Compilation("net", get_target(DEFAULT_TARGET), schedules, None)
    job.import_module(
        net, (drawn(rows, k, dtype=dtype), drawn(rows, len(net.scale), dtype=dtype)), {}, quantize=quantize
    )
    job.lower("kernels")
    text = job.text("kernels")
    return re.findall(r"call @([a-z]+)_\d+\(", text), text


PACKED, PLAIN = "graph:partial_rows=packed", "graph:partial_rows=plain"


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "way", "quantize", "schedule"),
    [
        (1, 48, torch.bfloat16, "gate", "int4:group=32", PACKED),
        (5, 64, torch.bfloat16, "single", "int8", PACKED),
        (1, 72, torch.float32, "gemma", None, PLAIN),
        (1, 40, torch.bfloat16, "single", None, "graph:partial_rows=all"),
    ],
)
def test_norms_are_no_launches(rows, n, dtype, way, quantize, schedule) -> None:
    kernels, text = called(Net(67, n, dtype, way), rows, schedule, quantize=quantize)
    assert kernels == ["matmul", "matmul"]
    assert text.count("mlirc.partial") == 2  # a fill and a sum
    assert f"tensor<{rows}x{n // (16 if quantize else 8)}xf32>" in text


@pytest.mark.parametrize(
    ("rows", "n", "dtype", "way", "quantize", "schedule"),
    [
        (1, 40, torch.bfloat16, "gate", "int8", PACKED),  # no whole parts
        (17, 48, torch.bfloat16, "gate", "int8", PACKED),
        (1, 48, torch.float16, "gate", "int8", PACKED),  # a row that is not scaled may be too large
        (1, 48, torch.bfloat16, "layer", "int8", PACKED),
        (1, 48, torch.bfloat16, "inside", "int8", PACKED),
        (1, 48, torch.bfloat16, "returned", "int8", PACKED),
        (1, 48, torch.bfloat16, "sandwich", "int8", PACKED),
        (2, 48, torch.float32, "gate", None, PLAIN),
        (1, 43, torch.float32, "gate", None, PLAIN),
    ],
)
def test_norms_that_stay_as_they_are(rows, n, dtype, way, quantize, schedule) -> None:
    net = Net(33, n, dtype, way)
    kernels, text = called(net, rows, schedule, quantize=quantize)
    assert "mlirc.partial" not in text
    assert kernels == called(net, rows, quantize=quantize)[0]


@pytest.mark.parametrize(
    ("rows", "k", "n", "dtype", "way", "quantize", "schedule"),
    [
        (1, 67, 48, torch.bfloat16, "gate", "int4:group=32", [PACKED]),
        (3, 131, 64, torch.bfloat16, "gemma", "int8", [PACKED, "packed_rows:block_n=32"]),
        (1, 33, 24, torch.float32, "gate", None, [PLAIN]),
    ],
)
def test_kernels_beside_pytorch(rows, k, n, dtype, way, quantize, schedule) -> None:
    """What the GPU's kernels give, executed on the CPU, is as near to the kernels with the norm as a launch as these
    are to PyTorch's gate."""
    net = Net(k, n, dtype, "single" if quantize and rows == 1 else way)
    inputs = drawn(rows, k, dtype=dtype), drawn(rows, n, dtype=dtype)
    made = mlirc.compile(net, inputs, device="host", schedule=schedule, quantize=quantize)(*inputs)
    if quantize:
        beside = mlirc.compile(net, inputs, device="host", quantize=quantize)(*inputs)
    else:
        beside = copy.deepcopy(net).double()(*(v.double() for v in inputs))
    gate = 1e-5 if dtype is torch.float32 else 1e-2
    for got, want in zip(made, beside, strict=True):
        assert got.isfinite().all()
        assert (got.double() - want.double()).norm() <= gate * want.double().norm()


def test_greedy_tokens() -> None:
    """f32, of one slot: each norm but the first is a part of products, and tokens are transformers' own."""
    model = tiny("LlamaForCausalLM")
    made = compile_generation(
        model, slots=1, context=40, page_size=16, chunks=(1, 8), level="kernels", schedule=["graph:partial_rows=all"]
    )
    text = made.jobs["decode"].text("kernels")
    assert "mlirc.partial" in text
    prompt = generator().integers(1, model.config.vocab_size, 9).tolist()
    (tokens,) = greedy(made.engine("cpu"), [prompt], 12)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :].tolist()
    assert tokens == expected


def test_what_is_reduced_in_parts_by_default() -> None:
    """What was timed: one row, long ones."""
    assert called(Net(33, 3584, torch.bfloat16, "single"), 1, quantize="int8")[0] == ["matmul", "matmul"]
    for rows, n, schedule in [(1, 3568, ()), (2, 3584, ()), (1, 3584, ("graph:partial_rows=apart",))]:
        kernels, _ = called(Net(33, n, torch.bfloat16, "single"), rows, *schedule, quantize="int8")
        assert kernels == ["matmul", "reduction", "matmul"]


def test_options() -> None:
    with pytest.raises(MlircError, match="kinds .packed, plain or all., and numbers of readers, rows and columns"):
        get_pass("mlirc-partial-rows")(None, kinds="some")


def test_blocks_of_whole_parts() -> None:
    net = Net(33, 48, torch.bfloat16, "single")
    job = Compilation("net", get_target(DEFAULT_TARGET), (PACKED, "packed_rows:block_n=8"), None)
    job.import_module(net, (drawn(1, 33), drawn(1, 48)), {}, quantize="int8")
    with pytest.raises(MlircError, match="blocks have a multiple of 16 columns and all of K"):
        job.lower("ptx")
