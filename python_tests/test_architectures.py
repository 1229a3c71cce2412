"""Tiny networks with random weights whose layers once had no way through: GroupNorm and pooling over strides, rotary
tables folded from views, grouped convolutions without bias, operations in place."""

from __future__ import annotations

import pytest
import torch
import transformers
from test_integer_ops import compiled
from torch import nn

from mlirc.host.tensors import run_level

IMAGE, SOUND, WORDS = (
    torch.linspace(-1, 1, 3072).reshape(1, 3, 32, 32),
    torch.linspace(-1, 1, 400)[None],
    torch.arange(7)[None],
)
SPEECH = dict(
    vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, conv_dim=(8, 8),
    conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
)  # fmt: skip
NETWORKS = {
    "GPTJ": (dict(vocab_size=64, n_positions=32, n_embd=16, n_layer=1, n_head=2, rotary_dim=4), WORDS),
    "RegNet": (dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=4, layer_type="y"), IMAGE),
    "PoolFormer": (dict(depths=[1, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1],
                        num_encoder_blocks=2), IMAGE),
    "FocalNet": (dict(image_size=32, patch_size=4, embed_dim=8, hidden_sizes=[8, 16], depths=[1, 1], focal_levels=[2, 2],
                      focal_windows=[3, 3]), IMAGE),
    "Hubert": (SPEECH, SOUND),
}  # fmt: skip


class First(nn.Module):
    """The first output of a network."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_tiny_network(name):
    options, x = NETWORKS[name]
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**options))
    module = First(network).eval()
    with torch.no_grad():
        want = module(x)
    job = compiled(module, (x,), "tiles")
    for level in ("linalg", "tiles"):
        (got,) = run_level(job.modules[level], (x,), job.tensors())
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
