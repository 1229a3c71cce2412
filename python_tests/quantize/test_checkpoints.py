"""AWQ and GPTQ folders, written here number by number, against models with the weights that they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import open_model, write_weights
from mlirc.frontend.quantize.folder import FolderTensors
from mlirc.host import run_module
from mlirc.ir import levels
from mlirc.ir.levels import argument_names
from mlirc.targets import get_target
from support.generation import tiny
from support.models.small import to_numpy, write_config
from support.randomness import generator

GROUP = 16


def awq_words(numbers: np.ndarray) -> np.ndarray:
    """int32 [R, C / 8] of [R, C]: nibble i of a word is its column 0 2 4 6 1 3 5 7."""
    words = np.zeros((numbers.shape[0], numbers.shape[1] // 8), np.uint32)
    for i, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        words |= numbers[:, column::8].astype(np.uint32) << np.uint32(4 * i)
    return words.view(np.int32)


def stream_words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """int32 of rows of numbers as streams of bits, low bits first."""
    digits = (numbers[:, :, None] >> np.arange(bits)) & 1
    rows = np.packbits(digits.reshape(len(numbers), -1).astype(np.uint8), axis=1, bitorder="little")
    return rows.view("<i4")


def layer_tensors(
    method: str, bits: int, n: int, k: int, v2: bool, act_order: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A layer's tensors, and the weight [N, K] that they stand for."""
    g = generator()
    numbers, zeros = (g.integers(0, 1 << bits, (rows, n), dtype=np.uint8) for rows in (k, k // GROUP))
    scales = (g.uniform(0.5, 1.5, (k // GROUP, n)) * k**-0.5 / (1 << bits)).astype(np.float16)
    each = np.arange(k) // GROUP
    each = g.permutation(each) if act_order else each
    weight = (numbers.astype(np.float64) - zeros[each]) * scales.astype(np.float64)[each]
    if method == "awq":
        made = {"qweight": awq_words(numbers), "qzeros": awq_words(zeros)}
    else:
        stored = zeros if v2 else (zeros.astype(np.int64) - 1) & ((1 << bits) - 1)
        made = {
            "qweight": stream_words(np.ascontiguousarray(numbers.T), bits).T,
            "qzeros": stream_words(stored.astype(np.uint8), bits),
            "g_idx": each.astype(np.int32),
        }
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in made.items()}
    return tensors | {"scales": torch.from_numpy(scales)}, torch.from_numpy(np.ascontiguousarray(weight.T))


def write_folder(path: Path, config: dict, bits: int = 4) -> tuple[str, torch.nn.Module]:
    """A tiny Llama's folder as `config` says, and the model in FP64. Its embedding is the head's weight, unless
    `lm_head` says that this one is packed, too."""
    sizes = dict(hidden_size=32, intermediate_size=64, num_key_value_heads=4, vocab_size=104)
    head, act_order = config.get("lm_head", False), config.get("desc_act", False)
    plain = open_model(write_config(path, "llama", **sizes), random_weights=0, dtype="f16").torch_module()
    v2, made = "gptq_v2" in (config.get("checkpoint_format"), config.get("format")), dict(plain.state_dict())
    wide = plain.double()
    for name, layer in plain.named_modules():
        if isinstance(layer, torch.nn.Linear) and (head or name != "lm_head"):
            del made[f"{name}.weight"]
            tensors, weight = layer_tensors(config["quant_method"], bits, *layer.weight.shape, v2, act_order)
            made |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
            wide.get_submodule(name).weight = torch.nn.Parameter(weight, requires_grad=False)
    made.pop("lm_head.weight", None)
    folder = write_config(path, "llama", **sizes, dtype="float16", quantization_config=config)
    made = {n: t.half() if t.dtype == torch.float64 else t for n, t in made.items()}
    write_weights(Path(folder) / "model.safetensors", made)
    return folder, wide


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}


@pytest.mark.parametrize(
    "config",
    [
        AWQ,
        GPTQ,
        GPTQ | {"bits": 3},
        GPTQ | {"bits": 8},
        GPTQ | {"bits": 2, "checkpoint_format": "gptq_v2"},
        GPTQ | {"format": "gptq_v2"},
        GPTQ | {"desc_act": True, "lm_head": True},
    ],
    ids=lambda c: f"{c['quant_method']}{c['bits']}{'act' * c.get('desc_act', False)}{c.get('format', '')}",
)
def test_a_folder_is_the_model_of_its_numbers(tmp_path, config):
    folder, wide = write_folder(tmp_path, config, config["bits"])
    source = open_model(folder, inputs=["input_ids=i64[1,5]"])
    assert str(source.scheme) == f"int{config['bits']}:group={GROUP},asymmetric"
    ids = torch.arange(5)[None]
    wanted = wide(ids, use_cache=False).logits.detach()
    assert relative_error(source.torch_module()(ids, use_cache=False).logits, wanted) <= gate_of(torch.float16, 0)


@pytest.mark.parametrize("config", [AWQ, GPTQ, GPTQ | {"desc_act": True}], ids=["awq", "gptq", "act-order"])
def test_its_kernels_read_packed_words(tmp_path, config):
    folder, wide = write_folder(tmp_path, config)
    job = Compilation("m", get_target("sm_90a"))
    job.open(folder, inputs=["input_ids=i64[1,5]"])
    job.lower("tiles")
    tensors, ids = job.tensors(), torch.arange(5)[None]
    assert sum(tensor.dtype == torch.int32 for tensor in tensors.values()) == 7
    readers = [
        n for n, f in levels.kernels(job.modules["kernels"]).items() if "xi32>" in str(f.attributes["function_type"])
    ]
    assert readers and all(name.startswith("matmul") for name in readers)
    wanted = wide(ids, use_cache=False).logits.detach()
    for level in ("linalg", "tiles"):
        module = job.modules[level]
        names = argument_names(next(op for op in module.body.operations if op.name.value == "main"))
        (found,) = run_module(module, [to_numpy(ids if name == "input_ids" else tensors[name]) for name in names])
        assert relative_error(torch.from_numpy(np.asarray(found, np.float64)), wanted) <= gate_of(torch.float16, 0)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"quant_method": "bitsandbytes"}, "by 'bitsandbytes': AWQ, GPTQ, fp8 and ModelOpt's FP8 are read"),
        ({"quant_method": "hqq"}, "by 'hqq'"),
        ({"quant_method": ["awq"]}, "AWQ, GPTQ, fp8 and ModelOpt's FP8 are read"),
        ({"bits": 5}, "bits is 5"),
        ({"bits": True}, "bits is True"),
        ({"group_size": 0}, "group_size is 0"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"is_marlin_format": True}, "checkpoint_format is 'marlin'"),
        ({"format": "gptq_v2", "checkpoint_format": "gptq"}, "checkpoint_format and format differ"),
        ({"dynamic": {"-:x": {}}}, "several schemes"),
        ({"group_size": 8}, "in groups of 8"),
        ({"bits": 8}, "a layer of"),
    ],
    ids=str,
)
def test_other_configs_are_refused(tmp_path, changes, message):
    folder, _ = write_folder(tmp_path, GPTQ)
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] |= changes
    path.write_text(json.dumps(config))
    with pytest.raises(MlircError, match=message) as raised:
        source = open_model(folder)
        list(source.weights.values())
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "part, change, message",
    [
        ("qweight", None, "lack"),
        ("scales", None, "lack"),
        ("qzeros", lambda t: t[:, :-1], "a layer of"),
        ("qweight", lambda t: t.to(torch.int64), "a layer of"),
        ("g_idx", lambda t: t // 2, "is not the group of each of 32 inputs"),
        ("g_idx", lambda t: t[1:], "is not the group of each of 32 inputs"),
        ("g_idx", lambda t: t.float(), "is not the group of each of 32 inputs"),
        ("scales", lambda t: t * float("inf"), "not finite"),
        ("scales", lambda t: t.float() * 1e9, "too large for torch.float16"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, part, change, message):
    folder, _ = write_folder(tmp_path, GPTQ)
    file, name = Path(folder) / "model.safetensors", f"model.layers.0.mlp.up_proj.{part}"
    tensors = dict(FolderTensors(Path(folder)))
    if change is None:
        del tensors[name]
    else:
        tensors[name] = change(tensors[name]).contiguous()
    write_weights(file, tensors)
    with pytest.raises(MlircError, match=message):
        source = open_model(folder)
        list(source.weights.values())


def test_act_order_without_its_order_is_refused(tmp_path):
    for config in (GPTQ | {"desc_act": True}, GPTQ):
        folder, wide = write_folder(tmp_path, config)
        kept = {n: t for n, t in FolderTensors(Path(folder)).items() if not n.endswith("g_idx")}
        write_weights(Path(folder) / "model.safetensors", kept)
        if config["desc_act"]:
            with pytest.raises(MlircError, match="lack '.*g_idx', by which layers with act-order"):
                open_model(folder)
    ids = torch.arange(5)[None]  # in order, nobody needs it
    made = open_model(folder, inputs=["input_ids=i64[1,5]"]).torch_module()(ids, use_cache=False).logits
    assert relative_error(made, wide(ids, use_cache=False).logits.detach()) <= gate_of(torch.float16, 0)


@pytest.mark.parametrize("key", ["version", "format", "checkpoint_format"])
def test_other_layouts_of_awq_are_refused(tmp_path, key):
    folder, _ = write_folder(tmp_path, AWQ | {key: "gemv"})
    with pytest.raises(MlircError, match=f"{key} is 'gemv', not 'gemm'"):
        open_model(folder)


def test_folders_without_packed_weights(tmp_path):
    """Weights of a plain folder are read one at a time, and quantized as those of a model that is there."""
    made = open_model(write_config(tmp_path, "llama"), random_weights=0, dtype="bf16")
    folder = Path(write_config(tmp_path, "llama"))
    write_weights(folder / "model.safetensors", {n: t for n, t in made.weights.items() if n != "lm_head.weight"})
    source = open_model(str(folder), dtype="bf16", quantize="int4:group=16")
    there = open_model(str(folder), dtype="bf16").torch_module().state_dict()
    again = open_model(write_config(tmp_path, "llama"), random_weights=0, dtype="bf16", quantize="int4:group=16")
    assert set(source.weights) == set(again.weights) and any(n.endswith("weight_words") for n in source.weights)
    assert all(torch.equal(source.weights[n], again.weights[n]) for n in source.weights)
    kept = [n for n in source.weights if n in there]
    assert kept and all(torch.equal(source.weights[n], there[n]) for n in kept)


def test_packed_folders_are_not_packed_again_nor_made_up(tmp_path):
    folder, _ = write_folder(tmp_path, AWQ)
    with pytest.raises(MlircError, match="quantized already"):
        open_model(folder, quantize="int8")
    with pytest.raises(MlircError, match="--random-weights makes none so"):
        open_model(folder, random_weights=0)


GPTQ_FILE = {k: v for k, v in GPTQ.items() if k != "quant_method"}
AWQ_FILE = {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"}


@pytest.mark.parametrize(
    "config, file, beside", [(GPTQ, "quantize_config.json", GPTQ_FILE), (AWQ, "quant_config.json", AWQ_FILE)]
)
def test_what_a_file_beside_the_config_says_is_read(tmp_path, config, file, beside):
    folder, wide = write_folder(tmp_path, config)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "quantization_config"}))
    with pytest.raises(MlircError, match="qweight' is of int32, and nothing says by which scale"):
        open_model(folder)
    (Path(folder) / file).write_text(json.dumps(beside))
    source = open_model(folder, inputs=["input_ids=i64[1,5]"])
    ids = torch.arange(5)[None]
    wanted = wide(ids, use_cache=False).logits.detach()
    assert relative_error(source.torch_module()(ids, use_cache=False).logits, wanted) <= gate_of(torch.float16, 0)
    for text in ("[]", "{"):
        (Path(folder) / file).write_text(text)
        with pytest.raises(MlircError, match=file):
            open_model(folder)


MOE = dict(num_experts=4, num_experts_per_tok=2, intermediate_size=32, hidden_size=32, vocab_size=104)


def write_experts(path: Path, config: dict) -> tuple[Path, torch.nn.Module]:
    """An OLMoE's folder whose layers and experts are packed one by one, as tools write them, and the model in FP32."""
    model = tiny("OlmoeForCausalLM", **MOE).half()
    model.config.architectures, model.config.dtype = ["OlmoeForCausalLM"], "float16"
    made, wide = {}, model.float()  # the product of chosen matrices takes no FP64
    for name, tensor in model.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        names = {"gate_up_proj": ["gate_proj", "up_proj"], "down_proj": ["down_proj"]}.get(leaf)
        if names and tensor.dim() == 3:
            for e, matrix in enumerate(tensor):
                for part, rows in zip(names, matrix.chunk(len(names)), strict=True):
                    tensors, weight = layer_tensors(config["quant_method"], 4, *rows.shape, False, False)
                    made |= {f"{owner}.{e}.{part}.{n}": t for n, t in tensors.items()}
                    rows.copy_(weight)
        elif "_proj." in name:
            tensors, weight = layer_tensors(config["quant_method"], 4, *tensor.shape, False, False)
            made |= {f"{owner}.{n}": t for n, t in tensors.items()}
            tensor.copy_(weight)
        else:
            made[name] = tensor.half()
    wide.config.quantization_config = config
    wide.config.save_pretrained(path)
    write_weights(path / "model.safetensors", made)
    return path, wide


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_experts_that_are_packed_one_by_one_are_one_weight(tmp_path, config):
    folder, wide = write_experts(tmp_path, config)
    source = open_model(str(folder), inputs=["input_ids=i64[1,5]"])
    assert not source.notes and any("experts.gate_up_proj.weight_words" in n for n in source.weights)
    ids = torch.arange(5)[None]
    found = source.torch_module()(ids, use_cache=False).logits
    assert relative_error(found, wide(ids, use_cache=False).logits.detach()) <= gate_of(torch.float16, 0)


def test_packed_experts_of_other_names_are_refused_by_theirs(tmp_path):
    folder, _ = write_experts(tmp_path, AWQ)
    renamed = {n.replace(".mlp.", ".block_sparse_moe."): t for n, t in FolderTensors(folder).items()}
    write_weights(folder / "model.safetensors", renamed)
    with pytest.raises(MlircError, match="it has quantized experts by other names .'.*block_sparse_moe.experts.0.down"):
        open_model(str(folder))


def test_experts_with_act_order_are_refused(tmp_path):
    folder, _ = write_experts(tmp_path, GPTQ | {"desc_act": True})
    held = dict(FolderTensors(folder))
    order = next(n for n in held if n.endswith("experts.1.up_proj.g_idx"))
    write_weights(folder / "model.safetensors", held | {order: held[order].flip(0).contiguous()})
    with pytest.raises(MlircError, match="experts '.*experts.gate_up_proj' have act-order"):
        open_model(str(folder))


def test_an_expert_that_is_missing_is_named(tmp_path):
    folder, _ = write_experts(tmp_path, AWQ)
    kept = {n: t for n, t in FolderTensors(folder).items() if not n.endswith("experts.2.up_proj.qweight")}
    write_weights(folder / "model.safetensors", kept)
    with pytest.raises(MlircError, match="lack '.*experts.2.up_proj.qweight'"):
        list(open_model(str(folder)).weights.values())
