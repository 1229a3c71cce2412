"""`mlirc::draw`: raw random numbers from a Philox4x32-10 generator, one op for every level.

Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). The counter is (call, thread) and
the key is the seed, as in cuRAND; what a draw makes of the words is what cuRAND's functions make of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
MASK = 0xFFFFFFFF
# What a draw gives: integers below 2^32 or of 64 bits (both reduced by `below`), numbers in (0, 1], or normal ones.
KINDS = {
    "word": torch.int64,
    "double_word": torch.int64,
    "uniform": torch.float32,
    "uniform64": torch.float64,
    "normal": torch.float32,
    "normal64": torch.float64,
}


@torch.library.custom_op("mlirc::draw", mutates_args=())
def draw(
    seed: torch.Tensor,
    offset: torch.Tensor,
    shape: Sequence[int],
    kind: str,
    threads: int,
    per: int,
    vector: bool,
    below: int,
) -> torch.Tensor:
    """A tensor of `shape` and the dtype of `kind` (one of KINDS), in row-major order of its elements.

    `seed` and `offset` are int64 tensors of no dimension; the offset counts words. `threads`, `per` and `vector` are
    those of a `Layout`. Integers are taken modulo `below`, as an unsigned 64-bit number; 0 means that they are not.
    """
    words, number = _words(seed, offset, shape, threads, per, vector)
    return _numbers(words, number, kind, below).reshape(tuple(shape))


@draw.register_fake
def _(seed, offset, shape, kind, threads, per, vector, below):
    return seed.new_empty(shape, dtype=KINDS[kind])


def exact_normal(
    seed: torch.Tensor, offset: torch.Tensor, shape: Sequence[int], threads: int, per: int, vector: bool
) -> torch.Tensor:
    """`draw` of kind `normal`, computed in FP64."""
    words, number = _words(seed, offset, shape, threads, per, vector)
    return _normal(words, number, torch.float64).reshape(tuple(shape))


def _words(
    seed: torch.Tensor, offset: torch.Tensor, shape: Sequence[int], threads: int, per: int, vector: bool
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The four words of every element's call, and the number of the element in it."""
    where, number, call = _places(math.prod(shape), threads, per, vector)
    counter = (int(offset.item()) >> 2) + call
    words = philox((counter & MASK, (counter >> 32) & MASK, where & MASK, (where >> 32) & MASK), int(seed.item()))
    return words, number


def _normal(words: list[torch.Tensor], number: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    stacked, pair = torch.stack(words), number // 2 * 2
    first, second = (stacked.gather(0, which[None])[0].float().to(dtype) for which in (pair, pair + 1))
    radius = torch.sqrt(-2.0 * torch.log(first * 2.0**-32 + 2.0**-33))
    turn = torch.tensor(2 * math.pi, dtype=torch.float32).to(dtype)
    angle = second * (turn * 2.0**-32) + turn * 2.0**-33
    return radius * torch.where(number % 2 == 0, torch.sin(angle), torch.cos(angle))


def _places(count: int, threads: int, per: int, vector: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(thread, number of the element in its call, call) of every element, in order."""
    element = torch.arange(count)
    if not vector:
        return element % threads, element // threads % per, element // (threads * per)
    group, inside = element // per, element % per
    calls = -(-per // 4)
    return group % threads, inside % 4, group // threads * calls + inside // 4


def philox(counter: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """The four words of each counter, given as four words; all are int64 tensors of values below 2^32."""
    a, b, c, d = counter
    key = [seed & MASK, (seed >> 32) & MASK]
    for _round in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]  # wraps to the same 64 bits
        a, b = (second >> 32 & MASK) ^ b ^ key[0], second & MASK
        c, d = (first >> 32 & MASK) ^ d ^ key[1], first & MASK
        key = [(k + w) & MASK for k, w in zip(key, WEYL, strict=True)]
    return [a, b, c, d]


def _numbers(words: list[torch.Tensor], number: torch.Tensor, kind: str, below: int) -> torch.Tensor:
    stacked = torch.stack(words)

    def word(which: torch.Tensor) -> torch.Tensor:
        return stacked.gather(0, which[None])[0]

    if kind == "word":
        found = word(number)
        return found % below if below else found
    if kind == "uniform":
        return word(number).float() * 2.0**-32 + 2.0**-33
    if kind == "double_word":
        return _remainder((word(2 * number) << 32) | word(2 * number + 1), below)
    if kind == "uniform64":
        bits = word(2 * number) ^ (word(2 * number + 1) << 21)
        return bits.double() * 2.0**-53 + 2.0**-54
    if kind == "normal":
        return _normal(words, number, torch.float32)
    first, second = words[0] ^ (words[1] << 21), words[2] ^ (words[3] << 21)
    radius = torch.sqrt(-2.0 * torch.log(first.double() * 2.0**-53 + 2.0**-54))
    angle = (second.double() * 2.0**-52 + 2.0**-53) * math.pi
    return radius * torch.where(number % 2 == 0, torch.sin(angle), torch.cos(angle))


def _remainder(value: torch.Tensor, below: int) -> torch.Tensor:
    """Modulo, of unsigned 64-bit numbers that are stored as int64."""
    if not below:
        return value
    return torch.from_numpy((value.numpy().view("uint64") % (below & 0xFFFFFFFFFFFFFFFF)).view("int64"))
