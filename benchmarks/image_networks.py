"""Convolutional networks of real size as problems for `mlirc-bench` (a folder of files with a `Model`):

    python benchmarks/image_networks.py DIR [--names resnet50 ...] [--batches 1 32] [--dtype bf16]
    export PYTHONPATH=benchmarks  # of this file
    mlirc-bench DIR --compile-only BUILT;  mlirc-bench --run BUILT --peers eager,max-autotune

Models and images are channels last, as PyTorch is fastest with; weights are drawn with a seed. Those with names of
transformers' classes come from it with its default sizes; the others are written here as their papers have them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def vgg16() -> nn.Module:
    """Simonyan and Zisserman, 2014, configuration D."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, *head)


class DenseLayer(nn.Module):
    """What DenseNet adds to its channels: 1x1 to 128, 3x3 to 32, each behind a norm and a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 128, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))], 1)


def densenet121() -> nn.Module:
    """Huang et al., 2016."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for i, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            layers.append(DenseLayer(channels))
            channels += 32
        if i < 3:
            narrow = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), narrow, nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, 1000))  # fmt: skip


class UNetBlock(nn.Module):
    """A residual block of a diffusion U-Net: GroupNorm, SiLU, 3x3, twice."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(channels, outputs, 1) if channels != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(F.silu(self.norm2(y)))


def unet_blocks() -> nn.Module:
    """The convolutions of Stable Diffusion 1.5's first two levels and their way up, without attention and time."""
    return nn.Sequential(
        nn.Conv2d(4, 320, 3, padding=1), UNetBlock(320, 320), UNetBlock(320, 320), nn.Conv2d(320, 320, 3, 2, 1),
        UNetBlock(320, 640), UNetBlock(640, 640), nn.Upsample(scale_factor=2), nn.Conv2d(640, 640, 3, padding=1),
        UNetBlock(640, 320), UNetBlock(320, 320), nn.GroupNorm(32, 320), nn.SiLU(), nn.Conv2d(320, 4, 3, padding=1),
    )  # fmt: skip


def vae_decoder() -> nn.Module:
    """Stable Diffusion's decoder from 64 x 64 latents, without attention."""
    layers: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1), UNetBlock(512, 512)]
    channels = 512
    for i, width in enumerate((512, 512, 256, 128)):
        layers += [UNetBlock(channels, width), UNetBlock(width, width)]
        channels = width
        if i < 3:
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))


class Logits(nn.Module):
    """A model of transformers with its logits, or its last hidden state, as the result."""

    def __init__(self, name: str, config: str, **sizes: object) -> None:
        super().__init__()
        import transformers

        sizes = {"num_labels": 1000} | sizes
        self.model = getattr(transformers, name)(getattr(transformers, config)(**sizes))

    def forward(self, x: Tensor) -> Tensor:
        y = self.model(x)
        return y.logits if "logits" in y else y.last_hidden_state


class Encoder(nn.Module):
    """Whisper's encoder."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        sizes = dict(d_model=width, encoder_layers=layers, encoder_attention_heads=heads, encoder_ffn_dim=4 * width)
        self.model = WhisperEncoder(WhisperConfig(**sizes))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


# By name: what makes the model, and the shape of one input.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnet18": (
        partial(Logits, "ResNetForImageClassification", "ResNetConfig", depths=[2, 2, 2, 2],
                hidden_sizes=[64, 128, 256, 512], layer_type="basic"),
        (3, 224, 224),
    ),
    "resnet50": (partial(Logits, "ResNetForImageClassification", "ResNetConfig"), (3, 224, 224)),
    "vgg16": (vgg16, (3, 224, 224)),
    "densenet121": (densenet121, (3, 224, 224)),
    "regnet": (partial(Logits, "RegNetForImageClassification", "RegNetConfig"), (3, 224, 224)),
    "mobilenetv2": (partial(Logits, "MobileNetV2ForImageClassification", "MobileNetV2Config"), (3, 224, 224)),
    "efficientnet": (
        partial(Logits, "EfficientNetForImageClassification", "EfficientNetConfig", image_size=224,
                width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
        (3, 224, 224),
    ),
    "convnext": (partial(Logits, "ConvNextForImageClassification", "ConvNextConfig"), (3, 224, 224)),
    "unet": (unet_blocks, (4, 64, 64)),
    "vae": (vae_decoder, (4, 64, 64)),
    "whisper-base": (partial(Encoder, 512, 6, 8), (80, 3000)),
    "whisper-small": (partial(Encoder, 768, 12, 12), (80, 3000)),
    "wav2vec2": (partial(Logits, "Wav2Vec2Model", "Wav2Vec2Config"), (16000,)),
}  # fmt: skip


def network(name: str, dtype: str) -> nn.Module:
    """The model of a name, in inference, channels last where it takes images."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    made = make().eval().to(DTYPES[dtype])
    return made.to(memory_format=torch.channels_last) if len(shape) == 3 else made


def images(name: str, batch: int, dtype: str) -> Tensor:
    """Its input."""
    _, shape = NETWORKS[name]
    x = torch.randn(batch, *shape, dtype=DTYPES[dtype])
    return x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x


PROBLEM = """from image_networks import images, network

from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network("{name}", "{dtype}")

    def forward(self, x):
        return self.network(x)


def get_inputs():
    return [images("{name}", {batch}, "{dtype}")]


def get_init_inputs():
    return []
"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        for batch in args.batches:
            text = PROBLEM.format(name=name, batch=batch, dtype=args.dtype)
            (args.folder / f"{name}_{args.dtype}_{batch}.py").write_text(text)


if __name__ == "__main__":
    main()
