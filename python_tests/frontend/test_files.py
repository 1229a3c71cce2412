"""Model files, factories and inputs: every kind opens, and bad ones end in one line."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import save_file

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, import_torch, lower_to_linalg, open_model
from support.models.factories import Encoder, Net, net
from support.models.small import attentions, check, open_random, write_config


def error(*args, **kwargs) -> str:
    """The message of opening and importing a bad model, which is one line."""
    with pytest.raises(MlircError) as caught:
        lower_to_linalg(import_torch(open_model(*args, **kwargs)))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with one file of each kind."""
    folder = tmp_path_factory.mktemp("files")
    module, args = net()
    module.eval()
    exported = torch.export.export(module, args, strict=False)
    torch.export.save(exported, folder / "net.pt2")
    (folder / "really_pt2.pt").write_bytes((folder / "net.pt2").read_bytes())
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = torch.export.export(module, (torch.randn(2, 3, 6, 5),), strict=False, dynamic_shapes=({0: batch},))
    torch.export.save(dynamic, folder / "dynamic.pt2")
    torch.jit.save(torch.jit.trace(module, args), folder / "traced.pt")
    torch.jit.save(torch.jit.script(module), folder / "scripted.pt")
    torch.save(module, folder / "pickled.pt")
    torch.save(module, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(module.state_dict(), folder / "state.pt")
    save_file(module.state_dict(), folder / "weights.safetensors")
    whole = (folder / "net.pt2").read_bytes()
    (folder / "truncated.pt2").write_bytes(whole[: len(whole) // 2])
    pickled = (folder / "pickled.pt").read_bytes()
    (folder / "truncated.pt").write_bytes(pickled[: len(pickled) // 2])
    (folder / "text.pt").write_text("this is not a model, whatever its name says")
    (folder / "empty.pt").write_bytes(b"")
    return folder


@pytest.mark.parametrize("name", ["net.pt2", "really_pt2.pt"])
def test_export_archive(files, name):
    imported, _ = check(open_model(str(files / name)))
    assert imported.inputs == [("x", "f32", (1, 3, 6, 5))]
    assert imported.outputs == [("output", "f32", (1, 5))]
    assert "conv.weight" in imported.weights and list(imported.constants) == ["shift"]


def test_dynamic_archive_takes_a_shape(files):
    imported, _ = check(open_model(str(files / "dynamic.pt2"), inputs=["x=f32[3,3,6,5]"]))
    assert imported.outputs == [("output", "f32", (3, 5))]
    assert import_torch(open_model(str(files / "dynamic.pt2"))).inputs == [("x", "f32", (2, 3, 6, 5))]


@pytest.mark.parametrize("name", ["traced.pt", "scripted.pt"])
def test_torchscript(files, name):
    imported, _ = check(open_model(str(files / name), inputs=["x=f32[1,3,6,5]"]))
    assert imported.inputs == [("x", "f32", (1, 3, 6, 5))]
    assert "conv.weight" in imported.weights
    assert "give --input 'x=" in error(str(files / name))


def test_pickle_only_with_the_flag(files):
    imported, _ = check(open_model(str(files / "pickled.pt"), allow_pickle=True, inputs=["x=f32[2,3,6,5]"]))
    assert imported.outputs == [("output", "f32", (2, 5))]
    for name in ("pickled.pt", "legacy.pt"):
        message = error(str(files / name))
        assert (
            "support.models.factories.Net" in message and "--allow-pickle" in message and "torch.export.save" in message
        )
    assert "give --input 'x=" in error(str(files / "pickled.pt"), allow_pickle=True)


def test_factory_and_its_inputs():
    imported, _ = check(open_model("support.models.factories:net", inputs=["x=f32[2,3,9,9]"]))
    assert imported.inputs == [("x", "f32", (2, 3, 9, 9))]
    assert import_torch(open_model("support.models.factories:net", dtype="bf16")).outputs == [
        ("output", "bf16", (1, 5))
    ]


def test_outputs_are_named_by_their_place():
    imported, _ = check(open_model("support.models.factories:several"))
    assert [name for name, *_ in imported.outputs] == ["double", "pair_0", "pair_1"]
    assert [name for name, *_ in imported.inputs] == ["x", "scale"]


def test_pytorchs_own_attention_stays_whole():
    _, module = check(open_model("support.models.factories:encoder"))
    assert [a["mask"] for a in attentions(module)] == [None]


def test_module_in_this_process():
    module = Net().eval()
    imported, _ = check(from_torch(module, (torch.randn(1, 3, 4, 4),), name="mine"))
    assert imported.name == "mine"
    assert imported.weights["fc.weight"].data_ptr() == module.fc.weight.data_ptr(), "weights are not copied"


def test_hugging_face_archive_keeps_causal_attention(tmp_path):
    source = open_random(tmp_path, "llama", "input_ids=i64[1,6]")
    program = torch.export.export(source.torch_module(), (), source.kwargs, strict=False)
    torch.export.save(program, tmp_path / "llama.pt2")
    imported, module = check(open_model(str(tmp_path / "llama.pt2")))
    assert [(a["causal"], a["mask"]) for a in attentions(module)] == [(True, None)]
    assert [name for name, *_ in imported.outputs] == ["logits"]


@pytest.mark.parametrize(
    "name, message",
    [
        ("missing.pt2", "no such file"),
        ("truncated.pt2", "truncated or damaged archive"),
        ("truncated.pt", "truncated or damaged archive"),
        ("text.pt", "not a model"),
        ("empty.pt", "not a model"),
        ("state.pt", "a state dict"),
        ("weights.safetensors", "weights alone"),
    ],
)
def test_bad_files(files, name, message):
    assert message in error(str(files / name))


@pytest.mark.parametrize(
    "spec, message",
    [
        ("support.models.factories:branching", "control flow or a shape depends on the values.*factories.py:"),
        ("support.models.factories:bessel", "op aten::special_bessel_j0 in module 'inner' cannot be imported"),
        ("support.models.factories:found", "depends on the values of a tensor"),
        ("support.models.factories:failing", "the factory failed: RuntimeError: no"),
        ("support.models.factories:wrong", r"must return \(module, example inputs\), not int"),
        ("support.models.factories:nothing", "no function 'nothing'"),
        ("no_such_package:net", "no module 'no_such_package'"),
    ],
)
def test_bad_factories(spec, message, capfd):
    assert re.search(message, error(spec))
    assert capfd.readouterr().err == "", "libraries must not write to the terminal"


@pytest.mark.parametrize(
    "given, message",
    [
        ("y=f32[1]", "no input 'y': its inputs are x"),
        ("x=i64[1,3,6,5]", "not x=i64"),
        ("x=f32[2,3,6,5]", r"fixed shape [1,3,6,5]"),
        ("x=f32[", "name=dtype[sizes]"),
        ("x=f77[1]", "unknown dtype 'f77'"),
        ("x=f32[1,-1]", "negative"),
        ("x=f32[a]", "has no bound"),
    ],
)
def test_bad_inputs_of_an_archive(files, given, message):
    assert message in error(str(files / "net.pt2"), inputs=[given])


def test_options_that_do_not_fit(files):
    assert "--random-weights needs a Hugging Face directory" in error(str(files / "net.pt2"), random_weights=0)
    assert "--dtype bf16 is not possible" in error(str(files / "net.pt2"), dtype="bf16")
    assert "given twice" in error(str(files / "net.pt2"), inputs=["x=f32[1]", "x=f32[2]"])


@pytest.mark.parametrize(
    "given, message",
    [
        (["input_ids=f32[1,7]"], "integer dtype"),
        (["ids=i64[1,7]"], "no input 'ids'"),
        (["input_ids=i64[7]"], "2 dimensions"),
        (["input_ids=i64[1,65]"], "longer than the 64 positions"),
        (["input_ids=i64[1,7]", "attention_mask=i64[1,9]"], "same shape"),
    ],
)
def test_bad_inputs_of_a_directory(tmp_path, given, message):
    assert message in error(write_config(tmp_path, "bert"), random_weights=0, inputs=given)


def test_default_inputs_of_a_directory(tmp_path):
    specs = {
        "bert": ["input_ids=i64[1,64]", "attention_mask=i64[1,64]"],
        "llama": ["input_ids=i64[1,64]"],
        "vit": ["pixel_values=f32[1,3,24,24]"],
        "whisper": ["input_features=f32[1,10,40]", "decoder_input_ids=i64[1,32]"],
    }
    for name, expected in specs.items():
        assert [str(s) for s in open_random(tmp_path, name).input_specs()] == expected


def _saved(tmp_path, **changes):
    """A directory with a config and safetensors of the model with random weights."""
    source = open_random(tmp_path, "bert", "input_ids=i64[1,5]", **changes)
    source.torch_module().save_pretrained(tmp_path / "saved", max_shard_size="10KB")
    return tmp_path / "saved"


def test_sharded_weights(tmp_path):
    folder = _saved(tmp_path)
    assert len(list(folder.glob("*.safetensors"))) > 1
    imported, _ = check(open_model(str(folder), inputs=["input_ids=i64[1,5]"]))
    assert torch.equal(
        imported.weights["pooler.dense.bias"], open_random(tmp_path, "bert").weights["pooler.dense.bias"]
    )


def test_bad_weights(tmp_path):
    assert "no weights" in error(write_config(tmp_path, "bert"))
    folder = _saved(tmp_path)
    shards = sorted(folder.glob("*.safetensors"))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    assert "the weights lack 'encoder.layer.1" in error(str(folder))
    (folder / "config.json").write_text(config.replace('"vocab_size": 97', '"vocab_size": 98'))
    message = error(str(folder))
    assert "embeddings.word_embeddings.weight' has shape [97, 32], but the config asks for [98, 32]" in message
    (folder / "config.json").write_text(config)
    content = shards[0].read_bytes()
    shards[0].write_bytes(content[: len(content) // 2])
    assert "truncated" in error(str(folder))
    shards[0].unlink()
    assert f"the weight file {shards[0].name}" in error(str(folder))


def test_bad_configs(tmp_path):
    assert "no config.json" in error(str(tmp_path))
    assert "no model class 'Nonesuch'" in error(write_config(tmp_path, "bert", architectures=["Nonesuch"]))
    for kind, name, right in (("bert", "LlamaForCausalLM", "llama"), ("llama", "MistralModel", "mistral")):
        told = error(write_config(tmp_path, kind, architectures=[name]), random_weights=0)
        assert f"'model_type': '{kind}', and {name} ('architectures') is a model of type '{right}': correct" in told
    path = write_config(tmp_path, "bert")
    (tmp_path / "bert" / "config.json").write_text("{ not json")
    assert "config.json is not JSON" in error(path)
    assert "must be a float type" in error(write_config(tmp_path, "llama"), random_weights=0, dtype="i64")


def test_encoder_module_is_usable_after_import():
    module = Encoder().eval()
    x = torch.randn(1, 3, 16)
    before = module(x)
    import_torch(from_torch(module, (x,)))
    assert torch.equal(module(x), before)


def test_module_keeps_its_mode():
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 3).eval())
    check(from_torch(module, (torch.randn(5, 4),)))
    assert [m.training for m in module.modules()] == [True, True, True, False]


def test_changed_buffers_are_outputs():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total.add_(x)
            return self.total * 2

    imported = import_torch(from_torch(Counter(), (torch.randn(3),)))
    assert [name for name, *_ in imported.outputs] == ["output", "total"]
