"""Input descriptions such as `input_ids=i64[1,128]`, example values for them, and the check of a model's inputs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mlirc.errors import MlircError
from mlirc.frontend.sizes.request import Ranges, SizeRequest
from mlirc.runtime.sizes import Symbol

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i1": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIASES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "i1",
    "float8_e4m3fn": "f8E4M3FN", "f8e4m3": "f8E4M3FN", "float8_e5m2": "f8E5M2", "f8e5m2": "f8E5M2",
}  # fmt: skip
_INTEGER = re.compile(r"[+-]?\d[\d_]*(?:\.\d*)?", re.ASCII)
_PATTERN = re.compile(r"\s*([A-Za-z_][\w.]*)\s*=\s*([A-Za-z]\w*)\s*(?:\[([^\]]*)\])?\s*")


@dataclass(frozen=True)
class InputSpec:
    """Name, torch dtype and shape of one input; `scalar`: a number, which kernels take by value. `symbols`: the sizes
    that a call decides, None for the others; none at all where the shape is static."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    scalar: bool = False
    symbols: tuple[Symbol | None, ...] = ()

    def __str__(self) -> str:
        if self.scalar:
            return f"{self.name}={dtype_name(self.dtype)}"
        symbols = self.symbols or (None,) * len(self.shape)
        sizes = [f"{s.name}<={n}" if s else str(n) for n, s in zip(self.shape, symbols, strict=True)]
        return f"{self.name}={dtype_name(self.dtype)}[{','.join(sizes)}]"

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> InputSpec:
        """The description of a tensor."""
        return cls(name, tensor.dtype, tuple(tensor.shape))


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a torch dtype (`f32`); raises MlircError for one that the compiler does not have."""
    if dtype not in _NAMES:
        raise MlircError(f"dtype {str(dtype).removeprefix('torch.')} is not supported: use one of {', '.join(DTYPES)}")
    return _NAMES[dtype]


def dtype_of(name: str) -> torch.dtype:
    """The torch dtype of a name (`f32` or `float32`); raises MlircError for an unknown one."""
    short = _ALIASES.get(name, name)
    if short not in DTYPES:
        raise MlircError(f"unknown dtype '{name}': use one of {', '.join(DTYPES)}")
    return DTYPES[short]


def parse_input(text: str, ranges: Ranges | None = None) -> InputSpec:
    """Parses `name=dtype[d0,d1,...]`, or `name=dtype` for a number; raises MlircError for anything else. A size may be
    symbolic: `s<=2048`, or `s` where `ranges` know its bound."""
    match = _PATTERN.fullmatch(text)
    if not match:
        raise MlircError(
            f"--input '{text}': write it as name=dtype[sizes], such as input_ids=i64[1,128], or, for a number, as "
            "name=dtype"
        )
    name, dtype, sizes = match.groups()
    ranges, parts = ranges or Ranges(), [s.strip() for s in (sizes or "").split(",") if s.strip()]
    try:
        names = [None if _INTEGER.fullmatch(s) else ranges.add(s, f"--input '{text}'") for s in parts]
        found = ranges.done()
        symbols = [Symbol(n, *found[n]) if n else None for n in names]
        shape = tuple(s.most if s else int(p) for p, s in zip(parts, symbols, strict=True))
    except ValueError:
        raise MlircError(f"--input '{text}': sizes must be integers, such as [1,128]") from None
    if any(n < 0 for n in shape):
        raise MlircError(f"--input '{text}': sizes must not be negative")
    try:
        return InputSpec(name, dtype_of(dtype), shape, sizes is None, tuple(symbols) if any(symbols) else ())
    except MlircError as e:
        raise MlircError(f"--input '{text}': {e}") from None


def parse_inputs(texts: Sequence[str]) -> dict[str, InputSpec]:
    """Parses several, by name; raises MlircError for a name given twice."""
    specs: dict[str, InputSpec] = {}
    ranges = Ranges()
    for text in sorted(texts, key=lambda t: "<=" not in t):  # bounds before the sizes that only name them
        spec = parse_input(text, ranges)
        if spec.name in specs:
            raise MlircError(f"--input '{text}': '{spec.name}' is given twice")
        specs[spec.name] = spec
    return specs


def size_request(specs: Iterable[InputSpec]) -> SizeRequest | None:
    """The symbolic sizes of inputs; None where all are static."""
    given = [spec for spec in specs if spec.symbols]
    symbols = {s.name: (s.least, s.most) for spec in given for s in spec.symbols if s}
    dims = {spec.name: tuple(s.name if s else None for s in spec.symbols) for spec in given}
    return SizeRequest(dims, symbols) if given else None


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raises MlircError for a given name that is not known."""
    for name in given:
        if name not in known:
            raise MlircError(f"{what} has no input '{name}': its inputs are {', '.join(known)}")


def sample(spec: InputSpec, *, upper: int | None = None, seed: int = 0) -> torch.Tensor:
    """A deterministic example value: integers below `upper` (default 2), standard normal floats, masks of ones."""
    generator = torch.Generator().manual_seed(name_seed(spec.name, seed))
    if "mask" in spec.name or spec.dtype == torch.bool:
        return torch.ones(spec.shape, dtype=spec.dtype)
    if spec.dtype.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(spec.dtype)
    return torch.randint(0, max(1, upper or 2), spec.shape, generator=generator).to(spec.dtype)


def name_seed(name: str, seed: int) -> int:
    """A seed for one tensor: the first 8 bytes of SHA-256 over `seed:name`, so that order does not matter."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1
