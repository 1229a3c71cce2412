"""Bags of embeddings and segments of rows beside PyTorch: all reductions, empty ones, padding, weights, NaN."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, check_together, randn

ROWS = torch.tensor([[2, 1, 0], [0, 2, 4], [3, 3, 3], [5, 6, 1]])
FLAT = torch.tensor([2, 1, 0, 0, 2, 4, 3, 3, 3, 5, 6])
PAST = [0, 3, 3, 6, 10, 11]


def starts(dtype=torch.int64):
    return torch.tensor(PAST, dtype=dtype)


def strange(weight):
    """A weight with NaN and infinities in rows that stand first, in the middle and alone in a bag."""
    weight = weight.clone()
    weight[2, 1] = weight[4, 1] = torch.nan
    weight[3, 2] = weight[0, 0] = -torch.inf
    weight[5, 2] = torch.inf
    return weight


def bags(padding):
    def run(rows, flat, weight):
        for mode in ("sum", "mean", "max"):
            for w in (weight, strange(weight)):
                yield F.embedding_bag(rows, w, mode=mode, padding_idx=padding)
                yield F.embedding_bag(flat, w, starts(), mode=mode, padding_idx=padding)
            yield F.embedding_bag(flat, weight, starts(), mode=mode, padding_idx=padding, include_last_offset=True)
            yield F.embedding_bag(flat[:0], weight, starts()[:1], mode=mode, padding_idx=padding)

    return lambda *args: list(run(*args))


@pytest.mark.parametrize(("padding", "levels"), [(None, ("tiles",)), (3, ("tiles", "gpu"))], ids=str)
def test_bags(padding, levels) -> None:
    check_together([(bags(padding), (ROWS, FLAT, randn(7, 5)))], levels, kinds=("plain",))


def test_bags_of_16_bits() -> None:
    """A padding index may count from the end."""
    check_together([(bags(-7), (ROWS, FLAT, randn(7, 5, dtype=torch.bfloat16)))], ("tiles",), kinds=("plain",))


def test_weights_of_samples() -> None:
    def run(rows, flat, weight, of_rows, of_flat):
        options = {"mode": "sum", "per_sample_weights": of_flat}
        yield F.embedding_bag(rows, weight, mode="sum", per_sample_weights=of_rows)
        yield F.embedding_bag(rows, strange(weight), mode="sum", per_sample_weights=of_rows, padding_idx=2)
        yield F.embedding_bag(flat, weight, starts(), **options)
        yield F.embedding_bag(flat.int(), weight, starts(torch.int32), include_last_offset=True, **options)
        yield F.embedding_bag(flat, strange(weight), starts(), padding_idx=2, **options)

    check_together([(lambda *args: list(run(*args)), (ROWS, FLAT, randn(7, 5), randn(4, 3), randn(11)))])


def test_offsets_are_inputs() -> None:
    """The check would draw offsets in any order: these are counted from drawn lengths."""

    def run(flat, weight, lengths):
        ends = torch.cumsum(lengths.abs() % 3, 0)
        return [F.embedding_bag(flat, weight, (ends - ends[:1]).clamp(max=11), mode=m) for m in ("sum", "mean", "max")]

    check_together([(run, (FLAT, randn(7, 5), torch.tensor([2, 0, 1, 2, 2, 2])))])


def test_bags_of_one_size_are_not_scattered() -> None:
    job = Compilation("bags", get_target("sm_90a"))
    job.import_module(Calls(lambda i, w: F.embedding_bag(i, w, mode="mean", padding_idx=1)), (ROWS, randn(7, 5)), {})
    job.lower("linalg")
    assert "tm_tensor.scatter" not in job.text("linalg")


@pytest.mark.parametrize("norm", [2.0, 1.0])
def test_rows_of_a_largest_norm(norm) -> None:
    """What the model writes to its weight is compared, too."""
    model = torch.nn.Embedding(7, 5, max_norm=0.5, norm_type=norm)
    result = check_torch(model, (ROWS,), levels=["tiles"], kinds=("plain",))
    assert result.ok, result.reason()


def test_segments() -> None:
    def run(data):
        lengths, offsets = torch.tensor([2, 0, 3, 1]), torch.tensor([0, 0, 4, 6])
        batch = torch.stack([data, data * 2])
        for reduction in ("sum", "mean", "max", "min", "prod"):
            yield torch.segment_reduce(data, reduction, lengths=lengths)
            yield torch.segment_reduce(data, reduction, lengths=lengths, initial=2.0)
            yield torch.segment_reduce(data, reduction, offsets=offsets)
            yield torch.segment_reduce(batch, reduction, lengths=torch.stack([lengths, lengths.flip(0)]), axis=1)

    cases = [(lambda x: list(run(x)), (randn(6, 2),)), (lambda x: list(run(x)), (randn(6, 3, dtype=torch.bfloat16),))]
    check_together(cases[:1], kinds=("plain", "one NaN"))
    check_together(cases[1:], ("tiles",), kinds=("plain", "one infinity"))
