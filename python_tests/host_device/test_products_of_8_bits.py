"""wgmma of 8-bit floats and bytes, from PyTorch to the host device: the instruction that a product gets by itself, how
exact its sums are, and which products it does not take."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.targets import get_target
from support.models.together import Calls

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
ONE, TWO = torch.tensor(0.5), torch.tensor(0.25)


def randn(*shape, dtype=E4):
    return torch.randn(shape).to(dtype)


def integers(*shape):
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def scaled(out_dtype):
    return Calls(lambda a, b, x, y, *bias: torch._scaled_mm(a, b.t(), x, y, *bias, out_dtype=out_dtype))


def rows(m, n, k):
    return randn(m, k), randn(n, k), torch.rand(m, 1), torch.rand(1, n), randn(n, dtype=torch.bfloat16)


def of_bytes():
    return Calls(lambda a, b: torch._int_mm(a, b.t()))


def on_device(module, args, schedule=()):
    """What the product gives on the host device, which checks it, too; and its gpu level."""
    model = mlirc.compile(module, args, target="sm_90a", schedule=schedule, device="host")
    return model(*args)


def gpu_level(module, args, schedule=()):
    job = Compilation("model", get_target("sm_90a"), tuple(schedule), helpers=0)
    job.import_module(module, args, {})
    job.lower("gpu")
    return job.text("gpu")


# Rows and columns that no tile has, and k that no slice has.
BY_THEMSELVES = {
    "e4m3": (scaled(torch.bfloat16), (randn(70, 272), randn(24, 272), ONE, TWO), "type<e4m3>, <e4m3>"),
    "e5m2 and rows": (scaled(torch.bfloat16), (randn(3, 400, dtype=E5), *rows(3, 40, 400)[1:]), "<e5m2>"),
    "in 8 bits": (scaled(E4), (randn(65, 384), randn(16, 384), ONE, TWO), "<e4m3>"),
    "bytes": (of_bytes(), (integers(67, 304), integers(24, 304)), "<s8>"),
}


@pytest.mark.parametrize("case", BY_THEMSELVES)
def test_products_get_wgmma(case):
    module, args, types = BY_THEMSELVES[case]
    found, wanted = on_device(module, args), module(*args)
    assert found.dtype == wanted.dtype
    if wanted.dtype == torch.int32:
        assert torch.equal(found, wanted)
    else:
        error = (found.float() - wanted.float()).norm() / wanted.float().norm()
        assert error < {torch.bfloat16: 4e-3, E4: 0.05}[wanted.dtype]
    assert types.split()[-1] in gpu_level(module, args)


WIDE = "matmul:block_m={},block_n={},mma=wgmma8"


@pytest.mark.parametrize(("m", "n", "k"), [(256, 32, 144), (64, 256, 144), (128, 32, 48)])
def test_tiles(m, n, k):
    """Whose sums of a slice are made all at once, or in chunks; and a slice that is longer than k."""
    module, args = scaled(torch.bfloat16), rows(m - 3, n + 8, k)
    found, wanted = on_device(module, args, [WIDE.format(m, n)]).float(), module(*args).float()
    assert (found - wanted).norm() / wanted.norm() < 4e-3


def test_half_a_row_comes_by_tensor_copies_where_tiles_are_many():
    """64 elements along k, of slices of 128: the rest of a slice is zeros."""
    module, args = scaled(torch.bfloat16), rows(61, 24, 64)
    found, wanted = on_device(module, args, ["matmul:mma=wgmma8,copy=tma"]).float(), module(*args).float()
    assert (found - wanted).norm() / wanted.norm() < 4e-3
    job = Compilation("model", get_target("sm_90a"), (), helpers=0)
    job.import_module(of_bytes(), (integers(1 << 16, 64), integers(256, 64)), {})
    job.lower("tiles")
    (record,) = job.records.values()
    assert record.knobs["copy"] == "tma" and record.knobs["mma"] == "wgmma8"


def error(instruction, a, b):
    found = on_device(scaled(torch.float32), (a, b, ONE, ONE), [f"matmul:block_m=64,block_n=16,mma={instruction}"])
    wanted = a.double() @ b.double().t() / 4
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def test_slices_are_added_in_f32():
    """Of k = 2048 the tensor cores' own sums lose ten times as much: cuBLAS's default is as exact as the former."""
    a, b = randn(64, 2048), randn(16, 2048)
    exact, fast = error("wgmma8", a, b), error("wgmma8_fast", a, b)
    assert exact < 3e-4 and fast > 3 * exact


def test_results_in_f32_are_made_in_f32():
    """Unless the schedule says otherwise: sums of 13 bits are not what an f32 result is for."""
    assert "wgmma" not in gpu_level(scaled(torch.float32), (randn(64, 512), randn(16, 512), ONE, ONE))


def seen(layout, out=torch.bfloat16):
    """The product of a second operand [N, K] (`nk`) or [K, N]; `t`: of a first one [K, M]."""

    def multiply(a, b):
        a, b = a.t() if layout.startswith("t") else a, b.t() if layout.endswith("nk") else b
        return torch._int_mm(a, b) if a.dtype == torch.int8 else (a.float() @ b.float()).to(out)

    return Calls(multiply)


def operands(make, layout, m, n, k):
    return make(*((k, m) if layout.startswith("t") else (m, k))), make(*((n, k) if layout.endswith("nk") else (k, n)))


TRANSPOSED = ["kn", "tnk", "tkn"]


@pytest.mark.parametrize("layout", TRANSPOSED)
@pytest.mark.parametrize(("m", "n", "k", "knobs"), [
    (80, 48, 400, ""), (144, 272, 272, ",block_m=64,block_n=144,stages=2"), (272, 144, 656, ",block_m=128,block_n=96,blocks=2"),
    (256, 128, 384, ",block_m=64,block_n=64,cluster_size=2,stages=3"), (64, 32, 1040, ",parts=2,stages=2"),
])  # fmt: skip
def test_rows_that_do_not_run_along_k_are_transposed(layout, m, n, k, knobs):
    """Over every edge, in panels, by several blocks one after the other, with multicast, of a part of K each."""
    args, module, schedule = operands(integers, layout, m, n, k), seen(layout), [f"matmul:mma=wgmma8{knobs}"]
    text = gpu_level(module, args, schedule)
    assert "nvvm.stmatrix" in text and ", transposed" in text
    assert torch.equal(on_device(module, args, schedule), module(*args))


@pytest.mark.parametrize("layout", TRANSPOSED)
@pytest.mark.parametrize("dtype", [E4, E5])
def test_transposed_floats(layout, dtype):
    """By themselves, and what is not finite as in f32."""
    a, b = operands(lambda *s: randn(*s, dtype=dtype), layout, 96, 80, 400)
    rows, columns = a.t() if layout.startswith("t") else a, b if layout.endswith("nk") else b.t()
    rows[3, 7], columns[5, 9] = float("nan"), float("nan")
    if dtype == E5:
        rows[11, 200], columns[17, 300] = float("inf"), -float("inf")
    module = seen(layout)
    assert "nvvm.stmatrix" in gpu_level(module, (a, b))
    found, wanted = on_device(module, (a, b)).float(), module(a, b).float()
    assert torch.equal(found.isnan(), wanted.isnan()) and torch.equal(found.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    assert (found[finite] - wanted[finite]).norm() / wanted[finite].norm() < 4e-3


@pytest.mark.parametrize("layout", TRANSPOSED)
def test_few_rows_are_transposed_in_registers(layout):
    args, module = operands(integers, layout, 16, 64, 512), seen(layout)
    assert "wgmma" not in gpu_level(module, args) and '["mma8 ' in gpu_level(module, args)
    assert torch.equal(on_device(module, args), module(*args))


REFUSED = {
    "rows along n, without a producer": (
        seen("kn"), (randn(64, 512), randn(512, 64)), ",copy=cp_async",
        r"wgmma8 has rows along m or n transposed beside a producer: specialize\(loop, producers=4\), or use mma8",
    ),
    "one producer": (seen("kn"), (randn(64, 512), randn(512, 64)), ",producers=1", r"specialize\(loop, producers=4\)"),
    "other slices": (seen("kn"), (randn(64, 512), randn(512, 64)), ",block_k=64",
                     r"wgmma8 transposes slices of 128 along k \(block_k\), not 64; use mma8"),
    "f32": (Calls(torch.matmul), (torch.randn(64, 512), torch.randn(512, 64)), "",
            "it takes two 8-bit floats and f32 sums, or two i8 and i32 sums, not operands of f32"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_wgmma_does_not_take(case):
    module, args, knobs, why = REFUSED[case]
    with pytest.raises(MlircError, match=why):
        gpu_level(module, args, [f"matmul:mma=wgmma8{knobs}"])
