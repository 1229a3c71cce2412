"""Numbers of 2 to 8 bits in words of 32, and back.

A number's bits are divided among planes of 8, 4, 2 or 1 bits, low bits first as they are listed (of 3 bits: 2 and 1),
so that no field straddles a word and none is lost. A row of a packed weight [N, K] has the words of its widest plane,
then those of the next. In a plane of p bits, F = 32 / p numbers a word, 16 words hold 16 F numbers that follow each
other. Number

    k = 16 F block + 64 j + 16 c + e      (j < F / 4, c < 4, e < 16)

is the q-th of four words, q = 16 j + e: in word 16 block + 4 c + q / F, of whose fields f = q mod F it has bits
16 (f mod 2) + p (f / 2). So each of four lanes that share a column of B in `mma.sync` m16n8k16, or a row of A, loads 16
bytes at a time, which are its own numbers alone, where k is taken in the order of lanes: runs of 16 numbers, which are
32 bytes of 16-bit activations. Neighbours are 16 bits apart, so that one `and` and one `or` make two 16-bit floats of
them. The last block is filled up with zeros.

Eight rows are a panel: the first 16 words of each follow each other, then the next 16 of each. So what a warp loads at
once for eight columns of B, 512 bytes, lies together, and what it loads next behind that. The last panel has rows of
zeros. Words are [panels, words of a panel].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

WORD = 32
LANES = 4  # that share a block
RUN = 16  # numbers of a lane that follow each other
WORDS = 4  # of a lane in a block: 16 bytes
CHUNK = LANES * WORDS  # words of a block
PANEL = 8  # rows whose blocks follow each other
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
        """Numbers in the 16 words of a block."""
        return LANES * WORDS * self.fields


def planes_of(bits: int, k: int) -> list[Plane]:
    """The planes of numbers of `bits`, of which a row has k."""
    found: list[Plane] = []
    low = start = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            words = -(-k // (LANES * WORDS * (WORD // width))) * LANES * WORDS
            found.append(Plane(width, low, start, words))
            low, start = low + width, start + words
    return found


def words_of(bits: int, k: int) -> int:
    """Words of a row of k numbers."""
    return sum(plane.words for plane in planes_of(bits, k))


def shape_of(bits: int, n: int, k: int) -> tuple[int, int]:
    """The shape of the words of [n, k] numbers: panels, and words of a panel."""
    return -(-n // PANEL), PANEL * words_of(bits, k)


def pack(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [N, K], each below 2^bits, as int32 words of `shape_of`."""
    n, k = numbers.shape
    parts = []
    for plane in planes_of(bits, k):
        fields = torch.zeros(n, plane.words * plane.fields, dtype=torch.int32, device=numbers.device)
        fields[:, :k] = (numbers.to(torch.int32) >> plane.low) & ((1 << plane.bits) - 1)
        # [n, block, j, c, e] -> [n, block, c, (j, e)], which is [n, word, f]
        lanes = fields.view(n, -1, plane.fields // 4, LANES, RUN).transpose(2, 3)
        pairs = lanes.reshape(n, plane.words, plane.fields // PAIR, PAIR)
        words = torch.zeros(n, plane.words, dtype=torch.int32, device=numbers.device)
        for h in range(plane.fields // PAIR):
            for e in range(PAIR):
                words |= pairs[:, :, h, e] << (16 * e + plane.bits * h)
        parts.append(words)
    rows = torch.nn.functional.pad(torch.cat(parts, 1), (0, 0, 0, -n % PANEL))
    chunks = rows.view(-1, PANEL, rows.shape[1] // CHUNK, CHUNK).transpose(1, 2)
    return chunks.reshape(shape_of(bits, n, k))


def unpack(words: torch.Tensor, bits: int, n: int, k: int) -> torch.Tensor:
    """The uint8 numbers [n, k] of what `pack` made."""
    words = words.view(len(words), -1, PANEL, CHUNK).transpose(1, 2).reshape(len(words) * PANEL, -1)[:n]
    total = torch.zeros(words.shape[0], k, dtype=torch.uint8, device=words.device)
    for plane in planes_of(bits, k):
        part = words[:, plane.start : plane.start + plane.words]
        shifts = [16 * e + plane.bits * h for h in range(plane.fields // PAIR) for e in range(PAIR)]
        by = torch.tensor(shifts, dtype=torch.int32, device=words.device)
        fields = (part[:, :, None] >> by) & ((1 << plane.bits) - 1)
        lanes = fields.view(len(words), -1, LANES, plane.fields // 4, RUN).transpose(2, 3)
        numbers = lanes.reshape(len(words), plane.words * plane.fields)[:, :k]
        total |= (numbers << plane.low).to(torch.uint8)
    return total
