"""FP32 attention by three TF32 products on the host device: weights from one product's registers into the next one's,
edges, masks, groups of heads, values that are not finite; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlirc import mlir
from mlirc.errors import MlircError
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import assert_close, check_schedule, run_tiles
from support.kernels.payloads import attention, inputs_of

ONE = (1, 1)


@pytest.mark.parametrize(
    ("options", "knobs"),
    [
        (dict(lengths=(67, 70), dims=(64, 64), heads=(2, 1), causal=True), ""),
        (dict(lengths=(33, 47), dims=(32, 48), heads=ONE), "block_kv=16"),
        (dict(lengths=(17, 47), dims=(20, 24), heads=ONE, causal=True), ""),  # rows of keys that end within a panel
        (dict(lengths=(13, 7), dims=(5, 3), heads=ONE), "block_kv=8"),  # columns in ones, not pairs
        (dict(lengths=(1, 37), dims=(64, 64), heads=(3, 1)), ""),
        (dict(lengths=(40, 50), dims=(128, 128), heads=ONE, causal=True), "block_q=32,block_kv=32"),
        (dict(lengths=(20, 40), dims=(256, 160), heads=ONE), ""),
        (dict(lengths=(40, 50), dims=(32, 64), heads=ONE, mask="tensor<1x1x40x50xi1>"), "block_kv=64"),
        (dict(lengths=(40, 90), dims=(32, 32), heads=ONE, window=20, causal=True, softcap=5.0), "stages=3"),
        (dict(lengths=(33, 50), dims=(32, 32), heads=ONE, layouts=("bshd", "bhds", "bhds", "bshd")), ""),
        (dict(lengths=(67, 90), dims=(64, 64), heads=(2, 1), causal=True), "copy=tma,stages=3,block_q=64"),
    ],
)
def test_shapes(options: dict, knobs: str) -> None:
    _, record = check_schedule(attention(**{"dtype": "f32"} | options), (f"attention:{knobs}",) if knobs else (), 3e-6)
    assert record.knobs["mma"] == "tf32x3"


def test_values_that_are_not_finite() -> None:
    """Rows and columns become NaN and infinite where PyTorch's do; huge scores, keys that overflow, rows of no key."""
    text = attention(lengths=(40, 50), dims=(32, 32), heads=ONE, dtype="f32", mask="tensor<1x1x40x50xf32>")
    tiles, _ = Schedules([]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    with mlir.context():
        q, k, v, mask = inputs_of(tiles, 0)
    mask[..., 4, :] = -np.inf
    mask[..., 9, :] = np.finfo(np.float32).min
    mask[..., 10:20, 5:45] = -np.inf
    k[..., 5, :] = np.abs(k[..., 5, :]) * 9
    q[..., 6, :], q[..., 8, :] = 3e20, 3e38  # the largest score is the weight of 1; it overflows
    q[..., 7, :] = q[..., 7, :] * 1e4
    q[..., 21, 1], q[..., 22, 3] = np.inf, np.nan
    v[..., 30, 2], v[..., 49, 7] = np.inf, np.nan
    found, report = run_tiles(tiles, [q, k, v, mask])
    assert report.ok, "\n".join(map(str, report.findings))
    wanted = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v, mask)), scale=0.3)
    wanted[..., 4, :] = 0.0  # of a row that sees nothing, also where the values are infinite
    assert np.isnan(wanted.numpy()).any() and np.isfinite(wanted.numpy()).any()
    assert_close(found, [wanted.numpy()], 1e-5)


@pytest.mark.parametrize(
    ("options", "knobs", "says"),
    [
        (dict(dtype="f16"), "mma=tf32x3", "takes f32 operands and sums, not"),
        (dict(dtype="f32"), "mma=mma", "not operands of f32"),
        (dict(dtype="f32", dims=(21, 21)), "copy=tma", "multiples of 16"),
        (dict(dtype="f32"), "copy=tma,stages=1", "a ring has mlirc.stages >= 2"),
    ],
)
def test_refusals_say_what_to_do(options: dict, knobs: str, says: str) -> None:
    with pytest.raises(MlircError, match=says):
        check_schedule(attention(**{"lengths": (33, 33), "dims": (64, 64)} | options), (f"attention:{knobs}",))


@pytest.mark.parametrize(
    ("lengths", "dim", "heads", "block"),
    [(512, 64, 32, (64, 32)), (512, 128, 28, (64, 16)), (128, 128, 28, (32, 16)), (32, 128, 28, (32, 16))],
)
def test_blocks(lengths: int, dim: int, heads: int, block: tuple[int, int]) -> None:
    """As many keys as ptxas spills nothing with."""
    text = attention(lengths=(lengths, lengths), dims=(dim, dim), heads=(heads, heads), dtype="f32", causal=True)
    _, record = Schedules([]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    assert (record.knobs["block_q"], record.knobs["block_kv"]) == block


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mma", ["tf32x3", "fma"])
def test_scores_of_any_size(mma: str, causal: bool) -> None:
    """Where the scale waits for the exponent, a maximum that was rounded after it would leave scores above it."""
    text = attention(lengths=(40, 50), dims=(32, 32), heads=ONE, dtype="f32", causal=causal)
    tiles, _ = Schedules([f"attention:mma={mma}"]).schedule_kernel(mlir.parse(text), get_target("sm_90a"))
    with mlir.context():
        q, k, v = inputs_of(tiles, 0)
    for i in range(40):
        q[..., i, :] *= 10.0 ** (i - 5)
    found, report = run_tiles(tiles, [q, k, v])
    assert report.ok, "\n".join(map(str, report.findings))
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)) * 0.3
    if causal:
        scores += np.where(np.arange(50)[None, :] <= np.arange(40)[:, None] + 10, 0.0, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    far = np.sort(scores, -1)
    clear = (far[..., -1] - far[..., -2] > 1e-5 * np.abs(far[..., -1])) | (np.abs(far[..., -1]) < 10)  # no ties in f32
    assert clear.sum() > 30
    np.testing.assert_allclose(found[0][clear], wanted[clear], rtol=1e-4, atol=1e-4)
