"""A compiled model on the host device: `mlirc.load(path, device="host")` and `mlirc-run --device host`."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import mlirc
from mlirc.device.report import Report
from mlirc.device.seeds import run_seeds
from mlirc.driver.compilation import compile_model
from mlirc.errors import MlircError
from mlirc.tools import mlirc_run
from support.kernels.payloads import matmul

PAYLOAD = matmul(33, 40, 50, "f32", epilogue=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of one product, of two blocks or more, compiled."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "m.mlir").write_text(PAYLOAD)
    compile_model(str(folder / "m.mlir"), folder / "m.ptx", cache=False,
                  schedule=["matmul:block_m=16,block_n=16,block_k=16,warps_m=2,warps_n=1,stages=2"])  # fmt: skip
    return folder / "m.ptx"


def inputs(loaded) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(spec.shape).astype(np.float32) for spec in loaded.plan.inputs]


def without_a_barrier(model, folder):
    """The model with the barrier behind the first wait for copies removed from its `gpu` level."""
    shutil.copytree(model.parent, folder, dirs_exist_ok=True)
    level = folder / "m.levels" / "gpu.mlir"
    lines = level.read_text().split("\n")
    bad = next(i for i, line in enumerate(lines) if "wait.group" in line)
    level.write_text("\n".join([*lines[: bad + 1], *lines[bad + 2 :]]))
    return folder / "m.ptx"


def test_it_is_called_like_a_model_on_a_gpu(model):
    with mlirc.load(str(model), device="host") as loaded:
        arrays = inputs(loaded)
        kept = [a.copy() for a in arrays]
        found = loaded(*arrays)
        np.testing.assert_allclose(found, arrays[0] @ arrays[1].T, rtol=0, atol=1e-4)
        assert all((a == b).all() for a, b in zip(arrays, kept, strict=True)) and loaded.report.ok
        names = [spec.name for spec in loaded.plan.inputs]
        by_name = loaded(**{n: torch.from_numpy(a) for n, a in zip(names, arrays, strict=True)})
        assert isinstance(by_name, torch.Tensor)
        np.testing.assert_array_equal(by_name.numpy(), found)
        loaded.bind(*arrays)
        loaded.launch()
        np.testing.assert_array_equal(loaded.outputs[0], found)
        loaded.blocks = [0]
        part = loaded(*arrays)
        assert (part[:16, :16] == found[:16, :16]).all() and (part != 0).sum() == 256


@pytest.mark.parametrize(
    "words, message",
    [
        (["--blocks", "99"], "no launch has block 99: the largest has blocks 0 to "),
        (["--blocks", "3-1"], "'3-1' is no number or range of them, as in 0,4-7"),
        (["--blocks", "0,x"], "'x' is no number or range of them"),
        (["--blocks", "0-99999999"], "too many blocks"),
        (["--seconds", "0"], "'0' is no number of seconds above 0"),
        (["--seconds", "soon"], "'soon' is no number of seconds above 0"),
        (["--device", "cpu"], "'cpu' is neither a GPU's number nor host"),
    ],
)
def test_options_that_make_no_sense_are_errors(model, ran, words, message):
    result = ran(mlirc_run.main, model, "--random-inputs", 0, "--device", "host", *words)
    assert result.status == 1 and message in result.err and result.err.count("\n") == 1


def test_a_launch_that_takes_too_long_is_stopped(model, ran):
    result = ran(mlirc_run.main, model, "--random-inputs", 0, "--device", "host", "--seconds", 1e-6)
    assert result.status == 1 and "stopped: " in result.err and "allow more (--seconds)" in result.err


def test_no_blocks_at_all_are_an_error(model):
    loaded = mlirc.load(str(model), device="host")
    loaded.blocks = []
    with pytest.raises(MlircError, match="blocks is empty"):
        loaded(*inputs(loaded))


def test_findings_of_several_calls_of_a_kernel_are_one():
    total = Report()
    for _ in range(3):
        part = Report()
        for _ in range(2):
            part.add("race", "first", None, "k")
        part.add("race", "another kernel's", None, "l")
        total.merge(part)
    assert [(f.kernel, f.count, f.calls) for f in total.findings] == [("k", 6, 3), ("l", 3, 3)]
    assert "first (and 5 more, in 3 calls of the kernel)" in str(total.findings[0])


def test_what_does_not_fit_is_an_error(model, tmp_path):
    loaded = mlirc.load(str(model), device="host")
    arrays = inputs(loaded)
    with pytest.raises(MlircError, match="compiled for"):
        loaded(arrays[0].astype(np.float64), *arrays[1:])
    with pytest.raises(MlircError, match="is missing"):
        loaded(arrays[0])
    with pytest.raises(MlircError, match="device 'card': give a GPU's number, or 'host'"):
        mlirc.load(str(model), device="card")
    alone = tmp_path / "alone.ptx"
    alone.write_bytes(model.read_bytes())
    with pytest.raises(MlircError, match="cannot read level gpu"):
        mlirc.load(str(alone), device="host")


def test_a_finding_names_the_kernel_the_line_and_the_scripts_line(model, tmp_path, ran):
    broken = without_a_barrier(model, tmp_path)
    result = ran(mlirc_run.main, broken, "--random-inputs", 0, "--device", "host", "--no-verify")
    error = next(line for line in result.err.split("\n") if line.startswith("error: "))
    assert result.status == 1
    for part in ("matmul_0: race: ", "gpu.mlir:", "made by scripts/matmul.py:"):
        assert part in error


def test_the_program_takes_blocks_and_a_seed(model, ran, tmp_path):
    for words in (["--device", "host"], ["--level", "gpu"], ["--device", "host", "--blocks", "0-2,4", "--seed", 3]):
        result = ran(mlirc_run.main, model, "--random-inputs", 0, *words)
        assert result.status == 0 and "ran on the host device" in result.out, result.err
    for words in (["--blocks", "0"], ["--seed", "1"], ["--seeds", "2"], ["--counters"]):
        assert "it goes with --device host" in ran(mlirc_run.main, model, "--random-inputs", 0, *words).error
    assert "it goes with --device host" in ran(mlirc_run.main, model, "--random-inputs", 0, "--seconds", 9).error
    timed = ran(mlirc_run.main, model, "--random-inputs", 0, "--level", "tiles", "--seconds", 600)
    assert timed.status == 0 and "ran on level tiles" in timed.out
    both = ran(mlirc_run.main, model, "--random-inputs", 0, "--device", "host", "--level", "tiles")
    assert "--device host runs level gpu" in both.error


def test_the_program_runs_several_seeds_and_stops_at_a_finding(model, ran, tmp_path):
    words = ("--random-inputs", 0, "--device", "host", "--seeds", 3)
    result = ran(mlirc_run.main, model, *words)
    assert result.status == 0 and "ran on the host device" in result.out, result.err
    broken = without_a_barrier(model, tmp_path)
    assert "with seed" not in next(
        e for e in ran(mlirc_run.main, broken, "--no-verify", *words).err.split("\n") if "error" in e
    )
    error = next(
        e
        for e in ran(mlirc_run.main, broken, "--no-verify", *words, "--seed", 5).err.split("\n")
        if e.startswith("error")
    )
    assert ", with seed 5" in error
    for option, value in (("--seed", -1), ("--seeds", 0)):
        assert f"{value}: give" in ran(mlirc_run.main, model, *words, option, value).error


def test_outputs_that_depend_on_the_order_of_threads_are_an_error(model, tmp_path):
    """Without the sanitizer's checks a race is seen only in the numbers."""
    loaded = mlirc.load(str(without_a_barrier(model, tmp_path)), device="host", verify=False)
    loaded.check = False
    loaded.bind(*inputs(loaded))
    with pytest.raises(MlircError, match=r"depends on the order of threads: .* between seeds 0 and .* is matmul_0"):
        run_seeds(loaded, range(10))


def test_the_runtime_does_not_import_mlir():
    code = "import sys, mlirc.runtime; sys.exit(any(n.startswith(('torch', 'mlirc.mlir')) for n in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
