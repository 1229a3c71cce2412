"""What a model is checked on: inputs of several kinds, made from the example inputs and a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from mlirc.check.kinds import ELEMENTS, FLOATS, IDS, INTEGERS, PLAIN, edges
from mlirc.frontend.inputs import InputSpec, name_seed
from mlirc.runtime.fitting import shape_of
from mlirc.runtime.sizes import Sizes

_LEAST = 3  # tokens that padding leaves, where there are as many


@dataclass(frozen=True)
class Case:
    """One set of inputs. `visible`: bool [batch, length], the tokens whose rows of outputs are compared (None: all).
    `moved`: (batch, length) if the case is `plain` with only the last token of each sequence changed."""

    kind: str
    inputs: list[torch.Tensor]
    visible: torch.Tensor | None = None
    moved: tuple[int, int] | None = None


@dataclass(frozen=True)
class Inputs:
    """A model's inputs: their specs, example values, and for each integer input how many values it can have
    (`limits`, by name), as a vocabulary's size."""

    specs: Sequence[InputSpec]
    examples: Sequence[torch.Tensor]
    limits: dict[str, int]
    hugging_face: bool = False

    def plain(self, seed: int) -> list[torch.Tensor]:
        """Standard normal floats, tokens over the whole vocabulary, masks of ones; other integers in the example's
        range, and other booleans random."""
        return [self._plain(s, e, seed) for s, e in zip(self.specs, self.examples, strict=True)]

    def _plain(self, spec: InputSpec, example: torch.Tensor, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(name_seed(spec.name, seed))
        if is_mask(spec):
            return torch.ones(spec.shape, dtype=spec.dtype)
        if spec.dtype.is_floating_point:
            return torch.randn(spec.shape, generator=generator).to(spec.dtype)
        if spec.dtype == torch.bool:
            return torch.rand(spec.shape, generator=generator) < 0.5
        low, high = (0, self.limits[spec.name]) if spec.name in self.limits else _range(example)
        return torch.randint(low, high, spec.shape, generator=generator).to(spec.dtype)


def is_mask(spec: InputSpec) -> bool:
    """Whether an input says which tokens are there: 1 or True for those that are."""
    return spec.name.endswith("attention_mask") or (spec.name.endswith("mask") and spec.dtype != torch.bool)


def _range(example: torch.Tensor) -> tuple[int, int]:
    if example.numel() == 0:
        return 0, 1
    return int(example.min()), int(example.max()) + 1


def cases(inputs: Inputs, seed: int = 0) -> Iterator[Case]:
    """Every kind that fits the model's inputs; `docs/checking.md` lists them."""
    plain = inputs.plain(seed)
    yield Case(PLAIN, plain)
    yield from _padded(inputs, plain)
    yield from _token_changed(inputs, plain)
    yield from _extreme(inputs, plain)


def size_cases(inputs: Inputs, sizes: Sizes, seed: int = 0) -> Iterator[Case]:
    """Plain inputs of the smallest sizes, and of some others below the bound, that the model's conditions allow."""
    some: list[dict[str, int]] = []
    for choose in (lambda s: s.least, lambda s: max(s.least, s.most // 2 | 1), lambda s: max(s.least, s.most - 1)):
        allowed = [_near(sizes, {s.name: choose(s) for s in sizes.symbols})]
        some += [found for found in allowed if found and found not in some and found != sizes.most]
    for found in some:
        dims = sizes.inputs
        specs = [replace(s, shape=shape_of(dims[s.name], found)) if s.name in dims else s for s in inputs.specs]
        plain = replace(inputs, specs=specs).plain(seed)
        yield Case(", ".join(f"{name}={size}" for name, size in found.items()), plain)


def _near(sizes: Sizes, found: dict[str, int]) -> dict[str, int] | None:
    """These sizes, or the next larger ones that the conditions allow."""
    for _ in range(64):
        if sizes.allow(found):
            return found
        found = {s.name: min(found[s.name] + 1, s.most) for s in sizes.symbols}
    return None


def _padded(inputs: Inputs, plain: list[torch.Tensor]) -> Iterator[Case]:
    masks = [i for i, s in enumerate(inputs.specs) if is_mask(s) and len(s.shape) == 2 and s.shape[1] > 1]
    if not masks:
        return
    for side in ("right", "left"):
        tensors, visible = list(plain), None
        for i in masks:
            seen = _visible(*inputs.specs[i].shape, left=side == "left")
            tensors[i] = seen.to(inputs.specs[i].dtype)
            visible = seen if visible is None or inputs.specs[i].name == "attention_mask" else visible
        yield Case(f"padded {side}", tensors, visible)


def _visible(batch: int, length: int, *, left: bool) -> torch.Tensor:
    """A mask whose rows have different lengths, with padding on one side; the first row has the most."""
    least = min(_LEAST, length - 1)
    counts = torch.tensor([least + (length - least) * i // batch for i in range(batch)])
    place = torch.arange(length)
    return place >= length - counts[:, None] if left else place < counts[:, None]


def _token_changed(inputs: Inputs, plain: list[torch.Tensor]) -> Iterator[Case]:
    names = {s.name: i for i, s in enumerate(inputs.specs)}
    name = next((n for n in ("decoder_input_ids", "input_ids") if n in names and n in inputs.limits), None)
    if name is None:
        return
    spec = inputs.specs[names[name]]
    if len(spec.shape) != 2 or spec.shape[1] < 2 or inputs.limits[name] < 2:
        return
    tensors = list(plain)
    tensors[names[name]] = changed = plain[names[name]].clone()
    changed[:, -1] = (changed[:, -1] + 1 + inputs.limits[name] // 3) % inputs.limits[name]
    yield Case("token changed", tensors, moved=(spec.shape[0], spec.shape[1]))


def _extreme(inputs: Inputs, plain: list[torch.Tensor]) -> Iterator[Case]:
    base = Case("", plain)
    if any(s.dtype.is_floating_point for s in inputs.specs):
        for kind, change in FLOATS.items():
            yield _floats(base, kind, change)
        if not inputs.hugging_face:
            for kind, value in ELEMENTS.items():
                yield _one_element(base, kind, value)
    limited = [i for i, s in enumerate(inputs.specs) if s.name in inputs.limits]
    if limited:
        tensors = list(plain)
        for i in limited:
            spec = inputs.specs[i]
            ends = torch.tensor([0, inputs.limits[spec.name] - 1]).repeat(plain[i].numel() // 2 + 1)
            tensors[i] = ends[: plain[i].numel()].reshape(spec.shape).to(spec.dtype)
        yield Case(IDS, tensors)
    free = [i for i, s in enumerate(inputs.specs) if _is_free(s, inputs)]
    if free:
        tensors = list(plain)
        for i in free:
            tensors[i] = _full_range(inputs.specs[i], seed=1)
        yield Case(INTEGERS, tensors)


def _is_free(spec: InputSpec, inputs: Inputs) -> bool:
    integer = not spec.dtype.is_floating_point and spec.dtype != torch.bool
    return integer and not is_mask(spec) and spec.name not in inputs.limits and not spec.name.endswith("_ids")


def _full_range(spec: InputSpec, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(name_seed(spec.name, seed))
    info = torch.iinfo(spec.dtype)
    values = torch.randint(info.min, info.max, spec.shape, generator=generator, dtype=torch.int64).to(spec.dtype)
    flat = values.reshape(-1)
    for i, edge in enumerate(edges(info.min, info.max)):
        if i < flat.numel():
            flat[i] = edge
    return flat.reshape(spec.shape)


def _floats(case: Case, kind: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Case:
    def changed(t: torch.Tensor) -> torch.Tensor:
        return change(t.float() if t.element_size() == 1 else t).to(t.dtype)  # PyTorch computes with no 8-bit floats

    return replace(case, kind=kind, inputs=[changed(t) if t.is_floating_point() else t for t in case.inputs])


def _one_element(case: Case, kind: str, value: float) -> Case:
    tensors = list(case.inputs)
    place = next(i for i, t in enumerate(tensors) if t.is_floating_point())
    changed = tensors[place].clone().reshape(-1)
    if changed.numel():
        changed[changed.numel() // 2] = value
    tensors[place] = changed.reshape(tensors[place].shape)
    return replace(case, kind=kind, inputs=tensors)
