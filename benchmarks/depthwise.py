"""Depthwise convolutions and poolings beside cuDNN, channels last, and beside a copy of as many bytes; each in CUDA
graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/depthwise.py compile DIR [--shapes mobilenet convnext-fp32] [--knobs strip=4]...
    python benchmarks/depthwise.py run DIR [-o FILE.json] [--samples 20]     # on the GPU; needs no MLIR

`compile` makes one PTX file per layer and schedule (the default one, and each of `--knobs` of `stencil`); weights are
permuted once, at load. `run` checks every one against FP64 and times it beside PyTorch on tensors that are channels
last (cuDNN, algorithms searched for, TF32 off), and beside a copy that reads and writes as many bytes as the layer
must: what of the copy's speed a layer has is the share of the memory's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from convolutions import DTYPES, own, summary
from schedules_tried import by_case, compile_schedule, file_name, program, save
from torch import Tensor, nn

# H = W, C, kernel, stride: the distinct depthwise layers at 224 x 224.
MOBILENET_V2 = [
    (112, 32, 3, 1), (112, 96, 3, 2), (56, 144, 3, 1), (56, 144, 3, 2), (28, 192, 3, 1), (28, 192, 3, 2),
    (14, 384, 3, 1), (14, 576, 3, 1), (14, 576, 3, 2), (7, 960, 3, 1),
]  # fmt: skip
EFFICIENTNET_B0 = [
    (112, 32, 3, 1), (112, 96, 3, 2), (56, 144, 3, 1), (56, 144, 5, 2), (28, 240, 5, 1), (28, 240, 3, 2),
    (14, 480, 3, 1), (14, 480, 5, 1), (14, 672, 5, 1), (14, 672, 5, 2), (7, 1152, 5, 1), (7, 1152, 3, 1),
]  # fmt: skip
CONVNEXT_T = [(56, 96, 7, 1), (28, 192, 7, 1), (14, 384, 7, 1), (7, 768, 7, 1)]
# The pooling behind ResNet's stem, and one of each kind as in Inception.
POOLINGS = [("max", 112, 64, 3, 2), ("max", 28, 256, 3, 1), ("mean", 28, 256, 3, 1), ("mean", 56, 128, 2, 2)]
BATCH = 32
LAYERS = {
    "mobilenet": [("depthwise", *layer) for layer in MOBILENET_V2],
    "efficientnet": [("depthwise", *layer) for layer in EFFICIENTNET_B0],
    "convnext": [("depthwise", *layer) for layer in CONVNEXT_T],
    "poolings": POOLINGS,
}
SETS = {f"{name}{suffix}": [(dtype, BATCH, *layer) for layer in layers]
        for suffix, dtype in (("", "bf16"), ("-fp32", "f32")) for name, layers in LAYERS.items()}  # fmt: skip


class Layer(nn.Module):
    """A case's layer, of an image that is channels last, [N, H, W, C] to [N, P, Q, C]; windows of odd sizes are padded
    by half of them."""

    def __init__(self, case: tuple) -> None:
        super().__init__()
        dtype, _, self.kind, _, self.channels, self.kernel, self.stride = case
        self.padding = self.kernel // 2 if self.kernel % 2 else 0
        if self.kind == "depthwise":
            self.weight = nn.Parameter(torch.empty(self.channels, 1, self.kernel, self.kernel, dtype=DTYPES[dtype]))

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def compute(self, x: Tensor) -> Tensor:
        """The layer of [N, C, H, W]."""
        if self.kind == "depthwise":
            return F.conv2d(x, self.weight, None, self.stride, self.padding, groups=self.channels)
        pool = F.max_pool2d if self.kind == "max" else F.avg_pool2d
        return pool(x, self.kernel, self.stride, self.padding)


def image(case: tuple, device: str, make: Any = torch.randn) -> Tensor:
    """An image of a case's shape."""
    dtype, n, _, size, channels, *_ = case
    return make(n, size, size, channels, dtype=DTYPES[dtype], device=device)


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    path = Path(folder) / file_name("_".join(map(str, case)), knobs)
    return compile_schedule("stencil", (Layer(case).eval(), (image(case, "cpu", torch.empty),)), knobs, path)


def elements(case: tuple) -> tuple[int, int]:
    """Of the image, and of the result."""
    _, n, _, size, channels, kernel, stride = case
    padding = kernel // 2 if kernel % 2 else 0
    return n * size**2 * channels, n * ((size + 2 * padding - kernel) // stride + 1) ** 2 * channels


def run_case(case: tuple, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row per arm of a case, with its time, error, and the times of cuDNN and of the copy beside it."""
    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    dtype, total = DTYPES[case[0]], sum(elements(case))
    moved = total * dtype.itemsize
    count, runs = timing.copies_for(moved, moved / 3e6)
    sets, runs = [image(case, "cuda") for _ in range(min(count, 8))], min(runs, 40)
    layer = Layer(case).cuda().requires_grad_(False)
    for weight in layer.parameters():
        weight.normal_(std=1 / case[5])
    right = layer.double()(sets[0].double())
    layer.to(dtype)

    def error(got: Tensor) -> float:
        return float((got.double() - right).norm() / right.norm())

    halves = [torch.empty(2, -(-total // 2), dtype=dtype, device="cuda") for _ in sets]
    arms = [
        timing.capture("cudnn", layer, sets, runs),
        timing.capture("copy", lambda pair: pair[1].copy_(pair[0]), halves, runs),
    ]
    errors = {"cudnn": error(layer(sets[0]))}
    weights = {name: w.data for name, w in layer.named_parameters()}
    for file in files:
        model = load(str(file), weights=weights, graph=False, frozen=True)

        def launch(x: Tensor, model: Any = model) -> None:
            model.bind(x)
            model.launch(torch.cuda.current_stream())

        torch.from_dlpack(model.outputs[0]).view(torch.uint8).fill_(255)
        launch(sets[0])
        torch.cuda.synchronize()
        errors[file.stem] = error(torch.from_dlpack(model.outputs[0]))
        arm = timing.capture(file.stem, launch, sets, runs)
        arm.keep = (arm.keep, model)  # a graph does not keep its kernels loaded
        arms.append(arm)
    timed = timing.interleave(arms, samples, flush)
    cudnn, copied = timed["cudnn"].median, timed["copy"].median
    return [
        {"case": list(case), "arm": name, "error": errors.get(name), **s.to_json(), "vs": cudnn / s.median,
         "of_copy": copied / s.median, "bytes": moved}
        for name, s in timed.items()
    ]  # fmt: skip


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    from mlirc.bench import timing

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    flush, rows = timing.Flusher(), []
    for key, files in by_case(args.folder).items():
        dtype, n, kind, *numbers = key.split("_")
        new = run_case((dtype, int(n), kind, *map(int, numbers)), files, args.samples, flush)
        rows += new
        for r in new[2:]:
            print(
                f"{key:34s} cudnn {new[0]['median_us']:8.1f} us, copy {new[1]['median_us']:7.1f} us | "
                f"{r['median_us']:8.1f} us {r['vs']:.2f}x cudnn, {r['of_copy']:.2f} of the copy's speed "
                f"err {r['error']:.1e} (cudnn {new[0]['error']:.1e}) {r['arm'].partition('__')[2]}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    for name, cases in SETS.items():
        if found := own(rows, cases):
            print(name, summary(found), f"least share of the copy's speed {min(r['of_copy'] for r in found):.2f}")
    if args.output:
        Path(args.output).with_suffix(".md").write_text(page(save(args, rows), rows))


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the default schedule of every layer beside cuDNN and the copy."""
    lines = [
        "# Depthwise convolutions and poolings beside cuDNN", "", ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/depthwise.py`. Medians in microseconds, all in CUDA graphs, interleaved, L2 cold; errors",
        "are relative Frobenius norms against FP64. TF32 off, cuDNN channels last. The copy reads and writes as many",
        "bytes as the layer must: the image once, the result once.",
    ]  # fmt: skip
    peers = {(r["arm"], tuple(r["case"])): r for r in rows if r["arm"] in ("cudnn", "copy")}
    for name, cases in SETS.items():
        found = own(rows, cases)
        if not found:
            continue
        lines += ["", f"{name}: {summary(found)}.", "",
                  "| dtype | layer | N, H = W, C | kernel, stride | error | mlirc us | of the copy's speed | cuDNN us "
                  "| its error | vs cuDNN |", "|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        for r in found:
            dtype, n, kind, size, channels, kernel, stride = r["case"]
            peer = peers["cudnn", tuple(r["case"])]
            lines.append(
                f"| {dtype} | {kind} | {n}, {size}, {channels} | {kernel}x{kernel}, {stride} | {r['error']:.1e} "
                f"| {r['median_us']:.1f} ({r['p10_us']:.1f}, {r['p90_us']:.1f}) | {r['of_copy']:.2f} "
                f"| {peer['median_us']:.1f} | {peer['error']:.1e} | {r['vs']:.2f}x |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    program("stencil", __doc__, SETS, 20, compile_case, run_all)


if __name__ == "__main__":
    main()
