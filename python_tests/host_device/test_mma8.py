"""mma.sync of 8-bit floats and bytes (`mma8`), from PyTorch to the host device: every layout of both operands,
edges, extreme values, and where it is the one that a product gets by itself."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.backend.ptx import check_ptxas, find_ptxas
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.models.together import Calls

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
MMA8 = "matmul:mma=mma8"
LAYOUTS = ["nk", "kn", "tnk", "tkn"]  # of the second operand; `t`: the first one is given as [K, M]


def randn(*shape, dtype=E4):
    return torch.randn(shape).to(dtype)


def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def product(layout, out=torch.float32):
    """The module of a product, of floats in f32 and with results of a type, of integers in i32."""

    def multiply(a, b):
        a, b = a.t() if layout.startswith("t") else a, b.t() if layout.endswith("nk") else b
        if not a.is_floating_point():
            return torch._int_mm(a, b)
        return (a.float() @ b.float()).to(out)

    return Calls(multiply)


def shapes(layout, m, n, k):
    return (k, m) if layout.startswith("t") else (m, k), (n, k) if layout.endswith("nk") else (k, n)


def on_device(module, args, schedule=(MMA8,), target="sm_90a"):
    model = mlirc.compile(module, args, target=target, schedule=schedule, device="host")
    return model(*args)


def lowered(module, args, level="gpu", schedule=(), target="sm_90a"):
    job = Compilation("model", get_target(target), tuple(schedule), helpers=0)
    job.import_module(module, args, {})
    job.lower(level)
    return job


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n", "k"), [(67, 56, 208), (17, 24, 40), (128, 64, 384)])
def test_bytes(layout, m, n, k):
    """Exactly, extreme values among them."""
    args = [integers(*s) for s in shapes(layout, m, n, k)]
    args[0].view(-1)[: m * k // 2] = -128
    args[1].view(-1)[: n * k // 2] = -128
    module = product(layout)
    assert torch.equal(on_device(module, tuple(args), target="sm_80"), module(*args))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("types", [(E4, E4), (E5, E4), (E5, E5)])
@pytest.mark.parametrize(("m", "n", "k"), [(65, 40, 304), (5, 19, 37)])
def test_floats(layout, types, m, n, k):
    args = tuple(randn(*s, dtype=t) for s, t in zip(shapes(layout, m, n, k), types, strict=True))
    module = product(layout)
    found, wanted = on_device(module, args).double(), module(*(a.double() for a in args)).double()
    assert (found - wanted).norm() / wanted.norm() < 1e-6


@pytest.mark.parametrize("layout", LAYOUTS)
def test_floats_that_are_not_finite(layout):
    """Infinities and NaN spoil their rows and columns, and no others; the largest numbers do not."""
    m, n, k = 40, 48, 160
    a, b = (randn(*s, dtype=t) for s, t in zip(shapes(layout, m, n, k), (E5, E4), strict=True))
    rows, columns = a.t() if layout.startswith("t") else a, b if layout.endswith("nk") else b.t()
    rows[3, 7], rows[11, 100], rows[12] = float("inf"), float("nan"), torch.finfo(E5).max
    columns[5, 9], columns[6] = float("nan"), torch.finfo(E4).max
    module = product(layout)
    found, wanted = on_device(module, (a, b)), module(a, b)
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("knobs", [
    "block_m=32,block_n=64,warps_m=1,warps_n=4", "block_m=64,block_n=32,block_k=64,warps_m=4,warps_n=1,stages=4",
    "block_m=16,block_n=128,block_k=96,warps_m=1,warps_n=2,stages=2",
])  # fmt: skip
def test_tiles(layout, knobs):
    args = tuple(integers(*s) for s in shapes(layout, 50, 144, 272))
    module = product(layout)
    assert torch.equal(on_device(module, args, [f"{MMA8},{knobs}"]), module(*args))


def test_operands_by_tensor_copies():
    args = tuple(integers(*s) for s in shapes("kn", 64, 128, 512))
    module, schedule = product("kn"), [f"{MMA8},copy=tma,block_n=64,block_k=128"]
    assert "cp.async.bulk.tensor" in lowered(module, args, schedule=schedule).text("gpu")
    assert torch.equal(on_device(module, args, schedule), module(*args))


def test_several_products_in_one_loop():
    x, gate, up = integers(40, 160), integers(160, 48), integers(160, 48)
    module = Calls(lambda x, g, u: torch._int_mm(x, g).relu() * (torch._int_mm(x, u) & 7))
    text = lowered(module, (x, gate, up), target="sm_80").text("gpu")
    assert text.count("gpu.launch_func") == 1 and "mma8 " in text and "fma " not in text
    assert torch.equal(on_device(module, (x, gate, up), (), "sm_80"), module(x, gate, up))


BY_THEMSELVES = [
    ("sm_80", torch.int8, torch.int32, "kn", "mma8"), ("sm_80", E4, torch.bfloat16, "nk", "fma"),
    ("sm_89", E4, torch.bfloat16, "nk", "mma8"), ("sm_89", E4, torch.float32, "nk", "fma"),
    ("sm_90a", E4, torch.float32, "nk", "mma8"), ("sm_120", E5, torch.bfloat16, "tkn", "mma8"),
    ("sm_100a", torch.int8, torch.int32, "tnk", "mma8"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "dtype", "out", "layout", "wanted"), BY_THEMSELVES)
def test_the_instruction_of_a_target(target, dtype, out, layout, wanted):
    """Sums of 8-bit floats are f32's on sm_90 alone; others' tensor cores are left to results of 16 bits."""
    make = integers if dtype == torch.int8 else randn
    args = tuple(make(*s) for s in shapes(layout, 96, 80, 640))
    job = lowered(product(layout, out), args, "ptx", target=target)
    assert f'["{wanted} ' in job.text("gpu")
    if find_ptxas():
        assert "0 bytes spill stores" in check_ptxas(job.ptx, job.target)


@pytest.mark.parametrize("target", ["sm_89", "sm_90a"])
def test_a_file_names_the_isa_that_it_needs(target):
    """That of the target has no mma.sync of 8-bit floats; other kernels' files are as old as ever."""
    args = tuple(randn(*s) for s in shapes("nk", 32, 32, 64))
    new, old = (lowered(product("nk"), args, "ptx", [f"matmul:mma={i}"], target).ptx for i in ("mma8", "fma"))
    isa = get_target(target).ptx_isa
    assert ".version 8.4" in new and f".version {isa // 10}.{isa % 10}" in old and isa < 84


REFUSED = [
    (lambda a, b: a.float() @ b.float(), (randn(64, 64), randn(64, 64)), "sm_86", "sm_86 has no mma8 of 8-bit floats"),
    (torch.matmul, (torch.randn(64, 64), torch.randn(64, 64)), "sm_80",
     "it takes two 8-bit floats and f32 sums, or two i8 and i32 sums, not operands of f32"),
]  # fmt: skip


@pytest.mark.parametrize(("multiply", "args", "target", "why"), REFUSED)
def test_what_it_does_not_take(multiply, args, target, why):
    with pytest.raises(MlircError, match=why):
        lowered(Calls(multiply), args, schedule=[MMA8], target=target)


@pytest.mark.parametrize(("make", "layout", "schedule"), [
    (integers, "tkn", MMA8), (randn, "kn", MMA8), (integers, "tkn", "matmul:mma=wgmma8"), (randn, "kn", "matmul:mma=wgmma8"),
])  # fmt: skip
def test_the_ptx_gives_the_same(tmp_path, make, layout, schedule):
    args = tuple(make(*s) for s in shapes(layout, 80, 48, 400))
    job = lowered(product(layout, torch.bfloat16), args, "ptx", [schedule])
    job.write(tmp_path / "model.ptx")
    found = []
    for execute in (False, True):
        with mlirc.load(tmp_path / "model.ptx", device="host") as model:
            model.match, model.execute_ptx = not execute, execute
            found.append(torch.as_tensor(model(*args)))
            assert not execute or "PTX executed in 1 of 1 calls" in model.summary(), model.summary()
    assert torch.equal(*found)
