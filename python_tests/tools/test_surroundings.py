"""What the programs do where their streams, folder, memory, files' names or a model's code are not what they should be:
one line and a status other than 0, or what was asked for."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mlirc.errors import memory_error
from mlirc.tools import mlirc, mlirc_run
from support.tools import PAYLOAD

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]


def shell(folder: Path, program: str, words: str, redirections: str = "") -> subprocess.CompletedProcess:
    """Runs one of the programs from a shell, as the command that pip makes for it does."""
    module, _, function = PROGRAMS[program].partition(":")
    code = f"import sys; from {module} import {function}; sys.argv[0] = '{program}'; sys.exit({function}())"
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {words} {redirections}"
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True)


def one_error(done: subprocess.CompletedProcess) -> str:
    """The one line of standard error."""
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("program", PROGRAMS)
def test_standard_output_that_cannot_be_written(tmp_path, program):
    assert "standard output: No space left on device" in one_error(shell(tmp_path, program, "--help", ">/dev/full"))
    assert "standard output: Bad file descriptor" in one_error(shell(tmp_path, program, "--version", ">&-"))
    assert shell(tmp_path, program, "--nonsense", "2>/dev/full").returncode == 1


def test_closed_streams_are_nobodys_files(tmp_path):
    """A model is written where nothing need be printed, and what is asked for on standard output is missed."""
    (tmp_path / "m.mlir").write_text(PAYLOAD)
    done = shell(tmp_path, "mlirc", "m.mlir -o m.ptx", "<&- >&- 2>&-")
    assert done.returncode == 0 and (tmp_path / "m.ptx").read_text().startswith("//mlirc: plan")
    for program, words in (("mlirc-run", "m.ptx --info"), ("mlirc-opt", "m.mlir"), ("mlirc", "m.mlir --emit linalg")):
        one_error(shell(tmp_path, program, words, ">/dev/full"))
    assert shell(tmp_path, "mlirc-run", "m.ptx --info | true").stderr == ""
    assert shell(tmp_path, "mlirc-opt", "-", "<&-").stdout == "module {\n}\n"


def test_characters_that_the_output_has_not(tmp_path, monkeypatch):
    (tmp_path / "nö.mlir").write_text(PAYLOAD.replace('"y"', '"ä"'))
    assert shell(tmp_path, "mlirc", "nö.mlir -o m.ptx").returncode == 0
    assert "ä" in shell(tmp_path, "mlirc-run", "m.ptx --info").stdout
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    done = shell(tmp_path, "mlirc-run", "m.ptx --info")
    assert done.returncode == 0 and r"\xe4" in done.stdout, done.stderr


def test_a_working_folder_that_is_gone(tmp_path):
    (tmp_path / "gone").mkdir()
    code = (
        "import os; os.rmdir(os.getcwd()); from mlirc.tools.mlirc_run import main; raise SystemExit(main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "gone", capture_output=True, text=True)
    assert "the working folder cannot be found" in one_error(done) and not done.stdout


@pytest.mark.parametrize("name, why", [("a\nb", r"the character U\+000A"), ("b\udcff", "bytes that are no UTF-8"),
                                       ("c\u202ed", r"the character U\+202E")])  # fmt: skip
def test_names_of_files_that_no_plan_has(tmp_path, ran, name, why):
    path = tmp_path / f"{name}.mlir"
    path.write_text(PAYLOAD)
    error = ran(mlirc.main, path, "-o", tmp_path / "o.ptx").error
    assert re.search(f"the file's name has {why}: rename it", error)
    (tmp_path / "m.mlir").write_text(PAYLOAD)
    output = tmp_path / f"{name}.ptx"  # where only the output has such a name, it is written
    assert ran(mlirc.main, tmp_path / "m.mlir", "-o", output).status == 0
    assert ran(mlirc_run.main, output, "--random-inputs", 0, "--device", "host").status == 0


PROBLEM = """
import sys, torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        {init}
    def forward(self, x):
        {forward}
        return x + 1
def get_inputs():
    {inputs}
    return [torch.ones(3)]
def get_init_inputs():
    {init_inputs}
    return []
def make():
    {make}
"""
PLACES = ("init", "forward", "inputs", "init_inputs", "make")


@pytest.mark.parametrize("place", PLACES)
def test_code_that_ends_the_program(tmp_path, ran, place):
    """With status 0, as if all had been done."""
    (tmp_path / "p.py").write_text(PROBLEM.format(**dict.fromkeys(PLACES, "pass") | {place: "sys.exit(0)"}))
    spec = f"{tmp_path / 'p.py'}{':make' if place == 'make' else ''}"
    error = ran(mlirc.main, spec, "-o", tmp_path / "o.ptx").error
    assert ("sys.exit(0)" if place == "forward" else "SystemExit: 0") in error
    assert not (tmp_path / "o.ptx").exists()


def test_too_little_memory():
    """PyTorch's libraries are larger than that."""
    code = """
import resource, sys
import mlirc.tools.mlirc
from mlirc.tools.cli import run_main
resource.setrlimit(resource.RLIMIT_AS, (250 << 20, 250 << 20))
def body():
    import torch
sys.exit(run_main(body))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "out of memory (ulimit -v allows 250 MiB): give the program more" in one_error(done)


@pytest.mark.parametrize("error, found", [(MemoryError(), True), (RuntimeError("[...] DefaultCPUAllocator: can't allocate memory"), True),
                                          (OSError(12, "Cannot allocate memory"), True), (ValueError("no"), False)])  # fmt: skip
def test_what_is_said_for_want_of_memory(error, found):
    assert (memory_error(error, "opening m.pt2") is not None) == found
    outer = RuntimeError("outer")
    outer.__cause__ = error
    assert not found or "out of memory while opening m.pt2" in str(memory_error(outer, "opening m.pt2"))


@pytest.mark.parametrize("how", ["m.operation.walk(strike)", "callback(PassManager('any'))", "strike()"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_a_callback_of_native_code(how, number):
    """The exception comes out of it as another one."""
    code = f"""
import signal, sys
from mlirc import internal
from mlirc.tools.cli import run_main
def body():
    from mlirc import mlir
    from mlirc.mlir import PassManager, context
    def strike(*_):
        try:
            signal.raise_signal({int(number)})
        except BaseException:
            raise ValueError("a callback was ended")
    def callback(manager):
        manager.add(strike)
        manager.run(m.operation)
    m = mlir.parse("func.func @main() {{ return }}")
    with internal.step("trying"), context():
        {how}
sys.exit(run_main(body))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (128 + number, "")
