"""Layers that are alike are traced once: the graph is the one that tracing each of them gives."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from mlirc.generate import like_layers, repeated_layers
from mlirc.generate.export import exported, open_generator
from support.generation import tiny

LAYERS, SCALES = 7, (2.0, 2.0, 2.0, 2.0, 3.0, 2.0, 2.0)


def graph(generator, plan: str = "decode") -> list:
    """The operations of a plan, with the modules that they come from."""
    program = exported(generator, plan).program
    return [(str(n.format_node()), n.meta.get("nn_module_stack")) for n in program.graph.nodes]


def opened(name: str, change=None, **sizes):
    model = tiny(name, num_hidden_layers=LAYERS, **sizes)
    if change is not None:
        change(model)
    generator = open_generator(model, slots=2, context=40, page_size=8, chunks=(1, 8))
    generator.few = None  # all layers are in the graph
    return generator


@pytest.fixture
def copied(monkeypatch) -> list[str]:
    """The names of the layers that were copied."""
    names: list[str] = []
    copy = repeated_layers._Memo._copied

    def noting(self, first, layer, name, *rest):
        names.append(name)
        return copy(self, first, layer, name, *rest)

    monkeypatch.setattr(repeated_layers._Memo, "_copied", noting)
    return names


def check(generator, copied, monkeypatch, count: int, plan: str = "decode") -> None:
    found = graph(generator, plan)
    assert len(copied) == count
    monkeypatch.setattr(like_layers, "_FEWEST", 1000)
    assert graph(generator, plan) == found and len(copied) == count


@pytest.mark.parametrize("plan", ["decode", "prefill-8"])
def test_alike(copied, monkeypatch, plan):
    check(opened("LlamaForCausalLM"), copied, monkeypatch, LAYERS - 3, plan)  # the first has the embeddings


@pytest.mark.parametrize("told_apart", ["by attributes", "by their masks"])
def test_kinds_that_alternate(copied, monkeypatch, told_apart):
    """Of layers with a window 2, 4 and 6 are alike, of those without 1, 3 and 5: the last of each is copied."""
    kinds = ["sliding_attention", "full_attention"]

    def change(model):
        for layer in model.model.layers:
            for module in layer.modules():
                for name in {"sliding_window", "attention_type", "layer_type", "is_sliding"} & set(module.__dict__):
                    module.__dict__[name] = None

    sizes = dict(head_dim=16, sliding_window=16, layer_types=[kinds[i % 2] for i in range(LAYERS)])
    model = opened("Gemma2ForCausalLM", change if told_apart == "by their masks" else None, **sizes)
    check(model, copied, monkeypatch, 2)


def test_a_layer_with_another_shape_or_attribute(copied, monkeypatch):
    def change(model):
        model.model.layers[2].mlp.up_proj.bias = torch.nn.Parameter(torch.ones(96), requires_grad=False)
        model.model.layers[3].self_attn.scaling *= 2

    check(opened("LlamaForCausalLM", change), copied, monkeypatch, 2)


def test_a_layer_that_computes_with_its_number(copied, monkeypatch):
    """GPT-2's scores may be divided by it."""
    model = opened(
        "GPT2LMHeadModel", n_layer=LAYERS, n_head=4, n_embd=64, n_positions=40, scale_attn_by_inverse_layer_idx=True
    )
    check(model, copied, monkeypatch, 0)


class Scaled(LlamaMLP):
    def forward(self, x):
        return super().forward(x) * SCALES[self.layer_idx]


def test_a_layer_that_looks_something_up_by_its_number(copied, monkeypatch):
    def change(model):
        for layer in model.model.layers:
            layer.mlp.__class__, layer.mlp.layer_idx = Scaled, layer.self_attn.layer_idx

    check(opened("LlamaForCausalLM", change), copied, monkeypatch, 0)


def test_what_was_changed_for_the_trace_is_put_back():
    generator = opened("LlamaForCausalLM")
    graph(generator)
    for i, layer in enumerate(generator.network.model.layers):
        assert "forward" not in layer.__dict__ and type(layer.self_attn.layer_idx) is int
        assert layer.self_attn.layer_idx == i
