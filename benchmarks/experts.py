"""Mixtures of experts beside PyTorch's two ways, in CUDA graphs with the L2 cache cold, interleaved in one run.

    python benchmarks/experts.py compile DIR [--shapes prefill] [--knobs stages=4]...
    python benchmarks/experts.py run DIR [-o FILE.json] [--samples 30]     # on the GPU; needs no MLIR

A case is (model, tokens, rows): a layer of experts of that model's sizes, bf16, silu(x g^T) * (x u^T) d^T, every token
through its own random experts; `rows` is how many rows a group has, 0 for what mlirc chooses. PyTorch's ways: `loop` is
a product per expert, with how many tokens each has known to the host, which a model does not; `grouped` sorts the
tokens and calls `torch._grouped_mm`. Both, and mlirc, begin with the router's choice and end with a sum per token."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from schedules_tried import arms_of, by_case, compile_schedule, file_name, program, save
from torch import Tensor
from torch.nn.functional import silu

# Experts, those of a token, elements of a token, elements between the two products.
MODELS = {"olmoe": (64, 8, 2048, 1024), "mixtral": (8, 2, 4096, 14336), "qwen3": (128, 8, 2048, 768)}
SETS = {
    "all": [(name, tokens, 0) for name in MODELS for tokens in (1, 16, 128, 512, 2048)],
    "prefill": [(name, 512, 0) for name in ("olmoe", "mixtral")],
    "rows": [(name, tokens, rows) for name in MODELS for tokens, sizes in
             ((16, (8, 16, 32)), (128, (16, 32, 64)), (512, (32, 64, 128)), (2048, (64, 128, 256))) for rows in sizes],
}  # fmt: skip
Case = tuple[str, int, int]


def inputs(case: Case, device: str, make: Any = torch.randn) -> tuple[Tensor, ...]:
    """(x [T,H], which experts [T,K], their weights [T,K], gate and up [E,2I,H], down [E,H,I])."""
    (experts, chosen, width, inner), tokens = MODELS[case[0]], case[1]
    scores = torch.rand(tokens, experts, device=device)
    half = dict(device=device, dtype=torch.bfloat16)
    up, down = make(experts, 2 * inner, width, **half), make(experts, width, inner, **half)
    if make is torch.randn:
        up *= width**-0.5
        down *= inner**-0.5
    values, index = torch.softmax(scores, -1).topk(chosen)
    return make(tokens, width, **half), index, values.to(torch.bfloat16), up, down


def module(case: Case) -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    """The module that computes a layer, and inputs of its shapes."""
    from transformers.integrations import moe

    from mlirc.frontend import experts

    class Layer(torch.nn.Module):
        num_experts = MODELS[case[0]][0]
        is_transposed, has_bias, has_gate = False, False, True
        _apply_gate = moe._default_apply_gate

        def forward(self, x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
            self.act_fn, self.gate_up_proj, self.down_proj = silu, up, down
            return experts.experts_forward(self, x, index, weights)

    if case[2]:
        experts.rows_of_group = lambda pairs, count: case[2]
    return Layer().eval(), inputs(case, "cpu", torch.empty)


def compile_case(case: Case, knobs: str, folder: str) -> tuple[str, str]:
    """(file's name, "" or why there is none)."""
    return compile_schedule("matmul", module(case), knobs, Path(folder) / file_name("_".join(map(str, case)), knobs))


def loop(counts: list[int], x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """A product per expert; `counts` says how many tokens each has."""
    order = index.flatten().argsort()
    parts, made = x[order // index.shape[1]].split(counts), []
    for e, part in enumerate(parts):
        if counts[e]:
            gate, wide = (part @ up[e].t()).chunk(2, -1)
            made.append((silu(gate) * wide) @ down[e].t())
    return summed(torch.cat(made), order, weights)


def grouped(x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """`torch._grouped_mm` on sorted tokens."""
    numbers, order = index.flatten().sort()
    ends = torch.searchsorted(numbers, torch.arange(up.shape[0], device=x.device), right=True).to(torch.int32)
    gate, wide = torch._grouped_mm(x[order // index.shape[1]], up.transpose(1, 2), offs=ends).chunk(2, -1)
    return summed(torch._grouped_mm(silu(gate) * wide, down.transpose(1, 2), offs=ends), order, weights)


def summed(rows: Tensor, order: Tensor, weights: Tensor) -> Tensor:
    """Rows of sorted pairs, weighted and added up for each token."""
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    return (rows[back].reshape(*weights.shape, -1) * weights.unsqueeze(-1)).sum(1)


def right(x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """The layer in FP32, with roundings where bf16 models have them left out."""
    out = torch.zeros(x.shape, device=x.device)
    for e in range(up.shape[0]):
        token, k = (index == e).nonzero(as_tuple=True)
        if token.numel():
            gate, wide = (x[token].float() @ up[e].float().t()).chunk(2, -1)
            made = (silu(gate) * wide) @ down[e].float().t()
            out.index_add_(0, token, made * weights[token, k].float().unsqueeze(-1))
    return out


def run_case(case: Case, files: list[Path], samples: int, flush: Any) -> list[dict[str, Any]]:
    """One row for each of PyTorch's ways, and per file."""
    from mlirc.bench import timing

    first = inputs(case, "cuda")
    experts, (index, up) = MODELS[case[0]][0], (first[1], first[3])
    counts = torch.bincount(index.flatten(), minlength=experts).tolist()
    read = sum(n > 0 for n in counts) * (first[3].nbytes + first[4].nbytes) // experts
    flops = 2 * index.numel() * (up[0].numel() + first[4][0].numel())
    count, runs = timing.copies_for(read, max(read / 4e6, flops / 6e8))
    # Copies choose alike: the loop's counts are the host's.
    sets = [first, *((*(t.clone() for t in first),) for _ in range(count - 1))]
    want, arms, errors = right(*first), [], {}

    def error(got: Tensor) -> float:
        return float((got.float() - want).norm() / want.norm())

    ways = {"loop": lambda s: loop(counts, *s), "grouped": lambda s: grouped(*s)}
    for name, way in ways.items():
        errors[name] = error(way(first))
        arms.append(timing.capture(name, way, sets, runs))
    compiled, own = arms_of(files, sets, runs, error)
    errors |= own
    timed = timing.interleave(arms + compiled, samples, flush)
    best = min(timed[name].median for name in ways)
    return [
        {"case": list(case), "arm": name, "error": errors[name], "experts": sum(n > 0 for n in counts),
         "gb_s": read / s.median / 1e3, "tflop_s": flops / s.median / 1e6, "vs": best / s.median, **s.to_json()}
        for name, s in timed.items()
    ]  # fmt: skip


def run_all(args: argparse.Namespace) -> None:
    """Times every file of a folder, and prints a line for each."""
    from mlirc.bench import timing

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    flush, rows = timing.Flusher(), []
    layers: dict[tuple[str, int], list[Path]] = {}
    for key, files in by_case(args.folder).items():
        name, tokens, _ = key.split("_")
        layers.setdefault((name, int(tokens)), []).extend(files)
    for (name, tokens), files in layers.items():
        for r in run_case((name, tokens, 0), files, args.samples, flush):
            rows.append(r)
            print(
                f"{name:8s} {tokens:5d} tokens {r['median_us']:9.1f} us {r['gb_s']:6.0f} GB/s, {r['experts']} experts "
                f"{r['tflop_s']:5.0f} TF {r['vs']:.2f}x PyTorch's best, err {r['error']:.1e} {r['arm']}", flush=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    if args.output:
        Path(args.output).with_suffix(".md").write_text(page(save(args, rows), rows))


def page(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The results as Markdown: what mlirc chooses beside PyTorch's ways."""
    lines = [
        "# Layers of experts beside PyTorch", "", ", ".join(f"{k} {v}" for k, v in about.items()), "",
        "Made by `benchmarks/experts.py`: bf16, from the router's choice to a sum per token. Medians in microseconds,",
        "all in CUDA graphs, interleaved, L2 cache cold; errors are relative Frobenius norms against FP32. `loop`: a",
        "product per expert, each one's tokens known to the host; `grouped`: `torch._grouped_mm`.", "",
        "| model | tokens | experts chosen | mlirc | loop | grouped | beside the better | error (grouped) |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for case in dict.fromkeys(tuple(r["case"][:2]) for r in rows):
        arms = {r["arm"]: r for r in rows if tuple(r["case"][:2]) == case}
        own, (name, tokens) = arms.get(f"{case[0]}_{case[1]}_0"), case
        if own:
            us = [f"{r['median_us']:.1f}" for r in (own, arms["loop"], arms["grouped"])]
            lines.append(
                f"| {name} | {tokens} | {own['experts']} | {' | '.join(us)} | {own['vs']:.2f}x | "
                f"{own['error']:.1e} ({arms['grouped']['error']:.1e}) |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    program("matmul", __doc__, SETS, 30, compile_case, run_all)
