"""Convolutions beside cuDNN, channels last, each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/convolutions.py compile DIR [--shapes resnet sd] [--knobs parts=2,block_n=256]...
    python benchmarks/convolutions.py run DIR [-o FILE.json] [--samples 20]     # on the GPU; needs no MLIR

`compile` makes one PTX file per layer and schedule (the default one, and each of `--knobs` of `matmul`); weights are
permuted once, at load. `run` checks every one against FP64 and times it beside `torch.nn.functional.conv2d` on tensors
that are channels last, TF32 off, algorithms searched for (`cudnn.benchmark`); in f32 beside the better of channels last
and channels first. Both compute the convolution alone; a second arm of cuDNN adds a bias and a ReLU. Those of 8-bit
floats (results in bf16) and bytes (in int32) are beside cuDNN in bf16 on the same numbers."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from schedules_tried import by_case, compile_schedule, file_name, program, save
from torch import Tensor, nn

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "fp8": torch.float8_e4m3fn,
          "i8": torch.int8}  # fmt: skip
# Of 8 bits: what operands are widened to, which has all of their products, and the result's type.
WIDENED = {"fp8": (torch.float32, torch.bfloat16), "i8": (torch.int32, torch.int32)}

# N, H = W, C, outputs, kernel, stride, padding: the distinct layers of ResNet-50 at batch 32.
RESNET = [
    (32, 224, 3, 64, 7, 2, 3), (32, 56, 64, 64, 1, 1, 0), (32, 56, 64, 64, 3, 1, 1), (32, 56, 64, 256, 1, 1, 0),
    (32, 56, 256, 64, 1, 1, 0), (32, 56, 256, 128, 1, 1, 0), (32, 56, 128, 128, 3, 2, 1), (32, 28, 128, 512, 1, 1, 0),
    (32, 56, 256, 512, 1, 2, 0), (32, 28, 512, 128, 1, 1, 0), (32, 28, 128, 128, 3, 1, 1), (32, 28, 512, 256, 1, 1, 0),
    (32, 28, 256, 256, 3, 2, 1), (32, 14, 256, 1024, 1, 1, 0), (32, 28, 512, 1024, 1, 2, 0),
    (32, 14, 1024, 256, 1, 1, 0), (32, 14, 256, 256, 3, 1, 1), (32, 14, 1024, 512, 1, 1, 0),
    (32, 14, 512, 512, 3, 2, 1), (32, 7, 512, 2048, 1, 1, 0), (32, 14, 1024, 2048, 1, 2, 0),
    (32, 7, 2048, 512, 1, 1, 0), (32, 7, 512, 512, 3, 1, 1),
]  # fmt: skip
# Those of the U-Net of Stable Diffusion 1.5, 64 x 64 latents, batch 2, less its first one.
UNET = [
    (2, 64, 320, 320, 3, 1, 1), (2, 64, 320, 320, 3, 2, 1), (2, 32, 320, 640, 3, 1, 1), (2, 32, 640, 640, 3, 1, 1),
    (2, 32, 640, 640, 3, 2, 1), (2, 16, 640, 1280, 3, 1, 1), (2, 16, 1280, 1280, 3, 1, 1),
    (2, 16, 1280, 1280, 3, 2, 1), (2, 8, 1280, 1280, 3, 1, 1), (2, 8, 2560, 1280, 3, 1, 1),
    (2, 16, 2560, 1280, 3, 1, 1), (2, 16, 1920, 1280, 3, 1, 1), (2, 32, 1280, 1280, 3, 1, 1),
    (2, 32, 1920, 640, 3, 1, 1), (2, 32, 1280, 640, 3, 1, 1), (2, 32, 960, 640, 3, 1, 1), (2, 64, 640, 640, 3, 1, 1),
    (2, 64, 960, 320, 3, 1, 1), (2, 64, 640, 320, 3, 1, 1), (2, 64, 320, 4, 3, 1, 1),
]  # fmt: skip
# Few channels, where stems and narrow networks begin.
FEW = [
    (32, 224, 3, 32, 3, 2, 1), (32, 224, 3, 64, 3, 1, 1), (2, 64, 4, 320, 3, 1, 1), (32, 112, 16, 32, 3, 1, 1),
    (32, 112, 32, 64, 3, 2, 1), (32, 56, 24, 48, 3, 1, 1), (32, 28, 72, 96, 3, 1, 1), (32, 28, 80, 96, 5, 1, 2),
    (32, 56, 96, 96, 3, 1, 1), (32, 28, 136, 128, 3, 1, 1),
]  # fmt: skip
LAYERS = {"resnet": RESNET, "unet": UNET, "few": FEW}
SUFFIXES = {"": "bf16", "-fp32": "f32", "-fp8": "fp8", "-i8": "i8"}
SETS = {f"{name}{suffix}": [(dtype, *layer) for layer in layers]
        for suffix, dtype in SUFFIXES.items() for name, layers in LAYERS.items()}  # fmt: skip


class Layer(nn.Module):
    """A convolution of an image that is channels last, [N, H, W, C] to [N, P, Q, outputs], without bias."""

    def __init__(self, case: tuple) -> None:
        super().__init__()
        dtype, _, _, channels, outputs, kernel, self.stride, self.padding = case
        self.wide, self.narrow = WIDENED.get(dtype, (DTYPES[dtype], DTYPES[dtype]))
        weight = torch.empty(outputs, channels, kernel, kernel, dtype=DTYPES[dtype])
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        image = x.to(self.wide).permute(0, 3, 1, 2)
        y = F.conv2d(image, self.weight.to(self.wide), None, self.stride, self.padding)
        return y.to(self.narrow).permute(0, 2, 3, 1)


def image(case: tuple, device: str, make: Any = torch.randn) -> Tensor:
    """An image of a case's shape."""
    dtype, n, size, channels, *_ = case
    shape = (n, size, size, channels)
    if dtype == "i8":
        return torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
    return make(*shape, device=device).to(DTYPES[dtype])


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    path = Path(folder) / file_name("_".join(map(str, case)), knobs)
    return compile_schedule("matmul", (Layer(case).eval(), (image(case, "cpu", torch.empty),)), knobs, path)


def amounts(case: tuple) -> tuple[int, int]:
    """Operations, and bytes of image, weights and result."""
    dtype, n, size, channels, outputs, kernel, stride, padding = case
    pixels = n * ((size + 2 * padding - kernel) // stride + 1) ** 2
    weights = outputs * channels * kernel**2
    moved = n * size**2 * channels + pixels * outputs + weights
    wider = pixels * outputs * (WIDENED[dtype][1].itemsize - 1) if dtype in WIDENED else 0
    return 2 * pixels * weights, moved * DTYPES[dtype].itemsize + wider


def peers(case: tuple, sets: list[Tensor], weight: Tensor, runs: int) -> list[Any]:
    """What cuDNN is timed as."""
    from mlirc.bench import timing

    stride, padding = case[6:]
    if case[0] in WIDENED:
        sets, weight = [x.bfloat16() for x in sets], weight.bfloat16()
    first = weight.contiguous(memory_format=torch.channels_last)
    bias = torch.zeros(case[4], dtype=weight.dtype, device="cuda")
    arms = [
        timing.capture("cudnn", lambda x: F.conv2d(x.permute(0, 3, 1, 2), first, None, stride, padding), sets, runs),
        timing.capture(
            "cudnn, bias, relu",
            lambda x: F.conv2d(x.permute(0, 3, 1, 2), first, bias, stride, padding).relu_(), sets, runs,
        ),
    ]  # fmt: skip
    if case[0] == "f32":
        plain = [x.permute(0, 3, 1, 2).contiguous() for x in sets]
        arms.append(
            timing.capture(
                "cudnn, nchw", lambda x: F.conv2d(x, weight.contiguous(), None, stride, padding), plain, runs
            )
        )
    return arms


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per arm of a case, with its time, error, and cuDNN's time beside it."""
    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    work, moved = amounts(case)
    count, runs = timing.copies_for(moved, work / (4e8 if case[0] != "f32" else 4e7))
    sets = [image(case, "cuda") for _ in range(min(count, 8))]
    runs = min(runs, 40)
    weight = torch.randn(case[4], case[3], case[5], case[5], device="cuda") / math.sqrt(case[3] * case[5] ** 2)
    weight = (weight * 127).clamp(-127, 127).round().to(torch.int8) if case[0] == "i8" else weight.to(DTYPES[case[0]])
    right = F.conv2d(sets[0].double().permute(0, 3, 1, 2), weight.double(), None, *case[6:]).permute(0, 2, 3, 1)
    peer = torch.bfloat16 if case[0] in WIDENED else weight.dtype

    def error(got: Tensor) -> float:
        return float((got.double() - right).norm() / right.norm())

    arms, errors = peers(case, sets, weight, runs), {}
    errors["cudnn"] = error(
        F.conv2d(sets[0].to(peer).permute(0, 3, 1, 2), weight.to(peer), None, *case[6:]).permute(0, 2, 3, 1)
    )
    for file in files:
        model = load(str(file), weights={"weight": weight}, graph=False, frozen=True)

        def launch(x: Tensor, model: Any = model) -> None:
            model.bind(x)
            model.launch(torch.cuda.current_stream())

        torch.from_dlpack(model.outputs[0]).view(torch.uint8).fill_(255)
        launch(sets[0])
        torch.cuda.synchronize()
        errors[file.stem] = error(torch.from_dlpack(model.outputs[0]))
        arm = timing.capture(file.stem, launch, sets, runs)
        arm.keep = (arm.keep, model)
        arms.append(arm)
    timed = timing.interleave(arms, samples, flush)
    best = min(s.median for name, s in timed.items() if name in ("cudnn", "cudnn, nchw"))
    return [
        {"case": list(case), "arm": name, "error": errors.get(name), **s.to_json(), "vs": best / s.median,
         "tflops": work / s.median / 1e6}
        for name, s in timed.items()
    ]  # fmt: skip


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    from mlirc.bench import timing

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    flush, rows = timing.Flusher(), []
    for key, files in by_case(args.folder).items():
        dtype, *numbers = key.split("_")
        new = run_case((dtype, *map(int, numbers)), files, args.samples, flush)
        rows += new
        for r in new:
            if not r["arm"].startswith("cudnn"):
                print(
                    f"{key:30s} cudnn {new[0]['median_us']:8.1f} us (bias, relu {new[1]['median_us']:8.1f}) | "
                    f"{r['median_us']:8.1f} us {r['tflops']:5.0f} TF {r['vs']:.3f}x "
                    f"err {r['error']:.1e} (cudnn {new[0]['error']:.1e}) {r['arm'].partition('__')[2]}", flush=True,
                )  # fmt: skip
        torch.cuda.empty_cache()
    for name, cases in SETS.items():
        if found := own(rows, cases):
            print(name, summary(found))
    if args.output:
        Path(args.output).with_suffix(".md").write_text(page(save(args, rows), rows))


def own(rows: list[dict[str, Any]], cases: list[tuple]) -> list[dict[str, Any]]:
    """Of each case the row of its default schedule."""
    wanted = {tuple(c): "_".join(map(str, c)) for c in cases}
    return [r for r in rows if r["arm"] == wanted.get(tuple(r["case"]))]


def summary(rows: list[dict[str, Any]]) -> str:
    """Geometric mean and least of the ratios."""
    ratios = [r["vs"] for r in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"{len(ratios)} layers, {mean:.3f}x cuDNN (geometric mean), the least {min(ratios):.3f}x"


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the default schedule of every layer beside cuDNN."""
    lines = [
        "# Convolutions beside cuDNN", "", ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/convolutions.py`. Medians in microseconds, all in CUDA graphs, interleaved, L2 cold;",
        "errors are relative Frobenius norms against FP64. TF32 off; cuDNN is channels last, in f32 the better of both",
        "layouts. Both compute the convolution alone; what cuDNN takes with a bias and a ReLU is beside it.",
    ]  # fmt: skip
    for name, cases in SETS.items():
        found = own(rows, cases)
        if not found:
            continue
        lines += ["", f"## {name}: {summary(found)}", "",
                  "| N, size, C, outputs, kernel, stride, padding | mlirc us | TFLOP/s | error | cuDNN us | its error "
                  "| with bias, ReLU | vs cuDNN |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for r in found:
            beside = {x["arm"]: x for x in rows if x["case"] == r["case"]}
            fused = beside["cudnn, bias, relu"]["median_us"]
            lines.append(
                f"| {', '.join(map(str, r['case'][1:]))} | {r['median_us']:.1f} | {r['tflops']:.0f} | {r['error']:.1e} "
                f"| {r['vs'] * r['median_us']:.1f} | {beside['cudnn']['error']:.1e} | {fused:.1f} | {r['vs']:.3f}x |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    program("matmul", __doc__, SETS, 20, compile_case, run_all)


if __name__ == "__main__":
    main()
