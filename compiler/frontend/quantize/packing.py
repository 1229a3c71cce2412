"""Numbers of 2 to 8 bits in words of 32, and back.

A number's bits are divided among planes of 8, 4, 2 or 1 bits, low bits first as they are listed (of 3 bits: 2 and 1),
so that no field straddles a word and none is lost. A row of a packed weight [N, K] has the words of its widest plane,
then those of the next. In a plane of p bits four words hold 4 F numbers that follow each other, F = 32 / p: number

    k = 4 F block + 8 h + 2 c + e      (h < F / 2, c < 4, e < 2)

is in word 4 block + c, at bit 16 e + p h. So the four lanes that share a column of B in `mma.sync` m16n8k16 (PTX ISA,
"Matrix Fragments for mma.m16n8k16 with floating point type") find all of their elements in one word each, neighbours
16 bits apart; and four words that follow each other are a run of the row. The last block is filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORD = 32
LANES = 4  # words of a block
PAIR = 2  # neighbours in a word, 16 bits apart


@dataclass(frozen=True)
class Plane:
    """Bits [low, low + bits) of every number, in words [start, start + words) of a row."""

    bits: int
    low: int
    start: int
    words: int

    @property
    def fields(self) -> int:
        """Numbers in a word."""
        return WORD // self.bits

    @property
    def block(self) -> int:
        """Numbers in the four words of a block."""
        return LANES * self.fields


def planes_of(bits: int, k: int) -> list[Plane]:
    """The planes of numbers of `bits`, of which a row has k."""
    found: list[Plane] = []
    low = start = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            words = -(-k // (LANES * (WORD // width))) * LANES
            found.append(Plane(width, low, start, words))
            low, start = low + width, start + words
    return found


def words_of(bits: int, k: int) -> int:
    """Words of a row of k numbers."""
    return sum(plane.words for plane in planes_of(bits, k))


def pack(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [N, K], each below 2^bits, as int32 words [N, `words_of`]."""
    n, k = numbers.shape
    parts = []
    for plane in planes_of(bits, k):
        fields = torch.zeros(n, plane.words * plane.fields, dtype=torch.int32, device=numbers.device)
        fields[:, :k] = (numbers.to(torch.int32) >> plane.low) & ((1 << plane.bits) - 1)
        fields = fields.view(n, -1, plane.fields // PAIR, LANES, PAIR)
        words = torch.zeros(n, fields.shape[1], LANES, dtype=torch.int32, device=numbers.device)
        for h in range(plane.fields // PAIR):
            for e in range(PAIR):
                words |= fields[:, :, h, :, e] << (16 * e + plane.bits * h)
        parts.append(words.view(n, plane.words))
    return torch.cat(parts, 1)


def unpack(words: torch.Tensor, bits: int, k: int) -> torch.Tensor:
    """The uint8 numbers [N, k] of what `pack` made."""
    total = torch.zeros(words.shape[0], k, dtype=torch.uint8, device=words.device)
    for plane in planes_of(bits, k):
        part = words[:, plane.start : plane.start + plane.words].reshape(len(words), -1, LANES)
        shifts = [[16 * e + plane.bits * h for e in range(PAIR)] for h in range(plane.fields // PAIR)]
        by = torch.tensor(shifts, dtype=torch.int32, device=words.device)
        fields = part[:, :, None, :, None] >> by[None, None, :, None, :]
        numbers = (fields & ((1 << plane.bits) - 1)).reshape(len(words), plane.words * plane.fields)[:, :k]
        total |= (numbers << plane.low).to(torch.uint8)
    return total
