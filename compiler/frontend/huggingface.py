"""Hugging Face directories: config.json with safetensors, or with random weights made on demand."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode

from mlirc.errors import MlircError
from mlirc.files.opening import shorten
from mlirc.frontend.diagnose import first_line
from mlirc.frontend.generation_config import read_generation_config
from mlirc.frontend.inputs import InputSpec, check_names, dtype_of, sample, size_request
from mlirc.frontend.judge.folder import bounded_building, judge_config, judge_weights
from mlirc.frontend.model_class import model_class_of
from mlirc.frontend.noise import no_progress_bars, quiet
from mlirc.frontend.quantize.checkpoints import checkpoint_of, config_beside
from mlirc.frontend.quantize.folder import STORED, open_weights, put_placeholders
from mlirc.frontend.quantize.layers import places_of
from mlirc.frontend.quantize.scheme import Checkpoint
from mlirc.frontend.source import SourceModel
from mlirc.frontend.weight_account import check_all_stored, notes_of_unread
from mlirc.frontend.weights import RandomWeights, tied_names

_LENGTH = 128


def open_directory(
    path: Path,
    *,
    inputs: Mapping[str, InputSpec],
    random_weights: int | None,
    dtype: str | None,
    on_demand: bool = False,
) -> SourceModel:
    """Opens a Hugging Face directory; `on_demand`: its weights are read one at a time where that can be.

    Raises MlircError for a missing or bad config, and missing or wrong weights."""
    with quiet():
        config = _read_config(path)
        _without_cache(config)
        model_class = model_class_of(path, config)
        chosen = read_generation_config(path, model_class)
        weights: Mapping[str, torch.Tensor]
        torch_dtype = dtype_of(dtype) if dtype else _config_dtype(config)
        if not torch_dtype.is_floating_point:
            raise MlircError(f"--dtype {dtype}: a model's dtype must be a float type")
        packed = _packed_config(path, config, random_weights)
        lazy, notes = None, []
        if random_weights is None and (packed or on_demand):
            lazy = _on_demand(path, model_class, config, torch_dtype, packed)
        if lazy is not None:
            module, weights, build, notes = lazy
        elif random_weights is None:
            module, notes = _load(path, model_class, config, torch_dtype, chosen)
            weights = module.state_dict()
            build = None
        else:
            module = _skeleton(model_class, config, torch_dtype)
            weights = _random_weights(module, random_weights)
            build = _builder(model_class, config, torch_dtype, weights)
            _make_fake(module)
        if chosen is not None:
            module.generation_config = chosen
        specs = _input_specs(path, module, config, torch_dtype, inputs)
    kwargs: dict[str, Any] = {name: sample(s, upper=index_limit(config, name)) for name, s in specs.items()}
    if "use_cache" in inspect.signature(module.forward).parameters:
        kwargs["use_cache"] = False
    elif hasattr(config, "use_cache"):  # a model that asks its config alone
        config.use_cache = module.config.use_cache = False  # type: ignore[union-attr]
    source = SourceModel(path.resolve().name, "huggingface", (), kwargs, module=module, weights=weights, build=build)
    source.sizes = size_request(specs.values())
    source.scheme = packed.scheme if packed else None
    source.notes = notes
    return source


def _packed_config(path: Path, config: Any, random_weights: int | None) -> Checkpoint | None:
    """What the config says of weights that are packed, which is taken out of it."""
    found, where = getattr(config, "quantization_config", None), path / "config.json"
    if found:
        del config.quantization_config
        found = found if isinstance(found, dict) else found.to_dict()
    else:
        found, where = config_beside(path) or (None, where)
    if not found:
        return None
    if random_weights is not None:
        raise MlircError(f"{where}: quantized weights: --random-weights makes none so: give --quantize in its stead")
    return checkpoint_of(found, str(where))


def _on_demand(path: Path, model_class: Any, config: Any, dtype: torch.dtype, packed: Checkpoint | None) -> Any:
    """(module, weights, build, notes) of a folder whose weights are read when they are asked for; None where
    transformers reads them under other names, or from other files."""
    judge_weights(path)
    module = _skeleton(model_class, config, dtype)
    shared = {name for pair in tied_names(module).items() if pair[0] != pair[1] for name in pair}
    _make_fake(module)
    try:
        weights, places = open_weights(path, module, packed)
        notes = notes_of_unread(
            path, weights.unread(), getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
        )
    except MlircError:
        if packed:
            raise
        return None
    names = {place.name for place in places}

    def build() -> torch.nn.Module:
        with quiet():
            made = _skeleton(model_class, config, dtype)
            if packed:
                put_placeholders(
                    made, packed, [p for p in places_of(made, head=True) if p.name in names], weights.orders
                )
            made.load_state_dict({name: weights[name] for name in weights}, assign=True)
            if not any(f"{name}.weight" in shared for name in names):  # else each has its own
                made.tie_weights()  # type: ignore[operator]
        return made.eval().requires_grad_(False)

    return module, weights, build, notes


def _without_cache(config: Any) -> None:
    """Caches are no outputs of a compiled model. Not every model takes `use_cache`; all of them ask their config."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))):
        if getattr(part, "use_cache", False):
            part.use_cache = False


def random_state_dict(config_dir: str | Path, seed: int, dtype: str | None = None) -> Mapping[str, torch.Tensor]:
    """The weights that `--random-weights SEED` gives the model of a directory, each made when it is read.

    The same names, shapes and values as `open_model(config_dir, random_weights=seed, dtype=dtype).weights`, in any
    process; `random_weight` says how a value is made.
    """
    return open_directory(Path(config_dir), inputs={}, random_weights=seed, dtype=dtype).weights


def _read_config(path: Path) -> Any:
    import transformers

    judge_config(path)
    try:
        # Not None, with which it would ask at the terminal whether to run code of the folder.
        return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as e:
        raise MlircError(f"{path / 'config.json'}: not a usable config: {first_line(str(e))}") from e


def _config_dtype(config: Any) -> torch.dtype:
    dtype = getattr(config, "dtype", None)
    if dtype is None and hasattr(config, "text_config"):
        dtype = getattr(config.text_config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else dtype_of(str(dtype)) if dtype else torch.float32


def _load(
    path: Path, model_class: Any, config: Any, dtype: torch.dtype, chosen: Any
) -> tuple[torch.nn.Module, list[str]]:
    """The model with the directory's weights, and what to say of those that it does not read."""
    files = judge_weights(path)
    stored = {name: STORED[entry.dtype] for file in files for name, entry in file.entries.items()}
    skeleton = _skeleton(model_class, config, dtype)  # what is wrong with the config is not said to be the weights'
    check_all_stored(path, stored, skeleton)
    try:
        with no_progress_bars(), bounded_building():
            module, report = model_class.from_pretrained(
                str(path), dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
                trust_remote_code=False, weights_only=True, generation_config=chosen,
            )  # fmt: skip
    except MlircError as e:
        raise MlircError(f"{path}: {e}") from e
    except Exception as e:
        raise MlircError(f"{path}: the weights cannot be read: {type(e).__name__}: {first_line(str(e))}") from e
    missing = sorted(report.get("missing_keys") or [])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise MlircError(f"{path}: the weights lack '{missing[0]}'{more}, which {model_class.__name__} needs")
    for name, found, wanted in sorted(report.get("mismatched_keys") or []):
        raise MlircError(f"{path}: weight '{name}' has shape {list(found)}, but the config asks for {list(wanted)}")
    return module.eval().requires_grad_(False), notes_of_unread(path, report.get("unexpected_keys") or [])


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Modules built inside have parameters without storage, but real buffers."""
    original = torch.nn.Module.register_parameter

    def register(self: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        original(self, name, parameter)

    torch.nn.Module.register_parameter = register  # type: ignore
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = original  # type: ignore[method-assign]


def _skeleton(model_class: Any, config: Any, dtype: torch.dtype) -> torch.nn.Module:
    try:
        with _parameters_on_meta(), bounded_building():
            return model_class._from_config(config, dtype=dtype).eval().requires_grad_(False)
    except MlircError:
        raise
    except Exception as e:
        why = _entry_of(config.to_dict(), e.args[0]) if isinstance(e, KeyError) and e.args else None
        why = why or f"{type(e).__name__}: {first_line(str(e))}"
        raise MlircError(f"{model_class.__name__} cannot be built from the config: {why}") from e


def _entry_of(entries: Mapping[str, Any], value: Any) -> str | None:
    """What to say of the entry of a config with this value, which transformers has nothing for; None without one."""
    for key, found in entries.items():
        inside = _entry_of(found, value) if isinstance(found, Mapping) else None
        if inside is not None:
            return inside
        if type(found) is type(value) is str and found == value:
            return f"'{key}' is {ascii(shorten(value, 80))}, which transformers does not know"
    return None


def _random_weights(module: torch.nn.Module, seed: int) -> RandomWeights:
    """Random parameters and running statistics; other persistent buffers keep the values that the model gave them."""
    specs, fixed = {}, {}
    buffers = dict(module.named_buffers())
    for name, tensor in module.state_dict().items():
        if name in buffers and not name.endswith(("running_mean", "running_var")):
            fixed[name] = tensor
        specs[name] = InputSpec.of(name, tensor)
    return RandomWeights(specs, seed, fixed, tied_names(module))


def _builder(model_class: Any, config: Any, dtype: torch.dtype, weights: RandomWeights) -> Any:
    def build() -> torch.nn.Module:
        with quiet():
            module = _skeleton(model_class, config, dtype)
            made: dict[str, torch.Tensor] = {}
            for name in weights:
                tied = weights.tied.get(name, name)
                made[name] = made[tied] if tied in made else weights[name]
            module.load_state_dict(made, assign=True)
            module.tie_weights()  # type: ignore[operator]
        return module.eval().requires_grad_(False)

    return build


def _make_fake(module: torch.nn.Module) -> None:
    """Replaces parameters on the meta device by fake ones on the CPU, which export traces like real ones."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    made: dict[int, torch.nn.Parameter] = {}
    with mode:
        for child in module.modules():
            for name, parameter in list(child._parameters.items()):
                if parameter is not None:
                    if id(parameter) not in made:
                        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
                        made[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
                    child._parameters[name] = made[id(parameter)]


def _input_specs(
    path: Path, module: Any, config: Any, dtype: torch.dtype, given: Mapping[str, InputSpec]
) -> dict[str, InputSpec]:
    """The inputs asked for, and default ones that the model cannot do without."""
    known = [n for n, p in inspect.signature(module.forward).parameters.items() if p.kind != p.VAR_KEYWORD]
    check_names(list(given), known, str(path))
    specs = _default_inputs(module, config, dtype, given, known)
    for name, spec in given.items():
        _check_input(path, config, spec, specs.get(name))
        specs[name] = spec
    ids, mask = specs.get("input_ids"), specs.get("attention_mask")
    if ids and mask and ids.shape != mask.shape and len(mask.shape) == 2:
        raise MlircError(f"{path}: inputs {ids} and {mask} must have the same shape")
    return {name: specs[name] for name in sorted(specs, key=known.index)}


def _default_inputs(
    module: Any, config: Any, dtype: torch.dtype, given: Mapping[str, InputSpec], known: list[str]
) -> dict[str, InputSpec]:
    main = getattr(module, "main_input_name", "input_ids")
    text = getattr(config, "text_config", config)
    length = min(_LENGTH, _limit(text, "max_position_embeddings") or _LENGTH)
    specs: dict[str, InputSpec] = {}

    def add(name: str, dtype: torch.dtype, *shape: int) -> None:
        if name in known:
            specs[name] = InputSpec(name, dtype, shape)

    if main == "pixel_values" or hasattr(config, "vision_config"):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        frames = getattr(vision, "num_frames", None)  # of a video
        picture = (getattr(vision, "num_channels", None) or 3, height, width)
        add("pixel_values", dtype, 1, *([frames] if frames else []), *picture)
    if main == "input_features" and hasattr(config, "num_mel_bins"):  # else the layout is the model's own
        add("input_features", dtype, 1, config.num_mel_bins, 2 * getattr(config, "max_source_positions", 1500))
    if main == "input_values":  # a spectrogram, where the config gives it bins; else a waveform
        spectrogram = getattr(config, "max_length", None), getattr(config, "num_mel_bins", None)
        add("input_values", dtype, 1, *(spectrogram if all(spectrogram) else (16000,)))
    if main == "input_ids" or hasattr(config, "text_config"):
        ids = given.get("input_ids", InputSpec("input_ids", torch.int64, (1, length)))
        if len(ids.shape) != 2:
            raise MlircError(f"input '{ids}' must have 2 dimensions (batch, length)")
        if "inputs_embeds" not in given:
            add("input_ids", torch.int64, *ids.shape)
        if not _is_causal(module) and not config.is_encoder_decoder and "attention_mask" in known:
            specs["attention_mask"] = InputSpec("attention_mask", torch.int64, ids.shape, symbols=ids.symbols)
    if config.is_encoder_decoder:
        most = _limit(config, "max_target_positions") or length
        add("decoder_input_ids", torch.int64, 1, min(length, most))
    return specs


def _is_causal(module: Any) -> bool:
    return (
        type(module).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        or getattr(module.config, "is_decoder", False)
        or (
            not getattr(module.config, "is_encoder_decoder", False)
            and "ForCausalLM" in str(module.config.architectures)
        )
    )


def _ranks(config: Any, default: InputSpec) -> tuple[int, ...]:
    """How many dimensions an input may have: videos are images over time, spectrograms sounds over time."""
    rank = len(default.shape)
    video = default.name == "pixel_values" and hasattr(config, "num_frames")
    spectrogram = default.name == "input_values" and hasattr(config, "num_mel_bins")
    return (rank, rank + 1) if video or spectrogram else (rank,)


def _check_input(path: Path, config: Any, spec: InputSpec, default: InputSpec | None) -> None:
    integers = spec.name.endswith(("_ids", "_mask"))
    if integers and spec.dtype.is_floating_point:
        raise MlircError(f"{path}: input '{spec.name}' must have an integer dtype, not {spec}")
    if default is not None and not integers and spec.dtype != default.dtype:
        raise MlircError(f"{path}: input '{spec.name}' must have the model's dtype, as in {default}, not {spec}")
    if default is not None and len(spec.shape) not in _ranks(config, default):
        raise MlircError(f"{path}: input '{spec.name}' must have {len(default.shape)} dimensions, as in {default}")
    if default is None and spec.name.endswith("_ids") and len(spec.shape) != 2:
        raise MlircError(f"{path}: input '{spec.name}' must have 2 dimensions (batch, length), not {spec}")
    text = getattr(config, "text_config", config)
    limits = {
        "input_ids": _limit(text, "max_position_embeddings"),
        "decoder_input_ids": _limit(config, "max_target_positions"),
    }
    most = limits.get(spec.name)
    if most and most > 0 and spec.shape[-1:] and spec.shape[-1] > most:
        raise MlircError(f"{path}: input {spec} is longer than the {most} positions of the model")
    if math.prod(spec.shape) == 0:
        raise MlircError(f"{path}: input {spec} is empty")


def _limit(config: Any, name: str) -> int | None:
    """A number of positions; XLNet has -1 for as many as there are."""
    most = getattr(config, name, None)
    return most if isinstance(most, int) and most > 0 else None


def index_limit(config: Any, name: str) -> int | None:
    if name in ("input_ids", "decoder_input_ids"):
        return getattr(getattr(config, "text_config", config), "vocab_size", None)
    return None
