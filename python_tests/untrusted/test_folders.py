"""Hugging Face folders that ask for files or code from elsewhere, or for more than fits: refused in one line."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct

import pytest
import torch
from safetensors.torch import save_file

from mlirc.errors import MlircError
from mlirc.frontend import open_model
from mlirc.generate.opening import open_generating
from mlirc.runtime.weights import WeightFile
from support.hostile.archives import members, pack, touching_pickle
from support.models.small import CONFIGS, write_config


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A small model's folder with its weights."""
    folder = tmp_path_factory.mktemp("saved")
    source = open_model(write_config(folder, "bert"), random_weights=0)
    source.torch_module().save_pretrained(folder / "model")
    return folder / "model"


@pytest.fixture
def folder(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "model")
    return tmp_path / "model"


def error(path, **options) -> str:
    with pytest.raises(MlircError) as caught:
        open_model(str(path), **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    return str(caught.value)


def with_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def deep(levels: int) -> dict:
    return {"a": deep(levels - 1)} if levels else {}


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10_000_000}, {"num_hidden_layers": 10**30}, {"depths": [10**7]}, {"num_labels": 10**9},
        {"quantization_config": {"quant_method": "gptq"}}, {"text_config": {"quantization_config": {"bits": 4}}},
        {"compression_config": {"format": "int"}}, {"num_hidden_layers": -1}, {"vision_config": {"depths": [2, -2]}},
        {"num_attention_heads": -4}, {"image_size": -1.0}, {"transformers_weights": "../../x.safetensors"},
        {"attn_implementation": "kernels-community/flash-attn"}, {"_attn_implementation": "a/b:c"},
        {"attn_implementation": {"": "a/b"}}, {"experts_implementation": "a/b"}, {"use_pretrained_backbone": True},
        {"text_config": {"attn_implementation": "a/b"}}, {"fusion_config": {"patch_embeddings": True}}, {"x": deep(50)},
        {"architectures": ["logging"]}, {"architectures": ["AutoModel"]}, {"architectures": "BertModel"},
        {"architectures": [7]}, {"architectures": ["__loader__"]}, {"hidden_size": "32"}, {"hidden_size": -32},
        {"eos_token_id": 99999999999999999999}, {"eos_token_id": [2, 1 << 31]}, {"bos_token_id": -7},
        {"layer_norm_eps": float("nan")}, {"layer_norm_eps": -1e-5}, {"layer_norm_eps": float("inf")},
        {"initializer_range": float("nan")}, {"max_position_embeddings": 1 << 61}, {"max_length": 1 << 40},
        {"vocab_size": 1 << 61}, {"hidden_size": 1 << 50}, {"model_type": "x" * 5000}, {"model_type": 7},
        {"dtype": "from_file"}, {"hidden_act": "__import__('os')"}, {"num_attention_heads": 0}, {"vocab_size": None},
        {"model_type": "mystery", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}},
    ],
    ids=str,
)  # fmt: skip
def test_configs(folder, changes, monkeypatch):
    """`auto_map` too: nothing of the folder's code runs, and nobody is asked whether it may."""
    marker = folder / "marker"
    (folder / "code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    error(with_config(folder, **changes))
    if "transformers_weights" not in changes:
        error(with_config(folder, **changes), random_weights=0)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hidden_act": "zz"}, "cannot be built from the config: 'hidden_act' is 'zz', which transformers"),
        ({"vocab_size": "x"}, "config.json: not a usable config: Validation error for field 'vocab_size'"),
        ({"vocab_size": 7}, "has shape [97, 32], but the config asks for [7, 32]"),
        ({"model_type": "llama", "architectures": ["LlamaModel"], "rope_scaling": {"rope_type": "zz", "factor": 2.0}},
         "LlamaModel cannot be built from the config: 'rope_type' is 'zz', which transformers"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_with_a_config_is_not_said_of_its_weights(folder, changes, why):
    assert why in error(with_config(folder, **changes))


def test_code_of_the_folder_is_not_needed_where_transformers_knows_the_model(folder):
    (folder / "code.py").write_text("raise SystemExit('ran')")
    with_config(folder, auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    assert "pooler.dense.bias" in open_model(str(folder)).weights


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, bytes(99)]
)
def test_other_config_files(folder, text):
    (folder / "config.json").write_bytes(text)
    error(folder)


def test_special_config_files(folder):
    for make in (lambda p: p.mkdir(), os.mkfifo, lambda p: p.symlink_to("/dev/zero"), lambda p: p.symlink_to(p)):
        path = folder / "config.json"
        path.rmdir() if path.is_dir() else path.unlink()
        make(path)
        error(folder)


def test_wrong_types(folder):
    """Every entry of a config with values of other types: one line, or a model."""
    others = ("x", -1, 1.5, None, [], {}, True, 1 << 40, [{}], "../x")
    for number, key in enumerate(CONFIGS["llama"]):
        for other in others[number % 2 :: 2]:
            config = write_config(folder, "llama", **{key: other})
            try:
                open_model(config, random_weights=0, inputs=["input_ids=i64[1,3]"])
            except MlircError as e:
                assert "\n" not in str(e)


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "x\0.safetensors", "config.json", ".x.bin"],
)
def test_indexes_that_point_elsewhere(folder, name):
    shutil.copy(folder / "model.safetensors", folder.parent / "secret.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"pooler.dense.bias": name}}))
    assert "is none of this folder" in error(folder)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 7}}', "[" * 99_999, "x"])
def test_other_indexes(folder, text):
    (folder / "model.safetensors.index.json").write_text(text)
    error(folder)


def test_links(folder):
    """Out of the folder: refused; to where the hub's cache keeps its files: as ever."""
    outside = folder.parent / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)
    assert "leads out of the folder" in error(folder)
    snapshot = folder.parent / "models--x" / "snapshots" / "abc"
    blobs = folder.parent / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    outside.rename(blobs / "123")
    (folder / "config.json").rename(blobs / "456")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    (snapshot / "config.json").symlink_to("../../blobs/456")
    assert "pooler.dense.bias" in open_model(str(snapshot)).weights


def test_weights_of_another_name(folder):
    (folder / "model.safetensors").rename(folder / "gptq_model-4bit.safetensors")
    assert "no weights (model.safetensors): rename 'gptq_model-4bit.safetensors', if it is they" in error(folder)


def test_adapters(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    assert "merge it" in error(folder)
    (folder / "config.json").unlink()
    assert "merge it" in error(folder)
    with pytest.raises(MlircError, match="merge it"):
        open_generating(folder, device="cpu")


def test_pickled_weights(folder, tmp_path):
    weights = {k: v.clone() for k, v in open_model(str(folder)).weights.items()}
    (folder / "model.safetensors").unlink()
    path = folder / "pytorch_model.bin"
    torch.save(weights, path)
    assert torch.equal(open_model(str(folder)).weights["pooler.dense.bias"], weights["pooler.dense.bias"])
    parts = members(path)
    data = sorted(k for k in parts if k.startswith("data/"))[0]
    for bad in (
        parts | {data: b""},
        parts | {data: parts[data][:-4]},
        parts | {"data.pkl": touching_pickle(tmp_path / "m")},
    ):
        pack(path, bad)
        error(folder)
    for whole in (touching_pickle(tmp_path / "m"), b"", b"PK\5\6" + bytes(18)):
        path.write_bytes(whole)
        error(folder)
    assert not (tmp_path / "m").exists()


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)) -> dict:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape, "data_offsets": list(offsets)}


HEADERS = [
    {"w": entry(offsets=(0, 25))}, {"w": entry(offsets=(4, 28))}, {"w": entry(shape=(2, 4))}, {"w": entry(dtype="F64")},
    {"w": entry(shape=(-2, -3))}, {"w": entry(offsets=(24, 0))}, {"w": entry(shape=(2.0, 3))}, {"w": entry(offsets=("0", 24))},
    {"w": entry(), "v": entry()}, {"w": entry(offsets=(0, 24)), "v": entry(shape=(1, 3), offsets=(12, 24))}, {"w": 7}, [],
    {"w": entry(shape=(2, 2), offsets=(0, 16))}, {"w": entry(shape=(1 << 62, 1 << 62))}, {"w": {}}, {"w": entry(dtype=7)}, 7,
    {"w": entry(dtype="F4")}, {"w": entry(shape=(True, 6))}, {"w": entry(shape=6)}, {"w": entry(offsets=(0, 24, 30))}, None,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HEADERS)))
def test_safetensors_headers(tmp_path, number):
    text = json.dumps(HEADERS[number]).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(24))
    if number == HEADERS.index({"w": entry(dtype="F4")}):  # a type that mlirc does not know
        assert "w" not in WeightFile(tmp_path / "w.safetensors")
        return
    with pytest.raises(MlircError) as caught:
        WeightFile(tmp_path / "w.safetensors")
    assert "\n" not in str(caught.value)


def test_damaged_safetensors(tmp_path):
    """Cut anywhere: refused. A byte changed in the header: refused, or the same tensors under another name or type."""
    path = tmp_path / "w.safetensors"
    save_file({"a": torch.arange(7.0), "b": torch.ones(3, 5, dtype=torch.bfloat16), "c": torch.zeros(0, 4)}, path)
    good = path.read_bytes()
    assert sorted(WeightFile(path).entries) == ["a", "b", "c"]
    for length in range(0, len(good), 5):
        path.write_bytes(good[:length])
        with pytest.raises(MlircError):
            WeightFile(path)
    rng = random.Random(3)
    end = 8 + int.from_bytes(good[:8], "little")
    for _ in range(100):
        at = rng.randrange(end)
        path.write_bytes(good[:at] + rng.randbytes(1) + good[at + 1 :])
        try:
            assert len(WeightFile(path).entries) <= 3
        except MlircError as e:
            assert "\n" not in str(e)
    for data in (good + b"x", struct.pack("<Q", 1 << 62) + good[8:], struct.pack("<Q", 100_000) + b"[" * 100_000):
        path.write_bytes(data)
        with pytest.raises(MlircError):
            WeightFile(path)
    path.write_bytes(struct.pack("<Q", 34) + b'{"a":{},"a":{},"__metadata__":{} }')
    with pytest.raises(MlircError, match="twice"):
        WeightFile(path)
