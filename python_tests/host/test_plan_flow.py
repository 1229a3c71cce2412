"""A PTX file on the host device: what its plan does and what its kernels' text is, held against the `gpu` level."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import Counter

import numpy as np
import pytest
import torch

import mlirc
from mlirc.device.plan.contents import NOTHING, Memory, joined, part
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from mlirc.targets import get_target
from mlirc.tools import mlirc_run
from support.mutants import plans as plan_mutants
from support.mutants.plans import PlanCase, model_text, ptx_mutants, ptx_of, resign, signed
from support.mutants.plans import plan_mutants as mutants_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model of `plan_mutants.model_text`, compiled and with its weights."""
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("plan")
    (folder / "m.mlir").write_text(model_text())
    job = Compilation("m", get_target("sm_90a"), helpers=1)
    job.open(str(folder / "m.mlir"))
    job.lower("ptx")
    job.write(folder / "m.ptx")
    rng = np.random.default_rng(1)
    save_file({n: rng.standard_normal((5, 3)).astype(np.float32) for n in "wvc"}, folder / "m.safetensors")
    return folder, job


@pytest.fixture(scope="module")
def case(folder):
    rng = np.random.default_rng(0)
    made = {name: rng.standard_normal((5, 3)).astype(np.float32) for name in "xywvc"}
    inputs = [torch.from_numpy(made.pop(name)) for name in "xy"]
    return PlanCase(folder[1], inputs, made)


def test_memory_is_what_bytes_would_be():
    """Random writes, against a list with (value, offset) of every byte."""
    rng = random.Random(3)
    for size in (1, 7, 64):
        memory, plain = Memory(size), [(NOTHING, 0)] * size
        for value in range(1, 60):
            start = rng.randrange(size)
            pieces, room = [], size - start
            while room and (not pieces or rng.random() < 0.5):
                length = rng.randint(1, room)
                pieces.append((rng.choice((value, NOTHING)), rng.randrange(9), length))
                room -= length
            memory.write(start, joined(pieces))
            single = [(v, v and o + k) for v, o, n in pieces for k in range(n)]
            plain[start : start + len(single)] = single
            first = rng.randrange(size)
            held = memory.read(first, rng.randint(0, size - first))
            spread = [(v, v and o + k) for v, o, n in held for k in range(n)]
            assert spread == plain[first : first + len(spread)] and held == joined((v, o, 1) for v, o in spread)
            assert part(held, 1, 2) == joined((v, o, 1) for v, o in spread[1:3])


def test_every_harmful_plan_is_reported(case):
    """One change at a time: what is loaded and not reported computes what the right plan does, in two runs. Every
    third one; `benchmarks/plan_mutants.py` tries all."""
    assert case.says(case.job.ptx) == []
    verdicts = Counter((m.what, case.judge(m)) for m in list(mutants_of(case.job.plan))[::3])
    assert sum(verdicts.values()) > 150 and {what for what, _ in verdicts} == set(plan_mutants.KINDS)
    assert not [what for what, verdict in verdicts if verdict == "missed"]
    assert all(verdicts[what, "found"] for what in plan_mutants.KINDS)


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        ((1, "grid"), [2, 1, 1], "elementwise_0: wrong plan: grid is 2x1x1, but 1x1x1 at the gpu level at step 1 of"),
        ((1, "smem"), 64, "dynamic shared memory is 64, but 0 at the gpu level"),
        ((1, "cluster"), [1, 1, 1], "cluster is 1x1x1, but none at the gpu level"),
        ((2, "args", 0, 2), 512, "argument 0 holds bytes that no step wrote, but must hold result 0 of call 2"),
        ((2, "args", 0), [1, 0, 0, 60], "argument 0 holds weight 'w', but must hold result 0 of call 2 (elementwise_0)"),
        ((2, "args", 0, 3), 56, "argument 0 has 56 bytes, but 60 at the gpu level"),
        ((3, "args", 2, 2), 516, "kernel 'elementwise_0' is given byte 516 of arena 0: not a multiple of 16"),
        ((3, "args", 2), [0, 1, 0, 60], "writes argument 2, which is input 1"),
        ((4, "args", 2, 2), 528, "argument 2, which it writes, overlaps argument 0"),
        ((4, "launch"), "elementwise_1", "elementwise_1: wrong plan: argument 0 has 60 bytes, but 12 at the gpu level"),
        ((6, "copy", 2), 780, "argument 0 holds bytes 12 to 24 of result 0 of call 5 (elementwise_0), but must hold"),
        ((8, "to", 1), 0, "no step writes all of output 'out2'"),
        ((1, "args", 2, 2), 0, "argument 1 holds result 0 of call 2 (elementwise_0), but must hold result 0 of call 1"),
        ((3, "args", 2, 2), 0, "(in the second run: it must last from one run to the next)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(case, path, to, says):
    data = json.loads(to_json(case.job.plan))
    at = data["steps"]
    if says.startswith("(in the second"):  # where the first run's constant was
        for step in (3, 4):
            at[step]["args"][2 if step == 3 else 0][2] = 0
        at[7]["steps"][0]["copy"][2] = 48
    else:
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to
    found = case.says(signed(data, ptx_of(case.job.ptx)))
    assert found and all("\n" not in line for line in found) and any(says in line for line in found), found


def test_every_edit_of_the_ptx_is_reported(folder, case, monkeypatch, tmp_path):
    path, job = folder
    right = ptx_of(job.ptx)
    edits = list(dict.fromkeys(ptx_mutants(right)))
    assert len(edits) > 10
    check = case.checker(job.ptx)
    assert check.of_text() == []
    for how, ptx in edits:
        (found,) = case.checker(signed_like(job, ptx)).of_text() or [None]
        assert found and found.kind == "wrong PTX", how
        if how != "another kernel's body":
            line = int(found.location.split()[1])
            wrong = signed_like(job, ptx).split("\n")[line - 1]
            assert " ".join(wrong.split())[:40] in found.message, how


def test_a_file_of_other_tools_says_so(folder, case):
    _, job = folder
    text = resign(job.ptx, spoiled(job.ptx))
    old = text.replace(f'"llvmlite": "{job.plan.versions["llvmlite"]}"', '"llvmlite": "0.1.2"')
    assert old != text
    (found,) = case.checker(resign(old)).of_text()
    assert "(the file was compiled with llvmlite 0.1.2, which is " in found.message
    (found,) = case.checker(text).of_text()
    assert "compiled with" not in found.message


def signed_like(job, ptx: str) -> str:
    return resign(job.ptx, ptx)


def spoiled(text: str) -> str:
    """A file's PTX with a difference in place of a sum."""
    ptx = ptx_of(text)
    changed = re.sub(r"\badd(\.rn)?\.f32", r"sub\1.f32", ptx, count=1)
    assert changed != ptx
    return changed


def test_the_program_reports_a_file_that_was_signed_again(folder, tmp_path, ran):
    """Plan and PTX changed, checksum and marks renewed: `--device host` answers for the file, `--level gpu` for that
    level alone."""
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "m.ptx"
    run = (file, "--random-inputs", 0, "--device", "host")
    result = ran(mlirc_run.main, *run)
    assert result.status == 0 and "plan and PTX checked" in result.err
    good = file.read_text()
    plan_mutants.write_signed(file, resign(good, spoiled(good)))
    error = ran(mlirc_run.main, *run).error
    assert "elementwise_0: wrong PTX: is `sub." in error and "gpu level compiles to `add." in error
    assert ran(mlirc_run.main, file, "--random-inputs", 0, "--level", "gpu").status == 0
    with mlirc.load(file, device="host") as model:
        model.match = False
        model(*(np.zeros((5, 3), np.float32) for _ in range(2)))
    plan_mutants.write_signed(file, good.replace('"grid":[1,1,1]', '"grid":[2,1,1]'))
    error = next(e for e in ran(mlirc_run.main, *run).err.split("\n") if e.startswith("error"))
    assert "wrong plan: grid is 2x1x1, but 1x1x1 at the gpu level at step 0 of" in error


def test_a_stale_ptx_is_not_loaded_beside_levels_of_another_compilation(folder, tmp_path, ran):
    """Without renewed marks, the levels are those of another file."""
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "m.ptx"
    file.write_text(resign(file.read_text(), spoiled(file.read_text())))
    assert (
        extract(file.read_text())
        and "belongs to another compiled model"
        in ran(mlirc_run.main, file, "--random-inputs", 0, "--device", "host").error
    )
    with pytest.raises(MlircError, match="belongs to another"):
        mlirc.load(file, device="host")


def test_a_main_that_is_not_that_of_the_level_above_is_reported(folder, tmp_path):
    """Compiled from a `gpu` level whose `@main` exchanges two operands: plan and kernels agree with it."""
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    level = tmp_path / "m.levels" / "kernels.mlir"
    text = level.read_text()
    call = next(c for c in re.finditer(r"call @elementwise_0\((%\w+), (%\w+)\)", text) if c[1] != c[2])
    level.write_text(text.replace(call[0], f"call @elementwise_0({call[2]}, {call[1]})", 1))
    with mlirc.load(tmp_path / "m.ptx", device="host", verify=False) as model:
        with pytest.raises(MlircError, match="wrong plan: output 'out.' is .*, but .* at level kernels at @main of"):
            model(*(np.ones((5, 3), np.float32) for _ in range(2)))
        assert {f.kind for f in model.report.findings} == {"wrong plan"}


def test_the_program_executes_the_ptx_beside_the_gpu_level(folder, tmp_path, ran):
    shutil.copytree(folder[0], tmp_path, dirs_exist_ok=True)
    file = tmp_path / "m.ptx"
    run = (file, "--random-inputs", 0, "--device", "host", "--execute-ptx")
    result = ran(mlirc_run.main, *run)
    assert result.status == 0 and result.err.strip().endswith(
        "PTX executed in 14 of 14 calls, the whole plan executed in its arena"
    )
    good = file.read_text()
    plan_mutants.write_signed(file, resign(good, spoiled(good)))
    result = ran(mlirc_run.main, *run)
    assert result.status == 1 and "elementwise_0: wrong PTX: its instructions compute " in result.err
    ptx = ptx_of(good)
    plan_mutants.write_signed(file, resign(good, ptx.replace("ret;", "isspacep.global %p1, %rd1;\n\tret;", 1)))
    result = ran(mlirc_run.main, *run)
    line = next(i for i, text in enumerate(file.read_text().split("\n"), 1) if "isspacep" in text)
    with mlirc.load(file, device="host") as model:
        model.match, model.execute_ptx = False, True
        model(*(np.ones((5, 3), np.float32) for _ in range(2)))
        assert "PTX executed in 8 of 14 calls, not that of elementwise_0 (" in model.summary()
        assert f"line {line}: `isspacep.global` is not known here" in model.summary()
