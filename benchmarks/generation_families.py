"""Are generated tokens right for every architecture that has to be? Real sizes of heads, two layers each, on the GPU.

    sh benchmarks/run.sh benchmarks/generation_families.py -j 8 -o families.json    # MLIR's bindings on PYTHONPATH
    python benchmarks/generation_families.py --device cpu --only llama2 --prompts 1,7 --tokens 8 --steps 2

f32, TF32 off: prompts of 1, 7, 33 and 300 tokens (of an encoder-decoder these are its sources, of Whisper tenths of a
second) are read one after the other, then three others together, the longest of which begins as the one before did;
64 tokens are added to each. Each must be the most probable one by transformers' logits for the text in front of it, or
as near to that as numbers go (NEAR; such places are counted), and `generate` must give the same up to the first such
place. Then, and in bf16: of one sequence so many tokens are read again, and 40 steps of decoding are given those that
follow, whatever they choose. The logits behind the prompts and of all steps are compared with transformers' in FP32
with the same weights: their relative error (Frobenius) may be the gate of the dtype, or twice eager's. Tokens of that
sequence are such that rounding sends none to another expert.

Weights are random, so that attention and layers matter, and few models say one token again and again (`different` of
the tokens are). A model has a process of its own: a crash or a hang is its own outcome."""

from __future__ import annotations

import argparse
import copy
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
import transformers
from schedules_tried import save
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mlirc.bench.children import end_with_parent
from mlirc.bench.reference import exact_math
from mlirc.bench.report import commit
from mlirc.check.gates import GATES
from mlirc.errors import MlircError
from mlirc.frontend.experts import experts_by
from mlirc.generate.engine import Sampling
from mlirc.generate.llm import LLM

NEAR = 1e-4  # logits that are nearer to each other, as a share of their standard deviation, may come in another order
CANDIDATES = 32  # for each token that experts are chosen for
TIED, LONG = {"tie_word_embeddings": True}, {"max_position_embeddings": 131072}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
GEMMA = {"head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 128, "tie_word_embeddings": False,
         "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
T5 = {"d_model": 512, "d_kv": 64, "num_layers": 2, "decoder_start_token_id": 0, "pad_token_id": 0}
WHISPER = {"d_model": 512, "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048,
           "encoder_layers": 2, "decoder_layers": 2, "decoder_ffn_dim": 2048, "pad_token_id": 0, "eos_token_id": 2,
           "decoder_start_token_id": 1, "begin_suppress_tokens": None}  # fmt: skip
# The class (ForCausalLM, where no more is said), its hidden and intermediate size, heads, heads of keys, vocabulary,
# and what else its configuration has. Heads have 64, 80 (stablelm), 96 (phi3, gpt-neox), 128 or 256 (gemma) numbers.
MODELS: dict[str, tuple[str, int, int, int, int, int, dict[str, Any]]] = {
    "llama2": ("Llama", 1024, 2752, 8, 8, 2000, {}),
    "llama3": ("Llama", 1024, 3584, 8, 2, 4008, {**LONG, "rope_parameters": LLAMA3}),
    "llama3.2": ("Llama", 2048, 2048, 32, 8, 4008, {**LONG, "rope_parameters": {**LLAMA3, "factor": 32.0}, **TIED}),
    "tinyllama": ("Llama", 2048, 2816, 32, 4, 2000, {}),
    "smollm2": ("Llama", 576, 1536, 9, 3, 3072, TIED),
    "qwen2.5": ("Qwen2", 1792, 4736, 14, 2, 4752, {}),
    "qwen2.5-0.5b": ("Qwen2", 896, 4864, 14, 2, 4748, TIED),
    "qwen3": ("Qwen3", 1024, 3072, 16, 8, 4748, {"head_dim": 128, **TIED}),
    "mistral": ("Mistral", 1024, 3584, 8, 2, 2000, {"sliding_window": 128}),
    "gemma2": ("Gemma2", 1152, 4608, 4, 2, 4000,
               {**GEMMA, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3", 1152, 3456, 4, 1, 4096, GEMMA),
    "phi3": ("Phi3", 1536, 4096, 16, 16, 2004, {"sliding_window": 2047}),
    "gpt2": ("GPT2LMHeadModel", 768, 3072, 12, 12, 3141, {"n_embd": 768, "n_layer": 2, "n_head": 12}),
    "gpt-neox": ("GPTNeoX", 768, 3072, 8, 8, 3144, {}),
    "gpt-neox-64": ("GPTNeoX", 512, 2048, 8, 8, 3144, {}),
    "opt": ("OPT", 768, 3072, 12, 12, 3142, {"ffn_dim": 3072, "word_embed_proj_dim": 768}),
    "stablelm": ("StableLm", 1280, 3456, 16, 16, 3144, {}),
    "stablelm-2": ("StableLm", 1024, 2816, 16, 16, 3136, {"use_qkv_bias": True}),
    "falcon-7b": ("Falcon", 960, 3840, 15, 1, 4064, {"alibi": False, "multi_query": True}),
    "falcon-40b": ("Falcon", 1024, 4096, 16, 2, 4064,
                   {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-alibi": ("Falcon", 1024, 4096, 16, 16, 3144,
                     {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
    "bloom": ("Bloom", 1024, 4096, 16, 16, 3920, {"n_layer": 2, "n_head": 16, "tie_word_embeddings": False}),
    "olmo2": ("Olmo2", 1024, 4096, 8, 8, 3136, {}),
    "granite": ("Granite", 1024, 4096, 16, 4, 3072,
                {"attention_multiplier": 0.06, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                 "logits_scaling": 8.0}),
    "mamba2": ("Mamba2", 768, 1536, 24, 24, 3142, {"num_heads": 24, "head_dim": 64, "state_size": 128, "n_groups": 1}),
    "olmoe": ("Olmoe", 1024, 512, 8, 8, 3144, {"num_experts": 32, "num_experts_per_tok": 8}),
    "qwen2-moe": ("Qwen2Moe", 1024, 2816, 8, 8, 4748,
                  {"num_experts": 20, "num_experts_per_tok": 4, "moe_intermediate_size": 704,
                   "shared_expert_intermediate_size": 2816}),
    "qwen3-moe": ("Qwen3Moe", 1024, 3072, 16, 2, 4748,
                  {"head_dim": 128, "num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 384}),
    "mixtral": ("Mixtral", 1024, 1792, 8, 2, 2000, {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "t5": ("T5ForConditionalGeneration", 512, 2048, 8, 8, 2008, {**T5, "d_ff": 2048, "num_heads": 8}),
    "flan-t5": ("T5ForConditionalGeneration", 512, 1024, 6, 6, 2008,
                {**T5, "d_ff": 1024, "num_heads": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "whisper": ("WhisperForConditionalGeneration", 512, 2048, 8, 8, 3242, WHISPER),
}  # fmt: skip
COMPILED = {"t5": {"source_tokens": 300}, "flan-t5": {"source_tokens": 300}, "whisper": {"context": 448}}


def build(name: str, dtype: torch.dtype) -> Any:
    """A model on the CPU. Tables of tokens are small beside what layers add: a tied head would repeat the last one;
    and what an activation gives on average is of no consequence, or one token would be the most probable anywhere."""
    kind, hidden, inner, heads, kv, vocabulary, more = MODELS[name]
    model_class = getattr(transformers, kind if kind.endswith(("Generation", "Model")) else f"{kind}ForCausalLM")
    sizes = {
        "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv,
        "vocab_size": vocabulary, "num_hidden_layers": 2, "max_position_embeddings": 1024,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
    }  # fmt: skip
    torch.manual_seed(1)
    model = model_class(model_class.config_class(**{**sizes, **more})).eval().requires_grad_(False)
    for path, module in model.named_modules():
        for p in module.parameters(recurse=False):
            if p.dim() < 2:
                p.add_(torch.randn_like(p), alpha=0.1)
            elif isinstance(module, nn.Embedding):
                p.normal_(std=1.0 if "relative_attention_bias" in path else 0.05)
            else:
                rows = p.t() if isinstance(module, Conv1D) else p.flatten(1) if isinstance(module, nn.Conv1d) else p
                gain = 2.0 if p.dim() == 3 or re.search("mlp|fc|Dense", path) else 1.2
                gain /= more["d_kv"] ** 0.5 if path.endswith(".q") else 1  # T5 does not scale its scores
                rows.normal_(std=gain * rows.shape[-1] ** -0.5)
                rows.sub_(rows.mean(-1, keepdim=True))
    for p in model.parameters():  # and not the buffers, in which frequencies are
        p.data = p.data.to(dtype)
    model.config.dtype = dtype
    end = model.generation_config.eos_token_id  # which Whisper's `generate` has to have
    model.generation_config.suppress_tokens = None if end is None else [end]
    return model


class Opened:
    """A model as transformers' and as ours, on one device."""

    def __init__(self, name: str, dtype: torch.dtype, options: argparse.Namespace):
        device = int(options.device) if options.device.isdigit() else options.device
        self.model, start = build(name, dtype), time.perf_counter()
        self.llm = LLM(self.model, device=device, slots=options.slots, **{"context": 512, **COMPILED.get(name, {})})
        self.engine, self.seconds = self.llm.engine, time.perf_counter() - start
        self.model.to(device if isinstance(device, int) else "cpu")
        self.draw = torch.Generator().manual_seed(2)

    def tokens(self, count: int) -> Tensor:
        """Random ones."""
        return torch.randint(3, self.engine.vocabulary, (count,), generator=self.draw)

    def prompts(self, lengths: list[int]) -> list[Any]:
        """Token ids; of Whisper sounds, with a tone for each tenth of a second."""
        if self.engine.source is None or self.engine.source.kind == "tokens":
            return [self.tokens(n).tolist() for n in lengths]
        tones = [(200 + 3000 * torch.rand(n, generator=self.draw)).repeat_interleave(1600) for n in lengths]
        waves = [torch.sin(t * torch.arange(len(t)) * (2 * torch.pi / 16000)) for t in tones]
        return [self.llm.speech((w + 0.1 * torch.randn(len(w), generator=self.draw)).numpy() / 4) for w in waves]

    def generate(self, prompts: list[Any], count: int) -> list[tuple[Any, list[int]]]:
        """Requests with our new tokens, all at once."""
        requests = [self.llm.request(p, max_new_tokens=count, ignore_eos=True) for p in prompts]
        taken = [self.llm.scheduler.submit(r) for r in requests]
        while self.llm.scheduler.busy:
            self.llm.scheduler.step()
        return [(r, p.tokens[len(r.prompt) :]) for r, p in zip(requests, taken, strict=True)]

    def forced(self, requests: list[Any], rows: list[list[int]]) -> list[Tensor]:
        """Of no more requests than slots: our logits behind the prompt and each token of the row behind it."""
        engine, state = self.engine, self.engine.models["decode"].state
        order = torch.randperm(engine.pages - 1, generator=self.draw) + 1
        made: list[list[Tensor]] = [[] for _ in requests]
        for step in range(1 + len(rows[0])):
            for slot, r in enumerate(requests):
                if step:
                    engine.rewind(slot, rows[slot][step - 1], len(r.prompt) + step - 1)
                else:
                    engine.assign(slot, order.split(engine.sizes.pages_each)[slot].tolist(), Sampling(), r.prompt)
                    if r.source is not None:
                        engine.encode(slot, r.source, len(r.prompt))
                    engine.prefill(slot, r.prompt, 0)
                    made[slot].append(torch.from_dlpack(state["last_logits"])[slot].cpu().clone())
            if step:
                engine.decode()
                for slot in range(len(requests)):
                    made[slot].append(torch.from_dlpack(state["last_logits"])[slot].cpu().clone())
        for slot in range(len(requests)):
            engine.release(slot)
        return [torch.stack(m) for m in made]


def inputs_of(model: Any, request: Any) -> dict[str, Tensor]:
    """What transformers' model takes of a request, but for a decoder's tokens."""
    if request.source is not None and not isinstance(request.source, list):
        return {"input_features": torch.from_numpy(request.source)[None].to(model.device, model.dtype)}
    ids = torch.tensor([request.prompt if request.source is None else request.source], device=model.device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def logits_of(model: Any, request: Any, tokens: list[int]) -> Tensor:
    """transformers' logits behind the prompt and each of the tokens that follow it: f32 [1 + tokens, V]."""
    ids = torch.tensor([[*request.prompt, *tokens]], device=model.device)
    given = {"input_ids": ids} if request.source is None else {**inputs_of(model, request), "decoder_input_ids": ids}
    with experts_by(model, "eager"):
        made = model(**given, use_cache=False).logits[0, len(request.prompt) - 1 :].float()
    made[:, model.generation_config.suppress_tokens or []] = -torch.inf
    return made


def check_tokens(opened: Opened, options: argparse.Namespace) -> dict[str, Any]:
    """Ours beside transformers' logits and `generate`."""
    alone, together = (opened.prompts(lengths) for lengths in (options.prompts, options.prompts[-3:]))
    if isinstance(alone[-1], list):
        half = len(alone[-1]) // 2
        together[-1][:half] = alone[-1][:half]
    made = [pair for p in alone for pair in opened.generate([p], options.tokens)]
    made += opened.generate(together, options.tokens)
    found: dict[str, Any] = {"tokens": 0, "near": 0, "different": 0, "wrong": []}
    for i, (request, tokens) in enumerate(made):
        logits = logits_of(opened.model, request, tokens[:-1])
        with experts_by(opened.model, "eager"):
            wanted = opened.model.generate(
                **inputs_of(opened.model, request), max_new_tokens=options.tokens, do_sample=False, pad_token_id=0
            )[0, -options.tokens :].tolist()
        limit = NEAR * float(logits[logits.isfinite()].std())
        largest = logits.amax(-1) - logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0] <= limit
        near = logits.topk(2).values.diff().abs()[:, 0] <= limit
        first = int(near.int().argmax()) if near.any() else len(tokens)
        where = f"prompt {i} ({'alone' if i < len(alone) else 'beside others'})"
        if len(tokens) != options.tokens or not bool(largest.all()):
            found["wrong"].append(f"{where}: token {int((~largest).int().argmax())} is not the most probable one")
        elif tokens[:first] != wanted[:first]:
            found["wrong"].append(f"{where}: other tokens than generate's")
        found["tokens"] += len(tokens)
        found["near"] += int(near.sum())
        found["different"] += len(set(tokens))
    return found


def keep_experts(model: Any, tokens: Tensor, draw: torch.Generator) -> None:
    """Draws the tokens of a mixture of experts again: of several each is the one whose experts are clearest."""
    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    gaps: list[Tensor] = []  # of each layer, between the last expert that is chosen and the next one: [CANDIDATES]

    def look(module: Any, _: Any, out: tuple) -> None:
        top = out[0].topk(module.top_k + 1).values
        gaps.append(top[:, -2] - top[:, -1])

    hooks, cache = [m.register_forward_hook(look) for m in routers], transformers.DynamicCache()
    for at in range(len(tokens) if routers else 0):
        drawn = torch.randint(3, model.config.vocab_size, (CANDIDATES, 1), generator=draw)
        with experts_by(model, "eager"):
            model(input_ids=drawn.to(model.device), past_key_values=cache, use_cache=True)
        best = torch.stack(gaps).amin(0).argmax()
        tokens[at] = drawn[best.cpu(), 0]
        cache.reorder_cache(best.expand(CANDIDATES))
        gaps.clear()
    for hook in hooks:
        hook.remove()


def check_logits(opened: Opened, options: argparse.Namespace) -> dict[str, Any]:
    """Ours on given tokens beside transformers' in FP32; of f32 `eager` is 0."""
    wide = copy.deepcopy(opened.model).float()
    wide.config.dtype = torch.float32
    slots, steps = opened.engine.slots, options.steps
    drawn = opened.tokens(options.prompts[-1] + steps)
    keep_experts(wide, drawn, opened.draw)
    whole, encodes = drawn.tolist(), opened.engine.source is not None
    prompts = opened.prompts(options.prompts) if encodes else [whole[:n] for n in options.prompts]
    rows = [whole[:steps] if encodes else whole[n : n + steps] for n in options.prompts]
    requests = [opened.llm.request(p, max_new_tokens=steps + 1) for p in prompts]
    ours = [x for i in range(0, len(rows), slots) for x in opened.forced(requests[i : i + slots], rows[i : i + slots])]
    eager, exact = (
        torch.cat([logits_of(m, r, row) for r, row in zip(requests, rows, strict=True)]).cpu().double()
        for m in (opened.model, wide)
    )
    kept = exact.isfinite()
    error, theirs = (float((x - exact)[kept].norm() / exact[kept].norm()) for x in (torch.cat(ours).double(), eager))
    return {"error": error, "eager": theirs}


def check_model(options: argparse.Namespace) -> None:
    """What a child does: prints what it finds, a line for each dtype."""
    end_with_parent()
    for name, dtype in {"f32": torch.float32, "bf16": torch.bfloat16}.items():
        found: dict[str, Any] = {}
        try:
            with exact_math():
                opened = Opened(options.one, dtype, options)
                start, found["compile_s"] = time.perf_counter(), round(opened.seconds, 1)
                found |= check_tokens(opened, options) if name == "f32" else {"wrong": []}
                found |= check_logits(opened, options)
                found["run_s"] = round(time.perf_counter() - start, 1)
                if not found["error"] <= max(GATES[name], 2 * found["eager"]):
                    found["wrong"].append(f"logits are off by {found['error']:.1e}")
                found["verdict"] = "WRONG: " + "; ".join(found["wrong"]) if found["wrong"] else "right"
                opened.llm.close()
        except Exception as e:
            traceback.print_exc()
            said = "refused" if isinstance(e, MlircError) else type(e).__name__
            found["verdict"] = f"{said}: {' '.join(str(e).split())[:300]}"
        print("\n" + json.dumps({name: found}), flush=True)


def in_child(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of its own finds out about a model, or how it ended."""
    row: dict[str, Any] = {"name": name}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--one", name], stdout=out, stderr=err)
        try:
            ended = f"its process ended with status {process.wait(options.timeout)}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ended = f"not done in {options.timeout:g} s"
        out.seek(0), err.seek(0)
        for line in out:
            row |= json.loads(line) if line.startswith("{") else {}
        row = {"f32": {"verdict": ended}, "bf16": {"verdict": ended}} | row
        return row if is_right(row) else row | {"stderr": err.read()[-3000:]}


def is_right(row: dict[str, Any]) -> bool:
    """Whether all of a model is."""
    return all(row[dtype]["verdict"] == "right" for dtype in ("f32", "bf16"))


def line_of(row: dict[str, Any]) -> str:
    """What is printed of a model."""
    parts = [f"{row['name']:13s}"]
    for dtype in ("f32", "bf16"):
        found = row[dtype]
        parts.append(f"{dtype} {found['verdict']}")
        if "tokens" in found:
            parts.append(f"({found['tokens']} tokens, {found['different']} different, {found['near']} near-ties)")
        if "run_s" in found:
            eager = f" (eager {found['eager']:.1e})" if found["eager"] else ""
            parts.append(f"error {found['error']:.1e}{eager}, {found['compile_s']:.0f} + {found['run_s']:.0f} s;")
    return " ".join(parts)


def main() -> int:
    """The program; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = lambda text: [int(n) for n in text.split(",")]  # noqa: E731
    parser.add_argument("-j", dest="jobs", type=int, default=1, help="processes at once, which share cores and the GPU")
    parser.add_argument("-o", dest="output", metavar="OUT.json")
    parser.add_argument("--only", default="", metavar="REGEX", help="models whose names it is found in")
    parser.add_argument("--device", default="0", help="a GPU's number, cpu, or host")
    parser.add_argument("--slots", type=int, default=4, help="1: a step has other kernels")
    parser.add_argument("--prompts", type=numbers, default=[1, 7, 33, 300], help="their lengths, ascending")
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each prompt")
    parser.add_argument("--steps", type=int, default=40, help="of decoding, given their tokens")
    parser.add_argument("--timeout", type=float, default=240, help="seconds for one model")
    parser.add_argument("--commit", default=commit(), help="the source's, for what is written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        check_model(options)
        return 0
    names = [name for name in MODELS if re.search(options.only, name)]
    cores, shares = sorted(os.sched_getaffinity(0)), queue.SimpleQueue()
    for i in range(options.jobs):  # a child has the cores of the thread that starts it
        shares.put(cores[i :: options.jobs] or cores)
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs, initializer=lambda: os.sched_setaffinity(0, shares.get())) as pool:
        for done in as_completed([pool.submit(in_child, name, options) for name in names]):
            rows.append(done.result())
            print(line_of(rows[-1]), flush=True)
            if options.output:
                save(options, sorted(rows, key=lambda row: names.index(row["name"])))
    bad = [row["name"] for row in rows if not is_right(row)]
    print(f"{len(rows) - len(bad)} of {len(rows)} right{': not ' + ', '.join(bad) if bad else ''}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
