"""`mlirc-run`: files in and out, levels on the CPU, errors; the GPU's part on a fake device."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.runtime.plan import TensorSpec
from mlirc.tools.mlirc_run import as_input, main, random_inputs
from support.plans.tiny import W, expected, randn, write_weights


@pytest.mark.parametrize("where", [[], ["--no-graph"], ["--level", "linalg", "--no-verify"]])
def test_runs_and_writes(run_files, where, capsys):
    assert main(["m.ptx", "--input", "x.npy", "-o", "all.npz", "-o", "y=y.npy", *where]) == 0
    y, z = expected(randn())
    saved = np.load("all.npz")
    np.testing.assert_allclose(saved["y"], y, rtol=1e-6)
    np.testing.assert_array_equal(saved["z"], z)
    np.testing.assert_array_equal(np.load("y.npy"), saved["y"])
    assert capsys.readouterr().out == ""
    assert sorted(p.name for p in run_files.iterdir() if p.name.startswith(".")) == []


def test_inputs_by_name_and_from_npz(run_files, capsys):
    np.savez("in.npz", x=randn())
    for given in ("x=x.npy", "in.npz"):
        assert main(["m.ptx", "--input", given, "-o", "z=z.npy"]) == 0
        np.testing.assert_array_equal(np.load("z.npy"), randn())


def test_without_output_it_describes(run_files, capsys):
    assert main(["m.ptx", "--random-inputs", "3", "--time"]) == 0
    out = capsys.readouterr().out
    assert "time: " in out and "ran on GPU 0" in out and "y: float32[37,1] mean" in out


def test_info(run_files, capsys):
    assert main(["m.ptx", "--info"]) == 0
    out = capsys.readouterr().out
    for line in ("model tiny, target sm_80", "input x: f32[37]", "  add 1x1x1 64x1x1 smem 0", "arena 512 bytes"):
        assert line in out


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nowhere.ptx"], "nowhere.ptx: cannot be read: No such file"),
        (["m.safetensors"], "m.safetensors: "),
        (["m.ptx"], "input 'x' (f32[37]) is missing"),
        (["m.ptx", "--input", "y=x.npy"], "no input is called 'y'"),
        (["m.ptx", "--input", "nowhere.npy"], "nowhere.npy: cannot be read"),
        (["m.ptx", "--input", "m.ptx"], "m.ptx: no .npy or .npz file"),
        (["m.ptx", "--input", "wrong.npy"], "'x': got f32[1,37], but the model was compiled for f32[37]"),
        (["m.ptx", "--input", "x.npy", "--input", "x=x.npy"], "given twice"),
        (["m.ptx", "--input", "x.npy", "--random-inputs", "1"], "exclude each other"),
        (["m.ptx", "--input", "x.npy", "-o", "y.npy"], "2 outputs (y, z): use NAME=y.npy or .npz"),
        (["m.ptx", "--input", "x.npy", "-o", "q=y.npy"], "no output is called 'q'"),
        (["m.ptx", "--input", "x.npy", "-o", "y.txt"], "must end in .npy"),
        (["m.ptx", "--input", "x.npy", "-o", "no/y.npz"], "folder no does not exist"),
        (["m.ptx", "--input", "x.npy", "--weights", "no.safetensors"], "no.safetensors: cannot be read"),
        (["m.ptx", "--input", "x.npy", "--weights", "other.safetensors"], "weight 'm.w' (f32[1,37]) is missing"),
        (["m.ptx", "--input", "x.npy", "--level", "tiles"], "tiles.mlir: cannot read level tiles"),
        (["m.ptx", "--input", "x.npy", "--level", "kernels"], "kernels.mlir: is not as mlirc wrote it"),
        (["m.ptx", "--input", "x.npy", "--level", "kernels", "--no-verify"], "kernels.mlir: not valid MLIR"),
    ],
)
def test_errors_take_one_line(run_files, args, why, capsys):
    np.save("wrong.npy", randn().reshape(1, -1))
    write_weights(run_files / "other.safetensors", {"other": W})
    (run_files / "m.levels" / "kernels.mlir").write_text("func.func @main(")
    before = sorted(run_files.rglob("*"))
    assert main(args) == 1
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1 and why in err
    assert sorted(run_files.rglob("*")) == before


def test_bf16_from_files():
    bf16 = TensorSpec("x", "bf16", (2,), "input")
    x = np.array([1.0, 3.14159], np.float32)
    rounded = as_input(x, bf16)
    assert rounded.dtype.name == "bfloat16" and float(rounded[1]) == 3.140625
    np.testing.assert_array_equal(as_input(rounded.view(np.uint16), bf16), rounded)
    np.testing.assert_array_equal(as_input(rounded.view("V2"), bf16), rounded)
    assert as_input(x.astype(np.float64), bf16).dtype == np.float64  # left for the check to refuse


def test_random_inputs_repeat():
    specs = [TensorSpec("a", "bf16", (3, 1), "input"), TensorSpec("b", "i64", (50,), "input")]
    one, two = random_inputs(specs, 7), random_inputs(specs, 7)
    for a, b, spec in zip(one, two, specs, strict=True):
        assert a.shape == spec.shape
        np.testing.assert_array_equal(a, b)
    assert set(one[1].tolist()) == {0, 1}
