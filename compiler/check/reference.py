"""The PyTorch side of a check: the model with real weights, in its own dtype and in FP64."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.attention

from mlirc.check.cases import Inputs
from mlirc.check.compare import Reference
from mlirc.check.factors import UniqueFactors, following
from mlirc.check.ties import FirstOfEqual
from mlirc.check.undefined import Undefined, depending
from mlirc.check.unseen_keys import UnseenKeys
from mlirc.check.wide import in_float64, remember, remember_module
from mlirc.frontend.boundary import as_real
from mlirc.frontend.inputs import name_seed
from mlirc.frontend.module_copy import copied_module
from mlirc.frontend.noise import quiet
from mlirc.frontend.random.eager import ModelNumbers
from mlirc.frontend.source import SourceModel, output_tensors
from mlirc.frontend.state import call_and_restore


class TorchModel:
    """A model in PyTorch, and its weights as the check gives them to both sides.

    Weights are arguments of a compiled model, so that a check may choose them: vectors of one value (a new norm's ones,
    zero biases) get seeded noise, and matrices that were made up are scaled to keep their input's size; without either,
    a weight that the compiler loses, or scores that it scales wrongly, would not show. A model that draws random
    numbers (`draws`) draws the compiled model's.
    """

    def __init__(self, source: SourceModel, draws: bool = False):
        self.source, self._draws = source, draws
        self._drawn: list[Any] | None = None  # by the last run in the model's own dtype
        with quiet(), torch.no_grad():
            module = source.torch_module()
            if source.build is None:
                module = copied_module(module)  # the caller's own stays as it is
            _enliven(module, made_up=source.build is not None)
        self.module = module
        self._wide: torch.nn.Module | None = None
        self._factors = UniqueFactors()
        self.is_wide = True  # false once FP64 turned out not to be possible

    @property
    def described(self) -> str:
        """What the levels are compared with, in words."""
        return "PyTorch in FP64" if self.is_wide else "PyTorch in the model's own dtype"

    def tensors(self, job: Any) -> Mapping[str, torch.Tensor]:
        """The weights and constants of the compilation, by name."""
        return {**job.imported.constants, **self.module.state_dict()}

    def inputs(self) -> Inputs:
        """What the model takes. Where no config tells the vocabulary's size, it is what the example's tokens need."""
        specs, examples = self.source.input_specs(), self.source.real_inputs()
        tokens = [(s, e) for s, e in zip(specs, examples, strict=True) if s.name.endswith("input_ids") and e.numel()]
        limits = {s.name: int(e.max()) + 1 for s, e in tokens if not s.dtype.is_floating_point}
        is_hf = self.source.kind == "huggingface"
        if is_hf:
            from mlirc.frontend.huggingface import index_limit

            found = {s.name: index_limit(self.module.config, s.name) for s in specs}
            limits |= {name: limit for name, limit in found.items() if limit}
        return Inputs(specs, examples, limits, is_hf)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The main outputs, in order. Raises what PyTorch raises."""
        self._drawn = None
        return self._run(self.module, tensors)

    def references(self, tensors: Sequence[torch.Tensor]) -> list[Reference]:
        """The main outputs in the model's dtype and in FP64. Raises what PyTorch raises in the former."""
        with Undefined() as casts:
            eager = self.run(tensors)
        wide = self._run_wide(tensors) if self.is_wide else None
        if wide is None or any(e.shape != w.shape for e, w in zip(eager, wide, strict=True)):  # it looks at bits
            self.is_wide = False
            wide = eager
        unseen = self._without_unseen_keys(tensors, wide)
        masks: Sequence[torch.Tensor] = [torch.zeros((), dtype=torch.bool)] * len(eager)
        if casts.found:
            masks = depending(lambda: self._run(self.module, tensors), eager)
        if self._factors.found:
            open_ = following(lambda seed: self._again(tensors, UniqueFactors(seed)), wide)
            masks = [m | o for m, o in zip(masks, open_, strict=True)]
        pairs = zip(eager, wide, unseen, masks, strict=True)
        return [Reference(e, w, unseen=u, undefined=m.expand(e.shape)) for e, w, u, m in pairs]

    def _again(self, tensors: Sequence[torch.Tensor], factors: UniqueFactors | None = None) -> Any:
        """The outputs once more, of the dtypes of the reference."""
        return self._run_wide(tensors, factors) if self.is_wide else self._run(self.module, tensors, factors)

    def _without_unseen_keys(
        self, tensors: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor | None]:
        """The outputs again, as `wide`, of attention that leaves hidden keys out; None where that is the same, as
        everything is finite or the model has no such attention."""
        if all(bool(torch.isfinite(t.float()).all()) for t in (*tensors, *wide) if t.is_floating_point()):
            return [None] * len(wide)
        with UnseenKeys() as mode:
            found = self._again(tensors)
        return found if mode.used and found is not None else [None] * len(wide)

    def moved(self, tensors: Sequence[torch.Tensor], count: int = 4) -> list[tuple[torch.Tensor, ...]]:
        """For each main output, results of PyTorch in the model's dtype: how far rounding alone takes this model.

        `count` of them have every weight and every float input multiplied by 1 + u, |u| <= half a unit in the last
        place. One is by PyTorch's own choice of attention, but for what is NaN by the formula.
        """
        formula, own = self.run(tensors), self._run(self.module, tensors, formula=False)
        rows = [[torch.where(torch.isnan(f), f, o) for f, o in zip(formula, own, strict=True)]]
        for seed in range(count):
            generator = torch.Generator().manual_seed(seed)
            module = copied_module(self.module)
            with torch.no_grad():
                for _, tensor, _ in _floats(module):
                    tensor.copy_(_move(tensor, generator))
            inputs = [_move(t, generator) if t.is_floating_point() else t for t in tensors]
            rows.append(self._run(module, inputs))
        return list(zip(*rows, strict=True))

    def _run(
        self, module: torch.nn.Module, tensors: Sequence[torch.Tensor], factors: UniqueFactors | None = None,
        formula: bool = True,
    ) -> list[torch.Tensor]:  # fmt: skip
        args, kwargs = self.source.bind([t.clone() for t in tensors])
        # PyTorch's fused attention on a CPU makes zeros of a query that is NaN; its plain formula does not.
        math = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
        attention = math if formula else contextlib.nullcontext()
        numbers = ModelNumbers(self._drawn if module is self._wide else None) if self._draws else None
        drawing = numbers.active() if numbers else contextlib.nullcontext()
        choices = factors or self._factors
        with quiet(), torch.no_grad(), self.source.mode_of(module), attention, drawing, FirstOfEqual(), choices:
            output, state = call_and_restore(module, args, kwargs, self.source.written)
        if numbers and self._drawn is None:
            self._drawn = numbers.drawn
        return output_tensors(output) + [as_real(t) for t in state]

    def _run_wide(
        self, tensors: Sequence[torch.Tensor], factors: UniqueFactors | None = None
    ) -> list[torch.Tensor] | None:
        """None where the model cannot be run in FP64 throughout."""
        try:
            if self._wide is None:
                with quiet():
                    self._wide = copied_module(self.module).double()
                named = (*self.module.named_parameters(), *self.module.named_buffers())
                remember_module(self._wide, {name: tensor.dtype for name, tensor in named})
            wide = [remember(t.double(), t.dtype) if t.is_floating_point() else t for t in tensors]
            # Experts in their plain form: transformers' grouped products have no FP64.
            with in_float64(torch.get_default_dtype()), _double_by_default(), _plain_experts(self._wide):
                found = self._run(self._wide, wide, factors)
        except Exception:  # a model that fixes its dtypes: its own arithmetic is the reference then
            return None
        return found if all(t.dtype == torch.float64 or not t.is_floating_point() for t in found) else None


@contextlib.contextmanager
def _double_by_default() -> Iterator[None]:
    """Inside, a new tensor of no given dtype has FP64."""
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@contextlib.contextmanager
def _plain_experts(module: torch.nn.Module) -> Iterator[None]:
    """Runs the body with transformers' mixtures of experts in their eager form."""
    found: list[Any] = [getattr(child, "config", None) for child in module.modules() if hasattr(child, "has_gate")]
    configs = {id(c): (c, c._experts_implementation) for c in found if hasattr(c, "_experts_implementation")}
    try:
        for config, _ in configs.values():
            config._experts_implementation = "eager"
        yield
    finally:
        for config, old in configs.values():
            config._experts_implementation = old


def _move(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    wide = tensor.double()
    noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 0.5
    return (wide * (1 + noise * torch.finfo(tensor.dtype).eps)).to(tensor.dtype)


def _enliven(module: torch.nn.Module, made_up: bool) -> None:
    seen: set[int] = set()
    linear = {id(m.weight) for m in module.modules() if isinstance(m, torch.nn.Linear)}  # bbox_embed is one, too
    for name, tensor, owner in _floats(module):
        if tensor.data_ptr() in seen or tensor.numel() == 0:
            continue
        seen.add(tensor.data_ptr())
        if made_up and tensor.dim() == 2 and (owner in linear or "embed" not in name):
            tensor.mul_(50 * tensor.shape[1] ** -0.5)  # made up with a deviation of 1/50
        elif made_up and tensor.dim() == 2:
            tensor.mul_(50)
        elif tensor.dim() == 1 and tensor.numel() > 1 and bool((tensor == tensor[0]).all()):
            generator = torch.Generator().manual_seed(name_seed(name, 0))
            tensor.add_(torch.randn(tensor.shape, generator=generator).abs_().mul_(0.05).to(tensor.dtype))


def _floats(module: torch.nn.Module) -> list[tuple[str, torch.Tensor, int]]:
    """Parameters, and the statistics of batch norms: name, values, and the identity of the parameter."""
    buffers = ((n, b) for n, b in module.named_buffers() if n.endswith(("running_mean", "running_var")))
    return [(n, t.detach(), id(t)) for n, t in (*module.named_parameters(), *buffers) if t.is_floating_point()]
