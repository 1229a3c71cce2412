"""Experts whose weights are one parameter of three dimensions: packed, and only those that were chosen unpacked."""

from __future__ import annotations

import pytest
import torch

import mlirc
from mlirc.bench.generation.build import pack_weights
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend.experts import experts_forward
from mlirc.frontend.open import open_model, packed_as
from mlirc.frontend.quantize.experts import QuantizedMatrices
from mlirc.frontend.quantize.rounding import quantize
from mlirc.frontend.quantize.scheme import parse_scheme
from mlirc.frontend.source import from_torch
from mlirc.generate.export import open_generator
from mlirc.targets import get_target
from support.generation import assert_greedy, eager_engine, greedy, tiny
from support.randomness import generator

MOE = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=33, intermediate_size=33)
MODELS = {
    "olmoe": ("OlmoeForCausalLM", MOE),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {**MOE, "shared_expert_intermediate_size": 32}),
    "mixtral": ("MixtralForCausalLM", {"num_local_experts": 4}),
    "gpt-oss": (
        "GptOssForCausalLM",
        {"head_dim": 16, "sliding_window": 7, "num_local_experts": 4},
    ),  # [E, K, N], biases
}
TOKENS = torch.arange(5)[None]


def packed(name, scheme):
    kind, sizes = MODELS[name]
    model = tiny(kind, **sizes)
    return model, packed_as(from_torch(model, (TOKENS,)), scheme)


@pytest.mark.parametrize("scheme", ["int4:group=32", "int3:group=16,asymmetric", "fp8"])
@pytest.mark.parametrize("name", list(MODELS))
def test_every_expert_is_packed_as_a_linear_layer(name, scheme):
    model, source = packed(name, scheme)
    found = {n: m for n, m in source.module.named_modules() if isinstance(m, QuantizedMatrices)}
    assert len(found) == 4 and found.keys() < {e.name for e in source.quantized}
    for full, matrices in found.items():
        was = model.get_parameter(full)
        was = was.transpose(1, 2) if name == "gpt-oss" else was
        one = quantize(was[3], parse_scheme(scheme)).floats(parse_scheme(scheme), was.shape[2])
        assert torch.equal(matrices.chosen(torch.tensor([3, -1]), 0, was.shape[1])[0], one)
        error = next(e.error for e in source.quantized if e.name == full)
        now = matrices.chosen(None, 0, was.shape[1])
        assert error == pytest.approx(relative_error(now, was.double()), rel=1e-6) and error > 1e-3
    assert all(p.dim() < 3 for p in source.module.parameters()) and model.get_parameter(full) is not None


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_of_packed_experts_is_that_of_their_floats(name):
    """Beside transformers' own experts with the weights that the packed ones stand for."""
    _, source = packed(name, "int8")
    kind, sizes = MODELS[name]
    plain = tiny(kind, **sizes)
    plain.config._experts_implementation = "eager"
    for full, module in source.module.named_modules():
        with torch.no_grad():
            if isinstance(module, QuantizedMatrices):
                floats = module.chosen(None, 0, module.out_features)
                plain.get_parameter(full).copy_(floats.transpose(1, 2) if name == "gpt-oss" else floats)
            elif hasattr(module, "weight_words"):
                plain.get_parameter(f"{full}.weight").copy_(module.weight)
    ids = torch.from_numpy(generator().integers(0, 97, (2, 19)))
    with torch.no_grad():
        wanted, found = (m(ids, use_cache=False).logits for m in (plain, source.module))
    assert relative_error(found, wanted.double()) <= 1e-5


@pytest.mark.parametrize("name", ["olmoe", "gpt-oss"])
def test_what_measuring_packs_is_the_same(name):
    model, source = packed(name, "int4:group=32")
    buffers = source.module.state_dict()
    found = pack_weights(model, "int4:group=32")
    assert found.keys() == {n for n in buffers if ".weight_" in n}
    assert all(torch.equal(tensor, buffers[n]) for n, tensor in found.items())
    model.config._experts_implementation = "eager"  # PyTorch's grouped products want rows of multiples of 16 bytes
    with torch.no_grad():
        logits = [m(TOKENS, use_cache=False).logits for m in (source.module, model)]
    assert relative_error(*logits) <= 1e-5


def test_greedy_tokens_of_packed_experts():
    model, source = packed("olmoe", "int4:group=32")
    steps = open_generator(model, slots=2, context=40, page_size=8, chunks=(1, 8), quantize="int4:group=32")
    given = [[3, 1, 4], list(range(5, 14))]
    for prompt, made in zip(given, greedy(eager_engine(steps), given, 12), strict=True):
        assert_greedy(source.module, prompt, made)


class Experts(torch.nn.Module):
    """One layer of experts that a weight chooses: what is compiled of a model of them."""

    def __init__(self, rows):
        super().__init__()
        model = tiny("GptOssForCausalLM", **MODELS["gpt-oss"][1], num_hidden_layers=1).to(torch.bfloat16)
        self.experts = model.model.layers[0].mlp.experts
        g = torch.Generator().manual_seed(rows)
        self.register_buffer("which", torch.randint(0, 4, (rows, 2), generator=g))
        self.linear = torch.nn.Linear(64, 64, dtype=torch.bfloat16)

    def forward(self, x):
        return experts_forward(
            self.experts, self.linear(x), self.which, torch.full_like(self.which, 0.5, dtype=x.dtype)
        )


@pytest.mark.parametrize("rows", [1, 7])
def test_the_kernels_of_packed_experts(rows):
    module = Experts(rows).eval().requires_grad_(False)
    x = torch.from_numpy(generator().standard_normal((rows, 64))).to(torch.bfloat16)
    model = mlirc.compile(module, (x,), quantize="int4:group=32", device="host")
    reference = packed_as(from_torch(module, (x,)), "int4:group=32").module
    wide = reference.double()(x.double())
    assert relative_error(model(x), wide) <= max(
        gate_of(torch.bfloat16, 0), 2 * relative_error(reference.bfloat16()(x), wide)
    )


def test_an_expert_of_several_groups_is_unpacked_once():
    """Four experts, each one's 192 rows once, whatever groups there are."""
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(
        Experts(7).eval(), (torch.zeros(7, 64, dtype=torch.bfloat16),), {}, quantize="int4:group=32"
    )  # fmt: skip
    job.lower("kernels")
    text = job.text("kernels")
    assert "-> tensor<768x64xbf16>" in text and "-> tensor<960x64xbf16>" not in text


def test_weights_of_a_folder_that_are_made_on_demand(tmp_path):
    model = tiny("OlmoeForCausalLM", **MOE)
    model.config.architectures = ["OlmoeForCausalLM"]
    model.config.save_pretrained(tmp_path)
    source = open_model(str(tmp_path), random_weights=3, dtype="bf16", quantize="int4:group=16,asymmetric")
    built = source.torch_module().state_dict()
    names = set(source.weights)
    assert names == set(built) and sum(n.endswith("_proj.weight_zeros") for n in names) == 12
    for name in names:
        assert source.weights[name].dtype == built[name].dtype and torch.equal(source.weights[name], built[name]), name


def test_what_would_stay_as_it_is_is_refused():
    with pytest.raises(
        MlircError, match=r"experts' weights, [5-9]\d% of the model.*: give fp8, whose weights alone are"
    ):
        packed("olmoe", "fp8:dynamic")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Module())
    model[1].num_experts, model[1].w1 = 3, torch.nn.Parameter(torch.ones(3, 4, 4))
    with pytest.raises(MlircError, match="as '1.w1', would stay as they are: they are in a form of their own"):
        packed_as(from_torch(model, (torch.ones(4),)), "int8")
