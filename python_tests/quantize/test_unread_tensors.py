"""Tensors of a folder that its model does not read: named in a note, or, of quantized weights, an error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.frontend import open_model, write_weights
from mlirc.frontend.quantize.folder import FolderTensors
from support.models.small import write_config
from support.randomness import generator

LAYER = "model.layers.0.mlp.up_proj"


@pytest.fixture
def folder(tmp_path):
    made = open_model(write_config(tmp_path, "llama"), random_weights=0, dtype="f32")
    folder = Path(write_config(tmp_path, "llama"))
    write_weights(folder / "model.safetensors", {n: t for n, t in made.weights.items() if n != "lm_head.weight"})
    return folder


def change(folder: Path, **tensors: torch.Tensor) -> None:
    """Puts tensors into the folder's weights, or other ones in their place."""
    write_weights(folder / "model.safetensors", dict(FolderTensors(folder)) | tensors)


def error(folder: Path, **options) -> str:
    with pytest.raises(MlircError) as caught:
        open_model(str(folder), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}], ids=["at once", "on demand"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
def test_weights_of_8_bits_without_a_word_of_scales_are_refused(folder, options, dtype):
    weight = FolderTensors(folder)[f"{LAYER}.weight"]
    low = (weight * 400).to(dtype)
    kind = "8-bit floats" if dtype.is_floating_point else str(dtype)[6:]
    for more in ({}, {f"{LAYER}.weight_scale": torch.tensor([1 / 400])}):
        change(folder, **{f"{LAYER}.weight": low}, **more)
        assert f"weight '{LAYER}.weight' is of {kind}, and nothing says by which scale" in error(folder, **options)


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}], ids=["at once", "on demand"])
@pytest.mark.parametrize(
    "name",
    ["weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point", "qzeros", "g_idx", "SCB", "weight.absmax",
     "weight.quant_state.bitsandbytes__nf4", "weight_packed", "weight_global_scale", "weight_scale_2", "_amax"],
)  # fmt: skip
def test_a_scale_that_nobody_reads_is_an_error(folder, options, name):
    change(folder, **{f"{LAYER}.{name}": torch.ones(1)})
    assert f"nothing reads '{LAYER}.{name}', which belongs to quantized weights" in error(folder, **options)


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}], ids=["at once", "on demand"])
def test_what_else_is_not_read_is_named(folder, options):
    assert not open_model(str(folder), **options).notes
    rest = torch.from_numpy(generator().standard_normal(3)).float()
    change(folder, **{f"model.layers.{n}.mlp.up_proj.weight": rest for n in (10, 9)}, pooler=rest, x=rest)
    [note] = open_model(str(folder), **options).notes
    shown = "'model.layers.9.mlp.up_proj.weight', 'model.layers.10.mlp.up_proj.weight', 'pooler' and 1 more"
    assert note == f"{folder.name} holds 4 tensors ({shown}) that the model does not read"


def test_frequencies_and_positions_that_every_model_makes_itself_are_not_worth_a_word(folder):
    change(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert not open_model(str(folder)).notes
