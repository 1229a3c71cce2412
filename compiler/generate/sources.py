"""From a transformers encoder-decoder (T5, Whisper) to the steps that generate with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from mlirc.errors import MlircError
from mlirc.frontend.noise import quiet
from mlirc.frontend.source import SourceModel, in_eval_mode
from mlirc.generate import export
from mlirc.generate.encoder_decoder import (
    Barred,
    Cross,
    DecodeWithSource,
    Encode,
    PrefillWithSource,
    encoder_input,
    example_source,
    shapes_of,
)
from mlirc.generate.export import Generator
from mlirc.generate.paged_cache import Pools
from mlirc.generate.settings import require_supported
from mlirc.generate.sizes import Sizes, Source
from mlirc.generate.steps import Sample, make_states

SOURCES, CONTEXT = (64, 512), 512  # where nothing else is asked for
# What is done of a generation config.
_HEEDED = (
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
    "forced_decoder_ids",
)  # fmt: skip
_COMPARED = (5, 4)  # so many tokens of a source, and of the decoder


def open_with_source(
    source: SourceModel,
    *,
    slots: int = 1,
    context: int | None = None,
    page_size: int = export.PAGE,
    pages: int | None = None,
    chunks: Sequence[int] | None = None,
    source_tokens: int | None = None,
) -> Generator:
    """The steps of an encoder-decoder. `source_tokens`: how many tokens a source has at most (512); the other options
    are those of `mlirc.generate.export.open_generator`, for the decoder. Raises MlircError as that does."""
    network: Any = source.module
    _require_encoder_decoder(network, source.name)
    kind, bins, lengths = encoder_input(network, _lengths(network, source_tokens))
    if kind == "features" and source_tokens is not None:
        raise MlircError(f"{source.name}: its source is sound, always of {lengths[-1]} frames: leave source_tokens out")
    fake = next((p.fake_mode for p in network.parameters() if isinstance(p, FakeTensor)), None)
    with quiet(), in_eval_mode(network), torch.no_grad(), fake or FakeTensorMode(allow_non_fake_inputs=True):
        try:
            own, across, vocabulary, positions = shapes_of(network, kind, bins, lengths)
        except Exception as e:
            raise export.not_supported(network, e) from e
    if not own or sorted(own) != list(range(len(own))) or sorted(across) != sorted(own):
        raise MlircError(
            f"{type(network).__name__}: keeps something else than keys and values in every layer of its decoder: its "
            "generation is not supported"
        )
    limit = getattr(network.config, "max_target_positions", None)
    limit = getattr(network.config, "max_position_embeddings", None) if limit is None else limit
    context = min(limit or CONTEXT, CONTEXT) if context is None else context
    if limit and context > limit:
        raise MlircError(f"context {context}: the model has {limit} positions: give at most that")
    sizes = export.sizes_of(network, vocabulary, slots, context, page_size, pages, (1,) if chunks is None else chunks)
    about, barred = _start(network, kind, bins, lengths)
    sizes = replace(sizes, source=about, paged=False)
    steps = _Steps(network, sizes, own, across, positions, barred)
    generator = Generator(source.name, network, source, sizes, own[0][2], {})
    _compare(generator, steps)
    for plan, step, args in steps.all():
        generator.steps[plan] = export.as_source(source, step, args)
    return generator


def _lengths(network: Any, most: int | None) -> tuple[int, ...]:
    limit = getattr(network.config, "max_position_embeddings", None)  # of T5 there is none
    if most is None:
        most = min(limit or SOURCES[-1], SOURCES[-1])
    if limit and most > limit:
        raise MlircError(f"source_tokens {most}: the model has {limit} positions: give at most that")
    if type(most) is not int or not 1 <= most <= 1 << 20:
        raise MlircError(f"source_tokens must be a whole number from 1 to {1 << 20}, not {most!r}")
    return (*(n for n in SOURCES if n < most), most)


def _require_encoder_decoder(network: Any, name: str) -> None:
    from transformers import PreTrainedModel

    takes = getattr(network, "forward", None)
    if not isinstance(network, PreTrainedModel) or network.get_output_embeddings() is None or takes is None:
        raise MlircError(
            f"{name}: generation needs an encoder-decoder of transformers with a head for tokens (one of its "
            f"...ForConditionalGeneration classes), not {type(network).__name__}"
        )


def _start(network: Any, kind: str, bins: int, lengths: tuple[int, ...]) -> tuple[Source, Barred]:
    """What the decoder begins with, by the model's generation config, and what it never makes."""
    config = network.generation_config

    def ids(name: str) -> tuple[int, ...]:
        found = getattr(config, name, None)
        return tuple(int(t) for t in found) if found else ()

    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(network.config, "decoder_start_token_id", None) if start is None else start
    if not isinstance(start, int):
        raise MlircError(f"{type(network).__name__}: its config says no decoder_start_token_id: add it to config.json")
    require_supported(network, _HEEDED)
    first: list[int | None] = [start]
    forced = getattr(config, "forced_decoder_ids", None) or getattr(network.config, "forced_decoder_ids", None) or ()
    for place, token in forced:
        if place != len(first) or not (token is None or isinstance(token, int)):
            raise MlircError(f"{type(network).__name__}: its forced_decoder_ids are not in order: {forced}")
        first.append(token)
    bos = getattr(config, "forced_bos_token_id", None)
    if bos is not None and len(first) == 1:
        first.append(bos)
    languages = _named(config, "lang_to_id") if kind == "features" else ()
    if languages and len(first) == 1:
        first.append(None)
    if not languages and None in first:
        raise MlircError(
            f"{type(network).__name__}: its forced_decoder_ids leave a token open, and it has no lang_to_id"
        )
    source = Source(
        kind, lengths, bins, tuple(first), languages, _named(config, "task_to_id"),
        getattr(config, "no_timestamps_token_id", None), min(_listed(config, "forced_eos_token_id"), default=None),
    )  # fmt: skip
    always = ids("suppress_tokens") + _bad_tokens(network)
    return source, Barred(always, ids("begin_suppress_tokens"), tuple(t for _, t in languages))


def _listed(config: Any, name: str) -> list[int]:
    found = getattr(config, name, None)
    return [] if found is None else list(found) if isinstance(found, list | tuple) else [found]


def _bad_tokens(network: Any) -> tuple[int, ...]:
    """Words that the model never makes, of one token each; as transformers has it, tokens that end a text are none."""
    config = network.generation_config
    words = getattr(config, "bad_words_ids", None) or []
    if any(len(word) != 1 for word in words):
        raise MlircError(
            f"{type(network).__name__}: its generation_config.json asks for bad_words_ids of several tokens, which is "
            "not supported: remove those for a generation without it"
        )
    return tuple(sorted({word[0] for word in words} - set(_listed(config, "eos_token_id"))))


def _named(config: Any, name: str) -> tuple[tuple[str, int], ...]:
    found = getattr(config, name, None)
    return tuple((str(k), int(v)) for k, v in found.items()) if found else ()


class _Steps:
    """The steps of one model, which share their states."""

    def __init__(self, network: Any, sizes: Sizes, own: dict, across: dict, positions: int, barred: Barred):
        self.sizes = sizes
        self.states = {
            **make_states(sizes),
            "encoded": torch.zeros(sizes.slots, dtype=torch.int64),
            "begin": torch.zeros(sizes.slots, dtype=torch.int64),
        }
        shapes = [own[i] for i in range(len(own))]
        self.pools = [
            Pools((sizes.pages, k[0], sizes.page_size, k[1]), (sizes.pages, v[0], sizes.page_size, v[1]), t)
            for k, v, t in shapes
        ]
        self.cross = [Cross(sizes.slots, positions, *across[i]) for i in range(len(across))]
        self._network, self._barred = network, barred

    def of(self, network: Any, kind: Any, barred: bool = True) -> Any:
        """A step of `network`, which may be another one of the same sizes."""
        return kind(network, self.pools, self.states, self.sizes, self.cross, self._barred if barred else Barred())

    def all(self) -> list[tuple[str, Any, tuple]]:
        """Plan names, steps and example inputs."""
        source, number = self.sizes.source, torch.zeros((), dtype=torch.int64)
        assert source is not None
        made: list[tuple[str, Any, tuple]] = [
            ("decode", self.of(self._network, DecodeWithSource), ()),
            ("sample", Sample(self.states, self.sizes), ()),
        ]
        for n in source.lengths:
            args: tuple = (example_source(source.kind, source.bins, n), number.clone(), number + 1)
            made.append((f"encode-{n}", self.of(self._network, Encode), args))
        for n in self.sizes.chunks:
            args = (torch.zeros(1, n, dtype=torch.int64), number.clone(), number.clone(), number + 1)
            made.append((f"prefill-{n}", self.of(self._network, PrefillWithSource), args))
        return made


def _compare(generator: Generator, steps: _Steps) -> None:
    """Raises MlircError unless the steps, as PyTorch runs them, give the model's own logits for a few tokens."""
    network = export.comparable(generator)
    if network is None:
        return
    sizes, about = generator.sizes, generator.sizes.source
    assert about is not None
    g = torch.Generator().manual_seed(0)
    count, wanted = min(_COMPARED[0], about.lengths[0]), min(_COMPARED[1], sizes.context)
    source = example_source(about.kind, about.bins, about.lengths[0])
    given: dict[str, Any] = {}
    if about.kind == "tokens":
        source[0, :count] = torch.randint(sizes.vocabulary, (count,), generator=g)
        given["input_ids"] = source[:, :count]
    else:
        source = torch.randn(source.shape, generator=g)
        given["input_features"] = source.to(network.dtype)
    tokens = torch.randint(sizes.vocabulary, (1, wanted), generator=g)
    number, slot = torch.tensor, torch.tensor(0)
    encode, decode, prefill = (steps.of(network, kind, False) for kind in (Encode, DecodeWithSource, PrefillWithSource))
    kept = {name: tensor.clone() for name, tensor in decode.states().items()}
    with quiet(), in_eval_mode(network), torch.no_grad(), export.tried(network):
        whole = network(**given, decoder_input_ids=tokens, use_cache=False).logits[0].float()
        export.keep(encode, encode.kept(source, slot, number(count)))
        steps.states["table"][0] = torch.arange(1, sizes.pages_each + 1)
        logits, written = prefill.logits(tokens[:, :1], prefill.place(1, slot, number(0)))
        found = [logits[0, :1]]
        steps.states["active"][0] = True
        for at in range(1, wanted):
            export.keep(decode, written)
            steps.states["position"][0] = at
            token = torch.zeros(sizes.slots, 1, dtype=torch.int64)
            token[0] = tokens[0, at]
            logits, written = decode.logits(token, decode.place())
            found.append(logits[0])
    for name, tensor in kept.items():
        decode.get_buffer(name).copy_(tensor)
    export.require_near(generator, torch.cat(found), whole)
