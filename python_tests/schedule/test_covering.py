"""Poolings of tensors that are stored with their rows last: aligned accesses cover what windows read; beside PyTorch on
the host device."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls
from support.randomness import generator


def run(compute, x, path):
    job = Compilation("covering", get_target("sm_90a"), helpers=0)
    job.import_module(Calls(compute).eval(), (x,), {})
    job.lower("ptx")
    job.write(path)
    with mlirc.load(path, device="host") as model:
        return torch.as_tensor(model(x)), path.read_text()


def drawn(shape, dtype=torch.float32):
    return torch.from_numpy(generator().standard_normal(shape, "f4")).to(dtype)


def loads(ptx: str) -> dict[str, int]:
    found = re.findall(r"ld\.global(?:\.nc)?((?:\.v\d)?\.b\d+)", ptx)
    return {kind: found.count(kind) for kind in set(found)}


POOLINGS = {
    "stem": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 16, 32)),
    "apart": (lambda x: F.max_pool2d(x, 2), (2, 3, 8, 64)),
    "sliding": (lambda x: F.max_pool2d(x, 5, 1, 2), (2, 2, 9, 36)),
    "row": (lambda x: F.max_pool1d(x, 5, 1, 2, 1), (2, 3, 64)),
    "volume": (lambda x: F.max_pool3d(x, 3, 2, 1), (1, 2, 6, 8, 16)),
    "mean": (lambda x: F.avg_pool2d(x, 3, 2, 1), (2, 3, 8, 48)),
    "mean of a row": (lambda x: F.avg_pool1d(x, 9, 1, 4), (2, 3, 80)),
    "mean of a volume": (lambda x: F.avg_pool3d(x, 3, 2, 1), (1, 2, 6, 8, 24)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POOLINGS)
def test_poolings_of_rows_of_whole_accesses(name, dtype, tmp_path):
    compute, shape = POOLINGS[name]
    if name == "mean of a volume" and dtype == torch.bfloat16:
        pytest.skip("PyTorch has none on the CPU")
    x = drawn(shape, dtype)
    found, ptx = run(compute, x, tmp_path / "p.ptx")
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, compute(x), rtol=tolerance, atol=tolerance)
    if dtype == torch.float32:
        assert set(loads(ptx)) == {".v4.b32"}, loads(ptx)


@pytest.mark.parametrize("width", [1, 3, 13, 30, 34, 100])
@pytest.mark.parametrize("settings", [(3, 2, 1), (2, 1, 0), (5, 3, 2)], ids=str)
def test_rows_of_any_length(width, settings, tmp_path):
    x = drawn((2, 2, 7, width + settings[0]))
    found, _ = run(lambda x: F.max_pool2d(x, *settings), x, tmp_path / "p.ptx")
    assert torch.equal(found, F.max_pool2d(x, *settings))


def test_an_element_is_loaded_once_for_all_taps(tmp_path):
    """Of three taps, two apart, 9 elements in three accesses; of three rows, nine; for a thread's two pieces."""
    _, ptx = run(lambda x: F.max_pool2d(x, 3, 2, 1), torch.zeros(32, 64, 112, 112), tmp_path / "p.ptx")
    assert loads(ptx) == {".v4.b32": 18}


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_what_is_read_at_the_ends_of_rows_counts_where_it_is_no_padding(mode, tmp_path):
    x = drawn((1, 2, 8, 32))
    found, _ = run(lambda x: F.pad(x, (3, 1, 2, 2), mode=mode) * 2, x, tmp_path / "p.ptx")
    assert torch.equal(found, F.pad(x, (3, 1, 2, 2), mode=mode) * 2)


@pytest.mark.parametrize("start, step", [(0, 2), (1, 2), (3, 1), (5, 3), (2, 5)])
def test_slices_with_steps(start, step, tmp_path):
    x = drawn((3, 5, 160), torch.bfloat16)
    found, _ = run(lambda x: x[..., start::step] + 1, x, tmp_path / "p.ptx")
    assert torch.equal(found, x[..., start::step] + 1)
