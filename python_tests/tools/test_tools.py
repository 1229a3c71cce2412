"""What all command-line programs have in common, and `mlirc-run --compare`."""

from __future__ import annotations

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import mlirc
from mlirc.errors import one_line
from mlirc.runtime.plan_file import embed
from mlirc.tools.mlirc_run import main
from support.plans.forged import TEXT, good_plan

MISSING = {
    "a model": "mlirc nowhere.pt2 -o x.ptx",
    "a level": "mlirc nowhere.mlir --emit tiles",
    "a script": "mlirc p.mlir -o x.ptx --schedule nowhere.py",
    "a compiled model": "mlirc-run nowhere.ptx",
    "an input": "mlirc-run m.ptx --input nowhere.npy --level tiles",
    "weights": "mlirc-run m.ptx --random-inputs 0 --weights nowhere.safetensors --level linalg",
    "weights for the host device": "mlirc-run m.ptx --random-inputs 0 --weights nowhere.safetensors --device host",
    "a folder of levels": "mlirc-run m.ptx --random-inputs 0 --level tiles",
    "a file for mlirc-opt": "mlirc-opt nowhere.mlir",
    "a script for mlirc-opt": "mlirc-opt p.mlir --script nowhere.py",
    "a model to measure": "mlirc-bench nowhere.pt2",
    "a folder to measure": "mlirc-bench --run nowhere",
    "something to compare": "mlirc-run --compare nowhere.npy nowhere.npy",
}
VERSIONS = {f"{tool} --version": f"{tool} --version" for tool in ("mlirc", "mlirc-run", "mlirc-opt", "mlirc-bench")}
CODE = """
import sys
from mlirc.tools.{module} import main
try:
    status = main({words})
except SystemExit as e:
    status = e.code
print("HEAVY", [m for m in ("torch", "torch_mlir", "transformers", "llvmlite", "rich") if m in sys.modules])
sys.exit(status)
"""


@pytest.mark.parametrize("command", [*MISSING, *VERSIONS])
def test_a_quick_answer_imports_nothing_that_takes_seconds(tmp_path, command):
    (tmp_path / "m.ptx").write_text(embed(TEXT, good_plan()))
    (tmp_path / "m.levels").mkdir()
    for level in ("linalg", "gpu"):
        (tmp_path / "m.levels" / f"{level}.mlir").write_text("module {}\n")
    (tmp_path / "p.mlir").write_text("module {}\n")
    tool, *words = {**MISSING, **VERSIONS}[command].split()
    code = CODE.format(module=tool.replace("-", "_"), words=words)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    *out, heavy = done.stdout.strip().split("\n")
    assert heavy == "HEAVY []", done.stderr
    if command in VERSIONS:
        assert out == [f"{tool} {mlirc.__version__}"] and done.returncode == 0
    else:
        assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        assert "nowhere" in done.stderr or "tiles" in done.stderr


def test_an_error_is_one_line_of_visible_characters(tmp_path, ran):
    for name in ("\x1b[2Jowned", "a\u202eb", "a\x07\nb", "\udcff"):
        error = ran(main, tmp_path / name).error
        assert error.isprintable() and "cannot" in error
    assert one_line("modèle　一\n\u200cx\x9b31m") == "modèle 一 \u200cx\\x9b31m"


# --compare

X = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)


def with_(at, value, array=X):
    array = array.copy()
    array[at] = value
    return array


CASES = {
    "equal": (X, X, "relative error 0, largest difference 0: ok", 0),
    "close": (X + np.float32(1e-6), X, "of 35 elements differ: ok", 0),
    "one element": (with_((3, 4), 9), X, "at [3,4] (9.0 for ", 1),
    "one NaN": (with_((3, 4), np.nan), X, "1 NaN or infinite where the other is not at [3,4] (nan for", 1),
    "NaN in both": (with_((3, 4), np.nan), with_((3, 4), np.nan), "largest difference 0: ok", 0),
    "infinite in both": (with_(0, np.inf), with_(0, np.inf), "largest difference 0: ok", 0),
    "the other infinity": (with_(0, np.inf), with_(0, -np.inf), "7 NaN or infinite", 1),
    "all NaN": (np.full(3, np.nan), np.zeros(3), "3 NaN or infinite", 1),
    "the reference is zero": (np.full(3, 1e-30), np.zeros(3), "relative error inf", 1),
    "both are zero": (np.zeros(3), -np.zeros(3), "relative error 0,", 0),
    "a scalar": (np.float32(3), np.float32(2), "at [] (3.0 for 2.0)", 1),
    "nothing": (np.zeros((0, 3)), np.zeros((0, 3)), ": ok", 0),
    "large": (np.full(3, 1e200), np.full(3, 1.1e200), "relative error 0.0909", 1),
    "integers": (np.arange(3), with_(2, 3, np.arange(3)), "largest difference 1 at [2] (2 for 3), 1 of 3", 1),
    "large integers": (np.array([2**62 + 1]), np.array([2**62]), "largest difference 1 at [0]", 1),
    "other integers": (np.arange(3, dtype=np.int8), np.arange(3), ": ok", 0),
    "booleans": (np.array([True, False]), np.array([True, True]), "1 of 2 elements differ: WRONG, not to the last", 1),
    "bf16 as numpy saves it": (X.astype(ml_dtypes.bfloat16), X.astype(ml_dtypes.bfloat16), ": ok", 0),
    "bf16 and f32": (X.astype(ml_dtypes.bfloat16), X, "relative error 0.00", 1),
    "complex": (X + 1j, X + 2j, "relative error 0.4", 1),
    "f16 beyond its range": (np.float16([60000]), np.float16([-60000]), "largest difference 120000", 1),
    "shapes": (X, X.T, "has shape [5,7], and the reference [7,5]", "error"),
    "kinds": (X, X.astype(int), "is float32, and the reference int64: not of one kind", "error"),
    "words": (np.array(["a"]), np.array(["a"]), "only numbers can be compared", "error"),
}


@pytest.mark.parametrize("case", CASES)
def test_compare(tmp_path, ran, case):
    a, b, says, status = CASES[case]
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    result = ran(main, "--compare", tmp_path / "a.npy", tmp_path / "b.npy")
    text = result.error if status == "error" else result.out
    assert says.replace(",7", ", 7").replace(",5", ", 5") in text.replace("[3, 4]", "[3,4]") or says in text, text
    assert result.status == (1 if status == "error" else status)
    if status != "error":
        assert ("WRONG" in result.out) == bool(status) and result.err == ""


def test_compare_several_with_a_gate(tmp_path, ran, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("a.npz", y=X, z=X + np.float32(1e-3))
    np.savez("b.npz", y=X, z=X)
    np.savez("c.npz", y=X, q=X)
    np.save("y.npy", X)
    out = ran(main, "--compare", "a.npz", "b.npz")
    assert out.status == 1 and out.out.count("\n") == 2 and "z: relative error 0.001" in out.out
    assert ran(main, "--compare", "a.npz", "b.npz", "--gate", "0.01").status == 0
    assert ran(main, "--compare", "b.npz", "b.npz", "--gate", "0").status == 0
    assert "q is in one of them only" in ran(main, "--compare", "a.npz", "c.npz").error
    assert "give two of a kind" in ran(main, "--compare", "a.npz", "y.npy").error
    for words, why in (
        (("m.ptx", "--compare", "a.npz", "b.npz"), "give no MODEL.ptx"),
        (("--compare", "a.npz", "b.npz", "--gate", "nan"), "'nan' is no relative error"),
        (("--compare", "a.npz", "b.npz", "--gate", "-1"), "'-1' is no relative error"),
        (("m.ptx", "--gate", "1"), "--gate goes with --compare"),
        ((), "no MODEL.ptx"),
    ):
        assert why in ran(main, *words).error
