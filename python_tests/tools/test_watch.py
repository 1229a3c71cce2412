"""`mlirc --watch`: rounds by hand, one look at a time; what they leave equals what a fresh process makes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from mlirc.tools.mlirc import main
from mlirc.watch import files
from mlirc.watch.process import Superseded, in_copy
from mlirc.watch.session import Watch, Wish
from support.models.two_kernels import MODEL, compiled, script


class Watched:
    """A watch on the model with schedules, and what it said and did."""

    def __init__(self, folder: Path, *schedules: str, model: str = MODEL, check: tuple | None = None) -> None:
        self.model, self.output = folder / "model.mlir", folder / "out.ptx"
        self.model.write_text(model)
        self.said: list[str] = []
        self.restarts: list[list[str]] = []
        self.jobs: list[Compilation] = []
        wish = Wish(str(self.model), schedules, output=self.output, check=check)
        self.watch = Watch(
            wish,
            lambda: Compilation("model", get_target("sm_90a"), schedules, helpers=0),
            say=self.said.append,
            restart=lambda changed: self.restarts.append(list(changed)),
            done=self.jobs.append,
        )
        self.watch.open()
        self.watch.round()

    def look(self) -> list[str]:
        """Two looks, the second of which acts when something changed; returns what was said, nothing when it slept."""
        del self.said[:]
        first, second = self.watch.poll(), self.watch.poll()
        assert not first and second == bool(self.said)
        assert not self.watch.poll()
        return self.said

    def rebuilt(self) -> list[str]:
        """The kernels of a round that must come, after a look whether the files are those of a fresh compilation."""
        [line] = self.look()
        assert line.endswith(f"{self.output} written"), line
        fresh = compiled(self.model, *self.watch.wish.schedules)
        folder = self.output.with_suffix(".levels")
        assert self.output.read_text() == fresh.ptx
        for level in ("kernels", "tiles", "gpu"):
            assert self.jobs[-1].text(level) == fresh.text(level)
            assert fresh.text(level) in (folder / f"{level}.mlir").read_text()
        return self.jobs[-1].rebuilt


def test_rounds(tmp_path):
    """An edit, an error, its mending, a file that goes and comes back: each is a round; between them nothing happens."""
    path = tmp_path / "mine.py"
    watched = Watched(tmp_path, script(path), "matmul:block_k=16")
    assert watched.jobs[0].rebuilt == ["matmul_0", "reduction_0"]
    assert watched.look() == []
    script(path, warps=4)
    assert watched.rebuilt() == ["reduction_0"]
    before = watched.output.read_bytes()
    script(path, warps=8, used="nothing")
    error, stays = watched.look()
    assert error.startswith(f"error: {path}:") and "nothing" in error and "stays as it was" in stays
    path.unlink()
    assert "no such file" in watched.look()[0]
    assert watched.output.read_bytes() == before and watched.look() == []
    script(path, warps=4)
    assert watched.rebuilt() == []
    Path(tmp_path / "new.py").write_text(path.read_text().replace("= 4", "= 8"))
    os.replace(tmp_path / "new.py", path)  # as many editors save
    assert watched.rebuilt() == ["reduction_0"]
    os.utime(path)
    assert watched.rebuilt() == []


def test_whatever_a_script_reads_is_watched(tmp_path):
    """A module that it imports late, a table of values that it opens, a module that is missing at first."""
    (tmp_path / "tuned").mkdir()
    helper, table = tmp_path / "tuned" / "words.py", tmp_path / "table.txt"
    helper.write_text("def warps(text): return int(text)\n")
    table.write_text("2")
    imports = (
        "from pathlib import Path\n\n\ndef used():\n    from tuned.words import warps\n"
        "    return warps(Path(__file__).with_name('table.txt').read_text())\n"
    )
    watched = Watched(tmp_path, script(tmp_path / "mine.py", imports=imports, used="used()"))
    table.write_text("4")
    assert watched.rebuilt() == ["reduction_0"] and "warps = 4" in watched.jobs[-1].text("tiles")
    helper.write_text("def warps(text): return int(text) * 2\n")
    assert watched.rebuilt() == ["reduction_0"] and "warps = 8" in watched.jobs[-1].text("tiles")
    script(tmp_path / "mine.py", imports="from later import WARPS", used="WARPS")
    assert "No module named 'later'" in watched.look()[0]
    (tmp_path / "later.py").write_text("WARPS = 1\n")
    assert watched.rebuilt() == ["reduction_0"]


def test_a_script_in_mlir(tmp_path):
    text = compiled_text(tmp_path)
    path = tmp_path / "edited.mlir"
    path.write_text(text)
    watched = Watched(tmp_path, str(path))
    path.write_text(text.replace("%5 = transform.param.constant 1", "%5 = transform.param.constant 2"))
    assert watched.rebuilt() == ["reduction_0"] and "warps = 2" in watched.jobs[-1].text("tiles")


def test_two_files_at_once_are_one_round(tmp_path):
    helper = tmp_path / "helper.py"
    helper.write_text("WARPS = 2\n")
    watched = Watched(tmp_path, script(tmp_path / "mine.py", imports="import helper", used="helper.WARPS"))
    helper.write_text("MORE = 4\n")
    script(tmp_path / "mine.py", imports="import helper", used="helper.MORE")
    assert watched.rebuilt() == ["reduction_0"] and "mine.py, helper.py changed" in watched.said[0]


def compiled_text(folder: Path) -> str:
    (folder / "model.mlir").write_text(MODEL)
    text = compiled(folder / "model.mlir").text("schedule")
    return next(part for part in text.split("// -----\n") if "kernels: reduction_0" in part)


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9 (Killed)"),
        ("import os; os._exit(0)", "ended with status 0"),
        ("raise SystemExit(3)", "SystemExit"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("import sys; sys.modules.clear()", ""),
    ],
)
def test_no_script_harms_the_process(tmp_path, line, wanted):
    path = tmp_path / "mine.py"
    watched = Watched(tmp_path, script(path, imports=line))
    assert wanted in watched.said[0] and watched.said[0].startswith("error: ")
    assert "is not written" in watched.said[1] and not watched.output.exists()
    script(path)
    assert watched.rebuilt() == ["matmul_0", "reduction_0"]


def test_what_is_wrong_is_not_written(tmp_path, monkeypatch):
    """With --check, and a step that makes another function of one that is there."""
    right, wrong = Schedules.schedule_kernel, tmp_path / "wrong"

    def schedule_kernel(schedules, module, target):
        tiles, record = right(schedules, module, target)
        if wrong.exists():
            text = tiles.operation.get_asm(enable_debug_info=True)
            tiles = mlir.parse(text.replace("math.exp", "math.tanh"))
        return tiles, record

    monkeypatch.setattr(Schedules, "schedule_kernel", schedule_kernel)
    path = tmp_path / "mine.py"
    watched = Watched(tmp_path, script(path), check=("tiles",))
    assert watched.jobs[-1].checked.ok
    before = watched.output.read_bytes()
    wrong.touch()
    script(path, warps=4)
    error, stays = watched.look()
    assert error.startswith("error: level tiles is wrong on inputs") and "stays as it was" in stays
    assert watched.output.read_bytes() == before
    wrong.unlink()
    script(path, warps=8)
    assert watched.rebuilt() == ["matmul_0", "reduction_0"]


def test_mlir_models_are_read_again_and_may_be_wrong_meanwhile(tmp_path):
    watched = Watched(tmp_path)
    watched.model.write_text(MODEL.replace("math.exp", "math.tanh"))
    assert "reduction_0" in watched.rebuilt()
    watched.model.write_text(MODEL[:400])
    assert "not valid MLIR" in watched.look()[0]
    watched.model.write_text(MODEL)
    assert "reduction_0" in watched.rebuilt()


def test_a_change_while_it_works_starts_the_round_again(tmp_path):
    path = tmp_path / "mine.py"
    watched = Watched(tmp_path, script(path))
    endless = "import pathlib, time\npathlib.Path(__file__).with_name('began').touch()\ntime.sleep(600)"
    script(path, imports=endless)

    def mend():
        while not (tmp_path / "began").exists():
            waiting.wait(0.01)
        script(path, warps=4)

    waiting = threading.Event()
    thread = threading.Thread(target=mend)
    thread.start()
    del watched.said[:]
    assert [watched.watch.poll(), watched.watch.poll()] == [False, True]
    assert watched.said == ["a file changed meanwhile: once more"]
    thread.join()
    assert watched.rebuilt() == ["reduction_0"]


def test_scripts_of_mlirc_are_loaded_again_and_other_sources_need_a_new_process(tmp_path, monkeypatch):
    from mlirc import scripts

    folder = tmp_path / "scripts"
    folder.mkdir()
    for source in files.script_sources():
        (folder / Path(source).name).write_bytes(Path(source).read_bytes())
    monkeypatch.setattr(scripts, "__path__", [str(folder)])
    own = tmp_path / "own.py"
    own.write_text("")
    monkeypatch.setattr(files, "own_sources", lambda: [str(own)])
    monkeypatch.setattr("mlirc.watch.session.LOOKS_PER_OWN", 1)
    watched = Watched(tmp_path)
    reduction = folder / "reduction.py"
    reduction.write_text(reduction.read_text().replace("warps = warps or default_warps", "warps = warps or 4"))
    [line] = watched.look()
    assert "reduction.py changed" in line and watched.jobs[-1].rebuilt == ["reduction_0"]
    assert watched.jobs[-1].records["reduction_0"].knobs["warps"] == 4
    own.write_text("#")
    assert [watched.watch.poll(), watched.watch.poll()] == [False, True] and watched.restarts == [[str(own)]]


def test_a_model_of_torch_keeps_its_weights_file_and_starts_over_with_its_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = tmp_path / "watched_layers.py"
    layers.write_text("import torch\n\n\ndef layer():\n    return torch.nn.Linear(5, 3)\n")
    (tmp_path / "watched_model.py").write_text(
        "import torch\n\nfrom watched_layers import layer\n\n\ndef make():\n"
        "    return torch.nn.Sequential(layer(), torch.nn.Softmax(-1)), (torch.ones(7, 5),)\n"
    )
    restarts: list = []
    path = tmp_path / "mine.py"
    wish = Wish("watched_model:make", (script(path),), output=tmp_path / "out.ptx")
    watch = Watch(
        wish,
        lambda: Compilation("m", get_target("sm_90a"), helpers=0),
        say=lambda line: None,
        restart=restarts.append,
    )
    watch.open()
    watch.round()
    weights = tmp_path / "out.safetensors"
    before, text = files.signature(str(weights)), wish.output.read_text()
    script(path, warps=4)
    assert [watch.poll(), watch.poll()] == [False, True] and wish.output.read_text() != text
    assert files.signature(str(weights)) == before
    weights.unlink()
    script(path, warps=2)
    assert [watch.poll(), watch.poll()] == [False, True] and weights.exists()
    assert wish.output.read_text() == text
    layers.write_text(layers.read_text() + "# edited\n")
    assert [watch.poll(), watch.poll()] == [False, True] and restarts == [[str(layers)]]
    for name in ("watched_model", "watched_layers"):
        del sys.modules[name]


def test_outputs_in_the_models_folder_are_not_of_the_model(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    (tmp_path / "config.json").write_text("{}")
    compiled(path).write(tmp_path / "out.ptx")
    assert files.model_files(str(tmp_path)) == [str(tmp_path / "config.json"), str(path)]
    assert files.model_files(str(path)) == [str(path)] and files.model_files("no.such:factory") == []


def test_work_in_a_copy(capfd, monkeypatch):
    assert in_copy(lambda: [1] * 1_000_000) == [1] * 1_000_000
    with pytest.raises(MlircError, match="^as it was$"):
        in_copy(lambda: (_ for _ in ()).throw(MlircError("as it was")))
    for value, shown in (("", 0), ("1", 1)):  # a bug of ours
        monkeypatch.setenv("MLIRC_TRACEBACK", value)
        with pytest.raises(MlircError, match="internal error while scheduling and compiling: ZeroDivisionError"):
            in_copy(lambda: 1 // 0)
        assert capfd.readouterr().err.count("Traceback") == shown
    with pytest.raises(Superseded):
        in_copy(lambda: threading.Event().wait(), lambda: True)


@pytest.mark.parametrize(
    "words, wanted",
    [
        (["--watch"], "nothing to do"),
        (["--watch", "--emit", "linalg"], "no schedule changes that level"),
        (["--watch", "-v", "--schedule", "missing.py"], "missing.py: no such file"),
        (["--watch", "-v", "--dump-dir", "dump"], "not with --dump-dir"),
        (["--watch", "-v", "--target", "sm_1"], "sm_1"),
    ],
)
def test_refusals(ran, tmp_path, monkeypatch, words, wanted):
    monkeypatch.chdir(tmp_path)
    Path("model.mlir").write_text(MODEL)
    assert wanted in ran(main, "model.mlir", *words).error


def test_a_model_at_the_tiles_level_is_refused(ran, tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(MODEL)
    path.write_text(compiled(path).text("tiles"))
    assert "given at level tiles" in ran(main, path, "--watch", "-v").error


def test_the_program_from_its_start_to_ctrl_c(tmp_path):
    """Rounds and the end, in a process of its own."""
    (tmp_path / "model.mlir").write_text(MODEL)
    path = tmp_path / "mine.py"
    script(path)
    command = [sys.executable, "-m", "mlirc.tools.mlirc", "model.mlir", "-o", "out.ptx", "--watch", "--schedule"]
    process = subprocess.Popen(
        [*command, "mine.py", "--emit", "tiles"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(300, process.kill)  # a hang
    timer.start()
    try:
        assert process.stderr and process.stdout
        assert "2 kernels scheduled, 2 compiled" in process.stderr.readline()
        assert process.stderr.readline() == "watching mine.py, the model, and the scripts of mlirc; Ctrl-C ends\n"
        script(path, warps=4)
        assert process.stderr.readline().startswith("mine.py changed: 2 kernels scheduled, 1 compiled (reduction_0)")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert (process.returncode, err) == (0, "") and out.count("func.func @main") == 2
        assert "mlirc.warps = 2" in out and "mlirc.warps = 4" in out
    finally:
        timer.cancel()
        process.kill()


def test_starting_over_runs_the_same_command_once_more(tmp_path):
    text = (
        "import os, sys\nfrom mlirc.watch.command import _AGAIN, _start_over\nprint(sys.argv[1:], os.getcwd(), flush=True)\n"
        "again = os.environ.get(_AGAIN)\nfolder = os.getcwd()\nos.chdir('/')\n"
        "again or _start_over(sys.executable, sys.orig_argv, dict(os.environ), folder)\n"
    )
    command = [sys.executable, "-c", text, "a b", "--c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout == f"['a b', '--c'] {tmp_path}\n" * 2, done.stderr


def test_compiling_in_forked_helpers(tmp_path):
    """As a round does for several kernels; a helper's error is that of the compilation."""
    from mlirc.driver.kernel_build import build_kernel
    from mlirc.driver.workers import build_kernels

    (tmp_path / "model.mlir").write_text(MODEL)
    jobs = list(compiled(tmp_path / "model.mlir")._jobs.values())
    found = in_copy(lambda: {b.name: (b.ptx, b.gpu) for b in build_kernels(jobs, 2, fork=True)})
    alone = [build_kernel(job) for job in jobs]
    assert found == {b.name: (b.ptx, b.gpu) for b in alone} and len(found) == 2
    wrong = dataclasses.replace(jobs[0], text="nothing of MLIR's")
    with pytest.raises(MlircError, match="not valid MLIR"):
        in_copy(lambda: list(build_kernels([jobs[1], wrong], 2, fork=True)))
