"""Every family of models that the frontend's tests have, compiled as a user would and run on the host device: no finding,
and every kernel's numbers are those of the level above."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mlirc.check.kinds import IDS
from mlirc.device.input_sets import INPUT_SETS
from mlirc.driver.compilation import compile_model
from mlirc.runtime.loading import load
from mlirc.tools.mlirc_run import random_inputs
from support.models.small import CONFIGS, write_config

ALL_SETS = ("bert", "gpt2", "t5")
FEW = ("floats x100", IDS)  # for the others
LIKE_LLAMA = ("qwen2", "qwen3", "mistral")


# Each family in one of the two, in turn.
@pytest.mark.parametrize(
    "name, dtype",
    list(zip([n for n in CONFIGS if n not in LIKE_LLAMA], itertools.cycle(["f32", "bf16"]), strict=False)),
)
def test_no_finding(name, dtype, tmp_path):
    compile_model(write_config(tmp_path, name), tmp_path / "m.ptx", dtype=dtype, random_weights=0)
    with load(tmp_path / "m.ptx", device="host") as model:
        model.input_sets = INPUT_SETS if name in ALL_SETS else FEW
        given = random_inputs(model.plan.inputs, 0)
        results = model(*given)  # a finding is an error
        assert model.report.ok and model.compare and model.report.calls
        assert "judged by the largest element" not in model.summary() and len(model.report.sets) == len(
            model.report.calls
        )
        first = results[0] if isinstance(results, tuple) else results
        assert np.isfinite(np.asarray(first, dtype=np.float32)).all()
