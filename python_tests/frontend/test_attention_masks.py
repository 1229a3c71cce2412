"""Attention masks end to end: whatever a model does with its mask, the linalg level does too."""

from __future__ import annotations

import json

import pytest
import torch

from mlirc.frontend import import_torch, lower_to_linalg, open_model
from support.models.attention import DECODERS, ENCODERS, SEQ2SEQ
from support.models.small import run_on_host

LENGTH = 7
KEPT = torch.tensor([[1] * LENGTH, [1] * LENGTH, [1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1]])


def compiled_and_wanted(folder, config, inputs, tensors):
    """The outputs of the compiled model, and of transformers', on `tensors`."""
    (folder / "config.json").write_text(json.dumps(config))
    source = open_model(str(folder), inputs=inputs, random_weights=0, dtype="f32")
    imported = import_torch(source)
    names = [name for name, *_ in imported.inputs]
    tensors = [tensors.get(name, x) for name, x in zip(names, source.example_inputs(), strict=True)]
    return run_on_host(imported, lower_to_linalg(imported), tensors), source.reference(tensors)


def tokens():
    """4 rows of 7 tokens: the second is the first but for its last token."""
    ids = torch.randint(3, 97, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    ids[1] = ids[0]
    ids[1, -1] = (ids[0, -1] + 1) % 90 + 3
    return ids


def assert_close(found, wanted, rows=slice(None)):
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        error = (x[rows] - y[rows].double()).norm() / max(float(y[rows].double().norm()), 1e-30)
        assert error < 2e-5, f"relative error {error:.2e}"


def assert_causal(logits):
    assert (logits[0, :-1] - logits[1, :-1]).abs().max() < 1e-5, "a token sees later ones"
    assert (logits[0, -1] - logits[1, -1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_with_padding(tmp_path, name):
    """What a padded position gives is not compared: its query may see no key at all."""
    inputs = ["input_ids=i64[4,7]", "attention_mask=i64[4,7]"]
    values = {"input_ids": tokens(), "attention_mask": KEPT}
    found, wanted = compiled_and_wanted(tmp_path, DECODERS[name], inputs, values)
    assert_close(found, wanted, KEPT.bool())
    assert_causal(found[0])


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_with_padding(tmp_path, name):
    inputs = ["input_ids=i64[4,7]", "attention_mask=i64[4,7]"]
    values = {"input_ids": tokens(), "attention_mask": KEPT}
    found, wanted = compiled_and_wanted(tmp_path, ENCODERS[name], inputs, values)
    assert_close(found, wanted)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_encoder_decoders_with_padding(tmp_path, name):
    inputs = ["input_ids=i64[4,7]", "attention_mask=i64[4,7]", "decoder_input_ids=i64[4,5]"]
    values = {"input_ids": tokens(), "attention_mask": KEPT, "decoder_input_ids": tokens()[:, 2:]}
    found, wanted = compiled_and_wanted(tmp_path, SEQ2SEQ[name], inputs, values)
    assert_close(found, wanted)
