"""Attention of few queries over contiguous keys: keys are divided among blocks and teams of warps, as over a cache."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, check_together, randn


def inputs(batch, heads, kv_heads, queries, keys, head=40, value=24, dtype=torch.bfloat16):
    shapes = (batch, heads, queries, head), (batch, kv_heads, keys, head), (batch, kv_heads, keys, value)
    return tuple(randn(*s).to(dtype) for s in shapes)


def attend(*args):
    return F.scaled_dot_product_attention(*args[:3], *args[3:], enable_gqa=True)


def padded(batch, keys):
    """A mask of keys, of which the second sequence has 5, and the last none."""
    mask = torch.rand(batch, 1, 1, keys) < 0.8
    mask[1 % batch, ..., 5:] = False
    mask[-1] = batch == 1
    return mask


def test_geometries_at_every_level():
    check_together([
        (attend, inputs(2, 6, 2, 1, 300)),
        (attend, inputs(1, 3, 3, 1, 517, 64, 64, torch.float16)),
        (attend, inputs(1, 4, 1, 3, 259, 33, 17, torch.float32)),
        (attend, (*inputs(3, 4, 2, 1, 270), padded(3, 270))),
        (attend, (*inputs(2, 4, 2, 2, 257), randn(2, 4, 2, 257).bfloat16())),
        (lambda q, k, v: attend(q.transpose(1, 2), k, v).transpose(1, 2), inputs(2, 1, 2, 4, 300)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    "shape, divided",
    [
        ((1, 32, 32, 1, 4096, 128, 128), True),
        ((1, 28, 4, 1, 32768, 128, 128), True),
        ((64, 32, 8, 1, 4096, 64, 64), False),
    ],
)
def test_keys_are_divided_where_blocks_are_few(shape, divided):
    job = Compilation("m", get_target("sm_90a"), (), helpers=0)
    job.import_module(Calls(attend), inputs(*shape), {})
    job.lower("schedule")
    text = job.text("schedule")
    assert "script: cached_attention" in text and "pack = true" in text
    assert ("split_softmax" in text) == divided
