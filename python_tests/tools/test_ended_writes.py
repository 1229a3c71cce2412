"""Sets of files that several processes write, or that one is killed in the middle of: never a mixture of two runs."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from mlirc.errors import MlircError
from mlirc.files import temporary
from mlirc.files.outputs import Outputs
from mlirc.runtime.loading import check_unchanged
from mlirc.tools import mlirc
from support.tools import PAYLOAD

HEAD, OTHERS = "m.ptx", ("m.safetensors", "m.levels/gpu.mlir")


def write(folder: Path, content: str) -> None:
    with Outputs() as outputs:
        for name in (*OTHERS, HEAD):
            outputs.add_text(folder / name, content, "text")
        outputs.remove(folder / "m.levels" / "tiles.mlir")


def contents(folder: Path) -> dict[str, str]:
    """The files whose names a reader knows, with their first words."""
    names = (HEAD, *OTHERS, "m.levels/tiles.mlir")
    return {name: (folder / name).read_text().split()[0] for name in names if (folder / name).exists()}


@pytest.fixture
def at_each_step(monkeypatch):
    """Calls a function in front of and behind every change of names that `Outputs` makes."""

    def watch(look):
        def around(function):
            def changed(*args, **options):
                look()
                result = function(*args, **options)
                look()
                return result

            return changed

        monkeypatch.setattr(os, "replace", around(os.replace))
        monkeypatch.setattr(os, "link", around(os.link))
        monkeypatch.setattr(Path, "unlink", around(Path.unlink))

    return watch


def test_whoever_is_killed_leaves_one_run_or_none(tmp_path, at_each_step):
    """What lies there at each step is what a process leaves that is killed there."""
    write(tmp_path, "old")
    with Outputs() as outputs:
        outputs.add_text(tmp_path / "m.levels" / "tiles.mlir", "old", "text")
    before, seen = contents(tmp_path), []
    at_each_step(lambda: seen.append(contents(tmp_path)))
    write(tmp_path, "new")
    after = contents(tmp_path)
    assert set(before.values()) == {"old"} and set(after.values()) == {"new"} and len(after) == len(before) - 1
    assert all(found in (before, after) for found in seen if HEAD in found)
    assert before in seen and after in seen and any(HEAD not in found for found in seen)


def test_those_who_write_into_a_folder_take_turns(tmp_path, at_each_step, monkeypatch):
    write(tmp_path, "old")
    looks = []

    def locked() -> None:
        folder = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            looks.append(contents(tmp_path))
        os.close(folder)

    at_each_step(locked)
    write(tmp_path, "new")
    assert {HEAD: "new"}.items() <= looks[-1].items() and any(HEAD not in found for found in looks)

    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    monkeypatch.setattr(temporary, "PATIENCE", 0)
    with pytest.raises(MlircError, match="another process has locked its folder"):
        write(tmp_path, "newer")
    os.close(holder)
    assert set(contents(tmp_path).values()) == {"new"} and not list(tmp_path.glob(".mlirc-*"))
    write(tmp_path, "newer")
    assert set(contents(tmp_path).values()) == {"newer"}


def test_what_was_compiled_anew_while_it_was_read_is_refused(tmp_path, ran, monkeypatch):
    import mlirc.runtime.loading as loading

    monkeypatch.chdir(tmp_path)
    Path("x.mlir").write_text(PAYLOAD)
    assert ran(mlirc.main, "x.mlir", "-o", HEAD).status == 0
    text = Path(HEAD).read_text()
    check_unchanged(HEAD, text)
    find = loading.find_weights

    def meanwhile(*args):
        found = find(*args)
        assert ran(mlirc.main, "x.mlir", "-o", HEAD, "--target", "sm_80").status == 0
        return found

    monkeypatch.setattr(loading, "find_weights", meanwhile)
    with pytest.raises(MlircError, match="was compiled anew while it was read: load it again"):
        loading.load(HEAD, device="host")
    monkeypatch.setattr(loading, "find_weights", find)
    assert loading.load(HEAD, device="host") is not None
    Path(HEAD).unlink()
    with pytest.raises(MlircError, match="was compiled anew"):
        check_unchanged(HEAD, text)
