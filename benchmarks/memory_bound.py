"""Kernels that memory bounds (norms, softmax, losses, reductions, scans, transposes, poolings) beside PyTorch, and
beside a copy of as many bytes; each in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/memory_bound.py compile DIR [--shapes anchors kernelbench] [--knobs reduction:warps=8]...
    python benchmarks/memory_bound.py run DIR [-o FILE.json] [--samples 20] [--compiled]     # on the GPU; needs no MLIR

`compile` makes one PTX file per case and schedule (the default one, and each of `--knobs`). `run` checks every one
against FP64 and times it beside eager (TF32 off), torch.compile where `--compiled` asks for it, and a copy that reads
and writes as many bytes as the case must: each input once, each result once."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from schedules_tried import by_case, compile_schedule, file_name, program, save
from torch import Tensor, nn

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
ROWS, VOCABULARY = (8192, 4096), (4096, 32000)
WIDE = (16, 393216)
STATE = 16  # elements of a channel's state in a selective scan


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As models write it: in f32, rounded, times the weight."""
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    total = x + residual
    return total, rms_norm(total, weight)


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The sum, and its norm."""
    total = x + residual
    return total, F.layer_norm(total, total.shape[-1:], weight, bias)


def batch_of_labels(x: Tensor, labels: Tensor) -> Tensor:
    """The loss of each row."""
    return F.cross_entropy(x, labels, reduction="none")


def exclusive_cumsum(x: Tensor) -> Tensor:
    """As KernelBench writes it."""
    return torch.cumsum(torch.cat((torch.zeros_like(x[:, :1]), x), 1)[:-1], 1)


def selective_scan(x: Tensor, dt: Tensor, decay: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Mamba's scan of x [L, D] with steps dt [L, D], decays [N, D], b and c [L, N], as transformers writes it."""
    a = torch.exp(-torch.exp(decay.mT)[None] * dt[:, :, None])
    term = (dt * x)[:, :, None] * b[:, None, :]
    state, rows = torch.zeros_like(term[0]), []
    for i in range(x.shape[0]):
        state = a[i] * state + term[i]
        rows.append(torch.matmul(state, c[i].unsqueeze(-1))[:, 0])
    return torch.stack(rows)


def top_p(x: Tensor) -> Tensor:
    """Probabilities of the most probable elements that have nine tenths together, in their order."""
    values, places = torch.sort(torch.softmax(x, -1), -1, True)
    return torch.where(values.cumsum(-1) - values > 0.9, 0.0, values).gather(-1, places.argsort(-1))


def resize(mode: str, corners: bool | None = None) -> Callable[[Tensor], Tensor]:
    """Of images to twice their size."""
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode, align_corners=corners)


# What a case computes, and the shapes of what it takes: the case's own, "row" its last dimension, "labels" its first.
OPS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "rms_norm": (rms_norm, ("x", "row")),
    "add_rms_norm": (add_rms_norm, ("x", "x", "row")),
    "add_layer_norm": (add_layer_norm, ("x", "x", "row", "row")),
    "softmax": (lambda x: torch.softmax(x, -1), ("x",)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), ("x",)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), ("x", "row", "row")),
    "group_norm": (lambda x: F.group_norm(x, 8), ("x",)),
    "instance_norm": (lambda x: F.instance_norm(x), ("x",)),
    "l2_norm": (lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), ("x",)),
    "swiglu": (lambda x, g: F.silu(g) * x, ("x", "x")),
    "cross_entropy": (F.cross_entropy, ("x", "labels")),
    "losses": (batch_of_labels, ("x", "labels")),
    "row_sum": (lambda x: x.sum(-1), ("x",)),
    "row_argmax": (lambda x: x.argmax(-1), ("x",)),
    "row_max": (lambda x: x.max(-1), ("x",)),
    "transpose": (lambda x: x.mT.contiguous(), ("x",)),
    "middle_sum": (lambda x: x.sum(1, keepdim=True), ("x",)),
    "middle_mean": (lambda x: x.mean(1), ("x",)),
    "middle_amax": (lambda x: x.amax(1), ("x",)),
    "middle_argmax": (lambda x: x.argmax(1), ("x",)),
    "middle_argmin": (lambda x: x.argmin(1), ("x",)),
    "middle_max": (lambda x: x.max(1), ("x",)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 8, 1, 4, 3), ("x",)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 4, 1, 1), ("x",)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 2, 1, 3), ("x",)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 8, 1, 4), ("x",)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 11, 11), ("x",)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 3, 2, 1), ("x",)),
    "stem_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), ("x",)),
    "cumsum": (lambda x: x.cumsum(-1), ("x",)),
    "cumprod": (lambda x: x.cumprod(-1), ("x",)),
    "reverse_cumsum": (lambda x: x.flip(1).cumsum(1).flip(1), ("x",)),
    "exclusive_cumsum": (exclusive_cumsum, ("x",)),
    "masked_cumsum": (lambda x, mask: torch.cumsum(x * mask, 1), ("x", "mask")),
    "cummax": (lambda x: x.cummax(-1), ("x",)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), ("x",)),
    "column_cumsum": (lambda x: x.cumsum(0), ("x",)),
    "middle_cumsum": (lambda x: x.cumsum(1), ("x",)),
    "selective_scan": (selective_scan, ("x", "steps", "state", "states", "states")),
    "top8": (lambda x: x.topk(8), ("x",)),
    "top50": (lambda x: x.topk(50), ("x",)),
    "top2048": (lambda x: x.topk(2048), ("x",)),
    "sort": (lambda x: x.sort(dim=-1, stable=True), ("x",)),
    "argsort": (lambda x: x.argsort(dim=-1, descending=True, stable=True), ("x",)),
    "kthvalue": (lambda x: x.kthvalue(100), ("x",)),
    "median": (lambda x: x.median(-1), ("x",)),
    "top_p": (top_p, ("x",)),
    "nearest": (resize("nearest"), ("x",)),
    "bilinear": (resize("bilinear", False), ("x",)),
    "bilinear_corners": (resize("bilinear", True), ("x",)),
    "bicubic": (resize("bicubic", False), ("x",)),
    "bicubic_corners": (resize("bicubic", True), ("x",)),
    "bilinear_last": (
        lambda x: resize("bilinear", False)(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous(),
        ("x",),
    ),
    "adaptive_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 7), ("x",)),
    "avg_pool2d_3": (lambda x: F.avg_pool2d(x, 3, 1, 1), ("x",)),
    "avg_pool1d_5": (lambda x: F.avg_pool1d(x, 5, 1, 2), ("x",)),
    "max_pool1d_5": (lambda x: F.max_pool1d(x, 5, 1, 2), ("x",)),
    "max_pool2d_5": (lambda x: F.max_pool2d(x, 5, 1, 2), ("x",)),
    "max_pool3d_3": (lambda x: F.max_pool3d(x, 3, 1, 1), ("x",)),
    "max_pool_indices": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), ("x",)),
}
ANCHORS = [
    *[(dtype, op, *ROWS) for op in ("rms_norm", "add_rms_norm", "softmax", "layer_norm", "swiglu")
      for dtype in DTYPES],
    *[(dtype, op, *VOCABULARY) for op in ("cross_entropy", "row_sum", "transpose") for dtype in DTYPES],
]  # fmt: skip
KERNELBENCH = [
    ("f32", "softmax", *WIDE), ("f32", "log_softmax", *WIDE), ("f32", "l2_norm", *WIDE),
    ("f32", "layer_norm", 8, 64 * 256 * 256), ("f32", "group_norm", 8, 64, 256, 256),
    ("f32", "instance_norm", 16, 64, 256, 256),
    ("f32", "middle_sum", 128, 1024, 4095), ("f32", "middle_mean", 128, 1024, 4095),
    ("f32", "middle_amax", 128, 1024, 4095), ("f32", "middle_argmax", 128, 1024, 4095),
    ("f32", "middle_argmin", 128, 1024, 4095), ("f32", "middle_max", 128, 1024, 4095),
    ("f32", "row_argmax", *VOCABULARY), ("f32", "row_max", *VOCABULARY),
    ("f32", "max_pool1d", 16, 96, 65536), ("f32", "max_pool2d", 16, 32, 256, 256),
    ("f32", "max_pool3d", 8, 32, 64, 64, 64), ("f32", "avg_pool1d", 16, 64, 65536),
    ("f32", "avg_pool2d", 16, 32, 512, 512), ("f32", "avg_pool3d", 8, 32, 64, 64, 128),
    ("f32", "stem_pool", 32, 64, 112, 112), ("f32", "max_pool_indices", 32, 64, 112, 112),
]  # fmt: skip
MORE = [
    *[(dtype, "add_layer_norm", *ROWS) for dtype in DTYPES], *[(dtype, "losses", *VOCABULARY) for dtype in DTYPES],
    ("bf16", "row_argmax", *VOCABULARY), ("bf16", "middle_sum", 128, 1024, 4096),
    ("bf16", "max_pool3d", 8, 32, 64, 64, 64), ("bf16", "stem_pool", 32, 64, 112, 112),
    ("bf16", "softmax", *WIDE), ("bf16", "transpose", 4096, 4096), ("f32", "transpose", 4096, 4096),
]  # fmt: skip
SCANS = [
    *[(dtype, "cumsum", *VOCABULARY) for dtype in DTYPES], ("f32", "cumsum", 8192, 32768),
    ("f32", "cumprod", 8192, 32768), ("f32", "masked_cumsum", 8192, 32768), ("f32", "reverse_cumsum", 8192, 32768),
    ("f32", "exclusive_cumsum", 8192, 32768), ("f32", "cummax", *VOCABULARY), ("f32", "logcumsumexp", *VOCABULARY),
    ("f32", "cumsum", 131072, 512), ("bf16", "cumsum", 131072, 512), ("f32", "cumsum", 4096, 31999),
    ("f32", "cumsum", 128, 32000), ("f32", "cumsum", 1, 16777216), ("f32", "column_cumsum", *VOCABULARY),
    ("f32", "middle_cumsum", 128, 1024, 1024), ("bf16", "middle_cumsum", 128, 1024, 1024),
]  # fmt: skip
LONG_SCANS = [
    *[(dtype, "cumsum", 1, 4194304) for dtype in DTYPES], ("f32", "cumsum", 4, 1000003), ("f32", "cumsum", 1, 16777216),
    ("f32", "cumprod", 1, 4194304), ("f32", "cummax", 1, 4194304), ("f32", "logcumsumexp", 1, 4194304),
    ("f32", "reverse_cumsum", 1, 4194304),
]  # fmt: skip
SORTS = [
    ("f32", "top8", 4096, 64), ("bf16", "top8", 4096, 64), ("f32", "top50", 32, 32000), ("f32", "top8", 32, 32000),
    ("f32", "top2048", 32, 32000), ("f32", "top50", 1, 131072), ("bf16", "top50", 32, 32000),
    ("f32", "sort", 64, 4096), ("f32", "sort", 1024, 1000), ("f32", "sort", 16, 50257), ("bf16", "sort", 16, 50257),
    ("f32", "sort", 1, 1048576), ("f32", "argsort", 64, 4096), ("f32", "argsort", 1, 1048576),
    ("f32", "kthvalue", 32, 32000), ("f32", "median", 32, 32000), ("f32", "top_p", 16, 50257),
]  # fmt: skip
IMAGES = [
    *[("f32", op, 16, 64, 56, 56) for op in
      ("nearest", "bilinear", "bilinear_corners", "bicubic", "bicubic_corners")],
    ("bf16", "bilinear", 16, 64, 56, 56), ("bf16", "nearest", 16, 64, 56, 56), ("f32", "bilinear_last", 16, 56, 56, 64),
    ("bf16", "bilinear_last", 16, 56, 56, 64), ("f32", "adaptive_pool2d", 32, 256, 56, 56),
    ("f32", "avg_pool2d_3", 16, 32, 255, 255), ("f32", "avg_pool1d_5", 16, 96, 65535),
    ("f32", "max_pool1d_5", 16, 96, 65535), ("f32", "max_pool2d_5", 16, 32, 255, 255),
    ("f32", "max_pool3d_3", 8, 32, 31, 63, 63), ("bf16", "avg_pool2d_3", 16, 32, 255, 255),
]  # fmt: skip
MAMBA = [(dtype, "selective_scan", 512, 1536) for dtype in DTYPES]
SETS = {"anchors": ANCHORS, "kernelbench": KERNELBENCH, "more": MORE, "scans": SCANS, "mamba": MAMBA}
SETS |= {"long_scans": LONG_SCANS, "sorts": SORTS, "images": IMAGES}


class Op(nn.Module):
    """A case's operation."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.compute = OPS[name][0]

    def forward(self, *inputs: Tensor) -> Any:
        """Of the case's inputs."""
        return self.compute(*inputs)


def inputs_of(case: Sequence, device: str) -> tuple[Tensor, ...]:
    """What a case takes, at random."""
    dtype, name, *shape = case
    shapes = {"x": shape, "row": shape[-1:], "labels": shape[:1], "mask": shape, "steps": shape}
    shapes |= {"state": [STATE, shape[-1]], "states": [shape[0], STATE]}

    def make(kind: str) -> Tensor:
        if kind == "labels":
            return torch.randint(shape[-1], shape[:1], device=device)
        if kind == "mask":
            return torch.rand(shape, device=device) < 0.5
        if kind == "steps":  # positive ones
            return torch.rand(shape, device=device).to(DTYPES[dtype])
        return torch.randn(shapes[kind], device=device).to(DTYPES[dtype])

    return tuple(make(kind) for kind in OPS[name][1])


def compile_case(case: tuple, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none); knobs name their script."""
    path = Path(folder) / file_name("_".join(map(str, case)), knobs)
    script, _, rest = knobs.partition(":")
    return compile_schedule(script or "reduction", (Op(case[1]).eval(), inputs_of(case, "cpu")), rest, path)


def tensors(results: Any) -> list[Tensor]:
    """A result as a list."""
    return [results] if isinstance(results, Tensor) else list(results)


def error(got: Sequence[Tensor], right: Sequence[Tensor], x: Tensor) -> float:
    """The largest relative Frobenius error of any result; of indices the share that is not the same, ties apart."""

    def one(a: Tensor, b: Tensor) -> float:
        if b.dtype == torch.int64:
            return float((a != b).double().mean())
        a, b = a.double(), b.double()
        return float((a - b).norm() / b.norm())

    return max(one(a.view(b.shape), b) for a, b in zip(got, right, strict=True))


def run_case(case: tuple, files: list[Path], samples: int, flush: Any, compiled: bool) -> list[dict[str, Any]]:
    """One row per arm of a case: its time, its error, eager's and the copy's speed beside it."""
    from mlirc.bench import timing
    from mlirc.runtime.loading import load

    first = inputs_of(case, "cuda")
    op = OPS[case[1]][0]
    eager = tensors(op(*first))
    read = first if case[1] not in ("cross_entropy", "losses") else first[:1]
    moved = sum(t.nbytes for t in (*read, *eager))
    count, runs = timing.copies_for(moved, moved / 3e6)
    sets, runs = [first, *[inputs_of(case, "cuda") for _ in range(min(count, 6) - 1)]], min(runs, 40)
    right = tensors(op(*[t.double() if t.is_floating_point() else t for t in first]))
    halves = [torch.empty(2, -(-moved // 8), dtype=torch.int32, device="cuda") for _ in sets]
    arms = [
        timing.capture("eager", lambda inputs: op(*inputs), sets, runs),
        timing.capture("copy", lambda pair: pair[1].copy_(pair[0]), halves, runs),
    ]
    errors = {"eager": error(eager, right, first[0])}
    if compiled:
        torch._dynamo.reset()
        inductor = torch.compile(op, dynamic=False)
        errors["torch.compile"] = error(tensors(inductor(*first)), right, first[0])
        arms.append(timing.capture("torch.compile", lambda inputs: inductor(*inputs), sets, runs))
    for file in files:
        model = load(str(file), graph=False)

        def launch(inputs: tuple, model: Any = model) -> None:
            model.bind(*inputs)
            model.launch(torch.cuda.current_stream())

        for o in model.outputs:
            torch.from_dlpack(o).reshape(-1).view(torch.uint8).fill_(255)
        launch(first)
        torch.cuda.synchronize()
        errors[file.stem] = error([torch.from_dlpack(o) for o in model.outputs], right, first[0])
        arm = timing.capture(file.stem, launch, sets, runs)
        arm.keep = (arm.keep, model)  # a graph does not keep its kernels loaded
        arms.append(arm)
    timed = timing.interleave(arms, samples, flush)
    copied = timed["copy"].median
    peer = min(timed[name].median for name in ("eager", "torch.compile") if name in timed)
    return [
        {"case": list(case), "arm": name, "error": errors.get(name), **s.to_json(), "vs": peer / s.median,
         "of_copy": copied / s.median, "bytes": moved}
        for name, s in timed.items()
    ]  # fmt: skip


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    from mlirc.bench import timing

    torch.backends.cuda.matmul.allow_tf32 = False
    flush, rows = timing.Flusher(), []
    for key, files in by_case(args.folder).items():
        case = next(c for cases in SETS.values() for c in cases if "_".join(map(str, c)) == key)
        new = run_case(case, files, args.samples, flush, args.compiled)
        rows += new
        peers = {r["arm"]: r for r in new[: 3 if args.compiled else 2]}
        beside = ", ".join(f"{name} {r['median_us']:.1f}" for name, r in peers.items())
        for r in new[len(peers) :]:
            print(
                f"{key:36s} {beside} | {r['median_us']:8.1f} us {r['vs']:.2f}x, {r['of_copy']:.2f} of the copy's speed "
                f"err {r['error']:.1e} (eager {new[0]['error']:.1e}) {r['arm'].partition('__')[2]}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        Path(args.output).with_suffix(".md").write_text(page(save(args, rows), rows))


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: the default schedule of every case beside its peers and the copy."""
    lines = [
        "# Kernels that memory bounds, beside PyTorch and a copy", "",
        ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/memory_bound.py`. Medians in microseconds, all in CUDA graphs, interleaved, L2 cold;",
        "errors are relative Frobenius norms against FP64, of indices the share that differs. TF32 off. The copy reads",
        "and writes as many bytes as the case must: each input once, each result once.", "",
        "| dtype | case | shape | error | mlirc us | of the copy's speed | eager us | its error | torch.compile us "
        "| vs the better |", "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    by_arm = {(r["arm"], tuple(r["case"])): r for r in rows}
    for r in rows:
        case = tuple(r["case"])
        if r["arm"] != "_".join(map(str, case)):
            continue
        eager, inductor = by_arm["eager", case], by_arm.get(("torch.compile", case))
        lines.append(
            f"| {case[0]} | {case[1]} | {'x'.join(map(str, case[2:]))} | {r['error']:.1e} "
            f"| {r['median_us']:.1f} ({r['p10_us']:.1f}, {r['p90_us']:.1f}) | {r['of_copy']:.2f} "
            f"| {eager['median_us']:.1f} | {eager['error']:.1e} "
            f"| {'' if inductor is None else format(inductor['median_us'], '.1f')} | {r['vs']:.2f}x |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """The command line."""
    program("reduction", __doc__, SETS, 20, compile_case, run_all)


if __name__ == "__main__":
    main()
