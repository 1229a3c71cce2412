"""How weights are quantized: the numbers' format, and which of a row share a scale."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mlirc.errors import MlircError

FORMS = "int8, fp8 or int2 to int7, as int4:group=128 (also: group=row, asymmetric, head, conv; fp8:dynamic)"
FP8 = torch.float8_e4m3fn
_GROUP = 128  # where integers of less than 8 bits name none, as AWQ and GPTQ


@dataclass(frozen=True)
class Format:
    """The numbers of a packed weight: integers without sign of 2 to 8 bits, or 8-bit floats (e4m3)."""

    bits: int
    floating: bool = False

    @property
    def name(self) -> str:
        return "fp8" if self.floating else f"int{self.bits}"

    @staticmethod
    def of(name: str) -> Format:
        """The format of a name, `int2` to `int8` or `fp8`. Raises ValueError for another."""
        if name == "fp8":
            return Format(8, True)
        if re.fullmatch("int[2-8]", name):
            return Format(int(name[3:]))
        raise ValueError(f"no format '{name}'")

    @property
    def middle(self) -> int:
        """What a number without zero points of its own stands for: 0."""
        return 0 if self.floating else 1 << (self.bits - 1)


@dataclass(frozen=True)
class Scheme:
    """A weight [N, K] in `format`, one scale for `group` elements of a row that follow each other (0: for the row).

    `symmetric`: zero is the middle of the integers; else every group has a zero point. `head`: the layer that makes
    logits, too. `convolutions`: those of many channels, too. `activations`: those are rounded to fp8, too, and GEMMs
    are of 8-bit floats: `dynamic`, by a scale of each row (of a convolution: of each image) that is computed when they
    are there, or `static`, by one that the layer has.
    """

    format: Format
    group: int = 0
    symmetric: bool = True
    head: bool = False
    activations: str = ""
    convolutions: bool = False

    def __str__(self) -> str:
        words = [f"group={self.group}"] if self.group else []
        words += ["asymmetric"] if not self.symmetric else []
        words += [self.activations] if self.activations else []
        return ":".join([self.format.name, *([",".join(words)] if words else [])])


@dataclass(frozen=True)
class Checkpoint:
    """What a folder's `quantization_config` says of its layers: the `method` by its name there, and `marker`, the
    tensor that a packed layer has. `zero_bias`: what is added to stored zero points. `block`: how many rows and columns
    share a scale, of 8-bit floats (0: all of them). `act_order`: inputs are grouped in an order that layers say."""

    method: str
    scheme: Scheme
    marker: str
    zero_bias: int = 0
    block: tuple[int, int] = (0, 0)
    act_order: bool = False


Refuse = Callable[[str], MlircError]


def groups_of(k: int, group: int) -> int:
    """How many scales a row of k elements has; the last group may be shorter."""
    return -(-k // group) if group else 1


def parse_scheme(text: str) -> Scheme:
    """The scheme of `int8`, `int4:group=64,asymmetric`, `fp8:dynamic`, `int3:group=row,head`. Raises MlircError."""
    name, _, rest = text.partition(":")
    try:
        format_ = Format.of(name)
    except ValueError:
        raise MlircError(f"--quantize {text[:80]}: no scheme '{name[:40]}': give {FORMS}") from None
    group, symmetric, head, activations = (0 if format_.bits == 8 else _GROUP), True, False, ""
    convolutions = False
    for word in rest.split(",") if rest else []:
        found = re.fullmatch("group=([1-9][0-9]{0,6}|row)", word)
        if found:
            group = 0 if found[1] == "row" else int(found[1])
        elif word == "asymmetric" and not format_.floating:
            symmetric = False
        elif word == "head":
            head = True
        elif word == "conv":
            convolutions = True
        elif word == "dynamic" and format_.floating:
            activations = word
        else:
            raise MlircError(f"--quantize {text[:80]}: '{word[:40]}' means nothing for {name}: give {FORMS}")
    if activations and group:
        raise MlircError(f"--quantize {text[:80]}: products of 8-bit floats have a scale for each row: leave group out")
    return Scheme(format_, group, symmetric, head, activations, convolutions)
