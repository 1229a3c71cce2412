"""Hugging Face models through the frontend: their linalg runs on the CPU and equals PyTorch."""

from __future__ import annotations

import re

import pytest
import torch

from mlirc.frontend import import_torch, lower_to_linalg
from support.models.small import attentions, check, open_random, run_on_host

CAUSAL = dict(causal=True, window=0, softcap=0.0, mask=None)


@pytest.mark.parametrize(
    "name, inputs, expected",
    [
        ("llama", ["input_ids=i64[1,7]"], [CAUSAL]),
        ("qwen3", ["input_ids=i64[1,13]"], [CAUSAL]),
        ("gpt2", ["input_ids=i64[1,9]"], [CAUSAL]),
        ("mistral", ["input_ids=i64[1,9]"], [CAUSAL | dict(window=5)]),
        ("gemma2", ["input_ids=i64[1,9]"], [CAUSAL | dict(softcap=50.0, window=5), CAUSAL | dict(softcap=50.0)]),
        ("bert", ["input_ids=i64[1,5]"], [CAUSAL | dict(causal=False, mask="tensor<1x1x1x5xi1>")]),
        ("vit", [], [CAUSAL | dict(causal=False)]),
        (
            "t5",
            ["input_ids=i64[1,6]", "decoder_input_ids=i64[1,4]"],
            [
                CAUSAL | dict(causal=False, mask="tensor<1x4x6x6xf32>"),
                CAUSAL | dict(mask="tensor<1x4x4x4xf32>"),
                CAUSAL | dict(causal=False),
            ],
        ),
        (
            "whisper",
            ["input_features=f32[1,10,40]", "decoder_input_ids=i64[1,3]"],
            [CAUSAL | dict(causal=False), CAUSAL, CAUSAL | dict(causal=False)],
        ),
    ],
)
def test_attention_is_one_op_without_needless_masks(tmp_path, name, inputs, expected):
    _, module = check(open_random(tmp_path, name, *inputs))
    found = [{k: v for k, v in a.items() if k != "scale"} for a in attentions(module)]
    assert found == expected


def test_resnet(tmp_path):
    _, module = check(open_random(tmp_path, "resnet", "pixel_values=f32[2,3,17,17]"))
    assert not attentions(module)


@pytest.mark.parametrize("name", ["llama"])
def test_bf16_is_as_near_as_pytorch(tmp_path, name):
    source = open_random(tmp_path, name, "input_ids=i64[1,7]", dtype="bf16")
    imported, _ = check(source, tolerance=2e-2)
    assert {w.dtype for w in imported.weights.values()} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2", "t5", "vit", "resnet"])
def test_linalg_is_lean(tmp_path, name):
    inputs = {"resnet": ["pixel_values=f32[1,3,16,16]"], "vit": []}.get(name, ["input_ids=i64[1,7]"])
    text = str(lower_to_linalg(import_torch(open_random(tmp_path, name, *inputs))))
    text = re.sub(r"(scale|softcap) = \S+ : f64", "", text)
    assert "f64" not in text
    assert "cf.assert" not in text
    assert "?" not in text
    shaped = re.findall(r"arith.constant dense<.*> : tensor<\d.*", text)
    assert not shaped, "weights and tables are arguments, not literals"


def test_padding_mask_of_a_batch(tmp_path):
    source = open_random(tmp_path, "bert", "input_ids=i64[2,7]")
    imported = import_torch(source)
    module = lower_to_linalg(imported)
    assert {a["mask"] for a in attentions(module)} == {"tensor<2x1x1x7xi1>"}
    inputs = source.example_inputs()
    inputs[1][0, 4:] = 0
    found, wanted = run_on_host(imported, module, inputs), imported.reference(inputs)
    assert (found[0] - wanted[0]).norm() / wanted[0].norm() < 1e-5


def test_padding_and_causal(tmp_path):
    source = open_random(tmp_path, "llama", "input_ids=i64[2,7]", "attention_mask=i64[2,7]")
    imported = import_torch(source)
    module = lower_to_linalg(imported)
    assert [a["causal"] for a in attentions(module)] == [True]
    assert {a["mask"] for a in attentions(module)} == {"tensor<2x1x1x7xi1>"}
    inputs = source.example_inputs()
    inputs[1][1, 5:] = 0
    found, wanted = run_on_host(imported, module, inputs), imported.reference(inputs)
    assert (found[0] - wanted[0]).norm() / wanted[0].norm() < 1e-5


def test_sequence_of_one(tmp_path):
    check(open_random(tmp_path, "llama", "input_ids=i64[1,1]"))


def test_tied_weights_and_arguments(tmp_path):
    imported = import_torch(open_random(tmp_path, "llama", "input_ids=i64[1,7]"))
    assert "model.embed_tokens.weight" in imported.weights
    assert "lm_head.weight" not in imported.weights
    assert imported.inputs == [("input_ids", "i64", (1, 7))]
    assert imported.outputs == [("logits", "f32", (1, 7, 97))]
    main = str(lower_to_linalg(imported)).split("func.func @main")[1].split("->")[0]
    assert main.count("mlirc.name") == len(imported.weights) + len(imported.constants) + 1


def test_rotary_tables_are_constants(tmp_path):
    imported = import_torch(open_random(tmp_path, "llama", "input_ids=i64[1,7]"))
    assert [tuple(c.shape) for c in imported.constants.values()] == [(1, 1, 7, 8)] * 2
    assert not re.search(r"math\.(cos|sin)", str(lower_to_linalg(imported)))


def test_position_embeddings_are_slices(tmp_path):
    text = str(lower_to_linalg(import_torch(open_random(tmp_path, "bert", "input_ids=i64[1,7]"))))
    assert text.count("tensor.extract ") == 1, "only the word embedding is a gather"


def test_locations_name_modules(tmp_path):
    imported = import_torch(open_random(tmp_path, "llama", "input_ids=i64[1,7]", num_hidden_layers=2))
    text = lower_to_linalg(imported).operation.get_asm(enable_debug_info=True)
    assert '"model.layers.1.self_attn"' in text
    assert re.search(r'"model\.layers\.0\.mlp\.act_fn"\(', text)
    assert 'models/llama/modeling_llama.py":' in text


def test_torch_level_stays(tmp_path):
    imported = import_torch(open_random(tmp_path, "gpt2", "input_ids=i64[1,3]"))
    before = str(imported.module)
    lower_to_linalg(imported)
    assert str(imported.module) == before
    assert "call @mlirc_attention_0" in before and "torch.vtensor.literal" not in before
