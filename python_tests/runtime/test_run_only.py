"""An installation for running only, without PyTorch and MLIR: it runs PTX files, and says what the rest needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from mlirc.runtime.plan_file import embed
from support.plans.tiny import PTX, W, make_plan, randn, write_weights
from support.tools import LEVEL

# Only what pyproject.toml lists as dependencies can be imported, and the standard library.
BLOCKER = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Blocker())
"""
TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(code: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs code where the compiler's packages cannot be imported."""
    names = [d.replace("=", " ").replace(">", " ").split()[0] for d in project()["optional-dependencies"]["compiler"]]
    blocked = {name.replace("-", "_") for name in names}
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    text = f"BLOCKED = {blocked!r}\n{BLOCKER}\n{code}"
    return subprocess.run(
        [sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run-only")
    (folder / "m.ptx").write_text(embed(PTX, make_plan()))
    write_weights(folder / "m.safetensors", {"m.w": W})
    (folder / "m.levels").mkdir()
    for level in ("linalg", "gpu"):
        (folder / "m.levels" / f"{level}.mlir").write_text(LEVEL)
    np.save(folder / "x.npy", randn())
    return folder


def test_everything_needed_for_running_is_there(folder):
    """Loads, runs, times, describes and compares; the kernels are a fake GPU's."""
    code = """
import ctypes
import numpy as np
import mlirc, mlirc.runtime.model
from support.devices.fake_gpu import FakeDriver, at
kernels = {"add": lambda a, b, c: np.add(at(a, 37), at(b, 37), out=at(c, 37)),
           "twice": lambda a, b: np.multiply(at(a, 37), 2, out=at(b, 37))}
mlirc.runtime.model.Driver = lambda device: FakeDriver(kernels)
x = np.load("x.npy")
with mlirc.load("m.ptx") as model:
    y, z = model(x)
    np.testing.assert_array_equal(z, x)
from mlirc.tools.mlirc_run import main
assert main(["m.ptx", "--input", "x.npy", "-o", "all.npz", "-o", "y=y.npy"]) == 0
np.testing.assert_array_equal(np.load("y.npy"), y)
assert main(["m.ptx", "--info"]) == 0
assert main(["m.ptx", "--random-inputs", "0", "--time"]) == 0
assert main(["--compare", "all.npz", "all.npz"]) == 0
assert main(["m.ptx", "--random-inputs", "0", "--level", "linalg"]) == 1
assert main(["m.ptx", "--random-inputs", "0", "--device", "host"]) == 1
for name in ("mlirc", "mlirc_opt", "mlirc_bench"):
    __import__(f"mlirc.tools.{name}")
    try:
        sys.modules[f"mlirc.tools.{name}"].main(["--version"])
    except SystemExit as e:
        assert e.code == 0
bad = [m for m in sys.modules if m.partition(".")[0] in BLOCKED]
assert not bad, bad
"""
    done = run(code, folder)
    assert done.returncode == 0, done.stderr
    needs = (
        "error: this needs the package torch-mlir, and mlirc is installed here for running only: pip install 'mlirc["
    )
    assert done.stderr.count(needs) == 2 and done.stderr.count("error: ") == 2, done.stderr


@pytest.mark.parametrize(
    "call",
    [
        "sys.exit(mlirc('p.mlir', '-o', 'p.ptx'))",
        "sys.exit(mlirc('m:make', '--emit', 'torch'))",
        "sys.exit(opt('p.mlir'))",
        "sys.exit(opt('--list'))",
        "sys.exit(bench('fp32'))",
        "sys.exit(run_main(lambda: compile(None)))",
        "sys.exit(run_main(lambda: load('m.ptx', device='host')))",
    ],
)
def test_what_needs_more_says_what_to_install(folder, call):
    (folder / "p.mlir").write_text(LEVEL)
    code = f"""
from mlirc import compile, load
from mlirc.tools.cli import run_main
def mlirc(*words): from mlirc.tools.mlirc import main; return main(list(words))
def opt(*words): from mlirc.tools.mlirc_opt import main; return main(list(words))
def bench(*words): from mlirc.tools.mlirc_bench import main; return main(list(words))
{call}
"""
    done = run(code.replace("): from", "):\n    from").replace("; return", "\n    return"), folder)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: this needs the package "), done.stderr
    assert lines[0].endswith("pip install 'mlirc[compiler]'")


def test_the_project_says_the_same():
    extras = project()["optional-dependencies"]
    assert sorted(project()["dependencies"]) == ["cuda-bindings", "isal", "ml_dtypes", "numpy"]
    assert "mlirc[compiler]" in extras["test"]
    from mlirc.errors import _COMPILER

    assert {d.replace("=", " ").replace(">", " ").split()[0] for d in extras["compiler"]} == set(_COMPILER.values())
