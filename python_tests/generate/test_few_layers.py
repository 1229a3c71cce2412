"""A few layers stand for all of a model: what comes out is what a graph of all layers gives, letter by letter."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaModel

from mlirc import mlir
from mlirc.driver.compilation import Compilation
from mlirc.driver.modules import FewLayers
from mlirc.frontend.lower import lower_to_linalg
from mlirc.generate.compilation import _import, _rename
from mlirc.generate.export import open_generator
from mlirc.ir.all_layers import require_repeated, with_all_layers
from mlirc.ir.layer_names import Layers, NotRepeated, regular
from mlirc.targets import get_target
from support.generation import tiny

SIZES = dict(slots=2, context=40, page_size=8, chunks=(1, 8))


def imported(model, plan: str, few: bool):
    generator = open_generator(model, **SIZES)
    generator.few = generator.few if few else None
    job = Compilation(f"model.{plan}", get_target("sm_90a"), ())
    _import(job, generator, plan)
    _rename(job.imported, plan, {})
    return job, generator


def text(module) -> str:
    return module.operation.get_asm(enable_debug_info=True)


def check(model, plan: str, left_out: int, monkeypatch) -> None:
    given = []
    all_kernels = FewLayers.all_kernels

    def noting(self, divided):
        given.append(all_kernels(self, divided))
        return given[-1]

    monkeypatch.setattr(FewLayers, "all_kernels", noting)
    (few, generator), (every, _) = imported(model, plan, True), imported(model, plan, False)
    assert generator.few is not None and len(generator.few.left_out) == left_out
    few.lower("kernels"), every.lower("kernels")
    assert len(given) == 1 and given[0] is not None
    assert str(few.modules["linalg"]) == str(every.modules["linalg"])
    assert text(few.modules["kernels"]) == text(every.modules["kernels"])
    assert str(lower_to_linalg(few.modules["torch"])) == str(every.modules["linalg"])
    weights, wanted = few.imported.weights, every.imported.weights
    assert list(weights) == list(wanted)
    assert all(torch.equal(weights[name], wanted[name]) for name in wanted)


def test_alike(monkeypatch):
    check(tiny("LlamaForCausalLM", num_hidden_layers=7), "decode", 3, monkeypatch)


def test_kinds_that_alternate(monkeypatch):
    kinds = ["sliding_attention", "full_attention"]
    sizes = dict(head_dim=16, sliding_window=16, layer_types=[kinds[i % 2] for i in range(9)])
    check(tiny("Gemma2ForCausalLM", num_hidden_layers=9, **sizes), "prefill-8", 2, monkeypatch)


class _Skips(LlamaModel):
    """Adds what an early layer has made to the end."""

    def forward(self, *args, **kwargs):
        early = []
        hook = self.layers[4].register_forward_hook(lambda _, __, out: early.append(out))
        out = super().forward(*args, **kwargs)
        hook.remove()
        out.last_hidden_state = out.last_hidden_state + (early[0] if torch.is_tensor(early[0]) else early[0][0])
        return out


def test_a_layer_that_the_model_reads_is_not_left_out():
    model = tiny("LlamaForCausalLM", num_hidden_layers=7)
    model.model.__class__ = _Skips
    job, generator = imported(model, "decode", True)
    assert generator.few is None and job.few is None
    assert sum(name.endswith("o_proj.weight") for name in job.imported.weights) == 7


def few_of(change=None):
    model = tiny("LlamaForCausalLM", num_hidden_layers=7)
    if change:
        change(model.model.layers)
    return open_generator(model, **SIZES).few


def test_layers_that_share_a_tensor_or_differ_all_stay():
    def shared(layers):
        layers[5].mlp.up_proj.weight = layers[6].mlp.up_proj.weight

    def other(layers):
        layers[3].self_attn.scaling *= 2

    assert few_of() is not None and few_of(shared) is None and few_of(other) is None


def test_which_layers_stand_for_all():
    def left(kinds):
        found = regular(list(kinds), ("layers",))
        return found and list(found.left_out)

    assert left("AAAAAAAA") == [3, 4, 5, 6] and left("AAAA") is None
    assert left("BBAAAAAA") == [4, 5, 6] and left("AAAAAABB") is None
    assert left("ABABABABAB") == [5, 6, 7, 8] and left("AABAABAABAAB") == [7, 8, 9]


def test_names_of_all_layers_are_in_order():
    layers = Layers(("model.layers", "cache"), 7, 1, 1)
    names = ["embed", *(f"model.layers.{i}.{w}" for i in (0, 1, 2, 6) for w in "ab"), "norm", "cache.2.keys", "x.2.y"]
    found = list(layers.all_names(names))
    each = [f"model.layers.{i}.{w}" for i in range(7) for w in "ab"]
    assert found == ["embed", *each, "norm", *(f"cache.{i}.keys" for i in range(2, 6)), "x.2.y"]


def module(last: str = "%c", second: str = "%a2") -> str:
    """Seven layers h + a, of which 0, 1, 2 and 6 are there."""
    names = ["h", *(f"layers.{i}.a" for i in (0, 1, 2, 6))]
    arguments = ", ".join(
        f'%{v}: tensor<4xf32> {{mlirc.name = "{n}"}}' for v, n in zip(("h", "a0", "a1", "a2", "a6"), names, strict=True)
    )
    return f"""
    func.func @main({arguments}) -> (tensor<4xf32> {{mlirc.name = "out"}}) {{
      %a = arith.addf %h, %a0 : tensor<4xf32>
      %b = arith.addf %a, %a1 : tensor<4xf32>
      %c = arith.addf %b, {second} : tensor<4xf32>
      %d = arith.addf {last}, %a6 : tensor<4xf32>
      return %d : tensor<4xf32>
    }}"""


def test_a_module_of_all_layers():
    made = str(with_all_layers(mlir.parse(module()), Layers(("layers",), 7, 1, 1)))
    assert made.count("arith.addf") == 7 and 'mlirc.name = "layers.5.a"' in made


@pytest.mark.parametrize("change", [dict(last="%b"), dict(last="%a"), dict(second="%a1"), dict(second="%h")])
def test_layers_that_read_something_else_are_no_repetition(change):
    with pytest.raises(NotRepeated):
        require_repeated(mlir.parse(module(**change)), Layers(("layers",), 7, 1, 1))
