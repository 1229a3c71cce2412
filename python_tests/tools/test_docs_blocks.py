"""The README's commands and the pages' Python run as they are printed; on the CPU, where they would take a GPU."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.host.tensors import to_numpy
from mlirc.ir.levels import argument_names, functions, isolate
from mlirc.tools import mlirc as mlirc_tool
from mlirc.tools import mlirc_bench, mlirc_opt, mlirc_run

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "mlirc": mlirc_tool.main,
    "mlirc-bench": mlirc_bench.main,
    "mlirc-opt": mlirc_opt.main,
    "mlirc-run": mlirc_run.main,
}
# Commands of the README that are not run: installation, weights that are not here, and measuring on a GPU.
NOT_RUN = (
    "pip install '.[compiler]'",
    "mlirc llama/",
    "mlirc-bench model.pt2",
    "mlirc-generate llama/",
    "mlirc-serve llama/",
    "mlirc-run model.ptx --input x.npy -o y.npy",
)
FACTORY = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Softmax(-1)).eval(), (torch.randn(64, 64),)
"""
PROBLEM = (
    FACTORY
    + """
class Model(torch.nn.Linear):
    pass

def get_init_inputs():
    return [64, 128]

def get_inputs():
    return [torch.randn(64, 64)]
"""
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """What the pages take for granted: model.pt2, model.ptx, a package, a script, an input."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "models.py").write_text(FACTORY)
    (folder / "problem.py").write_text(PROBLEM)
    shutil.copy(ROOT / "examples" / "wide_rows.py", folder / "my_matmul.py")
    scope: dict = {}
    exec(FACTORY, scope)
    module, (x,) = scope["make"]()
    torch.export.save(torch.export.export(module, (x,)), folder / "model.pt2")
    job = compile_model(str(folder / "model.pt2"), folder / "model.ptx")
    (folder / "kernel.mlir").write_text(str(isolate(job.modules["kernels"], "matmul_0")))

    np.save(folder / "x.npy", x.numpy())
    named = {**job.tensors(), "input": x}
    names = argument_names(functions(job.modules["kernels"])["main"])
    return folder, module, x, [to_numpy(named[n]) for n in names]


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlirc, "load", partial(mlirc.load, device="host"))
    monkeypatch.setattr(mlirc, "compile", partial(mlirc.compile, device="host"))
    return tmp_path


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", ["README.md", "docs/tools.md", "docs/runtime.md", "docs/checking.md"])
def test_the_python_on_a_page(made, here, page, capsys):
    _, module, x, arrays = made
    text = "\n".join(blocks(page, "python"))
    assert text
    # Of another model, or for a GPU alone.
    other = ("attention_mask=mask", "model.state", "model(x, position)", "mlirc.LLM", "torch.compile(")
    lines = [line for line in text.split("\n") if not any(words in line for words in other)]
    scope = {"mlirc": mlirc, "module": module, "x": x, "arrays": arrays}
    exec("\n".join(lines), scope)
    if "y" in scope:
        assert torch.allclose(scope["y"], module(x), atol=1e-4)
    if page == "docs/tools.md":
        found = eval('run_level(job.modules["kernels"], [x], job.tensors())', scope)
        same = eval('run_module(job.modules["kernels"], arrays)', scope)
        assert torch.allclose(found[0], module(x), atol=1e-4) and (found[0].numpy() == same[0]).all()


def test_the_page_of_own_kernels(here, ran):
    """Its Python as it stands, and its commands, with what they are said to print."""
    (here / "examples").symlink_to(ROOT / "examples")
    page = "docs/own-kernels.md"
    written, called, program = blocks(page, "python")
    source, block_program = (
        (ROOT / "examples" / f"{name}.py").read_text() for name in ("matmul_softmax", "block_matmul")
    )
    assert written.split("\n\n\n")[1].strip() in source and program.split("\n\n\n")[1].strip() in block_program
    scope: dict = {}
    (here / "mine.py").write_text(written)
    exec(compile(written + called, str(here / "mine.py"), "exec"), scope)
    wanted = torch.softmax(scope["x"].double() @ scope["w"].double(), -1)
    assert all((scope[name].double() - wanted).norm() < 4e-3 * wanted.norm() for name in "yz")
    text = (ROOT / page).read_text()
    commands = re.findall(r"^    (?:\$ )?((?:mlirc|mlirc-run|mlirc-bench|python) .*)$", text, flags=re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        words = shlex.split(command)
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True)
            assert done.returncode == 0 and " ok\n" in done.stdout, done.stderr
            continue
        small = [] if "--shapes" in words or words[0] == "mlirc-run" else ["--shapes", "M=33,N=40,K=24"]
        result = ran(PROGRAMS[words[0]], *words[1:2], *small, *words[2:])
        assert result.status == 0 and "error" not in result.err, f"{command}: {result.err}"
    source = source.replace("ops.matmul(a, b)", "ops.matmul(a, a)")
    (here / "mine.py").write_text(source)
    error = ran(mlirc_tool.main, "mine.py:matmul_softmax", "--emit", "kernels").error
    line = 1 + source[: source.index("ops.matmul(a, a)")].count("\n")
    assert error == f"error: mine.py:{line}: matmul: bf16[128,64] has 64 columns, and bf16[128,64] has 128 rows"
    assert error in text


def test_the_readmes_commands(here, ran, monkeypatch):
    (here / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    commands = [line.split("  #")[0].strip() for text in blocks("README.md", "sh") for line in text.split("\n")]
    commands = [c for c in commands if c]
    assert all(any(c.startswith(skipped) for c in commands) for skipped in NOT_RUN)
    # test_docs.py ends a --watch after its first round
    run = [c for c in commands if "--watch" not in c and (not c.startswith(NOT_RUN) or "--level" in c)]
    assert len(run) >= 10
    for command in run:
        words = shlex.split(command)
        result = ran(PROGRAMS[words[0]], *words[1:])
        assert result.status == 0 and "error" not in result.err, f"{command}: {result.err}"
    repro = next((here / "dump" / "kernels").glob("*/repro.py"))
    done = subprocess.run([sys.executable, repro, "--level", "host"], capture_output=True, text=True)
    assert done.returncode == 0 and "on the host device, no findings) ok" in done.stdout, done.stderr
