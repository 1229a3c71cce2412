"""Kernels of one's own at level `kernels`: beside their reference at every level, called from PyTorch, by the tools."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from mlirc.driver.compilation import Compilation
from mlirc.kernel import Kernel, kernel, ops
from mlirc.targets import get_target
from mlirc.tools import mlirc, mlirc_bench, mlirc_run
from support import randomness

F = torch.nn.functional
ROOT = Path(__file__).resolve().parents[2]


def checked(own: Kernel, levels=(), **shapes) -> Compilation:
    """The compilation of a kernel that is right at every level."""
    job = Compilation(own.name, get_target("sm_90a"))
    job.import_source(own.source(shapes))
    found = job.check(levels)
    assert found.ok, found.line()
    return job


def elementwise(x, y, z):
    return (
        torch.exp(x) + y, torch.where(x > y, x * z.T.float(), -y), torch.sigmoid(x) - F.silu(y) + F.gelu(x),
        torch.maximum(x, y).sum(0), (x * y).sum((0, 1)), x.mean(-1, keepdim=True) * y, x.amin((0, 1)),
        F.relu(x) ** 2 / (y.abs() + 1.5), torch.rsqrt(x.abs() + 1) * torch.tanh(y) + torch.log(x.abs() + 0.5) + (x + y).floor(),
        torch.minimum(x, y).exp2() ** 0.5 - torch.sin(x) * torch.cos(y) + torch.erf(x).ceil(),
    )  # fmt: skip


@kernel(reference=elementwise)
def many(
    x: "f32[M,N]", y: "f32[1,N]", z: "bf16[N,M]"
) -> "(f32[M,N], f32[M,N], f32[M,N], f32[N], f32[], f32[M,N], f32[], f32[M,N], f32[M,N], f32[M,N])":
    return (
        ops.exp(x) + y, ops.where(x > y, x * z.T, -y), ops.sigmoid(x) - ops.silu(y) + ops.gelu(x),
        ops.sum(ops.maximum(x, y), 0), ops.sum(x * y), ops.mean(x, -1, keepdim=True) * y, ops.min(x),
        ops.relu(x) ** 2 / (ops.abs(y) + 1.5), ops.rsqrt(ops.abs(x) + 1) * ops.tanh(y) + ops.log(abs(x) + 0.5) + ops.floor(x + y),
        ops.map(lambda a, b: ops.exp2(ops.minimum(a, b)) ** 0.5 - ops.sin(a) * ops.cos(b) + ops.ceil(ops.erf(a)), x, y),
    )  # fmt: skip


@pytest.mark.parametrize("m, n", [(7, 13), (1, 5), (3, 1), (1, 1)])
def test_elementwise_ops_broadcasts_and_reductions(m, n):
    checked(many, M=m, N=n)


def numbers(x, i):
    return (
        x + i, x // 3, x % 3, i * i - 1, (x > 0) & (i > 1), ~(x > 0) | (x == i), x.long().sum(-1), x.amax(-1), x.float(),
        torch.arange(x.shape[1]).expand(x.shape).contiguous(), x.permute(1, 0).contiguous(), (x > 0).float() + (x > 0).long(),
    )  # fmt: skip


@kernel(reference=numbers)
def integers(
    x: "i32[M,N]", i: "i64[N]"
) -> "(i64[M,N], i32[M,N], i32[M,N], i64[N], bool[M,N], bool[M,N], i64[M], i32[M], f32[M,N], i64[M,N], i32[N,M], f32[M,N])":
    positive = x > 0
    return (
        x + i, x // 3, x % 3, i * i - 1, positive & (i > 1), ~positive | (x == i), ops.sum(x.to("i64"), -1), ops.max(x, -1),
        x.to("f32"), ops.arange(x.shape[1]).expand(*x.shape), x.permute(1, 0), positive.to("f32") + positive.to("i64"),
    )  # fmt: skip


def test_integers_over_their_whole_range():
    checked(integers, M=5, N=7)


@kernel(reference=lambda a, b, bias: torch.relu(torch.einsum("bmk,kn->bmn", a.float(), b.float()) + bias))
def linear(a: "T[B,M,K]", b: "T[K,N]", bias: "f32[N]") -> "T[B,M,N]":
    return ops.relu(a @ b + bias)


@pytest.mark.parametrize(
    "shapes",
    [
        dict(T="f32", B=3, M=17, N=19, K=23), dict(T="bf16", B=3, M=17, N=19, K=23), dict(T="bf16", B=2, M=5, N=1, K=7),
        dict(T="f16", B=1, M=1, N=33, K=8), dict(T="bf16", B=2, M=5, N=3, K=1), dict(T="f32", B=1, M=1, N=1, K=9),
    ],
)  # fmt: skip
def test_products_of_any_shape_and_type(shapes):
    checked(linear, **shapes)


def table_and_index(V, D, A, B):
    return torch.randn(V, D).half(), torch.arange(A * B).reshape(A, B) % V


@kernel(reference=lambda t, i: (t[i] * 2, t[i].sum(-1)), inputs=table_and_index)
def rows(t: "f16[V,D]", i: "i64[A,B]") -> "(f16[A,B,D], f32[A,B])":
    found = ops.rows(t, i)
    return found * 2, ops.sum(found, -1)


@pytest.mark.parametrize("shapes", [dict(V=11, D=6, A=3, B=5), dict(V=3, D=1, A=1, B=5), dict(V=1, D=5, A=2, B=1)])
def test_rows_of_a_table(shapes):
    checked(rows, ("kernels", "gpu"), **shapes)


@kernel(reference=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), level="kernels")
def attend(q: "bf16[B,H,S,D]", k: "bf16[B,H,S,D]", v: "bf16[B,H,S,D]") -> "bf16[B,H,S,D]":
    return ops.attention(q, k, v, causal=True)


def test_attention_has_attentions_script():
    job = checked(attend, B=1, H=2, S=37, D=16)
    assert job.records["attend"].script == "attention"


def example():
    """The example of docs/own-kernels.md as a module, loaded anew."""
    from mlirc.frontend.python_file import load_name

    return load_name(str(ROOT / "examples" / "matmul_softmax.py"), "matmul_softmax")


@pytest.mark.parametrize("shapes", [dict(M=48, N=96, K=40), dict(M=17, N=33, K=9), dict(M=1, N=5, K=3)])
def test_the_example_is_one_launch_by_the_script_in_its_file(shapes):
    job = checked(example(), **shapes)
    assert job.records["matmul_softmax"].script == ("generic" if shapes["M"] == 1 else "whole_rows")
    job.lower("ptx")
    assert shapes["M"] == 1 or len(job.plan.launches) == 1


@kernel(reference=lambda x, scale, shift: x * scale + (1 if shift else 0))
def scaled(x: "f32[N]", scale: float = 2.0, shift: bool = False) -> "f32[N]":
    return x * scale + 1 if shift else x * scale


def test_calls_from_pytorch_are_compiled_once_for_each_shape_and_constant(monkeypatch):
    made = []
    import mlirc.kernel.running as running

    compiled = running.compiled
    monkeypatch.setattr(running, "compiled", lambda *args: made.append(args[1:3]) or compiled(*args))
    x = torch.from_numpy(randomness.generator().standard_normal(5).astype(np.float32))
    for own in (scaled.options(), scaled.options(device="host")):
        made.clear()
        assert torch.equal(own(x), x * 2) and torch.equal(own(x + 1), (x + 1) * 2) and len(made) == 1
        assert torch.equal(own(x, scale=3.0), x * 3) and torch.equal(own(x[:3]), x[:3] * 2) and len(made) == 3
        assert torch.equal(own(x, shift=True), x * 2 + 1) and len(made) == 4
        assert torch.equal(own(torch.stack([x, x], 1)[:, 0]), x * 2) and len(made) == 4  # strided


def test_options_choose_schedule_and_device():
    a, b = (torch.from_numpy(randomness.generator().standard_normal(s)).bfloat16() for s in ((33, 24), (24, 40)))
    wanted = torch.softmax(a.double() @ b.double(), -1)
    own = example()
    for how in ({}, {"device": "host"}, {"device": "host", "schedule": "matmul_softmax=generic"}):
        found = own.options(**how)(a, b)
        assert found.dtype == torch.bfloat16 and (found.double() - wanted).norm() < 4e-3 * wanted.norm()


def test_the_tools_take_a_kernel(ran, tmp_path, monkeypatch):
    file = str(ROOT / "examples" / "matmul_softmax.py")
    monkeypatch.chdir(tmp_path)
    shapes = ("--shapes", "M=33,N=40,K=24")
    knob = ("--schedule", "whole_rows:block_m=32,warps=2")
    made = ran(mlirc.main, file, *shapes, "-o", "k.ptx", "--dump-dir", "dump", "-v", *knob)
    assert made.status == 0 and "whole_rows" in made.err and "bf16[33,24] bf16[24,40] -> bf16[33,40]" in made.err
    run = ran(mlirc_run.main, "k.ptx", "--random-inputs", 0, "--device", "host")
    assert run.status == 0 and "no findings: 1 kernel, 2 blocks" in run.err and "compared with level kernels" in run.err
    monkeypatch.setattr(sys, "argv", ["repro.py", "--level", "host"])
    scope = {"__name__": "__main__", "__file__": str(tmp_path / "dump/kernels/matmul_softmax/repro.py")}
    with pytest.raises(SystemExit, match="0"):
        exec(Path(scope["__file__"]).read_text(), scope)
    again = ran(mlirc.main, "dump/kernels/matmul_softmax/kernels.mlir", "--emit", "tiles")
    assert again.status == 0 and "scf.forall" not in again.out  # generic: the script is the file's own
    bench = ran(mlirc_bench.main, f"{file}:matmul_softmax", *shapes, "--compile-only", "bench", *knob)
    assert bench.status == 0 and "1 launches" in bench.err


def test_a_factory_may_lie_in_a_file_too(ran):
    made = ran(mlirc.main, str(ROOT / "examples" / "mlp.py") + ":make", "--emit", "torch")
    assert made.status == 0 and "torch.aten.erf" in made.out
