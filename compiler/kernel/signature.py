"""A kernel's inputs and result as its annotations have them: `bf16[M,K]`, bound by the tensors of a call."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirc.kernel.places import KernelError, shown
from mlirc.kernel.scalar import ALIASES, FLOATS, INTEGERS

_ONE = re.compile(r"\s*(\w+)\s*\[([^\[\]]*)\]\s*")
Shaped = tuple[str, tuple[int, ...]]  # dtype, shape


@dataclass(frozen=True)
class TensorType:
    """An annotation: the name of a dtype or of a variable for one, and extents that are numbers or symbols."""

    text: str
    dtype: str
    dims: tuple[int | str, ...]

    @property
    def is_variable(self) -> bool:
        """Whether a call decides the dtype."""
        return self.dtype not in FLOATS and self.dtype not in INTEGERS

    @property
    def symbols(self) -> list[str]:
        """What a call decides: symbols of extents and of the dtype."""
        return [d for d in self.dims if isinstance(d, str)] + ([self.dtype] if self.is_variable else [])


@dataclass
class Signature:
    """The inputs, constants (parameters with a default that is no tensor) and results of a kernel. `place` is the
    function's `FILE:LINE`."""

    name: str
    place: str
    inputs: dict[str, TensorType]
    constants: dict[str, Any]
    results: list[TensorType]
    several: bool = False  # the results are a tuple, also where there is one

    @property
    def symbols(self) -> list[str]:
        """What has to be known of a call, in the order of the signature."""
        return list(dict.fromkeys(s for t in self.inputs.values() for s in t.symbols))

    def bound(self, given: Sequence[Shaped]) -> Bound:
        """The symbols' values for inputs of these dtypes and shapes. Raises KernelError where they do not fit."""
        if len(given) != len(self.inputs):
            raise self.wrong(f"takes {len(self.inputs)} tensors ({', '.join(self.inputs)}), not {len(given)}")
        found = Bound({}, {})
        said: dict[str, str] = {}
        for (name, annotation), (dtype, shape) in zip(self.inputs.items(), given, strict=True):
            have = f"{name} is {dtype}[{','.join(map(str, shape))}], but takes {annotation.text}"
            if len(shape) != len(annotation.dims):
                raise self.wrong(have)
            known = found.dtypes if annotation.is_variable else {annotation.dtype: annotation.dtype}
            if known.setdefault(annotation.dtype, dtype) != dtype:
                raise self.wrong(have + said.get(annotation.dtype, ""))
            for dim, extent in zip(annotation.dims, shape, strict=True):
                wanted = found.extents.setdefault(dim, extent) if isinstance(dim, str) else dim
                if wanted != extent:
                    raise self.wrong(have + said.get(str(dim), ""))
            said |= {s: f", with {s} = {found.value(s)} of {name}" for s in annotation.symbols if s not in said}
        return found

    def wrong(self, what: str) -> KernelError:
        """An error at the kernel's definition."""
        return KernelError(f"{self.place}: {self.name}: {what}")


@dataclass(frozen=True)
class Bound:
    """What a call decided: extents by symbol, dtypes by name."""

    extents: dict[str, int]
    dtypes: dict[str, str] = field(default_factory=dict)

    def value(self, symbol: str) -> int | str:
        """What a symbol is."""
        return self.extents[symbol] if symbol in self.extents else self.dtypes[symbol]

    def of(self, annotation: TensorType) -> Shaped | None:
        """Dtype and shape of an annotation; None where a symbol of it is unknown."""
        if any(isinstance(d, str) and d not in self.extents for d in annotation.dims):
            return None
        dtype = annotation.dtype if not annotation.is_variable else self.dtypes.get(annotation.dtype)
        shape = tuple(d if isinstance(d, int) else self.extents[d] for d in annotation.dims)
        return None if dtype is None else (dtype, shape)


def read_signature(function: Callable[..., Any]) -> Signature:
    """A kernel function's signature. Raises KernelError at its line for what is none."""
    code = function.__code__
    place = f"{shown(code.co_filename)}:{code.co_firstlineno}"
    read = Signature(function.__name__, place, {}, {}, [])
    annotations = inspect.get_annotations(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise read.wrong(f"*{name}: name every input")
        if parameter.default is not parameter.empty:
            if not isinstance(parameter.default, (int, float, str, bool, type(None))):
                raise read.wrong(f"{name}: a constant is a number, a word, true or false, not {parameter.default!r}")
            read.constants[name] = parameter.default
            continue
        if name not in annotations:
            raise read.wrong(f'{name}: say what it is, as {name}: "bf16[M,K]"')
        read.inputs[name] = _one(annotations[name], name, read)
    if "return" in annotations:
        text = _text(annotations["return"])
        read.results = [_parsed(m.group(0), m, "the result", read) for m in _ONE.finditer(text)]
        read.several = text.strip().startswith("(")
        if not read.results or _ONE.sub("", text).strip("(), \n"):
            raise read.wrong(f'-> {text!r}: write one tensor as "bf16[M,N]", several as "(bf16[M,N], f32[M])"')
        known = set(read.symbols)
        for result in read.results:
            if loose := [s for s in result.symbols if s not in known]:
                raise read.wrong(f"-> {result.text}: no input has {loose[0]}")
    return read


def _text(annotation: Any) -> str:
    """An annotation's text; of one that `from __future__ import annotations` quotes once more, too."""
    if not isinstance(annotation, str):
        return repr(annotation)
    try:
        inner = ast.literal_eval(annotation)
    except (ValueError, SyntaxError):
        return annotation
    return inner if isinstance(inner, str) else annotation


def _one(annotation: Any, name: str, read: Signature) -> TensorType:
    text = _text(annotation)
    match = _ONE.fullmatch(text)
    if not match:
        raise read.wrong(f'{name}: {text!r}: write a tensor as "bf16[M,K]", a constant with its default value')
    return _parsed(text, match, name, read)


def _parsed(text: str, match: re.Match[str], name: str, read: Signature) -> TensorType:
    dtype = ALIASES.get(match[1], match[1])
    if dtype not in FLOATS and dtype not in INTEGERS and not dtype[0].isupper():
        known = ", ".join((*FLOATS, *INTEGERS))
        raise read.wrong(f"{name}: {text.strip()!r}: no dtype '{dtype}': one of {known}, or T for any")
    dims: list[int | str] = []
    for word in (w.strip() for w in match[2].split(",")):
        if word.isdecimal():
            dims.append(int(word))
        elif word.isidentifier():
            dims.append(word)
        elif word or "," in match[2]:
            raise read.wrong(f"{name}: {text.strip()!r}: '{word}' is neither an extent nor a symbol")
    return TensorType(text.strip(), dtype, tuple(dims))
