"""From a transformers causal language model to the steps that generate with it, ready to be compiled."""

from __future__ import annotations

import contextlib
import inspect
from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode

from mlirc.errors import MlircError
from mlirc.frontend.decomposer import is_plain
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.experts import experts_by, routed_experts
from mlirc.frontend.importer import export
from mlirc.frontend.in_place import without_idle_ops, without_writes
from mlirc.frontend.join_linears import joined_linears
from mlirc.frontend.noise import quiet
from mlirc.frontend.open import open_model, packed_as
from mlirc.frontend.results import spec_names
from mlirc.frontend.source import SourceModel, from_torch, in_eval_mode
from mlirc.frontend.state import with_returned_states
from mlirc.frontend.weights import Renamed
from mlirc.generate.frequencies import fixed_frequencies
from mlirc.generate.like_layers import few_layers, like_layers_run_once
from mlirc.generate.paged_cache import FP8, Pools, ShapesOfCache
from mlirc.generate.settings import class_to_name, notes_of, require_supported
from mlirc.generate.sizes import Sizes
from mlirc.generate.steps import Decode, Prefill, Run, Sample, Step, make_states
from mlirc.ir.layer_names import Layers

CONTEXT, PAGE, CHUNKS = 2048, 64, (1, 8, 64, 512)  # where nothing else is asked for
NETWORK = "network."  # what the names of the model's own tensors begin with in a step
_LIMIT = 1 << 20  # of every size
# Steps are compared with the model itself for so many tokens; made-up weights of up to so many bytes; relative errors.
_COMPARED, _SMALL, _NEAR, _NEAR_16_BIT = 7, 1 << 30, 1e-3, 0.1


@dataclass
class Generator:
    """A model, what it keeps by layer (heads and size of keys, and of values), and the sizes of its engine. `steps` are
    by the plans' names."""

    name: str
    network: Any
    source: SourceModel
    sizes: Sizes
    dtype: torch.dtype
    steps: dict[str, SourceModel]
    compared: bool = True  # whether the steps were found to be right
    few: Layers | None = None  # which layers stand for all while a step is imported, where some do

    @property
    def states(self) -> set[str]:
        """The names of what the plans keep: the cache, and what is known of each slot."""
        module: Any = self.steps["decode"].module
        return set(module.states())

    @property
    def notes(self) -> list[str]:
        """What is slower than it could be, or left to the caller, a line each. Known once the steps are exported."""
        step: Any = self.steps["decode"].module
        rest, notes = len(step.cache) - step.found.fused, []
        if rest:
            what = "the keys and values of all pages are gathered in every step"
            notes.append(f"attention of {rest} of {len(step.cache)} layers is the model's own: {what}")
        if not self.compared:
            notes.append(
                "made-up weights of this size are not tried out: what is compiled was not compared with the model"
            )
        return [*notes, *self.source.notes, *notes_of(self.network)]


def open_generator(
    model: Any,
    *,
    slots: int = 1,
    context: int | None = None,
    page_size: int = PAGE,
    pages: int | None = None,
    chunks: Sequence[int] | None = None,
    dtype: str | None = None,
    random_weights: int | None = None,
    quantize: str | None = None,
    cache_dtype: str | None = None,
) -> Generator:
    """The steps of a live transformers model, of one that was opened (a `SourceModel`), or of a Hugging Face folder,
    for which `dtype` and `random_weights` are.

    `quantize` is a scheme for the weights (`int4:group=128`; `mlirc.frontend.quantize`). `pages` defaults to enough for
    all slots at their longest, and one. `cache_dtype`: `fp8` for a cache of 8-bit floats; else it is the model's.
    Raises MlircError for what is no causal language model, sizes that do not fit, and a model whose cache cannot be put
    into pages.
    """
    source = opened(model, dtype, random_weights, quantize)
    network: Any = source.module
    _require_causal(network, source.name)
    require_supported(network)
    with quiet(), in_eval_mode(network), torch.no_grad(), fixed_frequencies(network):
        shapes, vocabulary = _what_it_keeps(network)
    sizes = sizes_of(network, vocabulary, slots, context, page_size, pages, chunks)
    kinds = {found[2] for found in shapes.values()}
    stored = stored_as(cache_dtype)

    def make_pools(stored: torch.dtype | None) -> list[Pools]:
        return [
            Pools((sizes.pages, k[0], page_size, k[1]), (sizes.pages, v[0], page_size, v[1]), stored or own)
            for k, v, own in (shapes[i] for i in range(len(shapes)))
        ]

    pools = make_pools(None)  # which steps are compared with: how far 8 bits are from those is no error of the steps
    states = make_states(sizes)
    own_dtype = kinds.pop()
    generator = Generator(source.name, network, source, sizes, own_dtype, {})
    with fixed_frequencies(network, sizes.context):  # which refuses those that depend on the length
        _compare(generator, pools, states)
    if stored is not None:
        if own_dtype == torch.float64:
            raise MlircError("a cache of 8-bit floats is for models of f16, bf16 or f32: give --dtype bf16")
        pools = make_pools(stored)
    generator.few = few_layers(network, len(pools), NETWORK)
    generator.steps["decode"] = as_source(source, Decode(network, pools, states, sizes), ())
    generator.steps["sample"] = as_source(source, Sample(states, sizes), ())
    for chunk in sizes.chunks:
        number = torch.zeros((), dtype=torch.int64)
        args = (torch.zeros(1, chunk, dtype=torch.int64), number, number.clone(), number + 1)
        generator.steps[f"prefill-{chunk}"] = as_source(source, Prefill(network, pools, states, sizes), args)
    return generator


def stored_as(cache_dtype: str | None) -> torch.dtype | None:
    """What a cache is of; None for the model's own dtype. Raises MlircError for a name that is none."""
    if cache_dtype in (None, "auto"):
        return None
    if cache_dtype != "fp8":
        raise MlircError(f"cache_dtype {str(cache_dtype)[:40]!r}: give fp8, or auto for the model's own dtype")
    return FP8


def opened(model: Any, dtype: str | None, random_weights: int | None, quantize: str | None) -> SourceModel:
    """The model of a module or a Hugging Face folder; one that was opened is as it is, but for its weights."""
    if isinstance(model, torch.nn.Module):
        if dtype is not None or random_weights is not None:
            raise MlircError(
                "a module in this process has its dtype and its weights: leave dtype and random_weights out"
            )
        source = from_torch(model, name=type(model).__name__)
        return source if quantize is None else packed_as(source, quantize)
    if isinstance(model, SourceModel):
        return model if quantize is None else packed_as(model, quantize)
    if not Path(model).is_dir():
        raise MlircError(f"{model}: generation needs a folder of a Hugging Face model, with config.json")
    return open_model(str(model), dtype=dtype, random_weights=random_weights, quantize=quantize)


def _require_causal(network: Any, name: str) -> None:
    from transformers import PreTrainedModel

    if not isinstance(network, PreTrainedModel):
        raise MlircError(
            f"{name}: generation needs a causal language model of transformers, not {type(network).__name__}"
        )
    config = network.config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise MlircError(
            f"{name}: {type(network).__name__}: attention in chunks ('chunked_attention', of Llama 4): generation is "
            "not supported for it"
        )
    takes = inspect.signature(network.forward).parameters
    if network.config.is_encoder_decoder or network.get_output_embeddings() is None or "input_ids" not in takes:
        raise MlircError(
            f"{name}: generation needs a causal language model (one of transformers' ...ForCausalLM classes), not "
            f"{type(network).__name__}{class_to_name(network.config)}"
        )
    if "past_key_values" not in takes:
        raise MlircError(f"{name}: {type(network).__name__} takes no past_key_values: its generation is not supported")


def _what_it_keeps(network: Any) -> tuple[dict[int, Any], int]:
    """Shapes of the cache by layer, and the number of logits, from one token."""
    cache = ShapesOfCache()
    fake = next((p.fake_mode for p in network.parameters() if isinstance(p, FakeTensor)), None)
    try:
        count = getattr(network.config.get_text_config(decoder=True), "num_hidden_layers", 0)
        with (
            fake or FakeTensorMode(allow_non_fake_inputs=True),
            routed_experts(network),
            like_layers_run_once(network, count, cache.found),
        ):
            tokens = torch.zeros(1, 1, dtype=torch.int64)
            logits = network(input_ids=tokens, past_key_values=cache, use_cache=True).logits
    except MlircError:
        raise
    except Exception as e:
        raise not_supported(network, e) from e
    if not cache.found or sorted(cache.found) != list(range(len(cache.found))):
        raise MlircError(
            f"{type(network).__name__}: keeps something else than keys and values in every layer: its generation is "
            "not supported"
        )
    return cache.found, int(logits.shape[-1])


def sizes_of(
    network: Any,
    vocabulary: int,
    slots: int,
    context: int | None,
    page_size: int,
    pages: int | None,
    chunks: Sequence[int] | None,
) -> Sizes:
    """The sizes that are asked for, with what they are by default. Raises MlircError for those that do not fit."""
    config = network.config.get_text_config(decoder=True)
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    limit = limit if isinstance(limit, int) and limit > 0 else None
    if context is None:
        context = min(limit or CONTEXT, CONTEXT)
    if limit and context > limit:
        raise MlircError(f"context {context}: the model has {limit} positions: give at most that")
    if chunks is None:
        chunks = [c for c in CHUNKS if c <= context]
    given = {"slots": slots, "context": context, "page_size": page_size, **{f"chunk {c}": c for c in chunks}}
    for name, n in given.items():
        if type(n) is not int or not 1 <= n <= _LIMIT:
            raise MlircError(f"{name} must be a whole number from 1 to {_LIMIT}, not {n!r}")
    if sorted(set(chunks)) != list(chunks) or chunks[0] != 1 or chunks[-1] > context:
        raise MlircError(
            f"chunks {tuple(chunks)}: give ascending numbers from 1 to the context ({context}), the first 1"
        )
    each = -(-context // page_size)
    pages = slots * each + 1 if pages is None else pages
    if type(pages) is not int or not each + 1 <= pages <= _LIMIT:
        raise MlircError(f"pages {pages}: give at least {each + 1}: one for idle slots, and {each} for a whole context")
    return Sizes(slots, context, page_size, pages, tuple(chunks), vocabulary)


def _compare(generator: Generator, pools: list[Pools], states: dict[str, torch.Tensor]) -> None:
    """Raises MlircError unless the steps, as PyTorch runs them, give the logits of the model itself for a few tokens. A
    model whose weights are made on demand is not compared where it is large."""
    sizes, network = generator.sizes, comparable(generator)
    if network is None:
        return
    count = min(_COMPARED, sizes.context)
    tokens = torch.randint(
        min(sizes.vocabulary, network.get_input_embeddings().num_embeddings),
        (1, count),
        generator=torch.Generator().manual_seed(0),
    )
    read = max(1, count - 2)
    chunk = next((c for c in sizes.chunks if c >= read), None)
    read, chunk = (read, chunk) if chunk is not None and chunk <= 8 * _COMPARED else (1, 1)
    kept = {name: tensor.clone() for name, tensor in states.items()}
    prefill, decode = Prefill(network, pools, states, sizes), Decode(network, pools, states, sizes)
    number = torch.tensor
    with quiet(), in_eval_mode(network), torch.no_grad(), experts_by(network, "eager"), tried(network):
        wanted = network(input_ids=tokens, use_cache=False).logits[0].float()
        states["table"][0] = torch.arange(1, sizes.pages_each + 1)
        padded = torch.nn.functional.pad(tokens[:, :read], (0, chunk - read))
        logits, written = prefill.logits(padded, prefill.place(chunk, number(0), number(0)))
        found = [logits[0, :read]]
        states["active"][0] = True
        for at in range(read, count):
            keep(decode, written)
            states["position"][0] = at
            token = torch.zeros(sizes.slots, 1, dtype=torch.int64)
            token[0] = tokens[0, at]
            logits, written = decode.logits(token, decode.place())
            found.append(logits[0])
    for name, tensor in states.items():
        tensor.copy_(kept[name])
    for pool in pools:
        pool.keys[1].zero_(), pool.values[1].zero_(), pool.keys[0].zero_(), pool.values[0].zero_()
    require_near(generator, torch.cat(found), wanted)


def not_supported(network: Any, e: Exception) -> MlircError:
    """The error for a model that fails where it is run with a cache, whatever its code does."""
    what = f"{type(e).__name__}: {first_line(str(e))}"
    return MlircError(
        f"{type(network).__name__}: cannot be run with a cache of keys and values ({what}): its generation is not "
        "supported"
    )


@contextlib.contextmanager
def tried(network: Any) -> Iterator[None]:
    """For steps of a model that are run to see whether they are right."""
    try:
        yield
    except (MlircError, MemoryError):
        raise
    except Exception as e:
        raise not_supported(network, e) from e


def comparable(generator: Generator) -> Any:
    """The model with its weights; None where these are made on demand, and many."""
    if generator.source.build is None:
        return generator.network
    if sum(p.numel() * p.element_size() for p in generator.network.parameters()) > _SMALL:
        generator.compared = False
        return None
    return generator.source.build()


def require_near(generator: Generator, found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Raises MlircError unless logits of steps are those of the model itself."""
    error = float((found - wanted).abs().max() / wanted.abs().max())
    if not error <= (_NEAR if generator.dtype in (torch.float32, torch.float64) else _NEAR_16_BIT):
        raise MlircError(
            f"{type(generator.network).__name__}: run token by token, its logits differ by {error:.1%} from those of "
            "the whole text: its generation is not supported"
        )


def keep(step: Step, written: dict[str, torch.Tensor]) -> None:
    """Puts what a step has written into the buffers."""
    for name, tensor in written.items():
        step.get_buffer(name).copy_(tensor)


def as_source(source: SourceModel, step: Run, args: tuple) -> SourceModel:
    """A step as a model of its own; its tensors' names are those of `step`."""
    step.eval().requires_grad_(False)
    own = _own_tensors(step)
    theirs = Renamed(source.weights, {NETWORK + name: name for name in source.weights})
    taken = set(own) & set(source.weights)
    if taken:
        raise MlircError(
            f"{source.name}: the model's '{min(taken)}' has the name of one of the generation's own states"
        )
    return SourceModel(
        source.name,
        "generation",
        args,
        {},
        module=step,
        weights=ChainMap(own, theirs),  # type: ignore[arg-type]
    )


def _own_tensors(step: Run) -> dict[str, torch.Tensor]:
    """The state dict of a step without the model's own tensors, which take long while they are fake."""
    modules = step._modules
    step._modules = {name: module for name, module in modules.items() if name != NETWORK[:-1]}
    try:
        return step.state_dict()
    finally:
        step._modules = modules


def exported(generator: Generator, plan: str) -> SourceModel:
    """A step as a program that writes its states; layers of one input are one product (`join_linears.py`). It has the
    layers of `generator.few`. Raises MlircError where the model cannot be exported, and NotRepeated."""
    source = generator.steps[plan]
    few = generator.few if isinstance(source.module, Step) else None
    with (
        _of_few(source.module, few),
        quiet(),
        torch.no_grad(),
        fixed_frequencies(generator.network, generator.sizes.context),
    ):
        program = export(source)
        if not _can_be_plain(program.graph):  # a model writes in place in a way that only another trace undoes
            program = program.run_decompositions({})
    found = program.module_call_graph[0].signature.out_spec
    names = [name.removeprefix("states_") for name in spec_names(found) if name is not None]
    inputs = [spec.name for spec in source.input_specs()]
    written = with_returned_states(program, names[1:])
    return joined_linears(replace(source, program=written, input_names=inputs, layers=few))


@contextlib.contextmanager
def _of_few(step: Any, few: Layers | None) -> Iterator[None]:
    step.few = few
    try:
        yield
    finally:
        step.few = None


def _can_be_plain(graph: Any) -> bool:
    """Whether `decompose` can take a graph apart without another trace of all of it."""
    if is_plain(graph):
        return True
    pure = without_writes(without_idle_ops(graph))
    return pure is not None and is_plain(pure)


def plain_name(name: str) -> str:
    """What a tensor of a step is called in the model itself."""
    return name.removeprefix(NETWORK)


def with_fixed_frequencies(generator: Generator) -> contextlib.AbstractContextManager[None]:
    """For the body of a `with` in which steps are run."""
    return fixed_frequencies(generator.network, generator.sizes.context)
