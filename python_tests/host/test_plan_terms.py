"""Every mutant of a plan with states, numbers by value, tables of pointers or grids that numbers decide is refused at
load, or found by the host device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mlirc.device import DeviceModel
from mlirc.device.plan.check import FileCheck
from mlirc.device.ptx import run_plan
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.arrays import NUMPY_DTYPES
from mlirc.runtime.plan import TensorSpec
from mlirc.runtime.plan_file import extract
from mlirc.runtime.plan_json import to_json
from mlirc.targets import get_target
from support.kernels import pointer_tables, scalars
from support.models.together import randn
from support.models.written import Writes
from support.mutants.plans import plan_mutants, ptx_of, signed


def caches(m, x, at):
    m.k.index_copy_(1, at, x)
    m.n.add_(1)
    m.v.copy_(m.k * 2)
    return m.k.sum(1) * m.n


def compiled(name: str, folder: Path) -> Compilation:
    job = Compilation("m", get_target("sm_90a"), helpers=1)
    if name == "states":
        module = Writes(caches, k=randn(3, 7), v=randn(3, 7), n=torch.tensor(2.0))
        job.import_module(module, (randn(3, 1), torch.tensor([2])), {}, False)
    else:
        (folder / "m.mlir").write_text({"scalars": scalars, "tables": pointer_tables}[name].model())
        job.open(str(folder / "m.mlir"))
    job.lower("ptx")
    return job


@pytest.mark.parametrize(("name", "least"), [("states", 100), ("scalars", 40), ("tables", 40)])
def test_every_mutant_is_refused_found_or_the_same(name, least, tmp_path):
    """The same: executed, its PTX gives the same bits."""
    job = compiled(name, tmp_path)
    text, ptx = job.text("gpu"), ptx_of(job.ptx)
    model = DeviceModel.parse(text)
    draw = np.random.default_rng(0)
    given = {s.name: made_up(s, draw) for s in (*job.plan.inputs, *job.plan.weights)}
    right = run_plan(ptx, job.plan, given)

    def missed(data: dict) -> bool:
        try:
            plan = extract(signed(data, ptx))
        except MlircError:
            return False
        if FileCheck(plan, model, text, Path("m.ptx"), None).of_plan():
            return False
        found = run_plan(ptx, plan, given)
        return any(a.tobytes() != b.tobytes() for a, b in zip(found, right, strict=True))

    data = json.loads(to_json(job.plan))
    assert FileCheck(job.plan, model, text, Path("m.ptx"), None).of_plan() == []
    mutants = [m for m in plan_mutants(job.plan) if m.data != data]
    assert len(mutants) > least
    assert not [(m.what, m.how, m.data["steps"]) for m in mutants if missed(m.data)]


def made_up(spec: TensorSpec, draw: np.random.Generator) -> np.ndarray:
    """Integers that every kernel here takes, and floats."""
    dtype = NUMPY_DTYPES[spec.dtype]
    return np.full(spec.shape, 3, dtype) if dtype.kind == "i" else draw.standard_normal(spec.shape).astype(dtype)
