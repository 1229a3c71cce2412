"""Is a model that generates right? Its cache and its tokens beside PyTorch's, on given tokens."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mlirc.bench import reference
from mlirc.bench.cases import Case
from mlirc.bench.generation.cases import STEPS
from mlirc.check.wide import Float64Mode
from mlirc.frontend.module_copy import copied_module
from mlirc.generate.engine import Sampling
from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.sizes import Sizes

GREEDY_SAMPLING = Sampling()
_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


def draw_tokens(case: Case, module: Any, sizes: Sizes, device: str) -> Tensor:
    """The tokens of every sequence, i64 [slots, context]."""
    most = min(sizes.vocabulary, module.get_input_embeddings().num_embeddings)
    generator = torch.Generator().manual_seed(case.seed + 1)
    shape = (sizes.slots, case.options["context"])
    return torch.randint(most, shape, generator=generator).to(device)


def steps_checked(context: int) -> int:
    """The last so many tokens of a sequence go through a step of decoding."""
    return min(STEPS, context - 1)


def assign_pages(engine: PlanEngine, tokens: Tensor, sampling: Sampling = GREEDY_SAMPLING) -> list[list[int]]:
    """Gives each slot pages of its own, which are not in order; returns them."""
    each = engine.sizes.pages_each
    order = torch.randperm(engine.pages - 1, generator=torch.Generator().manual_seed(0)) + 1
    pages = [order[i * each : (i + 1) * each].tolist() for i in range(engine.slots)]
    for slot, own in enumerate(pages):
        engine.assign(slot, own, sampling, tokens[slot].tolist())
    return pages


def poison(engine: PlanEngine) -> None:
    """Fills the cache with NaN: what is not written must not matter."""
    state = engine.models["decode"].state
    for name in state:
        if name.startswith("cache."):
            pool = torch.from_dlpack(state[name])
            pool.fill_(float("nan"))
            if pool.is_cuda:  # the plans have a stream of their own
                torch.cuda.synchronize()


def run_given(engine: PlanEngine, tokens: Tensor) -> Tensor:
    """The engine's choice after each of the last tokens, i64 [slots, steps + 1]: after the prompt, and after each step
    of decoding that is given the next token of the sequence, whatever was chosen. Leaves each sequence in front of its
    last token."""
    steps = steps_checked(tokens.shape[1])
    first = tokens.shape[1] - steps
    rows = tokens.tolist()
    made = [[engine.prefill(slot, row[:first], 0)] for slot, row in enumerate(rows)]
    for at in range(first, tokens.shape[1]):
        for slot, row in enumerate(rows):
            engine.rewind(slot, row[at], at)
        for slot, token in enumerate(engine.decode()):
            made[slot].append(int(token))
    for slot, row in enumerate(rows):
        engine.rewind(slot, row[-1], len(row) - 1)
    return torch.tensor(made)


def engine_cache(engine: PlanEngine, pages: Sequence[int], length: int) -> Iterator[Tensor]:
    """Keys and values of one sequence, layer by layer: [heads, length, size] each."""
    state = engine.models["decode"].state
    layers = sum(name.startswith("cache.") for name in state) // 2
    for layer in range(layers):
        for kind in ("keys", "values"):
            pool = torch.from_dlpack(state[f"cache.{layer}.{kind}"])
            rows = pool[torch.tensor(pages, device=pool.device)].transpose(0, 1)  # [H,T,P,D]
            yield rows.reshape(rows.shape[0], -1, rows.shape[3])[:, :length]


@dataclass
class _Sums:
    """Squares over many tensors: of what is wrong with ours, with eager's, and of the reference."""

    ours: float = 0.0
    eager: float = 0.0
    whole: float = 0.0

    def add(self, ours: Tensor, eager: Tensor, exact: Tensor) -> None:
        wide = exact.double()
        self.ours += float((ours.double() - wide).square().sum())
        self.eager += float((eager.double() - wide).square().sum())
        self.whole += float(wide.square().sum())

    def row(self, name: str, dtype: str) -> dict[str, Any]:
        """As an output of `mlirc.bench.running.check`."""
        ours, eager = ((x / max(self.whole, 1e-300)) ** 0.5 for x in (self.ours, self.eager))
        verdict = reference.judge(ours, eager, dtype)
        return {"output": name, "dtype": dtype, "error": ours, "eager_error": eager, "verdict": verdict}


@dataclass
class _Tokens:
    """How far the logits of chosen tokens are below the largest, and how far eager's logits are off, as shares of the
    largest magnitude."""

    below: float = 0.0
    eager: float = 0.0
    equal: int = 0
    count: int = 0
    rows: list[Tensor] = field(default_factory=list)

    def add(self, chosen: Tensor, eager: Tensor, exact: Tensor) -> None:
        scale = float(exact.abs().max())
        picked = exact.gather(1, chosen.to(exact.device)[:, None])[:, 0]
        self.below = max(self.below, float((exact.amax(1) - picked).max()) / scale)
        self.eager = max(self.eager, float((eager.to(exact) - exact).abs().max()) / scale)
        self.equal += int((exact.argmax(1) == chosen.to(exact.device)).sum())
        self.count += len(chosen)
        self.rows.append(exact)

    def row(self, name: str, dtype: str) -> dict[str, Any]:
        """Two logits that are each off by twice as much as eager's may change places."""
        limit = 4 * max(self.eager, reference.ROUNDING[dtype])
        verdict = "ok" if self.below <= limit else "FAIL"
        return {
            "output": f"{name} ({self.equal} of {self.count} the same)", "dtype": dtype, "error": self.below,
            "eager_error": 2 * self.eager, "verdict": verdict,
        }  # fmt: skip


@dataclass
class Checked:
    """What `check_generation` found: JSON data, and the exact logits after the last token, [slots, vocabulary]; what
    eager's are off by at most, as a share of the largest magnitude."""

    result: dict[str, Any]
    last: Tensor
    near: float

    def is_near(self, tokens: Tensor) -> bool:
        """Whether tokens [slots] could be chosen after the last ones, by logits that are as good as ours must be."""
        below = self.last.amax(1) - self.last.gather(1, tokens.to(self.last.device)[:, None])[:, 0]
        return float((below / self.last.abs().amax(1)).max()) <= 4 * self.near


def check_generation(engine: PlanEngine, module: torch.nn.Module, tokens: Tensor) -> Checked:
    """Compares caches and tokens of one run on given tokens with PyTorch's over the whole sequences: in FP64, for
    16-bit models in FP32, and in the model's own dtype. The cache holds NaNs before; a further run samples, from the
    most probable token alone; a last one should give the same tokens as the first."""
    parameter = next(module.parameters())
    dtype = _DTYPES[parameter.dtype]
    poison(engine)
    pages = assign_pages(engine, tokens)
    chosen = run_given(engine, tokens)
    length, steps = tokens.shape[1], steps_checked(tokens.shape[1])
    prompt, stepped, picks = _Sums(), _Sums(), _Tokens()
    wide = copied_module(module).to(torch.float64 if dtype in ("f32", "f64") else torch.float32)
    for slot, row in enumerate(tokens):
        eager_logits, eager = _whole(module, row, steps + 1)
        exact_logits, exact = _whole(wide, row, steps + 1)
        picks.add(chosen[slot], eager_logits, exact_logits)
        for ours, theirs, ref in zip(engine_cache(engine, pages[slot], length), eager, exact, strict=True):
            first = length - steps
            prompt.add(ours[:, :first], theirs[:, :first], ref[:, :first])
            stepped.add(ours[:, first:], theirs[:, first:], ref[:, first:])
    del wide
    assign_pages(engine, tokens, Sampling(temperature=1.0, top_k=1))
    sampled = _Tokens(eager=picks.eager)
    for one, exact_logits in zip(run_given(engine, tokens), picks.rows, strict=True):
        sampled.add(one, exact_logits, exact_logits)
    assign_pages(engine, tokens)
    again = run_given(engine, tokens)
    rows = [prompt.row("cache of the prompt", dtype), stepped.row("cache of the steps", dtype)]
    rows += [picks.row("tokens", dtype), sampled.row("sampled tokens", dtype)]
    verdicts = [str(r["verdict"]) for r in rows]
    verdict = "FAIL" if "FAIL" in verdicts else max(verdicts, key=len)
    result = {"outputs": rows, "changed": [], "repeats": torch.equal(chosen, again), "verdict": verdict}
    last = torch.stack([logits[-1] for logits in picks.rows])
    return Checked(result, last, max(picks.eager, reference.ROUNDING[dtype]))


def _whole(module: Any, row: Tensor, count: int) -> tuple[Tensor, list[Tensor]]:
    """The last logits [count, vocabulary] of a sequence that is read at once, and its keys and values by layer."""
    from transformers import DynamicCache

    wide = Float64Mode() if next(module.parameters()).dtype == torch.float64 else torch.no_grad()
    with wide, torch.no_grad():
        keep = {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(module.forward).parameters else {}
        out = module(input_ids=row[None], past_key_values=DynamicCache(), use_cache=True, **keep)
        logits = out.logits[0, -count:]
    kept = [t[0] for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
    return logits.double(), kept
