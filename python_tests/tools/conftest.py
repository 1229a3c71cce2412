"""What the tests of the command-line programs share."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import FakeDriver
from support.plans.tiny import KERNELS, PTX, W, make_plan, randn, write_weights
from support.tools import LEVEL


@pytest.fixture
def run_files(tmp_path, monkeypatch):
    """A folder with a compiled model, its weights, its linalg level, and an input; the GPU is a fake one."""
    (tmp_path / "m.ptx").write_text(embed(PTX, make_plan()))
    write_weights(tmp_path / "m.safetensors", {"m.w": W})
    (tmp_path / "m.levels").mkdir()
    (tmp_path / "m.levels" / "linalg.mlir").write_text(LEVEL)
    np.save(tmp_path / "x.npy", randn())
    monkeypatch.setattr("mlirc.runtime.model.Driver", lambda device: FakeDriver(KERNELS))
    monkeypatch.chdir(tmp_path)
    return tmp_path
