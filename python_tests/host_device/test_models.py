"""Whole models at the `gpu` level on the host device against PyTorch in f64: what becomes PTX, without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from mlirc.device import DeviceModel
from mlirc.driver.compilation import Compilation
from mlirc.ir import levels
from mlirc.ir.levels import argument_names
from mlirc.targets import get_target
from support.models.arrays import as_array

SMALL = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=112)


def run_on_host_device(model: torch.nn.Module, inputs: dict) -> tuple[np.ndarray, np.ndarray]:
    """The model's first result on the host device, and in f64 by PyTorch; fails on any finding."""
    job = Compilation("model", get_target("sm_90a"), helpers=0)
    job.import_module(model, (), inputs)
    job.lower("gpu")
    device = DeviceModel.parse(job.text("gpu"))
    given, tensors = dict(inputs), job.tensors()
    arguments = [
        as_array(given[n] if n in given else tensors[n])
        for n in argument_names(levels.functions(device.module)["main"])
    ]
    results, report = device.run(arguments)
    assert report.ok, "\n".join(map(str, report.findings))
    with torch.no_grad():
        wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
        expected = model.double()(**wide)[0]
    return results[0].astype(np.float64), expected.numpy()


def bert():
    return transformers.BertModel(transformers.BertConfig(vocab_size=101, **SMALL)), dict(
        input_ids=torch.randint(0, 101, (1, 16)), attention_mask=(torch.arange(16) < 13)[None].long()
    )


def llama():
    config = transformers.LlamaConfig(vocab_size=101, num_key_value_heads=2, use_cache=False, **SMALL)
    return transformers.LlamaForCausalLM(config), dict(input_ids=torch.randint(0, 101, (1, 33)))


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    return transformers.ResNetModel(config), dict(pixel_values=torch.randn(1, 3, 19, 19))


@pytest.mark.parametrize(
    "make, dtype, tolerance",
    [
        (bert, torch.float32, 1e-5), (llama, torch.float32, 1e-5), (llama, torch.bfloat16, 2e-2),
        (resnet, torch.float32, 1e-5),
    ],
)  # fmt: skip
def test_model(make, dtype, tolerance):
    torch.manual_seed(0)
    model, inputs = make()
    model = model.eval().to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    found, expected = run_on_host_device(model, inputs)
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()
