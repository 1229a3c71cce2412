"""From a transformers model with recurrent layers (Mamba, Mamba-2, alone or beside attention) to its steps."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from transformers.cache_utils import DynamicCache, LinearAttentionCacheLayerMixin

from mlirc.errors import MlircError
from mlirc.frontend.experts import experts_by, routed_experts
from mlirc.frontend.noise import quiet
from mlirc.frontend.source import SourceModel, in_eval_mode
from mlirc.generate import export
from mlirc.generate.export import Generator
from mlirc.generate.frequencies import fixed_frequencies
from mlirc.generate.no_cache import DummyLayer
from mlirc.generate.paged_cache import Pools
from mlirc.generate.recurrent import DecodeWithRows, PrefillWithRows, Rows, known_modules
from mlirc.generate.settings import require_supported
from mlirc.generate.sizes import Sizes
from mlirc.generate.steps import Sample, make_states

CHUNKS = (1, 16, 256)  # scores of a chunk are as many as its tokens squared, for each head
_COMPARED = 8


def is_recurrent(network: Any) -> bool:
    """Whether the model has recurrent layers that are known here."""
    return isinstance(network, torch.nn.Module) and bool(known_modules(network))


def open_mixed(
    source: SourceModel,
    *,
    slots: int = 1,
    context: int | None = None,
    page_size: int = export.PAGE,
    pages: int | None = None,
    chunks: Sequence[int] | None = None,
) -> Generator:
    """The steps of a causal language model with recurrent layers; as `mlirc.generate.export.open_generator`."""
    network: Any = source.module
    require_supported(network)
    with quiet(), in_eval_mode(network), torch.no_grad(), fixed_frequencies(network):
        layers, vocabulary, dtype = _what_it_keeps(network)
    most = export.CONTEXT if context is None else context
    chunks = [c for c in CHUNKS if not isinstance(most, int) or c <= most] if chunks is None else chunks
    sizes = replace(export.sizes_of(network, vocabulary, slots, context, page_size, pages, chunks), paged=False)
    steps = _Steps(network, sizes, layers, dtype)
    generator = Generator(source.name, network, source, sizes, dtype, {})
    with export.with_fixed_frequencies(generator):
        _compare(generator, steps)
    for plan, step, args in steps.all():
        generator.steps[plan] = export.as_source(source, step, args)
    return generator


def _what_it_keeps(network: Any) -> tuple[list[tuple[str, tuple, tuple]], int, torch.dtype]:
    """For each layer `pages` or `rows` with two shapes (of keys and values, or inputs and state), or `nothing`; the
    number of logits, and the dtype of what is kept, from one token."""
    fake = next((p.fake_mode for p in network.parameters() if isinstance(p, FakeTensor)), None)
    name = type(network).__name__
    try:
        with fake or FakeTensorMode(allow_non_fake_inputs=True), routed_experts(network):
            cache = DynamicCache(config=network.config)
            known = {"past_key_values": cache, "cache_params": cache}
            takes = inspect.signature(network.forward).parameters
            given = {k: v for k, v in known.items() if k in takes}
            logits = network(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True, **given).logits
    except Exception as e:
        raise export.not_supported(network, e) from e
    found: list[tuple[str, tuple, tuple]] = []
    dtypes = set()
    for layer in cache.layers:
        if _keeps_nothing(layer):
            found.append(("nothing", (), ()))
            continue
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        recurrent = isinstance(layer, LinearAttentionCacheLayerMixin)
        if recurrent and keys is None and len(layer.conv_states) == 1 == len(layer.recurrent_states):
            inputs, state = layer.conv_states[0], layer.recurrent_states[0]
            if inputs is not None and state is not None:
                found.append(("rows", tuple(inputs.shape[1:]), tuple(state.shape[1:])))
                dtypes.add(inputs.dtype)
                continue
        if recurrent or keys is None or values is None or keys.dim() != 4 or values.dim() != 4:
            raise MlircError(f"{name}: a layer keeps something else than keys and values, or the states of one "
                             "recurrence: its generation is not supported")  # fmt: skip
        found.append(("pages", (keys.shape[1], keys.shape[3]), (values.shape[1], values.shape[3])))
        dtypes.add(keys.dtype)
    if len(dtypes) != 1:
        raise MlircError(f"{name}: its layers keep what is of several dtypes: its generation is not supported")
    return found, int(logits.shape[-1]), dtypes.pop()


def _keeps_nothing(layer: Any) -> bool:
    """Whether a step left nothing in a layer: transformers 5.17 has recurrent ones for experts, too."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return isinstance(layer, DummyLayer)
    kept = [getattr(layer, "keys", None), *layer.conv_states.values(), *layer.recurrent_states.values()]
    return all(tensor is None for tensor in kept)


class _Steps:
    """The steps of one model, which share their states."""

    def __init__(self, network: Any, sizes: Sizes, layers: list[tuple[str, tuple, tuple]], dtype: torch.dtype):
        self.sizes, self._network = sizes, network
        self.states = make_states(sizes)
        self._pools: list[Pools] = []
        self._rows: list[Rows] = []
        self._order: list[tuple[str, int]] = []
        for kind, a, b in layers:
            if kind == "pages":
                self._order.append((kind, len(self._pools)))
                keys, values = ((sizes.pages, heads, sizes.page_size, width) for heads, width in (a, b))
                self._pools.append(Pools(keys, values, dtype))
            elif kind == "nothing":
                self._order.append((kind, 0))
            else:
                self._order.append((kind, len(self._rows)))
                self._rows.append(Rows(sizes.slots, a, b, dtype))

    def of(self, network: Any, kind: Any) -> Any:
        """A step of `network`, which may be another one of the same sizes."""
        return kind(network, self._pools, self._rows, self._order, self.states, self.sizes)

    def all(self) -> list[tuple[str, Any, tuple]]:
        """Plan names, steps and example inputs."""
        number = torch.zeros((), dtype=torch.int64)
        made: list[tuple[str, Any, tuple]] = [
            ("decode", self.of(self._network, DecodeWithRows), ()),
            ("sample", Sample(self.states, self.sizes), ()),
        ]
        for n in self.sizes.chunks:
            args = (torch.zeros(1, n, dtype=torch.int64), number.clone(), number.clone(), number + 1)
            made.append((f"prefill-{n}", self.of(self._network, PrefillWithRows), args))
        return made


def _compare(generator: Generator, steps: _Steps) -> None:
    """Raises MlircError unless the steps, as PyTorch runs them, give the model's own logits for a few tokens, of which
    two padded chunks are read, and the others decoded."""
    network = export.comparable(generator)
    if network is None:
        return
    sizes, number = generator.sizes, torch.tensor
    count = min(_COMPARED, sizes.context)
    chunk = next((c for c in sizes.chunks if c > 2), 1)
    tokens = torch.randint(sizes.vocabulary, (1, count), generator=torch.Generator().manual_seed(0))
    decode, prefill = steps.of(network, DecodeWithRows), steps.of(network, PrefillWithRows)
    kept = {name: tensor.clone() for name, tensor in decode.states().items()}
    with quiet(), in_eval_mode(network), torch.no_grad(), experts_by(network, "eager"), export.tried(network):
        wanted = network(input_ids=tokens, use_cache=False).logits[0].float()
        steps.states["table"][0] = torch.arange(1, sizes.pages_each + 1)
        found, at = [], 0
        part = min(chunk - 1 if chunk > 1 else 1, 2)
        while at < count and at < 2 * part and at + chunk <= sizes.pages_each * sizes.page_size:
            real = min(part, count - at)
            padded = torch.nn.functional.pad(tokens[:, at : at + real], (0, chunk - real))
            logits, written = prefill.logits(padded, prefill.place(chunk, number(0), number(at), number(real)))
            export.keep(prefill, written)
            found.append(logits[0, :real])
            at += real
        steps.states["active"][0] = True
        for place in range(at, count):
            steps.states["position"][0] = place
            token = torch.zeros(sizes.slots, 1, dtype=torch.int64)
            token[0] = tokens[0, place]
            logits, written = decode.logits(token, decode.place())
            export.keep(decode, written)
            found.append(logits[0])
    for name, tensor in kept.items():
        decode.get_buffer(name).copy_(tensor)
    export.require_near(generator, torch.cat(found), wanted)
