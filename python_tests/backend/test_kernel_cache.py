"""The folder of compiled kernels: nothing damaged, changed or planted comes out of it; it keeps to its size."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mlirc.driver.kernel_cache import KernelCache
from mlirc.errors import MlircError
from mlirc.files.kept import cache_folder, size_limit
from mlirc.tools.mlirc import main
from support.kernels.builds import build, job
from support.tools import PAYLOAD


@pytest.fixture
def cache(tmp_path):
    cache = KernelCache(tmp_path / "cache")
    cache.put(job(), build())
    assert cache.get(job()) == build()
    return cache


def path_of(cache: KernelCache, name: str = "k") -> Path:
    return cache.folder / f"{cache.key(job(name))}.json"


def _head(text: str, **changes: object) -> str:
    head, _, content = text.partition("\n")
    return json.dumps({**json.loads(head), **changes}) + "\n" + content


CHANGES = {
    "add becomes sub": lambda t: t.replace("add.f32", "sub.f32"),
    "another key": lambda t: _head(t, key="0" * 64),
    "another checksum": lambda t: _head(t, sha256="0" * 64),
    "another format": lambda t: _head(t, **{"mlirc kernel": 0}),
    "one more field": lambda t: _head(t, more=1),
    "no head": lambda t: t.partition("\n")[2],
    "no content": lambda t: t.partition("\n")[0],
    "a list": lambda t: "[]\n" + t.partition("\n")[2],
    "deep": lambda t: "[" * 100_000,
    "nothing": lambda t: "",
    "a byte more": lambda t: t + " ",
    "cut": lambda t: t[:-1],
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_kernel_is_compiled_again(cache, change):
    path = path_of(cache)
    path.write_text(CHANGES[change](path.read_text()))
    assert cache.get(job()) is None
    cache.put(job(), build())
    assert cache.get(job()) == build()


def test_every_single_bit_counts(cache):
    path = path_of(cache)
    data = path.read_bytes()
    for i in range(0, len(data), 7):
        path.write_bytes(data[:i] + bytes([data[i] ^ (1 << i % 8)]) + data[i + 1 :])
        assert cache.get(job()) is None, i


def test_swapped_kernels_are_compiled_again(cache):
    cache.put(job("l"), build("l", "sub.f32"))
    one, other = path_of(cache), path_of(cache, "l")
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])
    assert cache.get(job()) is None and cache.get(job("l")) is None


def test_a_changed_kernel_never_reaches_a_model(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRC_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "p.mlir").write_text(PAYLOAD)
    assert ran(main, tmp_path / "p.mlir", "-o", tmp_path / "a.ptx").status == 0
    [entry] = (tmp_path / "cache").iterdir()
    assert "mul.rn.f32" in entry.read_text()
    entry.write_text(entry.read_text().replace("mul.rn.f32", "sub.rn.f32"))
    again = ran(main, tmp_path / "p.mlir", "-o", tmp_path / "b.ptx", "-v")
    assert again.status == 0 and "cached" not in again.err
    assert (tmp_path / "a.ptx").read_text() == (tmp_path / "b.ptx").read_text()


def test_the_folder_is_the_users_alone(tmp_path):
    old = os.umask(0)
    try:
        cache = KernelCache(tmp_path / "new" / "cache")
        cache.put(job(), build())
    finally:
        os.umask(old)
    assert stat.S_IMODE(cache.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path_of(cache).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not_used_and_says_so_once(cache, capsys, mode):
    cache.folder.chmod(mode)
    assert cache.get(job()) is None
    cache.put(job("l"), build("l"))
    cache.get(job())
    assert not path_of(cache, "l").exists()
    assert capsys.readouterr().err.count("is not used: others may write to it: chmod 700 ") == 1
    cache.folder.chmod(0o755)  # what others may only read is good enough
    assert cache.get(job()) == build()


def test_what_is_of_another_owner_is_not_used(cache, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.get(job()) is None
    assert "is not used: it belongs to somebody else" in capsys.readouterr().err


@pytest.mark.parametrize("plant", ["link", "mode", "fifo", "folder"])
def test_a_planted_file_is_not_used(cache, tmp_path, plant):
    path = path_of(cache)
    if plant == "mode":
        path.chmod(0o666)
    else:
        path.rename(tmp_path / "aside")
        {"link": lambda: path.symlink_to(tmp_path / "aside"), "fifo": lambda: os.mkfifo(path), "folder": path.mkdir}[
            plant
        ]()
    assert cache.get(job()) is None


@pytest.mark.parametrize("where", ["file", "file/below", "/proc/cache", "/dev/null", "x" * 300, "a\nb"])
def test_a_useless_folder_only_costs_time(tmp_path, monkeypatch, capsys, where):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("notes")
    monkeypatch.setenv("MLIRC_CACHE_DIR", where)
    cache = KernelCache(cache_folder())
    cache.put(job(), build())
    assert cache.get(job()) == (build() if where == "a\nb" else None)
    assert cache.info() and capsys.readouterr().err == ""
    assert (tmp_path / "file").read_text() == "notes"


def test_those_least_recently_used_go_first(tmp_path):
    one = KernelCache(tmp_path / "cache")
    one.put(job(), build())
    size = path_of(one).stat().st_size
    cache = KernelCache(tmp_path / "cache", limit=4 * size + 50)
    for i, name in enumerate("abc"):
        cache.put(job(name), build(name))
        os.utime(path_of(cache, name), (i, i))
    os.utime(path_of(cache), (10, 10))
    assert cache.get(job("a"))  # used now
    cache.put(job("d"), build("d"))
    assert [n for n in "kabcd" if path_of(cache, n).exists()] == ["k", "a", "d"]
    assert sum(k.size for k in cache.kept()) <= cache.limit


def test_clearing_removes_only_what_is_ours(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("MLIRC_CACHE_DIR", str(tmp_path / "cache"))
    cache = KernelCache(cache_folder())
    assert "0 files removed" in ran(main, "--cache-clear").out
    for name in "abc":
        cache.put(job(name), build(name))
    others = ["notes.json", "0" * 64 + ".json", "1" * 64 + ".txt", ".other.tmp", "tmp.json"]
    for name in others:
        (cache.folder / name).write_text('{"key": 1}')
    (cache.folder / ("2" * 64 + ".json")).mkdir()
    shutil.copy(path_of(cache, "a"), tmp_path / "outside")
    (cache.folder / ("3" * 64 + ".json")).symlink_to(tmp_path / "outside")
    (cache.folder / ".mlirc-left.tmp").write_text("half")
    info = ran(main, "--cache-info").out
    assert f"{cache.folder}: 3 kernels, " in info and "of at most 2,048 MiB" in info
    assert "3 files removed" in ran(main, "--cache-clear").out
    left = sorted([*others, "2" * 64 + ".json", "3" * 64 + ".json"])
    assert sorted(os.listdir(cache.folder)) == left and (tmp_path / "outside").exists()
    assert "give no MODEL" in ran(main, "m.pt2", "--cache-clear").error


@pytest.mark.parametrize(
    ("given", "size"),
    [("", 2 << 30), ("0", 0), ("500M", 500 << 20), ("2G", 2 << 30), ("3 GiB", 3 << 30), ("7kb", 7 << 10)],
)
def test_the_limit(monkeypatch, given, size):
    monkeypatch.setenv("MLIRC_CACHE_SIZE", given)
    assert size_limit() == size


@pytest.mark.parametrize("given", ["-1", "1.5G", "G", "many", "1e9", "9" * 30, "\u0661"])
def test_no_limit(monkeypatch, given):
    monkeypatch.setenv("MLIRC_CACHE_SIZE", given)
    with pytest.raises(MlircError, match="MLIRC_CACHE_SIZE=.*no size"):
        size_limit()


def test_several_processes_share_a_small_folder(tmp_path):
    """Each writes, reads and prunes what the others write: every answer is right or absent."""
    code = """
import sys
from pathlib import Path
from mlirc.driver.kernel_cache import KernelCache
from support.kernels.builds import build, job
cache = KernelCache(Path(sys.argv[1]), limit=3000)
found = 0
for i in range(200):
    name = f"k{i % 13}"
    got = cache.get(job(name))
    assert got is None or got == build(name, name * 50), name
    found += got is not None
    cache.put(job(name), build(name, name * 50))
print(found)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for child in running:
        out, err = child.communicate(timeout=600)
        assert child.returncode == 0, err
        assert int(out) >= 0
    assert not [p for p in (tmp_path / "cache").iterdir() if p.name.startswith(".")]
