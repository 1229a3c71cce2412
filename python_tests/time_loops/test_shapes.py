"""Exporting a recurrent layer takes one step for its shapes, however long it is."""

from __future__ import annotations

import pytest
import torch
import torch._decomp.decompositions as decompositions
from torch import nn

from mlirc.frontend import from_torch, import_torch

LAYERS = {
    "gru": (nn.GRU(5, 3, 2, bidirectional=True), 4),
    "gru batch first": (nn.GRU(5, 3, batch_first=True), 1),
    "lstm": (nn.LSTM(5, 3, 2), 2),
    "lstm with a projection": (nn.LSTM(5, 3, proj_size=2, bidirectional=True), 2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_many_steps_is_traced_by_one(name, monkeypatch):
    layer, expected = LAYERS[name]
    calls = []
    for cell in ("gru_cell", "lstm_cell"):
        original = getattr(decompositions, cell)
        monkeypatch.setattr(decompositions, cell, lambda *a, _f=original, **k: (calls.append(1), _f(*a, **k))[1])
    x = torch.randn(19, 7, 5)
    imported = import_torch(from_torch(layer, (x,)))
    assert (
        calls and len(calls) % expected == 0 and len(calls) <= 3 * expected
    )  # once per layer and direction, for each trace
    with torch.no_grad():
        out, last = layer(x)
    shapes = [tuple(shape) for _, _, shape in imported.outputs]
    assert shapes == [tuple(t.shape) for t in (out, *(last if isinstance(last, tuple) else [last]))]
    assert decompositions.one_layer_rnn.__module__ == decompositions.__name__  # nothing stays changed
