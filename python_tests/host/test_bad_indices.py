"""Indices outside of their tensors: reported on the CPU wherever PyTorch raises an error, and nowhere else."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import mlirc
from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.host import HostFunction
from mlirc.targets import get_target

ROWS, COLUMNS = 5, 7
OPS = {
    "embedding": lambda x, i, y: torch.nn.functional.embedding(i, x),
    "gather": lambda x, i, y: torch.gather(x, 1, i.reshape(3, 1)),
    "index_select": lambda x, i, y: torch.index_select(x, 1, i),
    "index": lambda x, i, y: x[:, i],
    "take": lambda x, i, y: torch.take(x, i),
    "one_row": lambda x, i, y: torch.nn.functional.embedding(i, x[:1]),
    "scatter": lambda x, i, y: torch.scatter(x, 1, i.reshape(3, 1), y.reshape(3, 1)),
    "index_add": lambda x, i, y: torch.index_add(x, 0, i, y.reshape(3, 1).expand(3, COLUMNS)),
    "index_put": lambda x, i, y: torch.index_put(x, (i,), y.reshape(3, 1)),
    "clamped": lambda x, i, y: torch.nn.functional.embedding(i.clamp(0, ROWS - 1), x),
}
VALUES = [0, -1, -ROWS, -COLUMNS, ROWS - 1, ROWS, COLUMNS - 1, COLUMNS, ROWS * COLUMNS - 1, 10**9, -(10**15)]


class Indexed(torch.nn.Module):
    """All of OPS, each with an index of its own."""

    def forward(self, x, y, *indices):
        return tuple(op(x, i, y) for op, i in zip(OPS.values(), indices, strict=True))


X, Y = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)), torch.tensor([1.5, -2.0, 3.0])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Level to a function from the model's inputs to its outputs."""
    job = Compilation("indexed", get_target("sm_90a"), helpers=0)
    job.import_module(Indexed(), (X, Y, *[torch.tensor([0, 0, 0])] * len(OPS)), {})
    job.lower("ptx")
    path = tmp_path_factory.mktemp("indexed") / "m.ptx"
    job.write(path)
    found = {"gpu": mlirc.load(str(path), device="host")}
    for level in ("linalg", "kernels", "tiles"):
        file = path.with_suffix(".levels") / f"{level}.mlir"
        found[level] = HostFunction(mlir.parse(file.read_text(), str(file)), source=file.name)
    return found


def eager(name: str, index: torch.Tensor) -> torch.Tensor | None:
    try:
        return OPS[name](X, index, Y)
    except (IndexError, RuntimeError):
        return None


@pytest.mark.parametrize("level", ["linalg", "kernels", "tiles", "gpu"])
@pytest.mark.parametrize("name", OPS)
def test_what_pytorch_refuses_is_reported_and_what_it_takes_is_right(runs, name, level):
    good, number = torch.tensor([0, 0, 0]), list(OPS).index(name)
    answers = set()
    for value in VALUES:
        index = torch.tensor([0, value, 0])
        given = [index if i == number else good for i in range(len(OPS))]
        expected = eager(name, index)
        answers.add(expected is None)
        arguments = [t.numpy() for t in (X, Y, *given)]
        if expected is None:
            with pytest.raises(MlircError) as e:
                runs[level](*arguments)
            told = re.search(r"index (\S+) is out of range for a dimension of (\d+)", str(e.value))
            found, extent = map(int, told.groups())
            assert found in (value, value + extent) and "mlir:" in str(e.value)  # a negative one may be wrapped first
            if level == "gpu":
                findings = runs[level].report.findings
                finding = next(f for f in findings if f.kind == "bad index")
                # An index of more than 32 bits is cut besides, and what is read there is undefined.
                assert len(findings) == 1 or abs(value) >= 1 << 31
                assert finding.kind == "bad index" and finding.kernel and "kernels.mlir:" in finding.location
        else:
            found = runs[level](*arguments)[number]
            np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)
    assert answers == ({False} if name == "clamped" else {True, False})


def test_kernels_leave_memory_that_is_not_theirs_alone(runs):
    """The host device itself would report an access out of bounds: kernels of scatters guard theirs."""
    model = runs["gpu"]
    model.compare = False
    try:
        bad = np.array([10**9, -3, 0])
        for number, name in enumerate(OPS):
            given = [bad if i == number else np.zeros(3, np.int64) for i in range(len(OPS))]
            found = model(X.numpy(), Y.numpy(), *given)[number]
            assert np.isfinite(found).all() and model.report.ok, name
    finally:
        model.compare = True
