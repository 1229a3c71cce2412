"""Attention sinks: a logit for each head in the softmax's sum, from models and PyTorch down to one kernel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend.attention import attention_op
from mlirc.frontend.cached_attention import cached_attention
from mlirc.mlir import parse
from mlirc.targets import get_target
from support.models.together import randn


def written_out(q, k, v, mask, scale, sinks):
    """gpt-oss's eager attention, in f64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double() for x in (q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)))
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~mask, float("-inf"))
    more = sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, more], -1), -1)[..., :-1] @ v


class Layer(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.sinks = nn.Parameter(randn(heads))

    def forward(self, q, k, v, mask):
        more = (0.3, True, 0, 0.0, False, "", True, self.sinks)
        return attention_op(q, k, v, mask, None, [], *more)


def test_the_op_is_what_models_write_out() -> None:
    """With rows that see no key, whose softmax is the sink's alone."""
    q, k, v, layer = randn(2, 4, 7, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 3), Layer(4)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[0, ..., :3] = False
    wanted = written_out(q, k, v, mask & torch.ones(7, 7, dtype=torch.bool).tril(), 0.3, layer.sinks)
    assert not wanted[0, :, :3].any() and wanted[1, :, 0].all()
    torch.testing.assert_close(layer(q, k, v, mask).double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 37), (torch.bfloat16, 70)], ids=["f32", "warpgroups"])
def test_a_masked_layer_is_one_kernel_and_right_at_every_level(dtype: torch.dtype, length: int) -> None:
    q, k = (randn(2, heads, length, 16).to(dtype) for heads in (4, 2))
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool)
    mask[0, ..., :19] = False
    levels = ("linalg", "kernels", "tiles", "gpu")
    result = check_torch(Layer(4).to(dtype), (q, k, k, mask), levels=levels, kinds=("plain", "one NaN"))
    assert result.ok, result.table()


def test_gpt_oss_has_one_op_for_each_layer() -> None:
    """One with a window, one without, and both without a mask in memory."""
    from transformers import GptOssConfig, GptOssForCausalLM

    sizes = dict(hidden_size=32, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4, head_dim=8,
                 num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=2, vocab_size=97, sliding_window=5,
                 max_position_embeddings=64, pad_token_id=0)  # fmt: skip
    model = GptOssForCausalLM(GptOssConfig(**sizes, use_cache=False)).eval()
    job = Compilation("oss", get_target("sm_90a"), (), helpers=0)
    job.import_module(model, (torch.arange(3, 14)[None],), {})
    job.lower("linalg")
    ops = [line for line in job.text("linalg").split("\n") if '"mlirc.sink_attention"' in line]
    assert [line.count("window = 5") for line in ops] == [1, 0]
    assert all("causal = true" in line and line.count(", %") == 3 for line in ops)


def test_zeros_are_softmax_plus_one_over_a_cache() -> None:
    q, keys = randn(1, 4, 2, 8), randn(3, 2, 4, 8)
    pages, lengths = torch.tensor([[2, 0, 1]]), torch.tensor([10])
    whole = keys[pages[0]].transpose(0, 1).reshape(1, 2, 12, 8)[:, :, :10]
    wanted = written_out(q, whole, whole, torch.ones(2, 10, dtype=torch.bool).tril(8), 0.3, torch.zeros(4))
    found = cached_attention(q, keys, keys, pages, lengths, 0.3, sinks=torch.zeros(4))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["slopes", "sinks"])
def test_numbers_that_are_not_the_heads_are_refused(name: str) -> None:
    q, keys, pages = randn(1, 4, 1, 8), randn(3, 2, 4, 8), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"{name} of attention are 4 floats, one for each head"):
        cached_attention(q, keys, keys, pages, torch.ones(1, dtype=torch.int64), 1.0, **{name: randn(2)})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("tensor<4xbf16>", "tensor<3xbf16>"), "sinks are 4 floats, one for each head of queries, not tensor<3xbf16>"),
        (("tensor<4xbf16>", "tensor<4xi32>"), "not tensor<4xi32>"),
        (('"bhsd"]', '"bhsd"], no_softmax, score = ["return %score : f32"]'), "without a softmax"),
    ],
)
def test_the_verifier_names_the_broken_rule(change: tuple[str, str], says: str) -> None:
    text = """func.func @main(%q: tensor<1x4x3x8xf32>, %s: tensor<4xbf16>) -> tensor<1x4x3x8xf32> {
      %o = "mlirc.sink_attention"(%q, %q, %q, %s) {scale = 0.5 : f64, causal = true, window = 0 : i64,
        softcap = 0.0 : f64, layouts = ["bhsd", "bhsd", "bhsd", "bhsd"]} : (tensor<1x4x3x8xf32>, tensor<1x4x3x8xf32>,
        tensor<1x4x3x8xf32>, tensor<4xbf16>) -> tensor<1x4x3x8xf32>
      return %o : tensor<1x4x3x8xf32>
    }"""
    parse(text)
    with pytest.raises(MlircError, match=says):
        parse(text.replace(*change))
