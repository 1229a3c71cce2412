"""Models whose `forward` writes to buffers, inputs or attributes, or returns what is no tensor."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch
from support.models.together import randn


class Keeps(nn.Module):
    """A module with two buffers and a tensor that is none, which calls a function with itself and its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.plain = torch.zeros(3)

    def forward(self, x):
        return self.function(self, x)


def in_training(m, x):
    return F.batch_norm(x, m.mean, m.var, training=True), m.mean + 1, m.var * 2


def by_instance(m, x):
    return F.instance_norm(x, m.mean, m.var, use_input_stats=True), m.mean + 1


def counted(m, x):
    m.mean.add_(1)
    return x.sum(-1) + m.mean


def replaced(m, x):
    m.mean = m.mean + 1
    return x.sum(-1) + m.mean


def into_input(m, x):
    x.add_(1)
    return x * 2


def through_data(m, x):
    y = x * 1
    y.data[:, 1:].mul_(3)
    m.mean.data.add_(1)
    return y + 1, m.mean * 2


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (in_training, ["output_0", "output_1", "output_2", "mean", "var"]),
        (by_instance, ["output_0", "output_1", "mean", "var"]),
        (counted, ["output", "mean"]),
        (replaced, ["output", "mean"]),
        (through_data, ["output_0", "output_1", "mean"]),
        (into_input, ["output", "x"]),
    ],
)
def test_what_is_written_is_returned_after_the_results(function, names):
    module = Keeps(function)
    imported = import_torch(from_torch(module, (randn(2, 3, 5),)))
    assert [name for name, *_ in imported.outputs] == names
    result = check_torch(module, (randn(2, 3, 5),), levels=["tiles"], kinds=["plain", "floats x100"])
    assert result.ok, result.table()
    assert not module.mean.any(), "the caller's module stays as it is"


def next_attribute(m, x):
    m.plain = m.plain + 1
    return x + m.plain[0]


def attribute_in_place(m, x):
    m.plain.add_(1)
    return x + m.plain[0]


def data(m, x):
    m.mean.data = m.mean.data + 1
    return x


def data_of_a_result(m, x):
    y = x * 1
    y.data = x * 3
    return y + 1


@torch.library.custom_op("mlirc_test_state::increase", mutates_args=("x",))
def increase(x: torch.Tensor) -> None:
    x.add_(1)


def by_code_of_its_own(m, x):
    y = x * 1
    increase(y)
    return y


class Holder:
    pass


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (next_attribute, "forward reads the tensor 'plain' and replaces it"),
        (attribute_in_place, r"forward writes into the tensor 'plain', .* make it a buffer"),
        (data, "forward replaces the data of a tensor"),
        (data_of_a_result, "forward replaces the data of a tensor"),
        (by_code_of_its_own, "op mlirc_test_state::increase cannot be imported: it writes into its arguments"),
        (lambda m, x: {x}, "returns a set: return tensors or numbers"),
        (lambda m, x: Holder(), "returns a Holder: return tensors or numbers"),
        (lambda m, x: None, "returns no tensor"),
    ],
)
def test_refused(function, words):
    with pytest.raises(MlircError, match=words):
        import_torch(from_torch(Keeps(function), (randn(2, 3, 5),)))


def test_an_attribute_that_is_only_remembered_is_nothing():
    def remember(m, x):
        m.plain = x * 2
        return x + 1

    module = Keeps(remember)
    assert len(import_torch(from_torch(module, (randn(2, 3),))).outputs) == 1
