"""Maps that are read at indices that depend on data: computed at these places where they are few, each in a row of its
own; beside PyTorch on the CPU and on the host device."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.host import run_level
from mlirc.ir import levels
from mlirc.targets import get_target
from support.randomness import generator


def losses(x, labels):
    return F.cross_entropy(x, labels, reduction="none")


def mean_loss(x, labels):
    return F.cross_entropy(x, labels)


def smoothed(x, labels):
    return F.cross_entropy(x, labels, label_smoothing=0.1, reduction="none")


def with_log_softmax(x, labels):
    """The log-softmax is written anyway."""
    y = torch.log_softmax(x, -1)
    return F.nll_loss(y, labels), y


def of_a_map(x, labels):
    return torch.exp(x * 2 - 1).gather(1, labels.clamp(min=0)[:, None])


def two_of_each_row(x, labels):
    y = torch.softmax(x, -1)
    first = labels.clamp(min=0)[:, None]
    return y.gather(1, first) - y.gather(1, x.shape[1] - 1 - first)


def of_other_rows(x, labels):
    """Places in rows that data choose, too."""
    return torch.softmax(x, -1)[labels.clamp(min=0) % x.shape[0], 3]


def most_of_a_row(x, labels):
    """As many elements as the softmax has: it is computed once, in a kernel of its own."""
    return torch.softmax(x, -1).gather(1, labels.clamp(min=0)[:, None].expand(-1, x.shape[1]) // 2)


def scaled_by_a_reduction(x, labels):
    """The loss of each row, over the largest one."""
    loss = losses(x, labels)
    return loss / loss.amax()


GRAPHS = {
    losses: 1, mean_loss: 2, smoothed: 1, with_log_softmax: 2, of_a_map: 1, two_of_each_row: 1, of_other_rows: 2,
    most_of_a_row: 2, scaled_by_a_reduction: 2,
}  # fmt: skip


class Graph(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.compute = compute

    def forward(self, x, labels):
        return self.compute(x, labels)


def built(compute, x, labels):
    job = Compilation("gathers", get_target("sm_90a"), helpers=0)
    job.import_module(Graph(compute).eval(), (x, labels), {})
    return job


def check(compute, x, labels, tmp_path, tolerance):
    job = built(compute, x, labels)
    job.lower("ptx")
    job.write(tmp_path / "gathers.ptx")
    expected = compute(x, labels)
    expected = [expected] if isinstance(expected, torch.Tensor) else expected
    with mlirc.load(tmp_path / "gathers.ptx", device="host") as model:
        found = model(x, labels)
    found = found if isinstance(found, (list, tuple)) else [found]
    for results in (found, run_level(job.modules["tiles"], [x, labels], job.tensors())):
        for mine, right in zip(results, expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(mine).view(right.shape), right, rtol=tolerance, atol=tolerance)
    return job


def labels_of(rows: int, classes: int) -> torch.Tensor:
    """One in five is ignored; the last one is not."""
    draw = generator()
    labels = torch.from_numpy(draw.integers(0, classes, rows))
    labels[torch.from_numpy(draw.random(rows) < 0.2)] = -100
    labels[-1] = classes - 1
    return labels


@pytest.mark.parametrize("compute", GRAPHS, ids=lambda f: f.__name__)
def test_what_is_read_at_a_few_places_is_computed_there(compute, tmp_path):
    x = torch.from_numpy(generator().standard_normal((13, 67), "f4")) * 3
    job = check(compute, x, labels_of(13, 67), tmp_path, 1e-5)
    assert str(levels.functions(job.modules["kernels"])["main"]).count(" call @") == GRAPHS[compute]


@pytest.mark.parametrize("rows, classes", [(1, 1000), (3, 4097), (40, 32), (2, 17001)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_of_rows_of_any_length(rows, classes, dtype, tmp_path):
    x = torch.from_numpy(generator().standard_normal((rows, classes), "f4")).to(dtype)
    check(mean_loss, x, labels_of(rows, classes), tmp_path, 1e-5 if dtype == torch.float32 else 2e-2)


def test_losses_of_images(tmp_path):
    """Classes are not the last dimension."""
    x = torch.from_numpy(generator().standard_normal((2, 5, 3, 7), "f4"))
    check(mean_loss, x, labels_of(42, 5).view(2, 3, 7), tmp_path, 1e-5)


def test_labels_outside_of_the_classes_are_found(tmp_path):
    """On the CPU an index that leaves its tensor is reported, where it is computed, too."""
    x, labels = torch.randn(4, 40), torch.tensor([0, 3, 40, 1])
    job = built(losses, x, labels)
    job.lower("tiles")
    with pytest.raises(mlirc.errors.MlircError, match="40"):
        run_level(job.modules["tiles"], [x, labels], job.tensors())


def test_sums_of_flags_are_row_reductions(tmp_path):
    x = torch.from_numpy(generator().standard_normal((5, 300), "f4"))
    job = check(lambda x, labels: ((x > 0.5).sum(-1), (x > 0.5).sum()), x, labels_of(5, 3), tmp_path, 0)
    assert not any("generic" in name for name in levels.kernels(job.modules["kernels"]))
