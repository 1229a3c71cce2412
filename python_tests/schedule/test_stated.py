"""What scripts and instructions state of kernels that compute something else on purpose: the check, the host device and
the checks of single kernels judge by that, and say so; what is beyond it is found as ever."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlirc.tools import mlirc, mlirc_run

ROOT = Path(__file__).resolve().parents[2]
ROUNDED = (ROOT / "examples" / "rounded_mma.py").read_text()
MODELS = """import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 20), torch.nn.ReLU()).eval(), (torch.randn(17, 24),)

class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

def attend():
    return Attention(), tuple(torch.randn(1, 2, 20, 16) for _ in range(3))
"""
SQUARED = """from mlirc.mlir import arith, ir
from mlirc.schedule import register
from mlirc.schedule.verbs import *
from mlirc.scripts.attention import is_attention

@register(matches=is_attention)
def squared(kernel, target):
    def squared_relu(score, b, h, i, j):
        positive = arith.maximumf(score, arith.constant(ir.F32Type.get(), 0.0))
        return arith.mulf(positive, positive)
    with script(warps=2) as (module, function):
        op = score_with(match(function, "mlirc.attention"), squared_relu, softmax=False)
        state_reference(function)
        result, products = decompose_attention(op, base2=True)
        forall = tile_to_blocks(result, sizes=[1, 1, 16, 0], keep=[2], order=[])
        online_softmax(match_contractions(forall), size=16)
        annotate(match_contractions(forall), mma="fma", warp_grid=[2, 1])
        annotate(function, warps=2)
        tidy(function, forall)
    return module
"""
STATED = "        state_reference(function)\n"


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    """What one test defines is not there for the next."""
    monkeypatch.setattr("mlirc.passes.distribute.instructions._users", {})


def checked(ran, write, script: str, model: str, *more: str):
    write(MODELS, "models.py")
    return ran(mlirc.main, f"models.py:{model}", "-o", "m.ptx", "--check", "kernels", "tiles", "gpu", "--dump-dir", "dump",
               "--schedule", write(script), *more)  # fmt: skip


def repro(kernel: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, f"dump/kernels/{kernel}/repro.py"], capture_output=True, text=True)


def test_an_instruction_that_rounds(ran, write):
    knob = ("--schedule", "matmul:mma=rounded_mma")
    said = "matmul_0: factors may be rounded to bf16, as instruction rounded_mma states"
    made = checked(ran, write, ROUNDED, "make", *knob)
    assert made.status == 0 and f"\n{said}\n" in made.out, made.err
    run = ran(mlirc_run.main, "m.ptx", "--random-inputs", 0, "--device", "host")
    assert run.status == 0 and said in run.err, run.err
    done = repro("matmul_0")
    assert done.returncode == 0 and said in done.stdout and done.stdout.count(" ok\n") == 2, done.stdout
    assert (
        'mlirc.rounds = "bf16", mlirc.stated_by = "instruction rounded_mma"' in Path("m.levels/tiles.mlir").read_text()
    )
    # What does not say so is wrong, as it is.
    silent = checked(ran, write, ROUNDED.replace('    rounds = "bf16"', '    rounds = ""'), "make", *knob)
    assert silent.status == 1 and "level gpu is wrong" in silent.err


def test_an_instruction_that_is_wrong_beyond_its_rounding_is_found(ran, write):
    spoiled = ROUNDED.replace("arith.TruncFOp(type, x).result", "arith.TruncFOp(type, arith.addf(x, x)).result")
    assert spoiled != ROUNDED
    made = checked(ran, write, spoiled, "make", "--schedule", "matmul:mma=rounded_mma")
    assert made.status == 1 and re.search(
        r"level gpu is wrong on inputs 'plain': relative error .*, allowed is 1.0e-02", made.err
    )


def test_an_instruction_states_a_tolerance(ran, write):
    knob = ("--schedule", "matmul:mma=rounded_mma")
    stated = ROUNDED.replace('rounds = "bf16"', "tolerance = 5e-3")
    made = checked(ran, write, stated, "make", *knob)
    assert (
        made.status == 0 and "relative errors of up to 0.005 are right, as instruction rounded_mma states" in made.out
    )
    # It says nothing of infinities: numbers that are too large for bf16 are found.
    some = ("--input-sets", "floats x100,zeros")
    run = ran(mlirc_run.main, "m.ptx", "--random-inputs", 0, "--device", "host", *some)
    assert run.status == 0 and "relative errors of up to 0.005 are right" in run.err, run.err
    close = checked(ran, write, ROUNDED.replace('rounds = "bf16"', "tolerance = 1e-4"), "make", *knob)
    assert close.status == 1 and "allowed is 1.0e-04" in close.err


def test_a_script_that_computes_something_else_states_its_reference(ran, write):
    said = "attention_0: its reference is another one than the kernels level, as mine.py:13 states"
    made = checked(ran, write, SQUARED, "attend")
    assert made.status == 0 and f"\n{said}\n" in made.out, made.err
    run = ran(mlirc_run.main, "m.ptx", "--random-inputs", 0, "--device", "host")
    assert run.status == 0 and said in run.err, run.err
    done = repro("attention_0")
    assert done.returncode == 0 and said in done.stdout and done.stdout.count(" ok\n") == 2, done.stdout
    silent = checked(ran, write, SQUARED.replace(STATED, ""), "attend")
    assert silent.status == 1 and "level tiles is wrong on inputs 'plain'" in silent.err


def test_what_is_wrong_beside_the_stated_reference_is_found(ran, write):
    """The level below is edited: another factor than the reference's."""
    assert checked(ran, write, SQUARED, "attend").status == 0
    path = Path("m.levels/gpu.mlir")
    text = path.read_text()
    scale = re.search(r"arith.constant (2.5\d*e-01) : f32", text)
    assert scale, "the scores' scale"
    path.write_text(text.replace(scale[1], "2.600000e-01"))
    run = ran(mlirc_run.main, "m.ptx", "--random-inputs", 0, "--device", "host", "--no-verify")
    assert run.status == 1 and "which level kernels, as mine.py:13 states it, says is" in run.err


@pytest.mark.parametrize(
    "call, wanted",
    [
        ("state_reference(function, tolerance=2)", "state_reference: tolerance = 2: give a relative error from 0 to"),
        ("state_reference(function); state_reference(function)", "its reference is stated already"),
        ("state_reference(op)", "takes a handle of func.func, this one is of mlirc.attention"),
    ],
)  # fmt: skip
def test_one_that_is_misused(ran, write, call, wanted):
    write(MODELS, "models.py")
    path = write(SQUARED.replace("state_reference(function)", call))
    error = ran(mlirc.main, "models.py:attend", "--emit", "tiles", "--schedule", path).error
    assert error.startswith("error: mine.py:13: ") and wanted in error
