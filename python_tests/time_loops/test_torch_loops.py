"""PyTorch's own `scan` and `while_loop` in models, and in .pt2 files of them."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from mlirc.host.tensors import run_level
from mlirc.tools.mlirc import main
from support.models.planned import run_plan
from support.models.recurrent import STEP_BY_STEP, assert_right, compiled, leaves


class Scan(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.linear, self.options = torch.nn.Linear(5, 5), options

    def forward(self, x):
        def step(h, row):
            h = torch.tanh(self.linear(h) + row)
            return h, h * 2

        dim = self.options.get("dim", 0)
        return scan(step, torch.zeros(x.shape[1 - dim], 5), x, **self.options)


class While(torch.nn.Module):
    """Counts from `first` to below 9 by 2."""

    def __init__(self, first: int):
        super().__init__()
        self.linear, self.first = torch.nn.Linear(5, 5), first

    def forward(self, x):
        def again(i, j, y):
            return i + j < 9

        def step(i, j, y):
            return i + 1, j + 1, torch.tanh(self.linear(y)) + i

        first = torch.tensor(self.first)
        return while_loop(again, step, (first, torch.zeros((), dtype=torch.int64), x))


class Until(While):
    def forward(self, x):
        return while_loop(lambda y: y.sum() < 9, lambda y: (torch.relu(self.linear(y)) + 1,), (x,))


MODELS = {
    "scan": (Scan(), (7, 3, 5), 1),
    "scan from the end of another dimension": (Scan(dim=1, reverse=True), (3, 4, 5), 1),
    "scan of one": (Scan(), (1, 3, 5), 0),
    "while": (While(0), (2, 5), 1),
    "while for one step": (While(7), (2, 5), 0),
    "while for none": (While(9), (2, 5), 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_pytorchs_loops(name):
    module, shape, loops = MODELS[name]
    torch.manual_seed(len(name))
    x = torch.randn(*shape)
    with torch.no_grad():
        wanted = leaves(module.eval()(x))
    job = compiled(module, (x,), schedules=STEP_BY_STEP)
    assert len(job.plan.repeats) == loops
    for level in ("linalg", "tiles"):
        assert_right(run_level(job.modules[level], [x], job.tensors()), wanted)
    assert_right(run_plan(job, [x]), wanted)


def until():
    return Until(0).eval(), (torch.randn(2, 5),)


def test_a_loop_that_depends_on_data_is_refused_in_words(ran):
    error = ran(main, f"{__name__}:until", "--emit", "linalg").error
    assert "while_loop" in error and "fixed number of steps" in error


def test_a_file_with_a_scan_is_compiled_like_the_model(tmp_path, ran):
    module, shape, _ = MODELS["scan"]
    x = torch.randn(*shape)
    torch.export.save(torch.export.export(module.eval(), (x,), strict=False), tmp_path / "m.pt2")
    done = ran(main, tmp_path / "m.pt2", "--emit", "linalg")
    assert done.status == 0, done.err
    assert "mlirc.loop" in done.out
