"""Files that mlirc's programs write: never in the place of an input or of another's file, whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.files.marks import is_ours, marked_json, marked_text, write_npy, write_npz
from mlirc.files.outputs import Outputs, check_model_output, check_writable
from mlirc.frontend import write_weights
from mlirc.runtime.plan_file import embed
from mlirc.runtime.weights import WeightFile
from mlirc.tools import mlirc, mlirc_bench, mlirc_opt, mlirc_run
from support.plans.tiny import PTX, make_plan, randn
from support.tools import PAYLOAD, files

NOTES = b"a user's notes, one week of work\n"
OTHERS_MLIR = PAYLOAD.encode()


def _link(path: Path) -> None:
    path.with_name("elsewhere").write_bytes(NOTES)
    path.symlink_to(path.with_name("elsewhere"))


def _socket(path: Path) -> None:
    folder = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(folder)


# What may lie where an output is to go: (how it gets there, what the error says).
OBSTACLES = {
    "notes": (lambda p: p.write_bytes(NOTES), "mlirc did not write it: remove it, or give another name"),
    "binary": (lambda p: p.write_bytes(bytes(range(256)) * 9), "mlirc did not write it"),
    "another's ptx": (lambda p: p.write_text(PTX), "mlirc did not write it"),
    "a mark in the middle": (lambda p: p.write_text("x\n// mlirc: level tiles\ny\n"), "mlirc did not write it"),
    "another's npy": (lambda p: np.save(p.open("wb"), randn()), "mlirc did not write it"),
    "another's npz": (lambda p: np.savez(p.open("wb"), x=randn()), "mlirc did not write it"),
    "another's safetensors": (lambda p: p.write_bytes(b"\x08\0\0\0\0\0\0\0{}      "), "mlirc did not write it"),
    "another's json": (lambda p: p.write_text('{"a": 1}'), "mlirc did not write it"),
    "a folder": (Path.mkdir, "is a folder"),
    "a link": (_link, "is a symbolic link"),
    "a broken link": (lambda p: p.symlink_to("nowhere"), "is a symbolic link"),
    "a fifo": (os.mkfifo, "is a FIFO"),
    "a socket": (_socket, "is a socket"),
}


def snapshot(folder: Path) -> dict[str, object]:
    """Everything below a folder: kinds, contents and permissions."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
        found[str(path.relative_to(folder))] = (about.st_mode, about.st_ino, content)
    return found


@pytest.mark.parametrize("what", OBSTACLES)
@pytest.mark.parametrize("name", ["m.ptx", "m.safetensors", "m.levels/tiles.mlir"])
def test_what_is_not_ours_is_never_replaced(tmp_path, what, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    make, why = OBSTACLES[what]
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(MlircError, match=why):
        check_model_output(tmp_path / "m.ptx")
    with pytest.raises(MlircError, match=why), Outputs() as outputs:
        outputs.add_text(tmp_path / "other", "text", "text")
        outputs.add_text(path, "text", "text")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("device", ["/dev/null", "/dev/zero", "/dev/full", "/dev/stdout"])
def test_devices_are_never_replaced(device):
    with pytest.raises(MlircError, match="is a device|is a symbolic link|Permission"):
        check_writable(Path(device))
    assert not is_ours(Path(device))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("m", "ends in .ptx"),
        ("m.v1", "ends in .ptx"),
        ("m.PTX", "ends in .ptx"),
        ("no/m.ptx", "folder .*no does not exist"),
        ("x" * 300 + ".ptx", "too long"),
        ("x" * 250 + ".ptx", "too long"),  # its .safetensors
        ("a\0b.ptx", "null"),
        ("notes/m.ptx", "does not exist"),
    ],
)
def test_names_that_no_model_can_have(tmp_path, name, why):
    (tmp_path / "notes").write_bytes(NOTES)
    with pytest.raises(MlircError, match=why):
        check_model_output(tmp_path / name)


def test_our_own_files_are_known_by_their_marks(tmp_path):
    ours = {
        "a.mlir": lambda p: p.write_text(marked_text(p, "module {}", "level tiles")),
        "a.py": lambda p: p.write_text(marked_text(p, "print()\n", "repro")),
        "a.ll": lambda p: p.write_text(marked_text(p, "", "llvm")),
        "a.md": lambda p: p.write_text(marked_text(p, "# Page\n", "page")),
        "a.json": lambda p: p.write_text(marked_json({"about": {}})),
        "a.ptx": lambda p: p.write_text(embed(PTX, make_plan())),
        "a.safetensors": lambda p: write_weights(p, {}),
        "empty": lambda p: p.write_text(""),
        "scalar.npy": lambda p: write_npy(p.open("wb"), np.float64(3)),
        "strided.npy": lambda p: write_npy(p.open("wb"), np.arange(35, dtype=np.int8).reshape(5, 7).T[::2]),
        "none.npy": lambda p: write_npy(p.open("wb"), np.zeros((0, 3), bool)),
        "a.npz": lambda p: write_npz(p.open("wb"), {"x": randn(), "y": np.zeros(0)}),
    }
    for name, write in ours.items():
        write(tmp_path / name)
        assert is_ours(tmp_path / name), name
    assert np.load(tmp_path / "scalar.npy") == 3 and np.load(tmp_path / "scalar.npy").shape == ()
    np.testing.assert_array_equal(np.load(tmp_path / "strided.npy"), np.arange(35).reshape(5, 7).T[::2])
    assert np.load(tmp_path / "none.npy").shape == (0, 3)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["x"], randn())
    assert not WeightFile(tmp_path / "a.safetensors").entries
    assert "mlirc" in json.loads((tmp_path / "a.json").read_text())["made by"]
    # A long header of somebody else's: many fields.
    np.save(tmp_path / "fields.npy", np.zeros(1, [(f"field_{i}", "f4") for i in range(38)]))
    assert not is_ours(tmp_path / "fields.npy")


@pytest.fixture
def payload(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.mlir").write_text(PAYLOAD)
    return tmp_path


ALIASES = {
    "itself": lambda p: p,
    "relative": lambda p: Path("x/..", os.path.relpath(p)),
    "through a linked folder": lambda p: Path("linked", os.path.relpath(p)),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_an_input_is_never_replaced_by_whatever_name(ran, payload, alias):
    """Even one that carries our mark: a level that mlirc wrote, given back."""
    (payload / "x").mkdir()
    (payload / "linked").symlink_to(payload)
    assert ran(mlirc.main, "p.mlir", "-o", "m.ptx", "--dump-dir", "dump").status == 0
    os.link("m.levels/tiles.mlir", "hard.mlir")
    before = snapshot(payload)
    for given, output in (
        ("m.levels/tiles.mlir", "m.ptx"),
        ("hard.mlir", "m.ptx"),
        ("m.levels/gpu.mlir", "m.ptx"),
    ):
        error = ran(mlirc.main, ALIASES[alias](payload / given), "-o", output).error
        assert "this run reads it" in error
    for words in (("dump/04-tiles.mlir",), ("p.mlir", "--schedule", "dump/03-schedule.mlir")):
        assert "this run reads it" in ran(mlirc.main, *words, "--dump-dir", "dump").error
    opt = (ALIASES[alias](payload / "hard.mlir"), "-o", "m.levels/tiles.mlir")
    assert "this run reads it" in ran(mlirc_opt.main, *opt).error
    assert snapshot(payload) == before


def test_a_model_is_not_compiled_over_its_own_weights(payload):
    folder = payload / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(MlircError, match="taken for the Hugging Face model's own"):
        check_model_output(folder / "model.ptx", [folder])
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(MlircError, match="this run reads it"):
        check_model_output(folder / "model.ptx", [folder])
    (folder / "c.ptx").write_text(embed(PTX, make_plan()))  # compiled there before
    check_model_output(folder / "c.ptx", [folder])


def test_what_an_earlier_model_left_goes_away(ran, payload):
    write_weights(payload / "m.safetensors", {})
    assert ran(mlirc.main, "p.mlir", "-o", "m.ptx").status == 0
    assert files(payload) == [*(f"m.levels/{x}.mlir" for x in ("gpu", "kernels", "linalg", "tiles")), "m.ptx", "p.mlir"]
    shutil.copy("m.levels/tiles.mlir", "t.mlir")
    (payload / "m.levels" / "notes.txt").write_bytes(NOTES)
    assert ran(mlirc.main, "t.mlir", "-o", "m.ptx").status == 0
    assert sorted(os.listdir("m.levels")) == ["gpu.mlir", "kernels.mlir", "notes.txt", "tiles.mlir"]
    (payload / "game.levels").mkdir()
    (payload / "game.levels" / "1.map").write_bytes(NOTES)
    assert "holds files that mlirc did not write" in ran(mlirc.main, "p.mlir", "-o", "game.ptx").error


def test_a_dump_replaces_a_dump_and_nothing_else(ran, payload):
    dump = payload / "dump"
    assert ran(mlirc.main, "p.mlir", "--dump-dir", dump).status == 0
    first = files(dump)
    (dump / "kernels" / "old_0" / "model.levels").mkdir(parents=True)
    for stale in ("kernels/old_0/model.levels/tiles.mlir", "00-torch.mlir"):
        shutil.copy(dump / "04-tiles.mlir", dump / stale)
    (dump / "notes.txt").write_bytes(NOTES)
    assert ran(mlirc.main, "p.mlir", "--dump-dir", dump).status == 0
    assert files(dump) == sorted([*first, "notes.txt"]) and not (dump / "kernels" / "old_0").exists()
    (dump / "06-gpu.mlir").write_bytes(OTHERS_MLIR)
    before = snapshot(payload)
    assert "06-gpu.mlir: it exists, and mlirc did not write it" in ran(mlirc.main, "p.mlir", "--dump-dir", dump).error
    assert snapshot(payload) == before


def test_mlirc_opt_writes_what_it_may(ran, payload):
    assert ran(mlirc_opt.main, "p.mlir", "--script", "graph", "-o", "k.mlir").status == 0
    assert ran(mlirc_opt.main, "p.mlir", "--script", "graph", "-o", "k.mlir").status == 0
    assert ran(mlirc_opt.main, "k.mlir", "--script", "auto").status == 0
    for output in ("p.mlir", "no/k.mlir", "."):
        assert f"cannot write {output}" in ran(mlirc_opt.main, "p.mlir", "-o", output).error
    assert Path("p.mlir").read_text() == PAYLOAD


@pytest.mark.parametrize("output", ["x.npy", "z=x.npy", "m.npz", "notes.npy", "y=same.npz", "w.npy"])
def test_mlirc_run_keeps_its_inputs_and_others_files(run_files, ran, output):
    np.savez("m.npz", x=randn())
    Path("notes.npy").write_bytes(NOTES)
    Path("w.npy").symlink_to("x.npy")
    before = snapshot(run_files)
    words = ["m.ptx", "--input", "m.npz" if output == "m.npz" else "x.npy", "-o", output.replace("y=same", "y=x")]
    words = ["m.ptx", "--input", "x.npy", "-o", "y=same.npy", "-o", "z=same.npy"] if "same" in output else words
    if output in ("notes.npy", "w.npy", "x.npy"):
        words[-1] = f"z={output}"
    assert "cannot write" in ran(mlirc_run.main, *words).error
    assert snapshot(run_files) == before


def test_mlirc_run_replaces_its_own(run_files, ran):
    for _ in range(2):
        assert ran(mlirc_run.main, "m.ptx", "--input", "x.npy", "-o", "y=y.npy", "-o", "a.npz").status == 0


@pytest.mark.parametrize("words", [["-o", "notes.json"], ["-o", "page.json"], ["--compile-only", "folder"]])
def test_mlirc_bench_keeps_others_files(payload, ran, words):
    for name in ("notes.json", "page.md", "folder/manifest.json"):
        (payload / name).parent.mkdir(exist_ok=True)
        (payload / name).write_bytes(NOTES)
    before = snapshot(payload)
    assert "mlirc did not write it" in ran(mlirc_bench.main, "fp32", "--filter", "softmax.tinyllama.s32$", *words).error
    assert snapshot(payload) == before


def test_permissions_are_those_of_any_new_file_and_stay(tmp_path):
    old = os.umask(0o027)
    try:
        for text in ("one", "two"):
            with Outputs() as outputs:
                outputs.add_text(tmp_path / "a", text, "text")
            write_weights(tmp_path / "b.safetensors", {})
            modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "b.safetensors")]
            assert modes == ([0o640, 0o640] if text == "one" else [0o600, 0o640])
            (tmp_path / "a").chmod(0o600)
    finally:
        os.umask(old)


def test_all_or_none_even_when_the_last_step_fails(tmp_path, monkeypatch):
    with Outputs() as outputs:
        outputs.add_text(tmp_path / "a", "old", "text")
        outputs.add_text(tmp_path / "c", "old", "text")
    before, replace, done = snapshot(tmp_path), os.replace, []

    def fails(source, target):
        done.append(target)
        if len(done) == 3:
            raise OSError(28, "No space left on device", str(source), None, str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(MlircError, match="cannot write .*new/b: No space left"), Outputs() as outputs:
        for name in ("a", "n", "new/b"):
            outputs.add_text(tmp_path / name, "new", "text")
        outputs.remove(tmp_path / "c")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_program_that_is_ended_leaves_nothing(tmp_path, number):
    code = """
import sys, time
from pathlib import Path
from mlirc.files.outputs import Outputs
from mlirc.tools.cli import run_main
def body():
    with Outputs() as outputs:
        outputs.add_text(Path("a"), "half", "text")
        print("ready", flush=True)
        while True:  # one long sleep would miss a signal that comes just before it begins
            time.sleep(0.01)
sys.exit(run_main(body))
"""
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(number)
    assert child.wait(timeout=60) == 128 + number
    child.stdout.close()
    assert os.listdir(tmp_path) == []


def test_nothing_stays_in_the_temporary_folder(tmp_path):
    """PyTorch makes a folder there when its export is imported; kernels that fail leave none either."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "m.py").write_text(
        "import torch\n\n\ndef make():\n    return torch.nn.Linear(3, 5), (torch.ones(2, 3),)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "TORCHINDUCTOR_CACHE_DIR": ""}
    del environment["TORCHINDUCTOR_CACHE_DIR"]
    command = [sys.executable, "-m", "mlirc", "m:make", "-o", "m.ptx"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "tmp") == []
    assert WeightFile(tmp_path / "m.safetensors").entries


def test_a_full_disk_names_the_output(tmp_path):
    code = """
import resource, sys
from pathlib import Path
import torch
from mlirc.frontend import write_weights
from mlirc.tools.cli import run_main
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(run_main(lambda: write_weights(Path("m.safetensors"), {"w": torch.ones(33, 65)})))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1 and done.stderr == "error: cannot write m.safetensors: File too large\n"
    assert os.listdir(tmp_path) == []
