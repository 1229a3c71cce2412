"""Folders of 8-bit floats, in transformers' blocks and as compressed-tensors writes them, and products of 8-bit floats,
beside models with the weights that they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import mlirc
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, open_model, packed_as, write_weights
from mlirc.frontend.quantize.folder import FolderTensors
from mlirc.frontend.quantize.scaled import ScaledLinear
from mlirc.host.tensors import run_level
from mlirc.ir import levels
from mlirc.targets import get_target
from support.models.small import write_config
from support.randomness import generator

E4 = torch.float8_e4m3fn
SIZES = dict(hidden_size=32, intermediate_size=44, vocab_size=97)
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 24]}
INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True}


def compressed(inputs: dict | None = INPUTS, **weights) -> dict:
    group = {"targets": ["Linear"], "weights": WEIGHTS | weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}  # fmt: skip


TENSOR = {"strategy": "tensor", "dynamic": False}
CONFIGS = {
    "blocks": BLOCKS,
    "one scale": BLOCKS | {"weight_block_size": None},
    "rows": compressed(),
    "tensor": compressed(strategy="tensor"),
    "weights alone": compressed(None),
    "blocks, compressed": compressed(strategy="block", block_structure=[16, 24]),
    "static": compressed(INPUTS | TENSOR, strategy="tensor"),
    "modelopt": {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": None},
}


def scales_of(config: dict, n: int, k: int) -> tuple[str, list[int], tuple[int, int]]:
    """The name, the shape of the tensor, and rows and columns of a scale's block."""
    if config["quant_method"] == "fp8":
        name, block = "weight_scale_inv", config["weight_block_size"]
    elif config["quant_method"] == "modelopt":
        return "weight_scale", [], (n, k)
    else:
        name, about = "weight_scale", config["config_groups"]["group_0"]["weights"]
        block = {"tensor": None, "channel": [1, k]}.get(about["strategy"], about.get("block_structure"))
    if block is None:
        return name, [] if name.endswith("inv") else [1], (n, k)
    return name, [-(-n // block[0]), -(-k // block[1])], tuple(block)


def write_folder(path: Path, config: dict, dtype: str = "bfloat16") -> tuple[str, torch.nn.Module]:
    """A tiny Llama's folder as `config` says, and the model of its weights in FP64 (activations as they are)."""
    g = generator()
    plain = open_model(write_config(path, "llama", **SIZES), random_weights=0, dtype="bf16").torch_module()
    made, wide = dict(plain.state_dict()), plain.double()
    for name, layer in plain.named_modules():
        if not isinstance(layer, torch.nn.Linear) or name == "lm_head":
            continue
        n, k = layer.weight.shape
        numbers = torch.from_numpy(g.uniform(-448, 448, (n, k))).to(E4)
        kind, shape, (rows, columns) = scales_of(config, n, k)
        scales = torch.as_tensor(g.uniform(0.5, 1.5, shape) * k**-0.5 / 448).bfloat16().float()
        whole = scales.reshape(-(-n // rows), -(-k // columns)).double()
        whole = whole[torch.arange(n) // rows][:, torch.arange(k) // columns]
        wide.get_submodule(name).weight.data = numbers.double() * whole
        made |= {f"{name}.weight": numbers, f"{name}.{kind}": scales}
        inputs = config.get("config_groups", {}).get("group_0", {}).get("input_activations")
        if inputs == INPUTS | TENSOR or config["quant_method"] == "modelopt":
            made[f"{name}.input_scale"] = torch.tensor([6.0 / 448])
    del made["lm_head.weight"]
    folder = write_config(path, "llama", **SIZES, dtype=dtype, quantization_config=config)
    made = {n: t.bfloat16() if t.dtype == torch.float64 else t for n, t in made.items()}
    write_weights(Path(folder) / "model.safetensors", made)
    return folder, wide


@pytest.mark.parametrize("case", CONFIGS)
def test_a_folder_is_the_model_of_its_numbers(tmp_path, case):
    folder, wide = write_folder(tmp_path, CONFIGS[case])
    source = open_model(folder, inputs=["input_ids=i64[1,5]"], dtype="f32")
    ids = torch.arange(5)[None]
    wanted = wide(ids, use_cache=False).logits.detach()
    module = source.torch_module()
    rounds = bool(source.scheme.activations)
    assert rounds == (case in ("rows", "tensor", "static", "modelopt")) and not source.notes
    assert rounds == any(isinstance(m, ScaledLinear) for m in module.modules())
    error = relative_error(module(ids, use_cache=False).logits, wanted)
    # Rounding each activation to 8 bits moves it by up to 1 part in 16; nothing else is far from exact.
    assert 1e-3 < error < 0.1 if rounds else error < 1e-5
    for layer in (m for m in module.modules() if isinstance(m, ScaledLinear)):
        assert layer.weight_numbers.dtype == E4 and layer.weight_scales.dtype == torch.float32


def test_what_modelopt_keeps_beside_the_config_is_read(tmp_path):
    """hf_quant_config.json alone: the same model; scales of a cache of 8 bits, which is not asked for, are named."""
    folder, _ = write_folder(tmp_path, CONFIGS["modelopt"])
    wanted = open_model(folder, dtype="f32").torch_module().state_dict()
    path = Path(folder) / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "quantization_config"}))
    tensors = dict(FolderTensors(Path(folder))) | {"model.layers.0.self_attn.k_proj.k_scale": torch.ones(1)}
    write_weights(Path(folder) / "model.safetensors", tensors)
    about = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (Path(folder) / "hf_quant_config.json").write_text(json.dumps(about))
    source = open_model(folder, dtype="f32")
    found = source.torch_module().state_dict()
    assert set(found) == set(wanted)
    assert all(torch.equal(found[n].view(torch.uint8), wanted[n].view(torch.uint8)) for n in wanted)
    [note] = source.notes
    assert "1 tensor ('model.layers.0.self_attn.k_proj.k_scale') of a cache of 8 bits" in note
    about["quantization"]["quant_algo"] = "NVFP4"
    (Path(folder) / "hf_quant_config.json").write_text(json.dumps(about))
    with pytest.raises(MlircError, match="hf_quant_config.json.*quant_algo is 'NVFP4', not 'FP8'"):
        open_model(folder)


@pytest.mark.parametrize("case", ["blocks", "rows", "static"])
def test_compiled_it_is_that_model(tmp_path, case):
    folder, _ = write_folder(tmp_path, CONFIGS[case])
    job = Compilation("m", get_target("sm_90a"), helpers=0)
    job.open(folder, inputs=["input_ids=i64[1,5]"], dtype="f32")
    job.lower("kernels")
    ids = torch.arange(5)[None]
    (found,) = run_level(job.modules["kernels"], (ids,), job.tensors())
    wanted = job.imported.source.torch_module()(ids, use_cache=False).logits.detach()
    assert relative_error(found, wanted) <= gate_of(torch.float32, 0)
    types = {str(f.attributes["function_type"]) for f in levels.kernels(job.modules["kernels"]).values()}
    products = [t for t in types if t.count("x32xf8E4M3FN") + t.count("x44xf8E4M3FN") >= 2]
    assert bool(products) == (case != "blocks")


@pytest.mark.parametrize(
    "m, k, n, dtype", [(1, 97, 16, torch.bfloat16), (7, 64, 33, torch.float16), (65, 131, 24, torch.float32)]
)
def test_activations_are_rounded_row_by_row(m, k, n, dtype):
    g = generator()
    module = torch.nn.Sequential(torch.nn.Linear(k, n, dtype=dtype), torch.nn.SiLU())
    rows = g.standard_normal((m, k)) * 10.0 ** g.integers(-3, 3, (m, 1))
    rows[m // 2] = 0
    x = torch.from_numpy(rows).to(dtype)
    source = packed_as(from_torch(module, (x,)), "fp8:dynamic")
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(module, (x,), {}, quantize="fp8:dynamic")
    job.lower("kernels")
    types = [str(f.attributes["function_type"]) for f in levels.kernels(job.modules["kernels"]).values()]
    assert sum(f"tensor<{n}x{k}xf8E4M3FN>" in t for t in types) == 1
    found = mlirc.compile(module, (x,), quantize="fp8:dynamic", device="host")(x)
    with torch.no_grad():
        packed, plain = source.module(x), module(x)
    assert relative_error(found, packed) <= gate_of(dtype, 0)
    for row in range(m):  # each has its own scale
        error = relative_error(packed[row], plain[row].double())
        assert error < 0.08


def test_rows_that_are_not_finite_give_nan_alone():
    module = torch.nn.Linear(40, 24, dtype=torch.bfloat16)
    x = torch.from_numpy(generator().standard_normal((5, 40))).bfloat16()
    x[1, 3], x[3, 39] = float("nan"), float("inf")
    found = mlirc.compile(module, (x,), quantize="fp8:dynamic", device="host")(x)
    assert found[[1, 3]].isnan().all() and found[[0, 2, 4]].isfinite().all()


@pytest.mark.parametrize(
    "config, message",
    [
        (BLOCKS | {"fmt": "e5m2"}, "fmt is 'e5m2'"),
        (BLOCKS | {"scale_fmt": "ue8m0"}, "scale_fmt is 'ue8m0'"),
        (BLOCKS | {"weight_block_size": [0, 128]}, r"blocks of \[0, 128\]"),
        (BLOCKS | {"weight_block_size": [8, 24]}, r"a layer of 32 x 32 has \[4, 2\] scales"),
        (compressed() | {"format": "pack-quantized"}, "format is 'pack-quantized'"),
        (compressed() | {"config_groups": {}}, "several schemes, or none"),
        (compressed() | {"config_groups": {"a": {}, "b": {}}}, "several schemes, or none"),
        (compressed() | {"transform_config": {"x": 1}}, "'transform_config' is not supported"),
        (compressed(type="int"), "its weights are no 8-bit floats"),
        (compressed(strategy="group"), "scales for each 'group'"),
        (compressed(INPUTS | {"strategy": "tensor"}), "activations are rounded"),
        (compressed(INPUTS | {"type": "int"}), "activations are rounded"),
    ],
    ids=lambda c: c if isinstance(c, str) else "",
)
def test_other_configs_are_refused(tmp_path, config, message):
    folder, _ = write_folder(tmp_path, BLOCKS)
    path = Path(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": config}))
    with pytest.raises(MlircError, match=message) as raised:
        list(open_model(folder).weights.values())
    assert "\n" not in str(raised.value)


LAYER = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    "part, change, message",
    [
        (
            "weight_scale",
            None,
            "'model.layers.0.mlp.up_proj.weight' is of 8-bit floats, and nothing says by which scale",
        ),
        ("weight", None, "lack 'model.layers.0.mlp.up_proj.weight'"),
        ("weight", lambda t: t.bfloat16(), "is torch.bfloat16, not torch.float8_e4m3fn"),
        ("weight", lambda t: t[:-1], r"has shape \[43, 32\]"),
        ("weight", lambda t: torch.full_like(t.float(), float("nan")).to(E4), "not finite"),
        ("weight_scale", lambda t: t[:-1], "has .* scales"),
        ("weight_scale", lambda t: t * float("nan"), "not finite"),
        ("weight_scale", lambda t: t.to(torch.int32), "not of floats"),
        ("input_scale", lambda t: t * 0, "not one number greater than 0"),
        ("input_scale", None, "lack 'model.layers.0.mlp.up_proj.input_scale'"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, part, change, message):
    folder, _ = write_folder(tmp_path, compressed(INPUTS | TENSOR))
    tensors = dict(FolderTensors(Path(folder)))
    if change is None:
        del tensors[f"{LAYER}.{part}"]
    else:
        tensors[f"{LAYER}.{part}"] = change(tensors[f"{LAYER}.{part}"]).contiguous()
    write_weights(Path(folder) / "model.safetensors", tensors)
    with pytest.raises(MlircError, match=message):
        list(open_model(folder).weights.values())


def test_schemes_that_mean_nothing_are_refused():
    for scheme in ("int8:dynamic", "fp8:dynamic,group=64", "fp8:static"):
        with pytest.raises(MlircError):
            packed_as(from_torch(torch.nn.Linear(8, 8), (torch.ones(1, 8),)), scheme)
