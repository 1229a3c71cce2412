"""Convolutions whose windows im2col copies bring (`schedule.read_windows`), or that a block computes in its loop: beside
PyTorch on the host device and through the JIT; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from mlirc import mlir
from mlirc.dialects.im2col import IM2COL
from mlirc.driver.kernel_build import to_gpu
from mlirc.errors import MlircError
from mlirc.host import run_module
from mlirc.schedule.registry import Schedules
from mlirc.targets import get_target
from support.kernels.check import run_tiles
from support.kernels.convolutions import Convolution


def check(made: Convolution, knobs: str = "", seed: int = 0, target: str = "sm_90a"):
    """Scheduled, on the host device and through the JIT, beside PyTorch; the tiles as text, and what made them."""
    module, inputs = made.payload(), made.inputs(seed)
    tiles, record = Schedules([knobs] if knobs else []).schedule_kernel(module, get_target(target))
    expected = made.expected(*inputs)
    allowed = (1e-5 if made.dtype == "f32" else 2e-2) * max(np.abs(expected).max(), 1e-6)
    (jit,) = run_module(tiles, inputs, "matmul_0")
    np.testing.assert_allclose(jit.astype(np.float64), expected, rtol=0, atol=allowed)
    if target == "sm_90a":
        (found,), report = run_tiles(tiles, inputs)
        assert report.ok, "\n".join(map(str, report.findings))
        np.testing.assert_allclose(found.astype(np.float64), expected, rtol=0, atol=allowed)
    return str(tiles), record


@pytest.mark.parametrize(
    "made",
    [
        Convolution(2, (9, 11), 64, 72, (3, 3), pad=1),
        Convolution(2, (8, 7), 64, 40, (3, 3), stride=2, pad=1),  # what is left of an image's last row is no pixel
        Convolution(3, (8, 5), 40, 24, (3, 2), pad=2, dilation=2, dtype="f16"),  # zeros fill a tap's channels up
        Convolution(3, (7, 6), 64, 130, (1, 1), stride=2),
        Convolution(
            2, (7, 6), 16, 40, (3, 3), pad=1, channels=16
        ),  # a row of 32 bytes a tap, and three taps at the end
        Convolution(2, (7, 6), 8, 40, (3, 3), pad=1, channels=16, dtype="f16"),
        Convolution(1, (9, 6), 32, 40, (3, 3), pad=1, channels=32),
        Convolution(1, (9, 6), 88, 40, (2, 3), pad=1, channels=96),
        Convolution(2, (13, 15), 32, 72, (5, 5), stride=2, pad=2, dtype="f32"),
        Convolution(4, (23,), 72, 16, (4,), stride=3, pad=1),
        Convolution(1, (4, 5, 6), 32, 72, (2, 3, 3), pad=1, dtype="f16"),
        Convolution(2, (9, 7), 144, 24, (3, 3), pad=1, dtype="f8E4M3FN"),
        Convolution(1, (9, 7), 48, 40, (2, 3), stride=2, pad=1, dtype="f8E4M3FN", channels=64),
        Convolution(3, (23,), 32, 40, (5,), pad=2, dtype="f8E4M3FN", channels=32),
        Convolution(5, (40, 10), 64, 24, (9, 3), stride=8, pad=1),  # the longest stride of an im2col copy
    ],
    ids=str,
)
def test_im2col_copies(made):
    text, record = check(made)
    assert IM2COL in text and record.knobs["copy"] == "tma"


@pytest.mark.parametrize(
    ("knobs", "made"),
    [
        ("", Convolution(1, (11,), 16, 40, (3,), pad=1, channels=16)),  # 11 rows
        ("", Convolution(1, (11,), 24, 8, (3,), channels=32, dtype="f16")),
        ("matmul:mma=mma", Convolution(2, (7, 6), 16, 40, (3, 3), pad=1, channels=16)),
    ],
    ids=str,
)
def test_taps_of_few_channels_come_by_tensor_copies_for_warpgroups_alone(knobs, made):
    _, record = check(made, knobs)
    assert record.knobs["copy"] != "tma"


@pytest.mark.parametrize(
    ("knobs", "made"),
    [
        ("cluster_size=2,block_m=128", Convolution(5, (9, 10), 64, 72, (3, 3), pad=1)),  # each block copies half
        ("parts=2,through=memory", Convolution(1, (6, 7), 128, 40, (3, 3), pad=1)),
        ("parts=3", Convolution(1, (6, 7), 64, 40, (3, 3), pad=1)),
        ("blocks=2,block_m=64", Convolution(2, (9, 11), 64, 72, (3, 3), pad=1)),
        ("swap_operands=true", Convolution(1, (5, 6), 64, 72, (3, 3), pad=1)),
        ("stream=1,blocks=6,block_m=64,block_n=64", Convolution(2, (12, 11), 64, 72, (3, 3), pad=1)),
        ("cluster_size=2,block_m=128", Convolution(4, (9, 7), 32, 24, (3, 3), pad=1, dtype="f8E4M3FN", channels=32)),
        ("parts=2,through=memory", Convolution(1, (9, 7), 64, 24, (3, 3), pad=1, dtype="f8E4M3FN", channels=64)),
        ("mma=wgmma8_fast,blocks=1", Convolution(3, (9, 7), 64, 24, (3, 3), pad=1, dtype="f8E4M3FN", channels=64)),
        ("mma=wgmma_tf32x3,stages=2", Convolution(1, (9, 5), 64, 24, (3, 3), pad=1, dtype="f32")),
    ],
)
def test_with_what_gemms_have(knobs, made):
    assert IM2COL in check(made, f"matmul:{knobs}", seed=3)[0]


@pytest.mark.parametrize(
    ("made", "target"),
    [
        (Convolution(2, (9, 6), 3, 20, (7, 7), stride=2, pad=3, channels=3), "sm_90a"),  # pixels of 6 bytes
        (Convolution(1, (9, 6), 16, 20, (3, 3), pad=1, channels=24), "sm_90a"),  # rows of 48 bytes
        (Convolution(1, (9, 6), 16, 20, (3, 3), pad=1, channels=16, dtype="f32"), "sm_90a"),  # TF32 takes 128
        (Convolution(3, (21, 3), 64, 24, (3, 1), stride=9), "sm_90a"),  # no im2col copy goes so far
        (Convolution(1, (300, 2), 64, 8, (2, 1), dilation=256), "sm_90a"),
        (Convolution(1, (9, 6), 64, 20, (3, 3), pad=1), "sm_80"),
    ],
    ids=str,
)
def test_windows_that_the_loop_computes(made, target):
    text, _ = check(made, target=target)
    assert IM2COL not in text


def test_not_by_other_copies():
    text, _ = check(Convolution(1, (9, 6), 64, 20, (3, 3), pad=1), "matmul:copy=cp_async")
    assert IM2COL not in text


def test_many_tiles_of_few_columns():
    """Blocks of a cluster would each copy half of 8 rows."""
    made = Convolution(1, (512, 512), 64, 3, (3, 3), pad=1)
    tiles, record = Schedules([]).schedule_kernel(made.payload(), get_target("sm_90a"))
    assert record.knobs["cluster_size"] == 1
    to_gpu(tiles, "matmul_0", get_target("sm_90a"))


def test_no_slice_is_of_two_taps():
    """A box whose rows go on with the next tap would have its channels in another place."""
    made = Convolution(1, (9, 6), 40, 20, (3, 3), pad=1)
    tiles, _ = Schedules([]).schedule_kernel(made.payload(), get_target("sm_90a"))
    text = str(tiles).replace("channels = 64", "channels = 40").replace("x576x", "x360x")
    with pytest.raises(MlircError, match="rows of 64 elements in windows with 40 of each tap"):
        run_tiles(mlir.parse(text), made.inputs())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("channels = 64", "channels = 32", "of one group takes"),
        ("kernel = array<i64: 3, 3>", "kernel = array<i64: 3, 2>", "makes"),
        ("kernel = array<i64: 3, 3>", "kernel = array<i64: 3>", "one to three dimensions"),
        ("mlirc.gather_windows", "mlirc.other", "needs the attribute"),
    ],
)
def test_what_the_op_refuses(old, new, message):
    made = Convolution(1, (9, 6), 64, 20, (3, 3), pad=1)
    tiles, _ = Schedules([]).schedule_kernel(made.payload(), get_target("sm_90a"))
    with pytest.raises(MlircError, match=message):
        mlir.parse(str(tiles).replace(old, new))
