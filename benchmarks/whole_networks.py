"""Networks of real size for images, sound and text as problems for `mlirc-bench` (a folder of files with a `Model`):

    python benchmarks/whole_networks.py DIR [--names resnet50 ...] [--batches 1 32] [--dtype bf16]
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
from diffusion import Diffusion
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


class Squeezed(nn.Module):
    """Squeeze and excitation as MobileNetV3 has it: a mean over pixels, a quarter of the channels, hard sigmoid."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = (channels // 4 + 4) // 8 * 8
        self.down, self.up = nn.Conv2d(channels, narrow, 1), nn.Conv2d(narrow, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Inverted(nn.Module):
    """MobileNetV3's block: 1x1 to `inner` channels, depthwise, squeezed or not, 1x1 to `outputs`."""

    def __init__(self, channels: int, inner: int, outputs: int, kernel: int, stride: int, squeezed: bool, hard: bool):
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        layers: list[nn.Module] = []
        if inner != channels:
            layers += [nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), act()]
        depthwise = nn.Conv2d(inner, inner, kernel, stride, kernel // 2, groups=inner, bias=False)
        layers += [depthwise, nn.BatchNorm2d(inner), act()]
        layers += [Squeezed(inner)] if squeezed else []
        layers += [nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.layers, self.skips = nn.Sequential(*layers), stride == 1 and channels == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.skips else self.layers(x)


# Howard et al., 2019, table 1: kernel, inner channels, outputs, squeezed, hard swish, stride.
MOBILENET_V3 = [
    (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2), (5, 120, 40, 1, 0, 1),
    (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1),
    (3, 480, 112, 1, 1, 1), (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
    (5, 960, 160, 1, 1, 1),
]  # fmt: skip


def mobilenetv3() -> nn.Module:
    """MobileNetV3-Large."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    channels = 16
    for kernel, inner, outputs, squeezed, hard, stride in MOBILENET_V3:
        layers.append(Inverted(channels, inner, outputs, kernel, stride, bool(squeezed), bool(hard)))
        channels = outputs
    layers += [nn.Conv2d(160, 960, 1, bias=False), nn.BatchNorm2d(960), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000))


class Detector(nn.Module):
    """RetinaNet's feature pyramid and heads (Lin et al., 2017) on ResNet-50: scores and boxes of levels 3 to 7."""

    def __init__(self, classes: int = 80, anchors: int = 9, width: int = 256) -> None:
        super().__init__()
        from transformers import ResNetBackbone, ResNetConfig

        stages = ["stage2", "stage3", "stage4"]
        self.backbone = ResNetBackbone(ResNetConfig(out_features=stages))
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.coarse6, self.coarse7 = nn.Conv2d(2048, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1)

        def head(outputs: int) -> nn.Module:
            inner = [layer for _ in range(4) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())]
            return nn.Sequential(*inner, nn.Conv2d(width, outputs, 3, padding=1))

        self.scores, self.boxes, self.classes = head(anchors * classes), head(anchors * 4), classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(x).feature_maps
        maps = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for i in (1, 0):
            maps[i] = maps[i] + F.interpolate(maps[i + 1], scale_factor=2.0)
        maps = [smooth(m) for smooth, m in zip(self.smooth, maps, strict=True)]
        maps.append(self.coarse6(features[-1]))
        maps.append(self.coarse7(F.relu(maps[-1])))

        def flat(head: nn.Module, size: int) -> Tensor:
            return torch.cat([head(m).permute(0, 2, 3, 1).reshape(m.shape[0], -1, size) for m in maps], 1)

        return flat(self.scores, self.classes), flat(self.boxes, 4)


def twice(channels: int, outputs: int) -> nn.Module:
    """3x3, batch norm and ReLU, two times."""
    layers: list[nn.Module] = []
    for c in (channels, outputs):
        layers += [nn.Conv2d(c, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Segmenter(nn.Module):
    """The U-Net of Ronneberger et al., 2015, padded: five levels of 64 to 1,024 channels, two classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(twice(c, w) for c, w in zip((3, *widths), widths, strict=False))
        ups = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c, w, 2, 2) for c, w in ups)
        self.merge, self.last = nn.ModuleList(twice(c, w) for c, w in ups), nn.Conv2d(64, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.last(x)


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
    "mobilenetv3": (mobilenetv3, (3, 224, 224)),
    "detector": (Detector, (3, 512, 512)),
    "segmenter": (Segmenter, (3, 256, 256)),
    "unet": (unet_blocks, (4, 64, 64)),
    "diffusion": (Diffusion, (4, 64, 64)),
    "vae": (vae_decoder, (4, 64, 64)),
    "whisper-base": (partial(Encoder, 512, 6, 8), (80, 3000)),
    "whisper-small": (partial(Encoder, 768, 12, 12), (80, 3000)),
    "wav2vec2": (partial(Logits, "Wav2Vec2Model", "Wav2Vec2Config"), (16000,)),
    "conformer": (partial(Logits, "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig"), (16000,)),
    "vit": (partial(Logits, "ViTForImageClassification", "ViTConfig"), (3, 224, 224)),
    "swin": (partial(Logits, "SwinForImageClassification", "SwinConfig"), (3, 224, 224)),
    "bert": (partial(Logits, "BertModel", "BertConfig"), (128,)),
    "mamba": (partial(Logits, "MambaModel", "MambaConfig", vocab_size=50280, num_hidden_layers=24), (512,)),
}  # fmt: skip
TOKENS = {"bert": 30522, "mamba": 50280}  # the vocabularies of those that read token ids


def network(name: str, dtype: str) -> nn.Module:
    """The model of a name, in inference, channels last where it takes images."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    made = make().eval().to(DTYPES[dtype])
    return made.to(memory_format=torch.channels_last) if len(shape) == 3 else made


def images(name: str, batch: int, dtype: str) -> list[Tensor]:
    """Its inputs: images, sound or token ids, and for a diffusion's U-Net the steps and prompts."""
    _, shape = NETWORKS[name]
    if name in TOKENS:
        return [torch.randint(TOKENS[name], (batch, *shape))]
    x = torch.randn(batch, *shape, dtype=DTYPES[dtype])
    x = x.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else x
    return [x, torch.arange(batch) * 100 + 7, torch.randn(batch, 77, 768).to(x)] if name == "diffusion" else [x]


PROBLEM = """from whole_networks import images, network

from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = network("{name}", "{dtype}")

    def forward(self, *inputs):
        return self.network(*inputs)


def get_inputs():
    return images("{name}", {batch}, "{dtype}")


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
