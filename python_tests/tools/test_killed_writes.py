"""Writers that are killed at any moment: the old whole or the new whole is there, and the next run removes the rest."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlirc.files import temporary
from mlirc.files.outputs import Outputs
from mlirc.files.temporary import new_file, new_folder, replace_folder, turn

FILES = 9
# Writes a folder, and a set of files, again and again; each has files of one content.
WRITER = """
import itertools, shutil, sys
from pathlib import Path
from mlirc.files.outputs import Outputs
from mlirc.files.temporary import new_folder, replace_folder, turn
from mlirc.tools.cli import run_main

def write():
    for number in itertools.count():
        held = new_folder(Path("gen"))
        try:
            for i in range(9):
                (held.path / str(i)).write_text(str(number))
            with turn(Path("gen")):
                replace_folder(held.path, Path("gen"))
        finally:
            shutil.rmtree(held.path, ignore_errors=True)
            held.close()
        with Outputs() as outputs:
            for name in ("m.mlir", "m.ll", "m.ptx"):
                outputs.add_text(Path(name), str(number), "text")
        if number == 1:
            print("ready", flush=True)

sys.exit(run_main(write))
"""


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".mlirc-")]


def assert_whole(folder: Path) -> None:
    contents = {(folder / "gen" / str(i)).read_text() for i in range(FILES)}
    assert len(contents) == 1 and len(os.listdir(folder / "gen")) == FILES
    if (folder / "m.ptx").exists():  # without it the others are nothing
        assert len({(folder / name).read_text().split()[0] for name in ("m.mlir", "m.ll", "m.ptx")}) == 1


def test_killed_at_any_moment(tmp_path):
    """Where the writer is when the signal comes is up to the machine; every place is as good."""
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
        writer = subprocess.Popen([sys.executable, "-c", WRITER], cwd=tmp_path, stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"ready\n"
        assert_living_stay(tmp_path)
        writer.send_signal(number)
        writer.wait(timeout=60)
        writer.stdout.close()
        assert_whole(tmp_path)
        with Outputs() as outputs:
            outputs.add_text(tmp_path / "other.mlir", "text", "text")
        assert leftovers(tmp_path) == []


def assert_living_stay(folder: Path) -> None:
    """What this process holds stays, whatever others do beside it."""
    file, made = new_file(folder / "x"), new_folder(folder / "x")
    done = subprocess.run(
        [sys.executable, "-c", "from pathlib import Path; from mlirc.files.temporary import *\nnew_file(Path('y'))"],
        cwd=folder,
    )
    assert done.returncode == 0 and file.path.exists() and made.path.exists()
    file.close(), made.close()


def test_a_folder_taken_away_comes_back(tmp_path, monkeypatch):
    """Where two names cannot be exchanged at once, the old one is away for a moment."""
    monkeypatch.setattr(temporary, "_exchanged", lambda a, b: False)
    for name in ("gen", ".mlirc-new.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "it").write_text(name)
    rename = os.rename

    def killed(a, b):
        if Path(b) == tmp_path / "gen":
            raise KeyboardInterrupt
        rename(a, b)

    monkeypatch.setattr(os, "rename", killed)
    monkeypatch.setattr(temporary.shutil, "rmtree", lambda *a, **k: None)
    with pytest.raises(KeyboardInterrupt):
        replace_folder(tmp_path / ".mlirc-new.tmp", tmp_path / "gen")
    assert not (tmp_path / "gen").exists()
    monkeypatch.undo()
    new_file(tmp_path / "x").path.unlink()
    assert (tmp_path / "gen" / "it").read_text() == "gen" and leftovers(tmp_path) == []
    (tmp_path / "new").mkdir()
    monkeypatch.setattr(temporary, "_exchanged", lambda a, b: False)
    replace_folder(tmp_path / "new", tmp_path / "gen")
    assert os.listdir(tmp_path) == ["gen"] and os.listdir(tmp_path / "gen") == []


def test_what_is_no_leftover_stays(tmp_path):
    (tmp_path / ".mlirc-notes").write_text("mine")
    (tmp_path / ".mlirc-x.tmp.txt").write_text("mine")
    (tmp_path / ".mlirc-link.tmp").symlink_to(tmp_path / ".mlirc-notes")
    (tmp_path / ".mlirc-dead.tmp").write_text("half")
    os.mkfifo(tmp_path / ".mlirc-pipe.tmp")
    before = set(os.listdir(tmp_path))
    new_file(tmp_path / "x").path.unlink()
    assert set(os.listdir(tmp_path)) == before - {".mlirc-dead.tmp"}


def test_nothing_is_removed_out_of_turn(tmp_path, monkeypatch):
    """A second name of a file that is being replaced has no lock for a moment."""
    monkeypatch.setattr(temporary, "PATIENCE", 0)
    with turn(tmp_path / "x"), pytest.raises(temporary.MlircError, match="x: another process has locked its folder"):
        new_file(tmp_path / "x")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
