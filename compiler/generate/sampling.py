"""The next token from the logits, in ops that compile: no sort, and random numbers that are computed in the graph.

Which tokens the limits leave is not searched: a token is drawn from all, and what is more probable than it says
whether it is one of them: fewer than k tokens, with less than a share p of the probability. If not, no less probable
one is either, and the next draw is from those that are more probable. With the same random numbers for all draws the
first token that stays is the one that a draw from those within the limits gives. Where top-k and top-p are both
given, the share is one of the k tokens' probability, whose limit is then searched bit by bit.

All draws, and all steps of a search, reduce the same rows, and so are one kernel, which has a row in its registers from
the first to the last.
"""

from __future__ import annotations

import torch

from mlirc.frontend.decompositions import decompose_by
from mlirc.frontend.random.philox import MASK, MULTIPLIERS, ROUNDS, WEYL

Tensor = torch.Tensor

ONE, LAST = 0x3F800000, 0x7FFFFFFF  # the bits of an f32 of 1; the largest int32
LEAST = 1e-37  # more than the probability above the most probable token, 0
# Draws at most. Of what is left the next draw leaves a share that is uniform between 0 and 1, where probabilities are
# many and small: of V nearly equal ones down to the first, ln(V) draws on average, and 32 are too few three times in a
# million times for 262,144 (Poisson). With a top-p of 0.9 one of ten draws is refused.
DRAWS = 32
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
    draws from p): q depends on the seed, the position and the token alone. Of equal ones it is the most probable one,
    of these the first one. Where no token was found in DRAWS draws, it is the most probable one.
    """
    temperature, top_k, top_p, min_p, penalty = (x.reshape(-1, 1) for x in (temperature, top_k, top_p, min_p, penalty))
    share, largest = shares(logits, seen, temperature, penalty)
    place = share.view(torch.int32)  # in the order of f32 that are not negative
    greedy, drawn = temperature <= 0, share * rates(seed, position, logits.shape[-1])
    keys = torch.where(greedy, share, drawn).view(torch.int32).long() * (1 << 32) + place
    all_counts, all_masses = greedy | (top_k <= 0), greedy | ~(top_p < 1)

    limit = _limit(share, top_k.float(), all_counts | all_masses | (largest == -torch.inf))
    enough = torch.where(place >= limit, share, 0.0).sum(-1, keepdim=True) * top_p
    wanted = torch.where(all_counts, torch.inf, top_k.float())
    enough = torch.where(all_masses, torch.inf, enough.clamp(min=LEAST))  # nothing is above the most probable ones
    limit = torch.maximum(limit, torch.where(greedy, 1.0, min_p.clamp(max=1.0)).view(torch.int32))
    keys = torch.where(place >= limit, keys, 0)
    key, done = keys.amax(-1, keepdim=True), (wanted == torch.inf) & (enough == torch.inf) | (largest == -torch.inf)
    for _round in range(DRAWS):
        above = place > key.int()
        count = torch.where(above, 1.0, 0.0).sum(-1, keepdim=True)
        mass = torch.where(above, share, 0.0).sum(-1, keepdim=True)
        following = torch.where(above, keys, 0).amax(-1, keepdim=True)
        stays = (count < wanted) & (mass < enough)
        key, done = torch.where(done, key, torch.where(stays, key, following)), done | stays
    return torch.where(done, keys == key, place == ONE).int().argmax(-1)


def shares(logits: Tensor, seen: Tensor, temperature: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
    """Each token's probability as a share of the most probable one's, f32 [B, V], and that one's logit over the
    temperature, f32 [B, 1], from arguments of `choose`, the latter two as [B, 1]."""
    scores = torch.where(seen, logits * torch.where(logits < 0, penalty, 1.0 / penalty), logits)
    scores = scores * (1.0 / torch.where(temperature > 0, temperature, 1.0))
    scores = torch.where(torch.isnan(scores), torch.inf, scores)
    largest = scores.amax(-1, keepdim=True)
    share = torch.where(scores == largest, 1.0, torch.exp(scores - largest))  # infinity minus itself is no number
    return torch.where(scores > -torch.inf, share, 0.0), largest


@torch.library.custom_op("mlirc::choose", mutates_args=())
def chosen(
    logits: Tensor, seen: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, penalty: Tensor,
    seed: Tensor, position: Tensor,
) -> Tensor:  # fmt: skip
    """`choose` as one operation: its some 900 are traced once for all plans."""
    return choose(logits, seen, temperature, top_k, top_p, min_p, penalty, seed, position)


@chosen.register_fake
def _(logits, *_):
    return logits.new_empty(logits.shape[:1], dtype=torch.int64)


decompose_by(torch.ops.mlirc.choose.default, choose)


def most_probable(logits: Tensor) -> Tensor:
    """What `choose` gives with temperature 0 and no penalty: i64 [B] from f32 [B, V]."""
    return torch.where(torch.isnan(logits), torch.inf, logits).argmax(-1)


def _limit(share: Tensor, wanted: Tensor, done: Tensor) -> Tensor:
    """The largest place with at least `wanted` f32 [B, 1] places at or above it, or a smaller one with the same places
    at or above it: int32 [B, 1], for the shares f32 [B, V], whose places are their bits. Of rows that are `done`
    bool [B, 1], and of those with fewer places, all are at or above it.

    It is searched bit by bit among all f32, whose order is that of integers. A round finds two bits, by counting at
    three numbers, for which a cluster's blocks meet once. All rounds are alike, the first and the last one, too,
    and so become a loop (`schedule.roll`), which ends where what is at or above a number is just enough, or where
    all that it may be is one number."""
    place = share.view(torch.int32)
    low = torch.where(done, -1, torch.zeros_like(wanted, dtype=torch.int32))
    for bit in reversed(range(0, 30, 2)):
        best, most = low, torch.zeros_like(wanted)
        for cut in (low + (1 << bit), low + (2 << bit), low + (3 << bit)):
            count = torch.where(place >= cut, 1.0, 0.0).sum(-1, keepdim=True)
            best = torch.where(count >= wanted, cut, best)
            most = torch.where(count >= wanted, count, most)
        first = -torch.where(place >= low, -share, -2.0).amax(-1, keepdim=True)
        last = torch.where(place < low + (4 << bit), share, -1.0).amax(-1, keepdim=True)
        best = torch.where(first == last, first.view(torch.int32), best)
        most = torch.where(first == last, wanted, most)
        low, done = torch.where(done, low, best), done | (most == wanted)
    return torch.minimum(torch.where(done, low, LAST), low)


def rates(seed: Tensor, position: Tensor, count: int) -> Tensor:
    """1 / `exponential`."""
    return 1.0 / exponential(seed, position, count)


def exponential(seed: Tensor, position: Tensor, count: int) -> Tensor:
    """Numbers of the exponential distribution with mean 1, f32 [B, count] in (0, 17), for seeds and positions i64 [B]:
    Philox2x32-10 of a number's place in its row, keyed with Philox4x32-10 of the position, whose key is the seed."""
    key, high = _philox(position.reshape(-1, 1), seed.reshape(-1, 1))
    low = torch.arange(count) ^ high  # in another order for each: so nothing is computed ahead and read
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
