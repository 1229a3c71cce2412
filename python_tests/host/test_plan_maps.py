"""Tensor maps in a PTX file: the plan's are held against those of the `gpu` level beside it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mlirc.device.model import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from mlirc.targets import get_target
from mlirc.tools import mlirc_run
from support.kernels.chain import chain
from support.kernels.tensor_maps import CASES
from support.mutants.plans import plan_mutants, ptx_of, signed, write_signed


def compiled(name: str, folder: Path) -> Compilation:
    """A model of one kernel, compiled from its `gpu` level."""
    (folder / "m.mlir").write_text(CASES[name].model())
    return opened(folder)


def opened(folder: Path) -> Compilation:
    job = Compilation("m", get_target("sm_90a"), helpers=1)
    job.open(str(folder / "m.mlir"))
    job.lower("ptx")
    job.write(folder / "m.ptx")
    return job


def says(job: Compilation, data: dict) -> list[str]:
    """What the host device finds in a plan, or why it is not loaded."""
    text = signed(data, ptx_of(job.ptx))
    try:
        check = FileCheck(extract(text), DeviceModel.parse(job.text("gpu")), job.text("gpu"), Path("m.ptx"), text)
    except MlircError as e:
        return [f"refused: {e}"]
    return [str(f) for f in check.of_plan()]


@pytest.mark.parametrize("name", ["swizzled", "wide", "a vector"])
def test_every_change_of_a_map_is_refused_or_found(name, tmp_path):
    job = compiled(name, tmp_path)
    assert says(job, json.loads(to_json(job.plan))) == []
    found = {}
    for mutant in plan_mutants(job.plan):
        if "tensor map" in mutant.how:
            found[mutant.how, json.dumps(mutant.data["steps"][0].get("maps"))] = says(job, mutant.data)
    verdicts = Counter("missed" if not s else s[0][:7] == "refused" for s in found.values())
    assert not verdicts["missed"], [key for key, s in found.items() if not s]
    assert len(found) > 20 and verdicts[False] > 5 and verdicts[True] > 5


def test_a_launch_that_begins_early_does_so_at_the_gpu_level(tmp_path):
    tensor = "tensor<1000xf32>"
    (tmp_path / "m.mlir").write_text(f"""
func.func private @k({tensor}) -> {tensor} attributes {{mlirc.kernel}}
func.func @main(%x: {tensor}) -> {tensor} {{
  %y = call @k(%x) : ({tensor}) -> {tensor}
  return %y : {tensor}
}}

// -----

{chain()}""")
    job = opened(tmp_path)
    data = json.loads(to_json(job.plan))
    assert says(job, data) == []
    del data["steps"][2]["dependent"]
    (said,) = says(job, data)
    assert "dependent is False, but True at the gpu level at step 2 of m.ptx" in said
    data["steps"][0]["dependent"] = True
    assert "plan: step 0: kernel 'k_first' may begin before the step in front of it" in says(job, data)[0]


def test_an_edited_map_is_found_where_the_file_is_run(tmp_path, ran):
    compiled("odd rows", tmp_path)
    np.save(tmp_path / "x.npy", CASES["odd rows"].inputs()[0])
    words = (tmp_path / "m.ptx", "--input", tmp_path / "x.npy", "--device", "host")
    assert ran(mlirc_run.main, *words).status == 0
    text = (tmp_path / "m.ptx").read_text()
    assert '"maps":[[0,"f32",[13,24],[8,16],0]' in text
    write_signed(tmp_path / "m.ptx", text.replace('[0,"f32",[13,24],[8,16],0]', '[0,"f32",[13,24],[4,16],0]'))
    done = ran(mlirc_run.main, *words)
    assert done.status == 1
    assert (
        "argument 0 is a tensor map of f32[13,24] by [4, 16], but a tensor map of f32[13,24] by [8, 16] at the gpu"
        in (" ".join((done.out + done.err).split()))
    )


def test_ptx_with_tensor_maps_is_executed_with_the_plans(tmp_path, ran):
    compiled("odd rows", tmp_path)
    np.save(tmp_path / "x.npy", CASES["odd rows"].inputs()[0])
    done = ran(mlirc_run.main, tmp_path / "m.ptx", "--input", tmp_path / "x.npy", "--device", "host", "--execute-ptx")
    assert done.status == 0 and "PTX executed" in done.err and "not that of" not in done.err, done.err
