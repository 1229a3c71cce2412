"""Every kind of op on tensors whose sizes a call decides: right at each size beside PyTorch, whatever padding holds."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.errors import MlircError
from support.models.together import randn
from support.sizes import Of, agree, compiled, runner

B, S = 3, 7
SHAPES = [(1, 2), (2, 5), (3, 7), (1, 7), (3, 3)]
CASES = {
    "rows": (lambda m, x: m.parts[1](m.parts[0](x).relu()), nn.Linear(8, 5), nn.LayerNorm(5)),
    "softmax along a size": (lambda m, x: (x.softmax(1), x.log_softmax(0), x.softmax(-1)),),
    "reductions": (lambda m, x: (x.mean(1), x.sum((0, 2)), x.amax(1), x.argmax(1), x.prod(0), (x > 1).any(1), x.norm(dim=1)),),
    "reductions of all": (lambda m, x: (x.count_nonzero(), x.mean(None, True), x.sum(None, True), (x > 1).any(None, True), x.sum()),),
    "extremes": (lambda m, x: (*x.max(1), *x.min(0), x.logsumexp(1)),),
    "spread": (lambda m, x: (x.var((0, 1)), x.std(1, correction=0), F.layer_norm(x[..., 0], x.shape[1:2])),),
    "scans": (lambda m, x: (x.cumsum(1), x.cumprod(0)),),
    "from the end": (lambda m, x: (x[:, -1], x[:, 1:], x[:, :-1], x[-1:], x.flip(1, 2), x.roll((1, 2), (0, 1))),),
    "steps": (lambda m, x: (x[:, ::2], x[:, 1::3], x.select(0, 0)),),
    "concatenations": (lambda m, x: (torch.cat([x, 2 * x], 1), torch.cat([x[:1], x, x[-1:], 2 * x], 0)),),
    "views": (lambda m, x: (x.reshape(-1, 8), x.flatten(1), x.unflatten(2, (2, 4)).transpose(1, 2), x.permute(2, 1, 0)),),
    "repeats": (lambda m, x: (x.repeat(1, 2, 1), x[:, None].expand(-1, 3, -1, -1), torch.stack([x, x], 1)),),
    "sizes as numbers": (lambda m, x: (x * x.shape[1], x / x.shape[1] ** 0.5, x.shape[0] * x.shape[1], x + x.shape[0] / 2),),
    "new tensors": (lambda m, x: (torch.arange(x.shape[1]) + x[..., 0], torch.ones(x.shape[1]), torch.full_like(x, x.shape[0])),),
    "convolution": (lambda m, x: (m.parts[0](x.mT), m.parts[1](x.mT)), nn.Conv1d(8, 4, 3, padding=1), nn.Conv1d(8, 4, 2, stride=2, padding=1)),
    "transposed convolution": (lambda m, x: (m.parts[0](x.mT), m.parts[1](x.mT[:, None])), nn.ConvTranspose1d(8, 4, 3, 2, 1), nn.ConvTranspose2d(1, 2, 2)),
    "norms of channels, beside what is taken apart": (lambda m, x: F.adaptive_avg_pool1d(m.parts[0](x.mT).mT, 1), nn.BatchNorm1d(8)),
    "pooling": (lambda m, x: (F.avg_pool1d(x.mT, 3, 1, 1)),),
    "resizes": (lambda m, x: (F.interpolate(x, scale_factor=2), F.interpolate(x, size=5, mode="linear")),),
    "maxima of windows": (lambda m, x: F.max_pool2d(x[:, None], (1, 3), 2, (0, 1)),),
    "group norm": (lambda m, x: m.parts[0](x.mT), nn.GroupNorm(2, 8)),
    "pads": (lambda m, x: (F.pad(x, (0, 0, 2, 3), value=1.5), F.pad(x, (1, 2))),),
    "pads by what is at the edge": (lambda m, x: (F.pad(x.mT, (1, 2), mode="replicate"),),),
    "clamps to sizes": (lambda m, x: (x.clamp(0, x.shape[1] - 3), x.clamp(max=x.shape[0] / 2, min=-0.5), (x * 9).long().clamp(-1, x.shape[0])),),
    "triangles": (lambda m, x: (x[..., :1] * x[..., 0].unsqueeze(1)).tril(),),
    "attention": (lambda m, x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None].exp()),),
    "causal attention": (lambda m, x: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),),
    "lookups": (lambda m, x: (m.parts[0]((x[..., 0] * 3).long().clamp(-4, 4) + 4), x.gather(2, (x > 0).long()), x[torch.arange(x.shape[0]), -1]), nn.Embedding(9, 3)),
    "lengths": (lambda m, x: x[torch.arange(x.shape[0]), (x[..., 0] > -9).sum(1) - 1],),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_padding_never_shows(name):
    function, *parts = CASES[name]
    module = Of(function, *parts)
    job = compiled(module, (randn(1, 2, 8),), {"x": f"b<={B}, s<={S}, 8"})
    agree(runner(job), module, [(randn(b, s, 8),) for b, s in SHAPES])


REFUSED = {
    "sort": (lambda m, x: x.sort(1)[0], "aten::sort in the model cannot be compiled for symbolic sizes"),
    "squeeze": (lambda m, x: x.squeeze(1), "it drops a dimension where the size is 1, and only there"),
    "a module's": (lambda m, x: m.parts[0](x), "in module 'parts.0' cannot be compiled for symbolic sizes"),
    "dropout": (lambda m, x: torch.rand_like(x) + x, "no rule says what padding does to it"),
    "selection": (lambda m, x: x[x > 0], "it selects by a mask"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_by_name(name):
    function, why = REFUSED[name]
    with pytest.raises(MlircError, match=why) as caught:
        compiled(Of(function, nn.AdaptiveAvgPool1d(2)), (randn(2, 3, 8),), {"x": f"b<={B}, s<={S}, 8"})
    assert "\n" not in str(caught.value)
