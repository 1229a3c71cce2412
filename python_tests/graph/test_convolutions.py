"""Convolutions become contractions of windows on tensors that lie channels last: beside PyTorch, over odd shapes."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mlirc.check import check_torch
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls, check_together, randn

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def kernels_of(module: nn.Module, *inputs: torch.Tensor, target: str = "sm_90a") -> str:
    """The `kernels` level of a module."""
    job = Compilation("model", get_target(target), (), helpers=0)
    job.import_module(module.eval(), inputs, {})
    job.lower("kernels")
    return job.text("kernels")


def calls(text: str) -> list[str]:
    """The kernels that `@main` calls, in order, without their numbers."""
    return re.findall(r"call @(\w+)_\d+\(", text[: text.index("func.func private")])


def convolved(size, channels, outputs, kernel, dtype=torch.float32, batch=2, biased=True, groups=1, **how):
    """A call of PyTorch's convolution, and its inputs."""
    x, w = randn(batch, channels, *size), randn(outputs, channels // groups, *kernel)
    bias = (randn(outputs),) if biased else ()
    return partial(CONVOLUTIONS[len(size)], groups=groups, **how), tuple(v.to(dtype) for v in (x, w, *bias))


def test_geometries_at_every_level():
    check_together([
        convolved((11,), 5, 7, (3,), stride=2, padding=1),
        convolved((11,), 8, 7, (4,), padding=3, dilation=2, biased=False),
        convolved((11, 9), 5, 7, (3, 2), padding=(1, 0), stride=(2, 3), dilation=(1, 2)),
        convolved((7, 5), 17, 3, (1, 1)),
        convolved((7, 6), 16, 9, (1, 1), stride=2, biased=False),
        convolved((7, 6), 3, 4, (7, 6), batch=1),
        convolved((9, 7), 8, 40, (3, 3), padding=1, batch=3),
        convolved((4, 7, 5), 3, 4, (3, 2, 3), padding=(2, 1, 0), stride=(1, 2, 1)),
        convolved((6, 9), 6, 5, (3, 3), padding="same"),
    ])  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_at_every_level(dtype):
    check_together([
        convolved((9, 7), 24, 20, (3, 3), dtype, padding=1, stride=2),
        convolved((13,), 5, 7, (3,), dtype, padding=1),
        convolved((3, 5, 4), 8, 6, (2, 3, 3), dtype, padding=1),
        convolved((5, 7), 40, 33, (1, 1), dtype),
    ], kinds=["plain"])  # fmt: skip


class Block(nn.Module):
    def __init__(self, channels: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs) for _ in range(3)])
        self.down = nn.Conv2d(channels, outputs, 1, stride, bias=False) if stride > 1 else nn.Identity()
        for norm in self.norms:
            norm.running_mean, norm.running_var = randn(outputs), randn(outputs).abs() + 0.5

    def forward(self, x):
        y = self.norms[1](self.second(torch.relu(self.norms[0](self.first(x)))))
        return torch.relu(y + (self.norms[2](self.down(x)) if isinstance(self.down, nn.Conv2d) else x))


def test_a_residual_block_is_a_kernel_for_each_convolution():
    model = nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
    text = kernels_of(model, randn(2, 8, 9, 7))
    assert calls(text).count("matmul") == 5

    # The image at one end, five weights, and the result at the other: what else is no contraction is of vectors.
    assert len(re.findall(r"call @elementwise_\d+\(%collapsed\w*\)|call @elementwise_\d+\(%expanded\w*\)", text)) <= 7
    result = check_torch(model, (randn(2, 8, 9, 7),), levels=("tiles", "gpu"), kinds=("plain",))
    assert result.ok, result.table()


def test_channels_are_filled_up_where_tensor_copies_take_them():
    def channels(count: int, target: str) -> str:
        text = kernels_of(nn.Conv2d(count, 8, 3).bfloat16(), randn(1, count, 5, 5).bfloat16(), target=target)
        return re.search(r"gather_windows = \{channels = (\d+)", text)[1]

    found = [int(channels(count, "sm_90a")) for count in (16, 24, 40, 64, 72, 320)]
    assert found == [16, 32, 64, 64, 96, 320]
    assert channels(24, "sm_80") == "24"


def test_a_stride_of_few_channels_is_one_of_more():
    """Blocks of pixels, or rows of taps, are pixels of more channels; no tap is added, which would spread infinities."""

    def windows(conv: nn.Conv2d, x: torch.Tensor) -> str:
        return re.search(r"gather_windows = \{(.*?)\}", kernels_of(conv.bfloat16(), x.bfloat16()))[1]

    text = windows(nn.Conv2d(3, 16, 7, 2, 3), randn(2, 3, 22, 26))
    assert "channels = 32" in text and "kernel = array<i64: 7, 1>" in text and "strides = array<i64: 2, 1>" in text
    text = windows(nn.Conv2d(3, 16, 8, 2, 3), randn(2, 3, 22, 26))
    assert "kernel = array<i64: 4" in text and "strides = array<i64: 1, 1>" in text
    assert "strides = array<i64: 2, 2>" in windows(nn.Conv2d(8, 16, 3, 2, 1), randn(2, 8, 9, 9))
    text = windows(nn.Conv2d(3, 16, 3, 1, 1), randn(2, 3, 9, 11))  # of a row of the kernel, which is nine channels
    assert "channels = 16" in text and "kernel = array<i64: 3, 1>" in text and "low = array<i64: 1, 0>" in text
    for conv, x in (
        (nn.Conv2d(3, 16, 7, 2, 3), randn(2, 3, 22, 26)),
        (nn.Conv2d(3, 8, 3, (2, 1), 1), randn(2, 3, 17, 9)),
        (nn.Conv2d(1, 24, (3, 5), (4, 3)), randn(2, 1, 19, 21)),
        (nn.Conv3d(1, 24, 3, 2, 1), randn(2, 1, 5, 7, 6)),
        (nn.Conv1d(2, 24, 10, 5), randn(3, 2, 103)),
        (nn.Conv2d(3, 24, (3, 5), (2, 1), (0, 3), (1, 2)), randn(2, 3, 9, 11)),
        (nn.Conv2d(5, 24, 3, 1, 2, 2), randn(2, 5, 7, 9)),
    ):
        result = check_torch(
            conv.bfloat16().eval(), (x.bfloat16(),), levels=("tiles", "gpu"), kinds=("plain", "one infinity")
        )
        assert result.ok, result.table()


def test_an_image_that_its_residual_reads_too_keeps_its_shape():
    conv = nn.Conv2d(8, 8, 3, padding=1)
    text = kernels_of(nn.Sequential(conv, Calls(torch.relu), Calls(lambda x: x + conv(x))), randn(1, 8, 5, 6))
    assert len(re.findall(r"tensor.extract %arg\d+\[.*tensor<1x5x6x8xf32>", text)) == 2


TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def spread(size, channels, outputs, kernel, dtype=torch.float32, groups=1, **how):
    """A call of PyTorch's transposed convolution, and its inputs."""
    tensors = randn(2, channels, *size), randn(channels, outputs // groups, *kernel), randn(outputs)
    return partial(TRANSPOSED[len(size)], groups=groups, **how), tuple(v.to(dtype) for v in tensors)


def test_transposed_convolutions_multiply_no_zeros_between_elements():
    text = kernels_of(nn.ConvTranspose2d(8, 6, 4, 2, 1), randn(1, 8, 5, 7))
    (windows,) = re.findall(r"gather_windows = \{.*?\}", text)
    assert "kernel = array<i64: 2, 2>" in windows and "strides = array<i64: 1, 1>" in windows
    # Three taps of two phases are two and one: four convolutions, of 9 taps for each channel in all.
    text = kernels_of(nn.ConvTranspose2d(8, 6, 3, 2, 1), randn(1, 8, 5, 7))
    assert calls(text).count("matmul") == 4
    check_together([
        spread((11,), 5, 7, (4,), stride=2, padding=1),
        spread((6,), 4, 6, (3,), stride=2, padding=2, output_padding=1),
        spread((5, 7), 5, 6, (3, 4), stride=2, padding=1, output_padding=(1, 0)),
        spread((4, 3), 3, 5, (1, 5), stride=(2, 3), padding=(0, 1)),
        spread((5, 4), 4, 3, (3, 2), padding=1, dilation=(2, 1)),
        spread((2, 3, 4), 4, 3, (2, 2, 3), stride=(2, 2, 1)),
        spread((3, 4), 32, 48, (2, 2), torch.bfloat16, groups=2, stride=2),
        spread((7,), 4, 6, (5,), stride=4, dilation=6, padding=3, output_padding=2),
    ])  # fmt: skip


def test_phases_of_a_stride_and_a_dilation_have_the_taps_that_reach_them():
    """Of stride 2 and dilation 2 half of the results are the bias; of 5 and 2, three taps are in three phases."""
    text = kernels_of(nn.ConvTranspose2d(8, 6, 3, (2, 5), 1, dilation=2), randn(1, 8, 5, 7))
    windows = re.findall(r"kernel = array<i64: (\d), (\d)>", text)
    assert calls(text).count("matmul") == 3 and set(windows) == {("3", "1")}
    check_together([
        spread((5, 7), 8, 6, (3, 3), stride=(2, 5), padding=1, dilation=2),
        spread((6, 5), 8, 12, (3, 5), groups=2, stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
        spread((3, 4, 3), 5, 4, (3, 2, 3), stride=2, padding=1, dilation=(2, 1, 3), output_padding=(1, 0, 2)),
    ])  # fmt: skip


def test_groups_of_many_channels_are_a_batch_of_gemms():
    text = kernels_of(nn.Conv2d(48, 60, 3, padding=1, groups=3), randn(2, 48, 5, 7))
    assert "groups = 3 : i64" in text and calls(text).count("matmul") == 1
    check_together([
        convolved((5, 7), 48, 60, (3, 3), groups=3, padding=1),
        convolved((7, 5), 32, 34, (1, 1), groups=2),
        convolved((7, 5), 32, 32, (1, 1), groups=2, stride=2),
        convolved((13,), 32, 48, (5,), torch.bfloat16, groups=2, padding=2, stride=2),
        convolved((3, 4, 5), 32, 32, (2, 3, 1), groups=2, padding=(1, 0, 0), biased=False),
        convolved((5, 7), 12, 18, (3, 3), groups=3, padding=1),
        convolved((7,), 32, 48, (1,), groups=4),
        convolved((13,), 40, 40, (3,), torch.bfloat16, groups=2),
    ])  # fmt: skip


def test_windows_in_registers_are_loaded_16_bytes_at_a_time():
    x, conv = randn(2, 16, 11, 9).bfloat16(), nn.Conv2d(16, 24, 3, padding=1).bfloat16()
    job = Compilation("model", get_target("sm_80"), (), helpers=0)
    job.import_module(conv.eval(), (x,), {})
    job.lower("gpu")
    text = job.text("gpu")
    assert "memref<2x11x9x16xbf16>, vector<8xbf16>" in text
    assert not re.search(r"memref.load .*memref<2x11x9x16xbf16>", text)
    result = check_torch(conv, (x,), target="sm_80", levels=("tiles", "gpu"), kinds=("plain", "one NaN"))
    assert result.ok, result.table()


class Normed(nn.Module):
    """Norms of groups, and sums over all pixels: reductions that are not of the dimensions that lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12)
        self.gate, self.second = nn.Conv2d(12, 12, 1), nn.Conv2d(12, 5, 3)

    def forward(self, x):
        x = F.silu(self.norm(self.first(x)))
        x = self.second(x * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(x, 1))))
        return x.amax((2, 3)), x.mean(1), x.sum((1, 3))


def test_norms_and_sums_of_images_are_rows_in_the_order_of_memory():
    model = Normed()
    text = kernels_of(model, randn(2, 3, 11, 9))
    assert not re.search(r"tensor<2x(3|5|12)x(11x9|9x7)xf32>", text.split("func.func private @matmul_1")[1])
    rows = re.search(r"func.func private @reduction_0\(%arg0: tensor<(.*?)>.*?\n  \}", text, re.DOTALL)
    assert rows is not None and rows[1] == "198x12xf32"
    result = check_torch(model, (randn(2, 3, 11, 9),), levels=("tiles", "gpu"), kinds=("plain",))
    assert result.ok, result.table()


class Separable(nn.Module):
    """A block as ConvNeXt has it, behind a norm of channels: depthwise, a norm, two products, a residual."""

    def __init__(self, channels):
        super().__init__()
        self.stem, self.depthwise = (
            nn.Conv2d(3, channels, 2, 2),
            nn.Conv2d(channels, channels, 3, 1, 1, groups=channels),
        )
        self.first, self.norm = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 3 * channels), nn.Linear(3 * channels, channels)

    def forward(self, x):
        x = self.first(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for _ in range(2):
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            x = x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x.mean((2, 3))


def test_what_a_norm_of_channels_makes_stays_channels_last():
    """Its residuals are behind products, and what a depthwise convolution writes is as narrow as its result."""
    model = Separable(24).bfloat16()
    text = kernels_of(model, randn(2, 3, 22, 18).bfloat16())
    main = text[: text.index("func.func private")]
    assert "tensor<2x24x11" not in main and "tensor<2x24x99x" not in main and "x24xf32>" not in main
    assert calls(text).count("reduction") == 4
    result = check_torch(model, (randn(2, 3, 22, 18).bfloat16(),), levels=("tiles", "gpu"), kinds=("plain",))
    assert result.ok, result.table()


def test_groups_of_large_images_are_reduced_in_parts_of_a_channel():
    """No kernel has rows of a group's channels of all pixels."""
    model = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.Conv2d(12, 5, 3)).bfloat16()
    small, large = randn(1, 3, 64, 32).bfloat16(), randn(1, 3, 96, 64).bfloat16()
    assert calls(kernels_of(model, small)).count("reduction") == 1
    text = kernels_of(model, large)
    assert calls(text).count("reduction") == 2 and "reduction_0(%arg0: tensor<96x64x12xbf16>)" in text
    result = check_torch(model, (large + 3,), levels=("tiles",), kinds=("plain",))
    assert result.ok, result.table()


def test_results_that_nobody_reads_otherwise_are_computed_channels_first():
    """No kernel that only changes an image's order is behind such a convolution, and none at all beside one of single
    pixels."""
    first = [
        convolved((33, 31), 9, 40, (3, 3), padding=1),
        convolved((12, 13, 11), 3, 9, (3, 2, 1)),
        convolved((1100,), 16, 70, (5,), stride=1, dilation=2, biased=False),
        convolved((29, 44), 33, 66, (1, 1)),
    ]
    for call, inputs in first:
        module, (x, *weights) = Calls(call), inputs
        assert calls(kernels_of(module, x, *weights))[-1] == "matmul"
    assert calls(kernels_of(Calls(first[-1][0]), *first[-1][1])) == ["matmul"]
    check_together(first)

    def last(module: nn.Module, *size: int) -> str:
        return calls(kernels_of(module, randn(2, 8, *size)))[-1]

    norm = nn.GroupNorm(3, 24)
    assert "tensor<2x24x1023xf32>" in kernels_of(nn.Sequential(nn.Conv2d(8, 24, 3, 1, 1), norm), randn(2, 8, 33, 31))
    assert last(nn.ConvTranspose2d(8, 24, 3), 33, 33) == "matmul"
    assert last(nn.Conv2d(8, 24, 3), 9, 9) == "elementwise"  # few pixels: tiles of 128 would be empty for the most part
    chain = nn.Sequential(nn.Conv2d(8, 24, 3, 1, 1), nn.ReLU(), nn.Conv2d(24, 24, 3, 1, 1))
    text = kernels_of(chain, randn(2, 8, 33, 31))
    assert calls(text).count("elementwise") == 3  # the image and both weights


def test_windows_of_few_channels_come_by_tensor_copies_in_f32():
    def tiles(channels: int, size: int) -> str:
        job = Compilation("model", get_target("sm_90a"), (), helpers=0)
        job.import_module(nn.Conv2d(channels, 64, 3).eval(), (randn(4, channels, size, size),), {})
        job.lower("tiles")
        return job.text("tiles")

    for channels, filled in ((3, 16), (8, 8), (11, 16), (40, 40)):
        text = tiles(channels, 67)
        assert f"gather_windows = {{channels = {filled} " in text
        assert 'mlirc.mma = "wgmma_tf32x3"' in text and "mlirc.im2col" in text


def test_phases_that_nobody_reads_otherwise_are_computed_channels_first():
    """What puts them in their places loads of each tensor what is its own: in branches, not by selections."""
    call = partial(F.conv_transpose3d, stride=2, padding=1)
    odd = randn(1, 8, 5, 8, 19), randn(8, 5, 3, 3, 3), randn(5)
    even = randn(2, 8, 9, 15), randn(8, 6, 3, 4)
    job = Compilation("model", get_target("sm_90a"), (), helpers=0)
    job.import_module(Calls(call).eval(), odd, {})
    job.lower("gpu")
    name, text = "elementwise_9", job.text("gpu")
    last = text[text.index(f"gpu.func @{name}") : text.index(f"func.func @{name}")]
    assert last.count("memref.load") % 8 == 0 and last.count("scf.if") * 8 >= last.count("memref.load") * 7
    assert "memref<5x760xf32>" in last
    check_together([
        (call, odd),
        (partial(F.conv_transpose2d, stride=(2, 3), output_padding=1), even),
        (lambda *v: F.softmax(call(*v), 1), odd),
    ])  # fmt: skip


def test_poolings_at_the_end_of_a_model_stay_channels_first():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean((2, 3))

    pooled = nn.Sequential(nn.Conv2d(8, 20, 3), nn.Tanh(), nn.MaxPool2d(4))
    x = randn(2, 8, 46, 50)
    assert "tensor<2x20x2112xf32>" in kernels_of(pooled, x)
    assert "tensor<2x20x2112xf32>" not in kernels_of(nn.Sequential(*pooled, Mean()), x)
    result = check_torch(pooled, (x,), levels=("tiles", "gpu"), kinds=("plain",))
    assert result.ok, result.table()


def test_images_channels_first_come_by_tensor_copies():
    conv, x = nn.Conv2d(64, 72, 1), randn(2, 64, 18, 20)
    for knobs in ("mma=tf32x3", "mma=wgmma_tf32x3"):
        schedule = [f"matmul:copy=tma,{knobs}"]
        result = check_torch(conv, (x,), levels=("tiles", "gpu"), kinds=("one NaN",), schedule=schedule)
        assert result.ok, result.table()
