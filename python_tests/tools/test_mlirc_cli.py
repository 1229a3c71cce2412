"""The `mlirc` program on .mlir files, where no model has to be imported: levels, re-entry, outputs, cache, errors."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from mlirc.host import run_module
from mlirc.ir import levels
from mlirc.mlir import parse
from mlirc.runtime import plan_file
from mlirc.tools import mlirc_run
from mlirc.tools.mlirc import main
from support.tools import PAYLOAD, files


@pytest.fixture
def payload(tmp_path):
    path = tmp_path / "payload.mlir"
    path.write_text(PAYLOAD)
    return path


def test_all_outputs_appear_and_the_plan_fits(ran, payload, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    result = ran(main, payload, "-o", out / "m.ptx", "-v", "--timing")
    assert result.status == 0, result.err
    assert files(out) == [*(f"m.levels/{x}.mlir" for x in ("gpu", "kernels", "linalg", "tiles")), "m.ptx"]
    found = plan_file.extract((out / "m.ptx").read_text())
    assert [str(s) for s in found.inputs] == ["f32[5,7]", "f32[7]"]
    assert [s.name for s in found.outputs] == ["y"]
    assert len(found.launches) == 1
    assert re.search(r"elementwise_0 +1 .*f32\[5,7\] f32\[7\] -> f32\[5,7\]", result.err)
    assert re.search(r"peak memory +\d+ MiB", result.err)


@pytest.mark.parametrize("level", ["linalg", "kernels", "tiles", "gpu"])
def test_every_level_is_taken_back(ran, payload, tmp_path, level):
    emitted = ran(main, payload, "--emit", level)
    assert emitted.status == 0, emitted.err
    again = tmp_path / f"{level}.mlir"
    again.write_text(emitted.out)
    assert ran(main, again, "--emit", level).out == emitted.out
    whole, part = ran(main, payload, "--emit", "ptx").out, ran(main, again, "--emit", "ptx").out
    assert plan_file.extract(whole).steps == plan_file.extract(part).steps
    assert _code(whole) == _code(part)


def _code(text):
    return [line for line in text.split("\n") if not line.startswith("//")]


@pytest.mark.parametrize("level", ["linalg", "kernels", "tiles"])
def test_every_level_computes_the_same(ran, payload, level):
    module = parse(ran(main, payload, "--emit", level).out)
    a, w = np.random.default_rng(0).standard_normal((2, 35)).astype(np.float32)
    a, w = a.reshape(5, 7), w[:7]
    np.testing.assert_allclose(run_module(module, [a, w])[0], np.tanh(a * w), rtol=2e-6)


def test_mlir_is_told_by_its_content(ran, payload, tmp_path):
    renamed = payload.rename(tmp_path / "payload.pt2")
    assert ran(main, renamed, "--emit", "kernels").status == 0
    archive = tmp_path / "archive.mlir"
    archive.write_bytes(b"PK\x03\x04 and no more")
    assert "truncated or damaged archive" in ran(main, archive, "--emit", "kernels").error


def test_a_torch_level_without_torch_ops_is_told_by_its_types(ran, tmp_path):
    t = "!torch.vtensor<[1,2,8,16],f32>"
    path = tmp_path / "attention.mlir"
    path.write_text(
        f"func.func @main(%q: {t}, %k: {t}, %v: {t}) -> {t} {{\n"
        f"  %o = call @attend(%q, %k, %v) : ({t}, {t}, {t}) -> {t}\n  return %o : {t}\n}}\n"
        f"func.func private @attend({t}, {t}, {t}) -> {t} attributes {{mlirc.attention = "
        "{causal = true, scale = 0.25 : f64, softcap = 0.0 : f64, window = 0 : i64}}\n"
    )
    result = ran(main, path, "--emit", "kernels")
    assert "@attention_0" in result.out, result.err


def test_a_schedule_is_not_a_model(ran, payload, tmp_path):
    script = tmp_path / "script.mlir"
    script.write_text(ran(main, payload, "--emit", "schedule").out)
    assert "a schedule, not a model: give it with --schedule" in ran(main, script, "--emit", "ptx").error


def test_emit_schedule_is_a_script_that_is_taken_back(ran, payload, tmp_path):
    script = tmp_path / "script.mlir"
    script.write_text(ran(main, payload, "--emit", "schedule").out)
    assert "transform.named_sequence @__transform_main" in script.read_text()
    tiles = ran(main, payload, "--emit", "tiles").out
    assert ran(main, payload, "--emit", "tiles", "--schedule", script).out == tiles


def test_a_kernel_alone_becomes_a_model(ran, payload, tmp_path):
    module = parse(ran(main, payload, "--emit", "kernels").out)
    alone = tmp_path / "alone.mlir"
    alone.write_text(str(levels.isolate(module, "elementwise_0")))
    result = ran(main, alone, "--emit", "ptx")
    assert result.status == 0, result.err
    assert len(plan_file.extract(result.out).inputs) == 2


def test_dump_dir_has_levels_and_a_repro_that_runs(ran, payload, tmp_path):
    dump = tmp_path / "dump"
    result = ran(main, payload, "--dump-dir", dump)
    assert result.status == 0, result.err
    assert [f for f in files(dump) if "/" not in f] == [
        "01-linalg.mlir",
        "02-kernels.mlir",
        "03-schedule.mlir",
        "04-tiles.mlir",
        "05-async.mlir",
        "06-gpu.mlir",
        "07-llvm.ll",
        "08-model.ptx",
    ]
    repro = dump / "kernels" / "elementwise_0" / "repro.py"
    assert "torch.tanh((a0 * a1.reshape(1, 7)))" in repro.read_text()
    done = subprocess.run(
        [sys.executable, repro], capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split("(")[1] for line in done.stdout.splitlines()] == [
        "level tiles on the CPU) ok",
        "level gpu on the host device, no findings) ok",
    ]


def test_a_dumped_kernel_is_a_model_for_every_level_and_for_the_compiler(ran, payload, tmp_path):
    dump = tmp_path / "dump"
    assert ran(main, payload, "--dump-dir", dump).status == 0
    model = dump / "kernels" / "elementwise_0" / "model.ptx"
    for level in ("kernels", "tiles", "gpu"):
        result = ran(mlirc_run.main, model, "--random-inputs", 0, "--level", level)
        assert result.status == 0 and "1 kernel, " in result.err, result.err
    assert "compared with level kernels" in result.err
    again = tmp_path / "again.ptx"
    for file in (model.parent / "gpu.mlir", model.with_suffix(".levels") / "gpu.mlir"):
        assert ran(main, file, "-o", again).status == 0
        result = ran(mlirc_run.main, again, "--random-inputs", 0, "--device", "host")
        assert result.status == 0 and "compared with nothing (the model was compiled from the gpu level)" in result.err
        assert "only declares" in ran(mlirc_run.main, again, "--random-inputs", 0, "--level", "kernels").error


def test_a_repro_reports_a_wrong_kernel(ran, payload, tmp_path):
    dump = tmp_path / "dump"
    assert ran(main, payload, "--dump-dir", dump).status == 0
    tiles = dump / "kernels" / "elementwise_0" / "model.levels" / "tiles.mlir"
    tiles.write_text(tiles.read_text().replace("arith.mulf", "arith.addf"))
    repro = dump / "kernels" / "elementwise_0" / "repro.py"
    done = subprocess.run([sys.executable, repro, "--level", "tiles"], capture_output=True, text=True)
    assert done.returncode == 1 and "WRONG" in done.stdout


def test_the_cache_gives_the_same_file(ran, payload, tmp_path):
    first, second = tmp_path / "1.ptx", tmp_path / "2.ptx"
    assert "cached" not in ran(main, payload, "-o", first, "-v").err
    assert "cached" in ran(main, payload, "-o", second, "-v").err
    assert first.read_text() == second.read_text()
    assert "cached" not in ran(main, payload, "-o", second, "-v", "--no-cache").err
    assert "cached" not in ran(main, payload, "-o", second, "-v", "--target", "sm_80").err


def test_a_damaged_cache_entry_is_compiled_again(ran, payload, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("MLIRC_CACHE_DIR", str(cache))
    assert ran(main, payload, "-o", tmp_path / "1.ptx").status == 0
    [entry] = cache.iterdir()
    entry.write_text(entry.read_text()[:100])
    again = ran(main, payload, "-o", tmp_path / "2.ptx", "-v")
    assert again.status == 0 and "cached" not in again.err
    assert (tmp_path / "1.ptx").read_text() == (tmp_path / "2.ptx").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.mlir", "-o", "x.ptx"], "missing.mlir: cannot be read: No such file"),
        (["PAYLOAD", "-o", "x.ptx", "--target", "sm_10"], "unknown target 'sm_10': choose one of sm_80"),
        (
            ["PAYLOAD", "-o", "no/such/folder/x.ptx"],
            "cannot write no/such/folder/x.ptx: folder no/such/folder does not",
        ),
        (["PAYLOAD", "-o", "/proc/x.ptx"], "cannot write /proc/x.ptx"),
        (["PAYLOAD", "-o", "x.safetensors"], "weights and levels lie beside it: give a name that ends in .ptx"),
        (["PAYLOAD", "-o", "taken.ptx"], "cannot write taken.levels: it is a file, and has to be a folder"),
        (["PAYLOAD"], "nothing to do: give -o"),
        (["BROKEN", "-o", "x.ptx"], "broken.mlir: not valid MLIR"),
        (["EMPTY", "-o", "x.ptx"], "empty.mlir: is empty"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "matmul"], "--schedule 'matmul'"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "matmul:block_m=64"], "no kernel has the name or kind 'matmul'"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "elementwise:blok=1"], "no knob 'blok'"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "missing.py"], "missing.py: no such file"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "RAISES"], "raises.py:8: ZeroDivisionError"),
        (["PAYLOAD", "-o", "x.ptx", "--schedule", "latin.mlir"], "latin.mlir:1: not a text file"),
        (
            ["PAYLOAD", "-o", "x.ptx", "--schedule", "idle.mlir"],
            "outside of every scf.forall: tile it",
        ),
        (
            ["PAYLOAD", "-o", "x.ptx", "--schedule", "elementwise:warps=33"],
            "kernel 'elementwise_0': warps = 33: takes 1 to 32",
        ),
    ],
)
def test_errors_are_one_line_and_leave_nothing(ran, payload, tmp_path, monkeypatch, words, message):
    (tmp_path / "broken.mlir").write_text(PAYLOAD[:300])
    (tmp_path / "empty.mlir").write_text("\n")
    (tmp_path / "taken.levels").write_text("")
    (tmp_path / "latin.mlir").write_bytes(b"// \xff\n")
    (tmp_path / "idle.mlir").write_text(
        'module attributes {transform.with_named_sequence, mlirc.kernels = ["elementwise"]} {\n'
        "  transform.named_sequence @__transform_main(%k: !transform.any_op {transform.readonly}) {\n"
        "    transform.yield\n  }\n}\n"
    )
    (tmp_path / "raises.py").write_text(
        "from mlirc.schedule.registry import register\n\n\n"
        "@register(matches=lambda kernel: True)\n"
        "def mine(kernel, target, *, knob=0):\n"
        '    """A script with a bug."""\n'
        "    print('building')\n"
        "    return 1 // knob\n"
    )
    names = {"PAYLOAD": payload, "BROKEN": "broken.mlir", "EMPTY": "empty.mlir", "RAISES": "raises.py"}
    monkeypatch.chdir(tmp_path)
    before = files(tmp_path)
    result = ran(main, *(names.get(w, w) for w in words))
    result.err = result.err.replace("building\n", "")  # what a script prints is no part of what was asked for
    assert message in result.error and "building" not in result.out
    assert files(tmp_path) == before


def test_a_wrong_command_line_is_an_error_like_any_other(ran, payload):
    assert "argument --emit: invalid choice: 'nonsense'" in ran(main, payload, "--emit", "nonsense").error


def test_python_m_mlirc_and_a_closed_pipe(payload):
    command = f"{sys.executable} -m mlirc {payload} --emit ptx | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("//mlirc: plan") and done.stderr == ""
