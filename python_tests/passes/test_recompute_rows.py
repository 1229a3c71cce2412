"""Norms of one row are part of the products that read them: beside PyTorch, at odd shapes, and where they stay apart."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.passes import get_pass
from mlirc.targets import DEFAULT_TARGET, get_target
from support.randomness import generator


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(generator().standard_normal(shape)).to(dtype)


class Net(torch.nn.Module):
    """A norm of one row, and `products` that read it; `way` says what else happens."""

    def __init__(self, k: int, n: int, dtype: torch.dtype, way: str = "rms", products: int = 1) -> None:
        super().__init__()
        self.way = way
        self.scale = torch.nn.Parameter(1 + drawn(k, dtype=dtype) / 4)
        self.shift = torch.nn.Parameter(drawn(k, dtype=dtype))
        self.weights = torch.nn.ParameterList([drawn(n, k, dtype=dtype) / k**0.5 for _ in range(products)])

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "layer":
            return F.layer_norm(x, x.shape[-1:], self.scale, self.shift, 1e-5)
        if self.way == "softmax":
            return torch.softmax(x, -1)
        wide = x if x.dtype is torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.way == "gemma":
            return (wide * (1 + self.scale.to(wide.dtype))).to(x.dtype)
        return self.scale * wide.to(x.dtype)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(x)
        found = [y @ w.T for w in self.weights]
        if self.way == "gate":
            return (F.silu(found[0]) * found[1],)
        if self.way == "returned":
            return (*found, y)
        if self.way == "residual":
            return (found[0] + y,)
        return tuple(found)


def lowered(net: torch.nn.Module, x: torch.Tensor, *schedules: str, level: str = "ptx") -> Compilation:
    job = Compilation("net", get_target(DEFAULT_TARGET), schedules, None)
    job.import_module(net, (x,), {})
    job.lower(level)
    return job


def launches(net: Net, x: torch.Tensor, *schedules: str) -> list[str]:
    text = lowered(net, x, *schedules, level="kernels").text("kernels")
    return re.findall(r"call @([a-z]+)_\d+\(", text)


def check(net: Net, x: torch.Tensor, **options: object) -> None:
    """What the GPU's kernels give, executed on the CPU, is within twice PyTorch's error and one rounding of FP64."""
    with torch.no_grad():
        eager = net(x)
        exact = Net.forward(net.double(), x.double())
        net.to(x.dtype)
        got = mlirc.compile(net, (x,), device="host", **options).flat(x)
    for a, b, c in zip(got, eager, exact, strict=True):
        assert a.isfinite().all()
        limit = 2 * (b.double() - c).norm() + torch.finfo(x.dtype).eps / 2 * c.norm()
        assert (a.double() - c).norm() <= limit


@pytest.mark.parametrize("k, n", [(8, 1), (33, 7), (257, 5), (640, 131), (2056, 3)])
@pytest.mark.parametrize("way", ["rms", "layer", "gemma", "softmax"])
def test_a_norm_of_one_row_is_part_of_its_product(k: int, n: int, way: str) -> None:
    dtype = torch.bfloat16 if n != 7 else torch.float32
    net, x = Net(k, n, dtype, way), drawn(1, k, dtype=dtype)
    if n > 1:
        assert launches(net, x) == ["matmul"]
        assert launches(net, x, "graph:recompute=false") == ["reduction", "matmul"]
    check(net, x)


@pytest.mark.parametrize("schedule", ["matvec:rows=2,warps=4", "matvec:rows=3,warps=2", "matvec:vector=2,warps=1"])
def test_knobs_of_matvec(schedule: str) -> None:
    net, x = Net(512, 11, torch.bfloat16, "gate", 2), drawn(1, 512, dtype=torch.bfloat16)
    assert launches(net, x, schedule) == ["matmul"]
    check(net, x, schedule=[schedule])


def test_large_numbers_do_not_overflow() -> None:
    net, x = Net(96, 13, torch.float16), drawn(1, 96, dtype=torch.float16) * 8000
    assert launches(net, x) == ["matmul"]
    check(net, x)


@pytest.mark.parametrize("products, expected", [(3, ["matmul"] * 3), (4, ["reduction", *["matmul"] * 4])])
def test_a_few_products_compute_the_row_each(products: int, expected: list[str]) -> None:
    net, x = Net(40, 9, torch.bfloat16, products=products), drawn(1, 40, dtype=torch.bfloat16)
    assert launches(net, x) == expected
    check(net, x)


def test_a_row_that_others_need_stays_a_kernel() -> None:
    returned = Net(40, 9, torch.float32, "returned"), drawn(1, 40)
    assert launches(*returned) == ["reduction", "matmul"]
    residual = Net(40, 40, torch.float32, "residual"), drawn(1, 40)
    assert launches(*residual) == ["reduction", "matmul"]
    check(*residual)


def test_several_rows_stay_a_kernel() -> None:
    assert launches(Net(64, 9, torch.bfloat16), drawn(2, 64, dtype=torch.bfloat16)) == ["reduction", "matmul"]


def test_all_loads_are_issued_before_the_first_barrier() -> None:
    net, x = Net(1024, 40, torch.bfloat16, "gate", 2), drawn(1, 1024, dtype=torch.bfloat16)
    ptx = lowered(net, x).text("ptx")
    before, behind = ptx.split("bar.sync", 1)
    assert before.count("ld.global") >= 4 and "ld.global" not in behind


def test_kernels_that_begin_early_wait_for_the_row() -> None:
    """The weights are loaded in front of the wait, the row that the product before writes behind it."""
    net, x = torch.nn.Sequential(torch.nn.Linear(48, 40, bias=False), Net(40, 9, torch.float32)), drawn(1, 48)
    job = lowered(net, x, "graph:dependent=true")
    build = next(b for b in job.builds.values() if "rsqrt" in b.gpu)
    before, behind = build.ptx.split("griddepcontrol.wait")
    assert "ld.global." in before and "ld.global" in behind
    got = mlirc.compile(net, (x,), device="host", schedule=["graph:dependent=true"])(x)
    torch.testing.assert_close(got[0] if isinstance(got, tuple) else got, net(x)[0].detach())


def test_options_are_numbers() -> None:
    with pytest.raises(MlircError, match="three options: readers, elements and reads"):
        get_pass("mlirc-recompute-rows")(None, readers="few")


@pytest.mark.parametrize(
    ("rows", "length", "matrices", "fused"),
    [
        (2560, 2048, 1, True),
        (8192, 2048, 2, True),  # gate and up of Llama-3.2-1B
        (4608, 3584, 1, False),  # queries, keys and values of Qwen2.5-7B
        (49152, 576, 1, False),  # the head of SmolLM2-135M
    ],
)
def test_many_blocks_do_not_read_a_long_row_again(
    rows: int, length: int, matrices: int, fused: bool, monkeypatch
) -> None:
    from types import SimpleNamespace

    from mlirc.passes import recompute_rows

    work = recompute_rows._Recompute.__new__(recompute_rows._Recompute)
    call = SimpleNamespace(callee=SimpleNamespace(value="matmul_0"), results=[None])
    work.kernels = {"matmul_0": SimpleNamespace(operation=None)}
    monkeypatch.setattr(recompute_rows, "shape_of", lambda value: [1, rows])
    found = SimpleNamespace(contraction=SimpleNamespace(count=matrices))
    monkeypatch.setattr(recompute_rows, "describe", lambda operation: found)
    assert (length * work._blocks(call) <= recompute_rows.READS) == fused
