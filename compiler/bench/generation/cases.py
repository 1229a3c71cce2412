"""Models that generate as cases: configurations, sizes of the engine, weights of few bits. No torch, no MLIR."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlirc.bench.cases import Case
from mlirc.bench.models import CONFIGS
from mlirc.errors import MlircError
from mlirc.generate.sizes import VERIFY_LIMIT

BUILDER = "generation"
CONTEXT, PREFILL = 1024, 512  # tokens, where nothing else is asked for
# transformers as its users call it, launch by launch; the others are in a CUDA graph.
PEERS = ("transformers", "eager", "compile", "max-autotune")
DEFAULT_PEERS = "transformers,eager,max-autotune"
DECODE, SAMPLE = "decode", "sample"  # the plan of a step, and the one behind it where something is sampled
STEPS = 8  # of decoding that are checked, at most

_SMOLLM2: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192, "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
# As `models.CONFIGS`.
GENERATING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "smollm2-135m": ("LlamaForCausalLM", "LlamaConfig", _SMOLLM2),
    **{name: CONFIGS[name] for name in ("tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-7b")},
}


def generation_case(
    name: str,
    model: dict[str, Any],
    dtype: str,
    *,
    suite: str = "generation",
    context: int = CONTEXT,
    batch: int = 1,
    decode: bool = True,
    prefill: int | None = PREFILL,
    verify: int | None = None,
    quantize: str | None = None,
) -> Case:
    """One model: with `decode`, a step of `batch` sequences whose last token is number `context`; with `prefill`, the
    reading of a prompt of so many tokens into an empty cache; with `verify`, the judging of so many tokens at once,
    which are the last of a sequence.

    `model` says where it comes from: `model`, `config_class` and `config`, or `spec` and `open` for a folder.
    """
    most = context if prefill is None else max(context, prefill)
    if context < 2 or batch < 1 or (prefill is not None and not 1 <= prefill <= most):
        raise MlircError(f"context {context}, batch {batch}, prefill {prefill}: a context has 2 tokens or more")
    if verify is not None and (not 2 <= verify <= min(VERIFY_LIMIT, context - 1) or batch > 1):
        what = f"2 to {VERIFY_LIMIT} tokens, fewer than the context, of one sequence are judged at once"
        raise MlircError(f"verify {verify}, context {context}, batch {batch}: {what}")
    scheme = "" if quantize is None else "." + re.sub(r"[^a-z0-9]+", "-", quantize)
    parts = [f"decode{context}"] * decode
    parts += [f"{name}{n}" for name, n in (("verify", verify), ("prefill", prefill)) if n is not None]
    options = {
        **model, "context": context, "slots": batch, "decode": decode, "prefill": prefill, "quantize": quantize,
    }  # fmt: skip
    if verify is not None:
        options["verify"] = verify
    return Case(f"{name}.{dtype}{scheme}.b{batch}.{'.'.join(parts)}", suite, BUILDER, options, {}, dtype)


def generation() -> Iterator[Case]:
    """The models whose speed is claimed: a step at 1,024 tokens for one sequence and for 16, a prompt of 512."""
    variants: list[tuple[str, str, str | None]] = [(name, "bf16", None) for name in GENERATING]
    variants += [("qwen2.5-7b", "bf16", "int4:group=128"), ("qwen2.5-7b", "bf16", "int8")]
    variants += [(name, "f32", None) for name in GENERATING if name != "qwen2.5-7b"]
    for name, dtype, scheme in variants:
        model_class, config_class, config = GENERATING[name]
        model = {"model": model_class, "config_class": config_class, "config": config}
        for batch in (1, 16):
            prefill = PREFILL if batch == 1 else None
            yield generation_case(name, model, dtype, batch=batch, prefill=prefill, quantize=scheme)


def folder_case(folder: str, dtype: str | None, random_weights: int | None, **sizes: Any) -> Case:
    """A Hugging Face folder, named as for `mlirc`. Raises MlircError for what is no folder of a model."""
    if not (Path(folder) / "config.json").is_file():
        raise MlircError(f"{folder}: --decode and --prefill are for the folder of a Hugging Face model (config.json)")
    opened = {"spec": folder, "open": {"dtype": dtype, "random_weights": random_weights}}
    return generation_case(Path(folder).resolve().name, opened, dtype or "own", suite="file", **sizes)


def capacity(case: Case) -> int:
    """The tokens of a sequence that is as long as the engine has room for."""
    return max(case.options["context"], case.options["prefill"] or 0)


def chunk(case: Case) -> int:
    """How many tokens of a prompt are read at once."""
    return case.options["prefill"] or min(PREFILL, case.options["context"])


def chunks(case: Case) -> list[int]:
    """How many tokens the plans that read a prompt, or judge tokens, take."""
    return sorted({1, chunk(case), case.options.get("verify") or 1})
