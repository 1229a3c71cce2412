"""Attention by warpgroup products on the host device: keys and values through rings that two loops share, scores and
weights in registers; edges, masks, groups of heads; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule, run_tiles
from support.kernels.payloads import attention, inputs_of

ONE = (1, 1)


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(129, 140), dims=(64, 64), heads=(2, 1), causal=True), "block_q=128"),
        (dict(lengths=(131, 67), dims=(64, 64), heads=ONE, causal=True), ""),  # first rows see no key
        (
            dict(lengths=(67, 131), dims=(64, 128), heads=ONE, causal=True),
            "block_q=128",
        ),  # a block of 67 rows, a loop of no step
        (dict(lengths=(200, 300), dims=(64, 64), heads=ONE, window=70, causal=True), ""),
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, softcap=5.0, dtype="f16"), ""),
        (dict(lengths=(130, 150), dims=(64, 64), heads=ONE, mask="tensor<1x1x130x150xi1>"), ""),
        (dict(lengths=(130, 140), dims=(64, 64), heads=ONE, layouts=("bshd", "bshd", "bhsd", "bshd")), ""),
        (dict(lengths=(100, 140), dims=(256, 256), heads=ONE, causal=True), "block_q=128"),
        (dict(lengths=(127, 1), dims=(128, 64), heads=ONE), "block_q=128"),
        (dict(lengths=(193, 70), dims=(128, 128), heads=ONE, causal=True), "block_q=192,block_kv=64"),
        (dict(lengths=(200, 140), dims=(64, 64), heads=ONE, causal=True), "block_q=64,block_kv=48,min_blocks=2"),
        (dict(lengths=(70, 330), dims=(64, 64), heads=ONE), "stages=3,store=vector,split=False"),
        (dict(lengths=(129, 140), dims=(80, 80), heads=(2, 1), causal=True), "block_q=128"),  # panels that end in zeros
        (dict(lengths=(70, 67), dims=(40, 192), heads=ONE, layouts=("bshd",) * 4), "block_kv=64"),
        (dict(lengths=(65, 131), dims=(32, 104), heads=ONE, causal=True, dtype="f16"), "block_kv=64"),
    ],
)
def test_shapes(options: dict, knobs: str) -> None:
    text = attention(**{"dtype": "bf16"} | options)
    tiles, record = check_schedule(text, (f"attention:{knobs}",) if knobs else (), 1e-2)
    assert record.knobs["mma"] == "wgmma" and 'mlirc.copy = "tma"' in tiles


def test_extreme_values() -> None:
    tiles, _ = Schedules([]).schedule_kernel(
        mlir.parse(attention(lengths=(70, 130), dims=(64, 64), heads=ONE, dtype="bf16", causal=True)),
        get_target("sm_90a"),
    )
    with mlir.context():
        q, k, v = inputs_of(tiles, 0)
    q[..., 3, :], k[..., 5, :] = q[..., 3, :] * 1e4, k[..., 5, :] * 1e4
    k[..., 100:, 0], v[..., 129, 1], v[..., 7, 2] = -np.inf, np.nan, np.inf
    found, report = run_tiles(tiles, [q, k, v])
    assert report.ok, "\n".join(map(str, report.findings))
    assert_close(found, run_module(tiles, [q, k, v], "attention_0"), 1e-2)


@pytest.mark.parametrize(
    ("options", "knobs", "says"),
    [
        (dict(dims=(84, 84)), "mma=wgmma", "multiples of 8 up to 256"),
        (dict(dims=(64, 64), layouts=("bhsd", "bhds", "bhsd", "bhsd")), "mma=wgmma", "contiguous in keys"),
        (dict(dims=(64, 64), dtype="f32"), "mma=wgmma", "not operands of f32"),
        (dict(dims=(64, 64)), "mma=wgmma,stages=1", "a ring has mlirc.stages >= 2"),
        (dict(dims=(64, 64)), "mma=wgmma,block_q=96", "multiples of 4"),
    ],
)
def test_refusals_say_what_to_do(options: dict, knobs: str, says: str) -> None:
    with pytest.raises(MlircError, match=says):
        check_schedule(attention(**{"lengths": (130, 130), "dtype": "bf16"} | options), (f"attention:{knobs}",))


@pytest.mark.parametrize(
    ("lengths", "dim", "heads", "block"),
    [(4096, 128, 32, 128), (4096, 64, 32, 64), (512, 128, 28, 128), (300, 128, 16, 64), (1024, 256, 16, 128)],
)
def test_blocks_that_were_measured(lengths: int, dim: int, heads: int, block: int) -> None:
    text = attention(lengths=(lengths, lengths), dims=(dim, dim), heads=(heads, heads), dtype="bf16", causal=True)
    _, record = Schedules([]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    assert (record.knobs["block_q"], record.knobs["block_kv"]) == (block, 64 if dim == 256 else 128)
    assert record.knobs.get("min_blocks") == (2 if dim == 64 else None)


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(dims=(84, 80)), ""), (dict(dims=(64, 64), lengths=(64, 200)), ""), (dict(dims=(64, 64)), "stages=1"),
        (dict(dims=(64, 64)), "block_kv=8"), (dict(dims=(64, 64), layouts=("bhsd", "bhds", "bhsd", "bhsd")), ""),
    ],
)  # fmt: skip
def test_what_keeps_mma(options: dict, knobs: str) -> None:
    kernel = mlir.parse(attention(**{"lengths": (130, 130), "dtype": "bf16"} | options))
    _, record = Schedules([f"attention:{knobs}"] if knobs else []).schedule_kernel(kernel, get_target("sm_90a"))
    assert record.knobs["mma"] == "mma"
