"""The steps of a model of any family that generates: causal, with recurrent layers or without; encoder-decoders."""

from __future__ import annotations

from typing import Any

from mlirc.errors import MlircError
from mlirc.generate import export
from mlirc.generate.export import Generator
from mlirc.generate.mixed import is_recurrent, open_mixed


def open_generator(
    model: Any,
    *,
    dtype: str | None = None,
    random_weights: int | None = None,
    quantize: str | None = None,
    source_tokens: int | None = None,
    cache_dtype: str | None = None,
    **sizes: Any,
) -> Generator:
    """As `mlirc.generate.export.open_generator`, which is for causal language models, for any model that generates.

    `source_tokens`: how many tokens the source of an encoder-decoder has at most (512); other models have none.
    `cache_dtype`: `fp8` for a cache of 8-bit floats, of causal language models.
    """
    stored = export.stored_as(cache_dtype)
    opened = export.opened(model, dtype, random_weights, quantize)
    network: Any = opened.module
    encodes = getattr(getattr(network, "config", None), "is_encoder_decoder", False) is True
    if stored is not None and (encodes or is_recurrent(network)):
        what = "it is for causal language models whose whole cache is keys and values in pages: leave it out"
        raise MlircError(f"{opened.name}: cache_dtype {cache_dtype}: {what}")
    if encodes:
        from mlirc.generate.sources import open_with_source

        return open_with_source(opened, source_tokens=source_tokens, **sizes)
    if source_tokens is not None:
        raise MlircError(f"{opened.name}: has no encoder: leave source_tokens out")
    if is_recurrent(network):
        return open_mixed(opened, **sizes)
    return export.open_generator(opened, cache_dtype=cache_dtype, **sizes)
