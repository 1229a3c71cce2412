"""Loops over time steps that a model writes in Python become loops, and equal PyTorch; what is no such loop stays."""

from __future__ import annotations

import pytest
import torch

from mlirc.frontend import repetitions
from mlirc.frontend.reroll import reroll
from mlirc.host.tensors import run_level
from support.models.planned import run_plan
from support.models.recurrent import STEP_BY_STEP, assert_right, compiled, leaves

W = torch.randn(5, 5, generator=torch.Generator().manual_seed(1)) / 3


class Loop(torch.nn.Module):
    """A function of inputs and of layers."""

    def __init__(self, function, **layers: torch.nn.Module):
        super().__init__()
        self.function, self.layers = function, torch.nn.ModuleDict(layers)

    def forward(self, *args):
        return self.function(self.layers, *args)


def cells(layers, x):
    h = c = x.new_zeros(x.shape[0], 7)
    out = []
    for t in range(x.shape[1]):
        h, c = layers["cell"](x[:, t], (h, c))
        out.append(h)
    return torch.stack(out, 1), c


def rows_written_in_place(layers, x):
    out, h = torch.zeros_like(x), torch.zeros(x.shape[0], 5)
    for t in range(x.shape[1]):
        h = torch.tanh(layers["linear"](h) + x[:, t])
        out[:, t] = h
    return out, h


def columns_from_the_end(layers, x):
    """Written in f64 from f32, into a part of what is bigger, while other rows keep what they had."""
    out, h = torch.full((2, x.shape[0] + 3, 5), 0.5, dtype=torch.float64), torch.zeros(2, 5)
    for t in reversed(range(x.shape[0])):
        h = torch.sin(layers["linear"](h)) + x[t]
        out[:, t + 1] = h
    return out


def unbound_and_concatenated(layers, x):
    h, out = torch.zeros(x.shape[1], 5), [x[0][None] * 2]
    for row in x.unbind(0):
        h = torch.tanh(layers["linear"](h) + row)
        out.append(h.unsqueeze(0))
    return torch.cat(out, 0)


def split_and_inserted(layers, x):
    h, out = torch.zeros(x.shape[0], 1, 5), []
    for part in x.split(1, dim=1):
        h = torch.tanh(layers["linear"](h) * part)
        out.insert(0, h)
    return torch.cat(out, 1), out[3]


def states_of_two_steps(layers, x):
    """Inputs of three steps, states of two, the first and the last steps left out, a sum, and a choice fed back."""
    a, b, h = x[0], x[1], torch.zeros(3, 6)
    token, total, out = torch.tensor([1, 2, 3]), 0, []
    for t in range(2, x.shape[0] - 1):
        a, b = b, torch.sin(a) + b * 0.5 + x[t + 1] * x[t - 1]
        h = layers["cell"](layers["embedding"](token) + b, h)
        scores = layers["linear"](h)
        token = scores.argmax(-1)
        out.append(scores)
        total = total + scores.sum()
    return torch.stack(out), token, a, b, total


def two_loops_among_other_work_in_place(layers, x):
    y = x * 2
    y += 1
    y[:, 0] = 0
    h = g = torch.zeros(x.shape[0], 5)
    forth, back = [], []
    for t in range(x.shape[1]):
        h = torch.tanh(h @ W + y[:, t])
        forth.append(h)
    for t in range(x.shape[1] - 1, -1, -1):
        g = torch.tanh(layers["linear"](g) + y[:, t])
        back.insert(0, g)
    return torch.cat([torch.stack(forth, 1), torch.stack(back, 1)], -1), h, forth[2], back[-1]


def linear() -> torch.nn.Module:
    return torch.nn.Linear(5, 5)


def lstm_cell() -> dict:
    return dict(cell=torch.nn.LSTMCell(5, 7))


def fed_back() -> dict:
    return dict(cell=torch.nn.GRUCell(5, 6), embedding=torch.nn.Embedding(7, 5), linear=torch.nn.Linear(6, 7))


def changed_afterwards(layers, x):
    """What an operation in place after the loop changes is in the list, too: the last iteration stays outside."""
    h, out = torch.zeros(x.shape[0], 5), []
    for t in range(x.shape[1]):
        h = torch.tanh(layers["linear"](h) + x[:, t])
        out.append(h)
    h.view(-1).add_(1)
    return torch.stack(out, 1), h


def bytes_(layers, x):
    x = (x * 10).to(torch.uint8)
    h, out = torch.zeros(x.shape[0], 5, dtype=torch.uint8), []
    for t in range(x.shape[1]):
        h = (h + x[:, t]) * 3
        out.append(h)
    return torch.stack(out, 1)


def layers_in_a_loop(layers, x):
    out = []
    for t in range(x.shape[0]):
        out.append(layers["gru"](x[t].unsqueeze(0))[0] + 1)
    return torch.cat(out)


# function, its layers, the shape of x, how many loops
LOOPS = {
    "cells": (cells, lstm_cell, (3, 9, 5), 1),
    "rows written in place": (rows_written_in_place, lambda: dict(linear=linear()), (3, 11, 5), 1),
    "columns from the end": (columns_from_the_end, lambda: dict(linear=linear()), (13, 2, 5), 1),
    "unbound and concatenated": (unbound_and_concatenated, lambda: dict(linear=linear()), (10, 3, 5), 1),
    "split and inserted": (split_and_inserted, lambda: dict(linear=linear()), (2, 9, 5), 1),
    "states of two steps": (states_of_two_steps, fed_back, (14, 3, 5), 1),
    "changed afterwards": (changed_afterwards, lambda: dict(linear=linear()), (3, 9, 5), 1),
    "two loops": (two_loops_among_other_work_in_place, lambda: dict(linear=linear()), (3, 9, 5), 2),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_in_python_is_a_loop_in_the_plan(name):
    function, layers, shape, count = LOOPS[name]
    torch.manual_seed(len(name))
    module, x = Loop(function, **layers()).eval(), torch.randn(*shape)
    with torch.no_grad():
        wanted = leaves(module(x))
    job = compiled(module, (x,), schedules=STEP_BY_STEP)
    assert len(job.plan.repeats) == count
    for level in ("linalg", "tiles"):
        assert_right(run_level(job.modules[level], [x], job.tensors()), wanted)
    assert_right(run_plan(job, [x]), wanted)


def growing(layers, x):
    return torch.stack([torch.tanh(layers["linear"](x[:, : t + 1])).mean(1) for t in range(x.shape[1])])


def own_weights(layers, x):
    for t in range(12):
        x = torch.relu(layers[str(t)](x)) + x
    return x


def few(layers, x):
    return cells(layers, x[:, :5])


def read_while_written(layers, x):
    out = torch.zeros_like(x)
    for t in range(1, x.shape[1]):
        out[:, t] = torch.tanh(layers["linear"](out[:, t - 1]) + x[:, t]) + out.sum()
    return out


def numbers_that_change(layers, x):
    out = []
    for t in range(x.shape[1]):
        out.append(torch.tanh(layers["linear"](x[:, t])) * (0.5 * t))
    return torch.stack(out)


def jumps(layers, x):
    return torch.stack([torch.tanh(layers["linear"](x[:, t * t % 11])).exp() for t in range(11)])


def random(layers, x):
    return torch.stack([torch.tanh(layers["linear"](x[:, t])) * torch.rand(3, 5) for t in range(11)])


NO_LOOPS = {
    growing: lambda: dict(linear=linear()),
    own_weights: lambda: {str(t): linear() for t in range(12)},
    few: lstm_cell,
    read_while_written: lambda: dict(linear=linear()),
    numbers_that_change: lambda: dict(linear=linear()),
    jumps: lambda: dict(linear=linear()),
    random: lambda: dict(linear=linear()),
    bytes_: dict,
    layers_in_a_loop: lambda: dict(gru=torch.nn.GRU(5, 5)),
}


@pytest.mark.parametrize("function", NO_LOOPS)
def test_what_is_no_loop_over_equal_steps_stays(function):
    torch.manual_seed(2)
    module, x = Loop(function, **NO_LOOPS[function]()).eval(), torch.randn(3, 11, 5)
    program = torch.export.export(module, (x,), strict=False)
    nodes = [n.format_node() for n in program.graph.nodes]
    assert reroll(program.graph) is None
    assert [n.format_node() for n in program.graph.nodes] == nodes


def test_layers_are_read_once(monkeypatch):
    """Layers are runs of equal operations, and no loops: finding that out takes one look at each operation, however
    many runs they can be divided into."""
    layers = [m for i in range(24) for m in (torch.nn.Linear(5, 5), torch.nn.LayerNorm(5), torch.nn.Tanh())]
    graph = torch.export.export(torch.nn.Sequential(*layers), (torch.zeros(3, 5),), strict=False).graph
    looked: list[object] = []
    flat = repetitions._flat

    def noting(node, known):
        looked.extend([] if node in known else [node])
        return flat(node, known)

    monkeypatch.setattr(repetitions, "_flat", noting)
    assert reroll(graph) is None
    assert 0 < len(looked) == len(set(looked)) <= len(graph.nodes)
