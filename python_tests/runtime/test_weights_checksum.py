"""Weights beside a compiled model: damaged, swapped, cut off or overwritten ones are found, and never run with."""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib

import numpy as np
import pytest
import torch

import mlirc
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.files.checksums import sum_of
from mlirc.files.marks import is_ours
from mlirc.frontend.weights import write_weights
from mlirc.host.level_files import Levels
from mlirc.runtime.loading import read_model
from mlirc.runtime.weights import WeightFile
from mlirc.tools import mlirc_run
from support import randomness

FACTORY = """
import torch
def make():
    torch.manual_seed({seed})
    return torch.nn.Linear(7, 5), (torch.ones(3, 7),)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models that differ in their weights alone."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        (folder / f"m{seed}.py").write_text(FACTORY.format(seed=seed))
        compile_model(f"{folder / f'm{seed}.py'}:make", folder / f"m{seed}.ptx")
    return folder


@pytest.fixture
def model(models, tmp_path):
    """A copy of the first one."""
    for name in ("m0.ptx", "m0.safetensors"):
        shutil.copy(models / name, tmp_path / name)
    shutil.copytree(models / "m0.levels", tmp_path / "m0.levels")
    return tmp_path / "m0.ptx"


def load(path, **options):
    return mlirc.load(path, device="host", **options)


def test_every_flipped_bit_is_found(model):
    file = model.with_suffix(".safetensors")
    data = file.read_bytes()
    bits = randomness.generator().choice(8 * len(data), 150, replace=False)
    for bit in map(int, [*bits, *range(64)]):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(MlircError, match=r"m0\.safetensors"):
            load(model)
    file.write_bytes(data)
    load(model)


@pytest.mark.parametrize("level", ["linalg", "kernels", "tiles", "gpu"])
def test_every_flipped_bit_of_a_level_is_found(model, level):
    file, plan = model.with_suffix(".levels") / f"{level}.mlir", read_model(model)[1]
    data = file.read_bytes()
    mark = data.index(b"// mlirc: ")
    bits = randomness.generator().choice(8 * len(data), 200, replace=False)
    for bit in map(int, [*bits, *range(8 * mark - 16, 8 * len(data))]):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(MlircError, match=rf"{level}\.mlir: (is not as|belongs to|not a text|holds level)"):
            Levels.beside(model, plan).text(level)
    file.write_bytes(data)
    assert Levels.beside(model, plan).text(level) == data.decode()


def test_levels_that_were_edited_run_where_that_is_said(model, ran):
    for level in ("kernels", "gpu"):
        file = model.with_suffix(".levels") / f"{level}.mlir"
        file.write_text("// mine\n" + file.read_text())
    words = (model, "--random-inputs", 0)
    for where in (["--level", "kernels"], ["--level", "gpu"], ["--device", "host"]):
        error = ran(mlirc_run.main, *words, *where).error
        assert "is not as mlirc wrote it: compile the model again, or, if it was edited on purpose" in error
        assert ran(mlirc_run.main, *words, *where, "--no-verify").status == 0
    with pytest.raises(MlircError, match="gpu.mlir: is not as mlirc wrote it"):
        load(model)
    assert load(model, verify=False)


def test_what_is_not_verified_is_only_what_was_asked_for(model, ran):
    file = model.with_suffix(".safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    words = (model, "--random-inputs", 0, "--device", "host")
    assert "its checksum does not match: compile the model again" in ran(mlirc_run.main, *words).error
    assert ran(mlirc_run.main, *words, "--no-verify").status == 0
    assert load(model, verify=False)


def test_weights_of_another_model(models, model):
    other = models / "m1.safetensors"
    x = np.ones((3, 7), np.float32)
    given = load(model, weights=other)(x)  # by name: they are meant
    np.testing.assert_array_equal(given, load(models / "m1.ptx")(x))
    shutil.copy(other, model.with_suffix(".safetensors"))
    for options in ({}, {"verify": False}):
        with pytest.raises(MlircError, match="not the weights that were written with .*m0.ptx"):
            load(model, **options)


def test_files_of_other_programs_have_no_checksum(tmp_path):
    from safetensors.torch import save_file

    tensors = {"w": torch.arange(37.0)}
    save_file(tensors, tmp_path / "theirs.safetensors", {"checksum": "0" * 64})
    write_weights(tmp_path / "ours.safetensors", tensors)
    theirs, ours = (WeightFile(tmp_path / f"{n}.safetensors") for n in ("theirs", "ours"))
    assert theirs.checksum == "" and len(ours.checksum) == 64
    theirs.verify(), ours.verify()
    assert is_ours(tmp_path / "ours.safetensors") and not is_ours(tmp_path / "theirs.safetensors")
    np.testing.assert_array_equal(theirs.array("w"), ours.array("w"))


def test_a_file_of_several_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("mlirc.files.checksums._BLOCK", 256)
    write_weights(tmp_path / "w.safetensors", {"w": torch.arange(999.0), "none": torch.zeros(0)})
    WeightFile(tmp_path / "w.safetensors").verify()
    with (tmp_path / "w.safetensors").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"?")
    with pytest.raises(MlircError, match="its checksum does not match"):
        WeightFile(tmp_path / "w.safetensors").verify()


@pytest.mark.parametrize("size", [0, 1, 1000, 4 << 20, (4 << 20) + 1, (13 << 20) + 77])
def test_the_sum_is_what_the_docs_say(tmp_path, size):
    data = randomness.generator().bytes(size)
    (tmp_path / "data").write_bytes(data)
    blanked = bytearray(data)
    blanked[7:71] = bytes(len(blanked[7:71]))
    for given, blank in ((data, range(0)), (bytes(blanked), range(min(7, size), min(71, size)))):
        blocks = [given[i : i + (4 << 20)] for i in range(0, max(1, size), 4 << 20)]
        wanted = hashlib.sha256(b"".join(zlib.crc32(b).to_bytes(4, "little") for b in blocks)).hexdigest()
        with (tmp_path / "data").open("rb") as file:
            assert sum_of(file.fileno(), blank) == wanted


@pytest.mark.parametrize("change", ["cut", "overwrite", "longer"])
def test_a_file_that_is_written_to_under_a_loaded_model(model, change):
    file, x = model.with_suffix(".safetensors"), np.ones((3, 7), np.float32)
    loaded = load(model)
    loaded(x)
    about = file.stat()
    with file.open("r+b") as f:
        if change == "cut":
            f.truncate(100)
        else:
            f.seek(0 if change == "longer" else -8, os.SEEK_END)
            f.write(bytes(8))
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns + 1))
    with pytest.raises(MlircError, match=r"m0\.safetensors: was changed while it is loaded: load the model again"):
        loaded(x)


def test_a_file_that_is_replaced_under_a_loaded_model(models, model):
    """As mlirc does it: what was loaded stays."""
    x = np.ones((3, 7), np.float32)
    loaded = load(model)
    before = loaded(x)
    compile_model(f"{models / 'm1.py'}:make", model)
    np.testing.assert_array_equal(loaded(x), before)
    np.testing.assert_array_equal(load(model)(x), load(models / "m1.ptx")(x))
