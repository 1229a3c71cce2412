"""What a model's generation config asks for beyond the most probable token: what changes every text is heeded or
refused, and what a caller may choose is said; nothing is left out in silence."""

from __future__ import annotations

from typing import Any

from mlirc.errors import MlircError

# What transformers' `generate` does to logits, with what asks for nothing.
_CHANGES: dict[str, tuple[Any, ...]] = {
    "min_length": (0,), "min_new_tokens": (0,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,), "guidance_scale": (1,), "sequence_bias": ({}, []), "bad_words_ids": ([],),
    "exponential_decay_length_penalty": (), "watermarking_config": (), "token_healing": (False,),
    "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "forced_bos_token_id": (), "forced_eos_token_id": (),
    "forced_decoder_ids": ([],),
}  # fmt: skip
_OURS = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}  # options of sampling, and what limits nothing
_OTHERS = {"typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "top_h": 1}  # which are no options here


def require_supported(network: Any, heeded: tuple[str, ...] = ()) -> None:
    """Raises MlircError where the model's generation config changes what is generated in a way that is neither
    `heeded` nor for a caller to choose."""
    config = getattr(network, "generation_config", None)
    for name, nothing in _CHANGES.items():
        value = getattr(config, name, None)
        if name not in heeded and value is not None and value not in nothing:
            raise MlircError(
                f"{type(network).__name__}: its generation_config.json asks for {name}, which is not supported: remove "
                "that for a generation without it"
            )


def class_to_name(config: Any) -> str:
    """What to add to a config.json that names no class, of which there is one that generates."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    named = getattr(config, "architectures", None)
    return "" if named or known is None else f': config.json names no class: add "architectures": ["{known}"]'


def stop_strings_of(network: Any) -> tuple[str, ...]:
    """The texts in front of which a generation ends by the model's generation config."""
    stops = getattr(getattr(network, "generation_config", None), "stop_strings", None) or ()
    return (stops,) if isinstance(stops, str) else tuple(stops)


def notes_of(network: Any) -> list[str]:
    """What the model's generation config asks for that is done only where a caller asks for it, a line."""
    config = getattr(network, "generation_config", None)
    asked = {}
    if getattr(config, "do_sample", None):
        asked = {n: getattr(config, n, None) for n in (*_OURS, *_OTHERS)}
        asked["temperature"] = 1.0 if asked["temperature"] is None else asked["temperature"]
    asked["repetition_penalty"] = getattr(config, "repetition_penalty", None)
    neutral = {**_OURS, **_OTHERS, "temperature": None, "repetition_penalty": 1}
    asked = {n: v for n, v in asked.items() if isinstance(v, int | float) and v != neutral[n]}
    ours = " ".join(f"--{n.replace('_', '-')} {v:g}" for n, v in asked.items() if n not in _OTHERS)
    lacking = [n for n in asked if n in _OTHERS]
    if (getattr(config, "num_beams", None) or 1) != 1:
        lacking.append(f"num_beams {config.num_beams}")  # type: ignore[union-attr]
    said = [f"with {ours} where that is asked for"] if ours else []
    said += [f"{', '.join(lacking)} not supported"] if lacking else []
    where = "the model's generation_config.json chooses tokens in another way than the most probable one"
    return [f"{where}: {'; '.join(said)}"] if said else []
