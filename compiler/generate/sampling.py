"""The next token from the logits, in ops that compile: no sort, and random numbers that are computed in the graph.

The limits of top-k and top-p are found without sorting. A limit is the largest number whose tokens, those at or above
it, are enough: k of them, or a share p of the probability. It is searched bit by bit among all f32, whose order is
that of integers; a step sums up what is at or above one number. All steps reduce the same rows, and so are one kernel,
which has a row in its registers from the first step to the last.
"""

from __future__ import annotations

import torch

from mlirc.frontend.decompositions import decompose_by
from mlirc.frontend.random.philox import MASK, MULTIPLIERS, ROUNDS, WEYL

Tensor = torch.Tensor

_SIGN, _REST = -(1 << 31), 0x7FFFFFFF  # the bits of an f32
_MULTIPLIER = 0xD256D193  # of Philox2x32


def choose(
    logits: Tensor, seen: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, penalty: Tensor,
    seed: Tensor, position: Tensor,
) -> Tensor:  # fmt: skip
    """The next token of each row: i64 [B], from logits f32 [B, V] and the fields of `mlirc.generate.engine.Sampling`.

    `seen` bool [B, V] says which tokens the sequence has; `temperature`, `top_p`, `min_p` and `penalty` are f32 [B],
    `top_k`, `seed` and `position` (the place in the sequence of the token that is chosen) i64 [B]. Which tokens stay
    possible is as with transformers' processors for repetition penalty, temperature, top-k, top-p and min-p, in this
    order; of equally probable tokens all stay where one does, and the most probable ones always stay. Temperature 0
    takes the most probable token, the first of equal ones. A NaN counts as infinity; where tokens are at infinity, each
    of those is as probable as the others, and nothing else is possible. Tokens at -inf are never chosen, unless all
    are, which gives token 0.

    Of the possible tokens the one with the largest p / q is chosen, where q is exponential (the Gumbel-max trick, which
    draws from p): q depends on the seed, the position and the token alone.
    """
    scores, share = possible_shares(logits, seen, temperature, top_k, top_p, min_p, penalty)
    drawn = share / exponential(seed, position, logits.shape[-1])
    return torch.where(temperature.reshape(-1, 1) > 0, drawn, scores).argmax(-1)


@torch.library.custom_op("mlirc::choose", mutates_args=())
def chosen(
    logits: Tensor, seen: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, penalty: Tensor,
    seed: Tensor, position: Tensor,
) -> Tensor:  # fmt: skip
    """`choose` as one operation: its some 700 are traced once for all plans."""
    return choose(logits, seen, temperature, top_k, top_p, min_p, penalty, seed, position)


@chosen.register_fake
def _(logits, *_):
    return logits.new_empty(logits.shape[:1], dtype=torch.int64)


decompose_by(torch.ops.mlirc.choose.default, choose)


def most_probable(logits: Tensor) -> Tensor:
    """What `choose` gives with temperature 0 and no penalty: i64 [B] from f32 [B, V]."""
    return torch.where(torch.isnan(logits), torch.inf, logits).argmax(-1)


def possible_shares(
    logits: Tensor, seen: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, penalty: Tensor
) -> tuple[Tensor, Tensor]:
    """From arguments of `choose`: the logits after penalty and temperature, where that is not 0, and each token's
    probability as a share of the most probable one's, 0 for those that the limits exclude; both f32 [B, V]."""
    temperature, top_k, top_p, min_p, penalty = (x.reshape(-1, 1) for x in (temperature, top_k, top_p, min_p, penalty))
    scores = torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)
    scores = scores / torch.where(temperature > 0, temperature, 1.0)
    scores = torch.where(torch.isnan(scores), torch.inf, scores)
    largest = scores.amax(-1, keepdim=True)

    place = torch.where(scores == 0, 0.0, scores).view(torch.int32)  # -0 is as probable
    place = torch.where(place < 0, place ^ _REST, place)  # in the order of f32
    done = (top_k <= 0) | (largest == -torch.inf)
    limit = _highest(place, None, top_k.float(), 32, done)
    scores = torch.where(place < 0, place ^ _REST, place).view(torch.float32)  # once more: a row is kept as places
    stays = (place >= limit) | (scores == largest)
    share = torch.where(scores == largest, 1.0, torch.exp(scores - largest))  # infinity minus itself is no number
    share = torch.where(stays & (scores > -torch.inf), share, 0.0)

    place, total = share.view(torch.int32), share.sum(-1, keepdim=True)
    done = ~(top_p < 1) | (total == 0)
    stays = place >= _highest(place, share, total * top_p, 30, done)  # shares are at most 1: 30 bits
    stays = (stays & (share >= min_p)) | (share == 1)
    return scores, torch.where(stays, share, 0.0)


def _highest(places: Tensor, weights: Tensor | None, wanted: Tensor, bits: int, done: Tensor) -> Tensor:
    """The largest number with at least `wanted` f32 [B, 1] as the sum of the `weights` f32 [B, V] of the `places` int32
    [B, V] at or above it, or a smaller one with the same places at or above it: int32 [B, 1]. Without weights all are
    1. With 30 bits places are from 0 on, with 32 they are those of any f32. Of rows that are `done` bool [B, 1] all
    places are at or above it.

    A round finds two bits, by the sums of three numbers, for which a cluster's blocks meet once. All rounds are alike,
    the first and the last one, too, and so become a loop (`schedule.roll`), which ends where a row is done."""
    lowest = _SIGN + 1 if bits == 32 else 0
    below, first = (torch.full_like(wanted, n, dtype=torch.int32) for n in (lowest - 1, lowest))
    found = torch.where(done, below, first)
    for bit in reversed(range(0, bits, 2)):
        half = found + (2 << bit if bit < 30 else _SIGN)
        best, most = found, torch.zeros_like(wanted)
        for tried in (found + (1 << bit), half, half + (1 << bit)):
            total = torch.where(places >= tried, 1.0 if weights is None else weights, 0.0).sum(-1, keepdim=True)
            best = torch.where(total >= wanted, tried, best)
            most = torch.where(total >= wanted, total, most)
        found, done = torch.where(done, found, best), done | (most == wanted)
    return torch.minimum(torch.where(done, found, _REST), found)


def exponential(seed: Tensor, position: Tensor, count: int) -> Tensor:
    """Numbers of the exponential distribution with mean 1, f32 [B, count] in (0, 17), for seeds and positions i64 [B]:
    Philox2x32-10 of a number's place in its row, keyed with Philox4x32-10 of the position, whose key is the seed."""
    key, high = _philox(position.reshape(-1, 1), seed.reshape(-1, 1))
    low = torch.arange(count).reshape(1, -1)
    for _round in range(ROUNDS):
        product = low * _MULTIPLIER  # wraps to the same 64 bits
        low, high = (product >> 32 & MASK) ^ key ^ high, product & MASK
        key = (key + WEYL[0]) & MASK
    # Small numbers decide, and have all bits of an f32 here; 1 would become infinite.
    uniform = (low.float() * 2.0**-32 + 2.0**-33).clamp(max=1 - 2.0**-24)
    return -torch.log1p(-uniform)


def _philox(counter: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """The first two words of Philox4x32-10, i64 of one shape, for counters and keys of 64 bits."""
    a, b = counter & MASK, counter >> 32 & MASK
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    keys = [key & MASK, key >> 32 & MASK]
    for _round in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (second >> 32 & MASK) ^ b ^ keys[0], second & MASK
        c, d = (first >> 32 & MASK) ^ d ^ keys[1], first & MASK
        keys = [(k + w) & MASK for k, w in zip(keys, WEYL, strict=True)]
    return a, b
