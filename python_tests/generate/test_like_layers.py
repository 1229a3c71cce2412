"""What a model keeps is found out from one of each kind of its layers."""

from __future__ import annotations

import pytest

from mlirc.generate import like_layers
from mlirc.generate.export import open_generator
from support.generation import tiny

KINDS = ["sliding_attention", "full_attention"]


def changed(model):
    """A layer of other heads than the rest."""
    attention = model.model.layers[3].self_attn
    attention.scaling *= 2
    return model


@pytest.mark.parametrize(
    ("name", "sizes", "change", "runs"),
    [
        ("LlamaForCausalLM", {}, None, 1),
        ("LlamaForCausalLM", {}, changed, 2),
        ("Gemma3ForCausalLM", {"head_dim": 16, "sliding_window": 5, "layer_types": (KINDS * 4)[:7]}, None, 2),
    ],
)
def test_one_of_each_kind_runs(monkeypatch, name, sizes, change, runs):
    model = tiny(name, num_hidden_layers=7, **sizes)
    if change:
        change(model)
    count: list[int] = []
    layer = type(model.model.layers[0])
    forward = layer.forward
    keeps = open_generator.__globals__["_what_it_keeps"]

    def noting(self, *args, **kwargs):
        count.append(1)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(layer, "forward", noting)
    found = keeps(model)
    assert len(count) == runs and sorted(found[0]) == list(range(7))
    assert not any("forward" in part.__dict__ for part in model.model.layers)
    monkeypatch.setattr(like_layers, "_FEWEST", 1000)
    assert keeps(model) == found and len(count) == runs + 7
