"""Inputs of models that look at videos and spectrograms have a dimension more than an image or a sound."""

from __future__ import annotations

import json

import pytest

from mlirc.frontend import import_torch, open_model

TINY = dict(hidden_size=32, intermediate_size=44, num_hidden_layers=1, num_attention_heads=4)
SPECTROGRAM = dict(
    architectures=["ASTModel"], model_type="audio-spectrogram-transformer", num_mel_bins=32, max_length=48
)
VIDEO = dict(architectures=["TimesformerModel"], model_type="timesformer", image_size=24, patch_size=8, num_frames=3)


@pytest.mark.parametrize(
    ("config", "given"), [(SPECTROGRAM, "input_values=f32[1,48,32]"), (VIDEO, "pixel_values=f32[1,3,3,24,24]")]
)
def test_videos_and_spectrograms(tmp_path, config, given):
    (tmp_path / "config.json").write_text(json.dumps(config | TINY))
    imported = import_torch(open_model(str(tmp_path), inputs=[given], random_weights=0))
    assert imported.inputs[0][2] == tuple(int(n) for n in given.split("[")[1][:-1].split(","))
