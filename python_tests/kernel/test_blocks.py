"""Kernels of one's own at level `tiles`: block programs, beside their reference at `tiles` and `gpu`; mistakes by line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend.python_file import load_name
from mlirc.kernel import Kernel, blocks, kernel, ops
from mlirc.targets import get_target
from mlirc.tools import mlirc, mlirc_run

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "block_matmul.py"


def checked(own: Kernel, **shapes) -> Compilation:
    job = Compilation(own.name, get_target("sm_90a"))
    job.import_source(own.source(shapes))
    found = job.check()
    assert found.ok and found.levels == ["tiles", "gpu"], found.line()
    return job


@pytest.mark.parametrize(
    "shapes",
    [dict(M=64, N=32, K=64), dict(M=33, N=40, K=24), dict(M=17, N=5, K=7, stages=1), dict(M=2, N=3, K=2, block=16)],
)
def test_the_example_multiplies_any_shape(shapes):
    checked(load_name(str(EXAMPLE), "block_matmul"), **shapes)


@kernel(level="tiles", reference=lambda x: (torch.softmax(x.float(), -1), torch.tril(x)))
def rows(x: "T[M,N]", tile: int = 4) -> "(f32[M,N], T[M,N])":
    def program(r):
        masked = ops.where(ops.arange(x.shape[1]) <= blocks.places(r).unsqueeze(1), x[r], 0.0)
        return ops.softmax(x[r]), masked

    return blocks.grid(program, (x.shape[0], tile), warps=4)


@pytest.mark.parametrize(
    "shapes", [dict(T="f32", M=8, N=64), dict(T="bf16", M=7, N=37), dict(T="f16", M=3, N=129, tile=2)]
)
def test_rows_in_registers_and_places(shapes):
    checked(rows, **shapes)


def scores(q, k):
    s = q @ k.transpose(1, 2)
    return torch.relu(s), s.sum(-1)


@kernel(level="tiles", reference=scores)
def batched(q: "f32[B,M,D]", k: "f32[B,N,D]") -> "(f32[B,M,N], f32[B,M])":
    def program(b, m):
        s = ops.matmul(q[b, m], k[b].permute(0, 2, 1))
        return ops.relu(s), ops.sum(s, -1)

    return blocks.grid(program, (q.shape[0], 1), (q.shape[1], 16), warps=2)


@kernel(level="tiles", reference=lambda x: x.sum())
def two_launches(x: "f32[M,N]") -> "f32[]":
    m, n = x.shape
    parts = blocks.grid(lambda r: ops.sum(x[r], -1), (m, 4), out=("f32", (m,)), warps=1)
    return blocks.grid(lambda one: ops.sum(parts[one]), (m, m), warps=1)


def test_batches_and_several_results():
    checked(batched, B=3, M=17, N=9, D=5)
    checked(batched, B=1, M=17, N=9, D=5)


def test_the_tools_take_a_block_program(ran, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text())
    made = ran(mlirc.main, "mine.py", "--shapes", "M=33,N=40,K=24", "-o", "k.ptx", "-v")
    assert made.status == 0 and "given" in made.err
    run = ran(mlirc_run.main, "k.ptx", "--random-inputs", 0, "--device", "host")
    assert run.status == 0 and "no findings: 1 kernel, 4 blocks" in run.err
    own = load_name("mine.py", "block_matmul")
    a, b, bias = torch.ones(33, 24).bfloat16(), torch.ones(24, 40).bfloat16(), torch.ones(40).bfloat16()
    assert all(
        torch.equal(k(a, b, bias), torch.full((33, 40), 25.0).bfloat16()) for k in (own, own.options(device="host"))
    )
    error = ran(mlirc.main, "mine.py", "--emit", "ptx", "--schedule", "matmul:block_m=64").error
    assert error.startswith("error: --schedule matmul:block_m=64: kernel 'block_matmul' is a block program already")


TEXT = EXAMPLE.read_text()
MISTAKES = [
    ("bias[columns]", "bias[rows]", "bf16[96]: its dimension 0 has 96, and the span is one of 128"),
    ("a[rows, part]", "a[part, rows]", "bf16[128,64]: its dimension 0 has 128, and the span is one of 64"),
    ("b[part, columns]", "b[part, columns].T", "matmul: bf16[32 of 128,32 of 64] has 32 of 64 columns"),
    ("blocks.zeros(rows, columns)", "blocks.zeros(columns, rows)", "matmul: the accumulators are f32[32 of 96,32 of 128]"),
    ("blocks.zeros(rows, columns)", "blocks.zeros(rows, columns, dtype='bf16')", "matmul: the accumulators are bf16[32 of 128,32 of 96]"),
    ('mma="mma"', 'mma="none"', 'mma = "none": takes "fma", "mma"'),
    ("warp_grid=[2, 1]", "warp_grid=[2, 2]", "kernel block_matmul: mlirc.warp_grid 2x2 does not have the block's 2 warps"),
    ("stages=stages)", "stage=stages)", "no attribute 'stage'"),
    ("stages=stages)", "warps=2)", "'warps' belongs on the kernel's function, not on scf.for"),
    ("ops.relu(sums + bias[columns])", "ops.relu(sums[0])", "index 0 of dimension 0 of f32[32 of 128,32 of 96]"),
    ("ops.relu(sums + bias[columns])", "bias[columns]", "grid: the block program returns bf16[32 of 96] for a result bf16[128, 96]"),
    ("(m, block), (n, block)", "m, n", "grid takes for each loop over blocks (extent, size of a tile)"),
    ('    level="tiles",\n', "", "this is for a kernel at level tiles: @kernel(level='tiles')"),
]  # fmt: skip


@pytest.mark.parametrize("old, new, wanted", MISTAKES, ids=[m[2][:28] for m in MISTAKES])
def test_a_mistake_is_said_by_line(tmp_path, monkeypatch, old, new, wanted):
    monkeypatch.chdir(tmp_path)
    assert TEXT.count(old) == 1
    text = TEXT.replace(old, new)
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(MlircError) as caught:
        job = Compilation("mine", get_target("sm_90a"))
        job.import_source(load_name("mine.py", "block_matmul").source())
        job.lower("gpu")
    found = re.match(r"mine\.py:(\d+): (.*)", str(caught.value))
    assert found and wanted in found[2], caught.value
    # Accumulators and results are wrong where they meet what they do not fit.
    line = (
        "matmul("
        if wanted.startswith("matmul: the acc")
        else "grid("
        if wanted.startswith(("grid:", "this is"))
        else new
    )
    if not wanted.startswith("this is"):
        assert line in text.split("\n")[int(found[1]) - 1], caught.value
