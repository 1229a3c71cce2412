"""`SourceModel`: a model as it came in, before any MLIR, with its inputs and weights."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend.boundary import as_real, like_example, register_records
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.state import Written, call_and_restore
from mlirc.ir.layer_names import Layers

if TYPE_CHECKING:
    from mlirc.frontend.sizes.request import SizeRequest

# Fields of Hugging Face outputs that are by-products; what a caller wants is the rest.
_BYPRODUCTS = ("past_key_values", "hidden_states", "attentions", "cross_attentions", "loss", "encoder_", "decoder_")


@dataclass(frozen=True)
class Given:
    """A kernel of the user's own, which enters at `level`, `kernels` or `tiles`, and not as a PyTorch model: its
    `module`, its own `--schedule` values, the scripts of its file, and the relative error that it states for itself,
    with the place that does."""

    level: str
    module: Any
    schedules: tuple[str, ...] = ()
    scripts: tuple[Any, ...] = ()
    tolerance: float | None = None
    stated_by: str = ""


@dataclass
class SourceModel:
    """A torch module (or an exported program) with example inputs.

    `module`'s parameters may be fake tensors without storage: `weights` has the values, by state-dict name, possibly
    made on demand. `inputs` describes the tensor inputs in order, under the names that the compiled model will use.
    """

    name: str
    kind: str
    args: tuple = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: torch.nn.Module | None = None
    program: Any = None
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    build: Any = None
    input_names: Sequence[str] | None = None
    written: Written = field(default_factory=list)  # once it is imported
    values: Callable[[], tuple] | None = None  # real `args`, where those are fake
    scalars: Sequence[str] = ()  # the inputs that are numbers, which kernels take by value
    train: bool = False  # modules run in the mode that they are in, and not in eval mode
    layers: Layers | None = None  # the few that stand for all of the model's in `program`
    scheme: Any = None  # of its packed weights, if it has any: a `quantize.Scheme`
    quantized: list = field(default_factory=list)  # `quantize.report.LayerError`s of those that were packed here
    complex_results: Sequence[bool] = ()  # once it is exported: of each leaf of its result
    sizes: SizeRequest | None = None  # which sizes a call decides; the example inputs are at their bound
    given: Given | None = None  # a kernel, of which `module` is the reference, if it has one
    notes: Sequence[str] = ()  # what its folder holds that is not read, a line each

    def torch_module(self) -> torch.nn.Module:
        """The PyTorch module with real weights: what a result is compared with. One of this process is given as it is.

        It is called with this model's `args` and `kwargs`. Builds the weights if they are made on demand.
        """
        if self.build is not None:
            return self.build()
        if self.module is not None:
            return self.module
        return self.program.module()

    def reference(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the PyTorch model on tensors in the order of the example inputs; returns its main outputs in order, and
        what it wrote to buffers and inputs. Buffers are put back."""
        args, kwargs = self.bind(tensors)
        module = self.torch_module()
        with torch.no_grad(), self.mode_of(module):
            output, state = call_and_restore(module, args, kwargs, self.written)
        return output_tensors(output) + [as_real(t) for t in state]

    def mode_of(self, module: torch.nn.Module) -> contextlib.AbstractContextManager[None]:
        """The mode that the model's module runs in, for the body of a `with`."""
        return contextlib.nullcontext() if self.train else in_eval_mode(module)

    def bind(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple, dict[str, Any]]:
        """`args` and `kwargs` with the tensors in place of the example tensors, complex where those are. Raises
        MlircError for a wrong count."""
        leaves, spec = torch.utils._pytree.tree_flatten((self.args, self.kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if len(places) != len(tensors):
            raise MlircError(f"{self.name} takes {len(places)} inputs, not {len(tensors)}")
        for place, tensor in zip(places, tensors, strict=True):
            leaves[place] = like_example(tensor, leaves[place])
        return torch.utils._pytree.tree_unflatten(leaves, spec)

    def bind_real(self) -> tuple[tuple, dict[str, Any]]:
        """`args` and `kwargs` with pairs of real numbers in place of complex example tensors."""
        return torch.utils._pytree.tree_map(as_real, (self.args, self.kwargs))

    def example_inputs(self) -> list[torch.Tensor]:
        """The example tensors, in order; of complex ones the pairs of real numbers."""
        leaves = torch.utils._pytree.tree_leaves((self.args, self.kwargs))
        return [self._real(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def complex_inputs(self) -> set[str]:
        """The names of the inputs that are complex for a caller."""
        leaves = torch.utils._pytree.tree_leaves((self.args, self.kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return {s.name for s, t in zip(self.input_specs(), tensors, strict=True) if t.is_complex()}

    def _real(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.module is None else as_real(tensor)

    def real_inputs(self) -> list[torch.Tensor]:
        """The example tensors, with values also where the compiler needs none."""
        leaves = torch.utils._pytree.tree_leaves(self.values()) if self.values else self.example_inputs()
        return [self._real(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def input_specs(self) -> list[InputSpec]:
        """Name, dtype and shape of each tensor input, in order; nested inputs are named by their path."""
        if self.input_names is not None:
            return [InputSpec.of(n, t) for n, t in zip(self.input_names, self.example_inputs(), strict=True)]
        names: list[str] = []
        if self.program is not None:
            nodes = {n.name: n.meta.get("val") for n in self.program.graph.nodes if n.op == "placeholder"}
            user = [n for n in self.program.graph_signature.user_inputs if isinstance(nodes.get(n), torch.Tensor)]
            return [InputSpec.of(n, t) for n, t in zip(user, self.example_inputs(), strict=True)]
        if self.module is not None:
            parameters = inspect.signature(self.module.forward).parameters.values()
            names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        specs = []
        for path, leaf in torch.utils._pytree.tree_flatten_with_path((self.args, self.kwargs))[0]:
            if isinstance(leaf, torch.Tensor):
                keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
                if keys[0] == "0" and int(keys[1]) < len(names):
                    keys[1] = names[int(keys[1])]
                elif keys[0] == "0":
                    keys[1] = f"input_{keys[1]}"
                specs.append(InputSpec.of("_".join(keys[1:]), self._real(leaf)))
        return specs


@contextlib.contextmanager
def in_eval_mode(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with the module in eval mode, and leaves each of its modules in the mode it had."""
    training = [child for child in module.modules() if child.training]
    for child in training:  # not module.eval(), which exported programs' modules do not have
        child.training = False
    try:
        yield
    finally:
        for child in training:
            child.training = True


class _Record(dict):
    """The fields of a dataclass."""


def named_outputs(output: Any) -> list[tuple[str, Any]]:
    """The main outputs of a model's result, named by their fields; by-products such as caches are left out.

    A lone tensor is `output`, the elements of a tuple `output_0` and so on, those of a dict or a Hugging Face output
    have their keys.
    """
    leaves: list[tuple[str, Any]] = []

    def visit(value: Any, name: str, top: bool) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, (Mapping, type)):
            fields = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            value = _Record((k, v) for k, v in fields if v is not None)
        if isinstance(value, Mapping):
            for key, child in value.items():
                if not (top and type(value) is not dict and is_byproduct(str(key))):
                    visit(child, f"{name}_{key}" if name else str(key), False)
        elif isinstance(value, (tuple, list)):
            for i, child in enumerate(value):
                visit(child, f"{name or 'output'}_{i}", False)
        elif value is not None:
            leaves.append((name or "output", value))

    visit(output, "", True)
    return leaves


# What a Python number is as a tensor.
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def output_tensors(output: Any) -> list[torch.Tensor]:
    """The main outputs in order, numbers as tensors of no dimension (int64, float64 or bool), of complex tensors the
    pairs of real numbers."""
    values = (
        as_real(value)
        for _, value in named_outputs(output)
        if isinstance(value, torch.Tensor) or type(value) in NUMBERS
    )
    return [v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=NUMBERS[type(v)]) for v in values]


def is_byproduct(name: str) -> bool:
    """Whether a field of a Hugging Face output is one that inference does not ask for."""
    return name.startswith(_BYPRODUCTS)


def with_numbers(source: SourceModel, names: Sequence[str]) -> SourceModel:
    """The source with the Python numbers among its example inputs that are named as tensors of no dimension, and those
    and tensors of no dimension as its scalars: numbers that kernels take by value. Raises MlircError for a name that is
    none of these."""
    leaves, spec = torch.utils._pytree.tree_flatten((source.args, source.kwargs))
    tensors = [torch.tensor(v, dtype=NUMBERS[type(v)]) if type(v) in NUMBERS else v for v in leaves]
    every = replace(source)
    every.args, every.kwargs = torch.utils._pytree.tree_unflatten(tensors, spec)
    known = {s.name: s for s in every.input_specs()}
    for name in names:
        if name not in known or known[name].shape:
            numbers = ", ".join(n for n, s in known.items() if not s.shape) or "none"
            raise MlircError(f"{source.name}: '{name}' is no number among the inputs: those are {numbers}")
    places = [i for i, v in enumerate(tensors) if isinstance(v, torch.Tensor)]
    for place, name in zip(places, known, strict=True):
        if name in names:
            leaves[place] = tensors[place]
    source.args, source.kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
    source.scalars = tuple(names)
    return source


def _require_callable(module: torch.nn.Module, args: tuple, kwargs: dict[str, Any], name: str) -> None:
    """Raises MlircError where `forward` has no parameters for these arguments."""
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError):  # of native code, which has none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as e:
        raise MlircError(f"{name}: forward cannot be called with these example inputs: {e}") from e


def from_torch(
    module: torch.nn.Module,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    name: str = "model",
    train: bool = False,
    scalars: Sequence[str] = (),
) -> SourceModel:
    """A model in this process: its parameters are used as they are. With `train`, each of its modules runs in the mode
    that it is in. `scalars` names inputs that are numbers, or tensors of no dimension, which kernels take by value.
    Raises MlircError when it is no module."""
    if not isinstance(module, torch.nn.Module):
        raise MlircError(f"{name}: a torch.nn.Module is needed, not {type(module).__name__}")
    if not isinstance(args, tuple):
        args = (args,)
    _require_callable(module, args, kwargs or {}, name)
    weights = dict(module.state_dict(keep_vars=False))
    register_records((args, dict(kwargs or {})))
    source = SourceModel(name, "module", args, dict(kwargs or {}), module=module, weights=weights, train=train)
    return with_numbers(source, scalars)
