"""Choosing tokens: the tokens that stay possible beside transformers' processors, the chances of each, compiled levels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as processors

from mlirc.check.levels import level_runner
from mlirc.device import HostModel
from mlirc.driver.compilation import HOST_LEVELS, Compilation
from mlirc.generate.engine import Sampling
from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.sampling import choose, exponential, rates, shares
from mlirc.generate.sizes import Sizes
from mlirc.host.level_files import Levels
from mlirc.targets import get_target
from support.models.together import Calls
from support.randomness import generator

V = 509  # a prime
INF, NAN = float("inf"), float("nan")


def rows(*samplings: Sampling, position: int = 7) -> tuple[torch.Tensor, ...]:
    """The arguments of `choose` behind `seen`, a row for each."""

    def column(name, dtype):
        return torch.tensor([getattr(s, name) for s in samplings], dtype=dtype)

    f32, i64 = torch.float32, torch.int64
    return (
        *(column("temperature", f32), column("top_k", i64), column("top_p", f32), column("min_p", f32)),
        *(column("repetition_penalty", f32), column("seed", i64), torch.full((len(samplings),), position)),
    )


def logits_and_seen(batch: int, size: int = V, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator()
    logits = torch.from_numpy(g.standard_normal((batch, size)).astype(np.float32)) * scale
    return logits, torch.from_numpy(g.random((batch, size)) < 0.1)


def by_transformers(logits: torch.Tensor, seen: torch.Tensor, s: Sampling) -> torch.Tensor:
    """The probabilities of one row's tokens."""
    ids, scores = seen.nonzero()[:, 0][None], logits[None]
    if s.repetition_penalty != 1:
        scores = processors.RepetitionPenaltyLogitsProcessor(s.repetition_penalty)(ids, scores)
    scores = processors.TemperatureLogitsWarper(s.temperature)(ids, scores)
    if s.top_k:
        scores = processors.TopKLogitsWarper(s.top_k)(ids, scores)
    if s.top_p < 1:
        scores = processors.TopPLogitsWarper(s.top_p)(ids, scores)
    if s.min_p:
        scores = processors.MinPLogitsWarper(s.min_p)(ids, scores)
    return scores.softmax(-1)[0]


def possible_shares(logits: torch.Tensor, seen: torch.Tensor, *limits: torch.Tensor) -> torch.Tensor:
    """The shares of the tokens that stay possible, 0 for others: what `choose` draws from, by sorting."""
    temperature, top_k, top_p, min_p, penalty = limits
    every = shares(logits, seen, temperature.reshape(-1, 1), penalty.reshape(-1, 1))[0]
    found = []
    for row, t, k, p, m in zip(every, temperature, top_k, top_p, min_p, strict=True):
        ordered = row.sort(descending=True).values
        if t <= 0:
            least = ordered[0]
        else:
            least = ordered[min(int(k), len(ordered)) - 1] if k > 0 else ordered[-1]
            sums = ordered[ordered >= least].double().cumsum(0)
            if p < 1:
                least = ordered[min(int((sums < float(sums[-1]) * float(p)).sum()), len(sums) - 1)]
        found.append(torch.where((row >= least) & (row >= m) | (row == 1), row, 0))
    return torch.stack(found)


def by_definition(logits: torch.Tensor, seen: torch.Tensor, *how: torch.Tensor) -> torch.Tensor:
    """The tokens that `choose` has to choose: i64 [B]."""
    *limits, seed, position = how
    share = possible_shares(logits, seen, *limits)
    rate = torch.where(limits[0].reshape(-1, 1) > 0, rates(seed, position, logits.shape[1]), 1.0)
    keys = torch.stack([share * rate, share], -1).view(torch.int32).long()
    return (keys[..., 0] << 32 | keys[..., 1]).argmax(-1)


LIMITS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=1),
    Sampling(temperature=0.7, top_k=2),
    Sampling(temperature=1.3, top_k=50),
    Sampling(temperature=1.0, top_k=V - 1),
    Sampling(temperature=1.0, top_k=V),
    Sampling(temperature=1.0, top_k=10**9),
    Sampling(temperature=0.9, top_p=0.9),
    Sampling(temperature=0.9, top_p=0.0),
    Sampling(temperature=2.5, top_p=0.999),
    Sampling(temperature=0.9, min_p=0.05),
    Sampling(temperature=0.9, min_p=1.0),
    Sampling(temperature=0.05, top_p=0.5, repetition_penalty=1.3),
    Sampling(temperature=5.0, top_k=100, top_p=0.8, min_p=0.2, repetition_penalty=0.8),
    Sampling(temperature=0.8, top_k=40, top_p=0.95, min_p=0.01, repetition_penalty=1.1),
]


@pytest.mark.parametrize("scale", [0.01, 3.0, 30.0])
def test_the_tokens_that_stay_possible_are_those_of_transformers(scale):
    logits, seen = logits_and_seen(len(LIMITS), scale=scale)
    found = possible_shares(logits, seen, *rows(*LIMITS)[:5])
    for i, s in enumerate(LIMITS):
        wanted = by_transformers(logits[i], seen[i], s)
        assert torch.equal(found[i] > 0, wanted > 0), s
        torch.testing.assert_close(found[i] / found[i].sum(), wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("size", [1, 2, 37, V])
@pytest.mark.parametrize("kind", ["any", "few values", "all equal", "one finite", "flat"])
def test_the_token_is_the_best_of_those_that_stay_possible(size, kind):
    """Also where the limits leave next to nothing of much, so that draw after draw is refused."""
    g, count = generator(), 120
    logits, seen = logits_and_seen(count, size, scale=1e-4 if kind == "flat" else 3.0)
    if kind == "few values":
        logits = logits.round()
    if kind == "all equal":
        logits, seen = torch.full_like(logits, -2.5), torch.zeros_like(seen)
    if kind == "one finite":
        logits[torch.arange(size).expand_as(logits) != size // 2] = -INF

    def drawn(dtype, *values):
        return torch.from_numpy(g.choice(np.array(values), count)).to(dtype)

    f32, i64 = torch.float32, torch.int64
    how = (
        *(drawn(f32, 0.0, 0.3, 1.0, 1.7), drawn(i64, 0, 1, 2, 5, 40, size - 1, size, size + 1, 1 << 40)),
        *(drawn(f32, 0.0, 1e-30, 1e-4, 0.1, 0.5, 0.9, 0.999, 1.0, 2.0), drawn(f32, 0.0, 0.0, 0.05, 0.5, 1.0, 3.0)),
        *(drawn(f32, 0.8, 1.0, 1.3), torch.from_numpy(g.integers(-(1 << 62), 1 << 62, count))),
        torch.from_numpy(g.integers(0, 1 << 40, count)),
    )
    assert torch.equal(choose(logits, seen, *how), by_definition(logits, seen, *how))


def test_of_equally_probable_tokens_all_stay():
    logits = torch.tensor([[1.0, 2, 2, 2, 0, -1], [2, 0, -0.0, 0, -5, -5], [5, 5, 1, 1, 1, 1]])
    seen = torch.zeros(3, 6, dtype=torch.bool)
    top_k = possible_shares(logits, seen, *rows(*[Sampling(temperature=1.0, top_k=2)] * 3)[:5]) > 0
    assert top_k.int().tolist() == [[0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    top_p = possible_shares(logits, seen, *rows(*[Sampling(temperature=1.0, top_p=0.4)] * 3)[:5]) > 0
    assert top_p.int().tolist() == [[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]


def test_infinities_and_nans():
    logits = torch.tensor([
        [0, NAN, 3, INF, 0], [-INF, 2, -INF, -INF, -INF], [-INF] * 5, [1, INF, 2, -INF, INF], [NAN, 1, -INF, NAN, 0],
    ])  # fmt: skip
    seen = torch.zeros(5, 5, dtype=torch.bool)
    assert choose(logits, seen, *rows(*[Sampling()] * 5)).tolist() == [1, 1, 0, 1, 0]
    drawn = [
        choose(logits, seen, *rows(*[Sampling(temperature=1.5, seed=i, top_k=k, top_p=p)] * 5)).tolist()
        for i in range(20) for k in (0, 1, 4) for p in (1.0, 0.9)
    ]  # fmt: skip
    assert [set(tokens) for tokens in zip(*drawn, strict=True)] == [{1, 3}, {1}, {0}, {1, 4}, {0, 3}]


def test_temperature_0_takes_the_first_of_the_most_probable_tokens():
    logits, seen = logits_and_seen(3)
    logits[0, [17, 5, 300]] = 20.0
    seen[:] = False
    seen[1, logits[1].argmax()] = True
    s = Sampling(top_k=3, top_p=0.5, min_p=0.5, repetition_penalty=1.5, seed=4)
    wanted = torch.where(seen, logits / 1.5, logits).argmax(-1)
    assert wanted[0] == 5
    assert torch.equal(choose(logits, seen, *rows(s, s, s)), wanted)


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        *((Sampling(temperature=t), {2}) for t in (1e-9, 1e-38, 1e-300)),
        *((Sampling(temperature=t), {0, 1, 2, 3, 4}) for t in (1e9, 1e300)),
        (Sampling(temperature=1.0, top_p=1e-300), {2}),
        (Sampling(temperature=5.0, top_k=(1 << 63) - 1, top_p=1 - 1e-12, min_p=1e-300), {0, 1, 2, 3, 4}),
        (Sampling(repetition_penalty=1e300), {4}),
        (Sampling(repetition_penalty=1e-300), {1}),
        (Sampling(temperature=1e-300, repetition_penalty=1e-300), {1}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_values_that_no_f32_can_hold_choose_as_near_ones(sampling, wanted):
    """As an engine keeps them."""
    count, prompt = 60, [0, 2] if sampling.repetition_penalty > 1 else [0, 1]
    engine = PlanEngine({}, Sizes(count, 20, 8, count + 3, (1,), 5))
    for seed in range(count):
        engine.assign(seed, [1], replace(sampling, seed=seed), prompt)
    names = ("temperature", "top_k", "top_p", "min_p", "penalty", "seed")
    given = {n: torch.from_numpy(engine._of_slot[n]) for n in names}
    seen = torch.zeros(count, 5, dtype=torch.bool)
    seen[:, prompt] = True
    logits = torch.tensor([[1.0, 3.0, 4.0, -0.5, 3.9]]).expand(count, 5)
    made = choose(logits, seen, position=torch.full((count,), 7), **given)
    assert set(made.tolist()) == wanted


def test_a_row_does_not_depend_on_the_others():
    logits, seen = logits_and_seen(len(LIMITS))
    arguments = (logits, seen, *rows(*LIMITS))
    together = choose(*arguments)
    order = torch.from_numpy(generator().permutation(len(LIMITS)))
    assert torch.equal(choose(*(a[order] for a in arguments)), together[order])
    assert torch.equal(torch.cat([choose(*(a[i : i + 1] for a in arguments)) for i in range(len(LIMITS))]), together)


@pytest.mark.parametrize("by", ["seed", "position"])
def test_drawn_tokens_have_their_probabilities(by):
    """Pearson's chi-square over draws with different seeds, or positions: the 99.9 % quantile by Wilson and Hilferty."""
    draws, size = 10_000, 37
    logits, seen = logits_and_seen(1, size, scale=1.5)
    s = Sampling(temperature=0.9, top_k=30, repetition_penalty=1.2)
    probabilities = by_transformers(logits[0], seen[0], s).double()
    arguments = [x.expand(draws) for x in rows(s)]
    arguments[{"seed": 5, "position": 6}[by]] = torch.arange(draws) * 3 + (1 << 33 if by == "seed" else 0)
    tokens = choose(logits.expand(draws, -1), seen.expand(draws, -1), *arguments)
    counts = torch.bincount(tokens, minlength=size).double()
    possible = probabilities > 0
    assert int(counts[~possible].sum()) == 0 and int(possible.sum()) == 30
    expected = probabilities[possible] * draws
    statistic = ((counts[possible] - expected) ** 2 / expected).sum().item()
    freedom = int(possible.sum()) - 1
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.0902 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_random_numbers_are_exponential_and_without_correlation():
    """Kolmogorov and Smirnov's distance: 1.95 / sqrt(N) is exceeded with a probability of 0.1 %."""
    count = 70_001
    found = exponential(torch.tensor([0, 1, 1, -5]), torch.tensor([0, 0, 1, 1 << 40]), count).double()
    ordered = (1 - torch.exp(-found)).sort(-1).values
    distance = (ordered - (torch.arange(count) + 0.5) / count).abs().amax(-1)
    assert (distance < 1.95 * count**-0.5).all()
    assert found.min() > 0 and found.max() < 17
    shifted = torch.cat([found, found.roll(1, -1)])
    off = torch.corrcoef(shifted) - torch.eye(8)
    assert off.abs().max() < 5 * count**-0.5


def compiled(batch: int, size: int, *schedule: str) -> Compilation:
    job = Compilation("choose", get_target("sm_90a"), schedule)
    job.import_module(Calls(choose), (*logits_and_seen(batch, size), *rows(*[Sampling()] * batch)), {})
    return job


def test_compiled_tokens_are_those_of_pytorch():
    job = compiled(3, V)
    for level in ("linalg", "tiles"):
        job.lower(level)
        run = level_runner(job, level, job.tensors())
        for start in range(0, len(LIMITS), 3):
            arguments = (*logits_and_seen(3), *rows(*LIMITS[start : start + 3], position=start))
            assert torch.equal(run(arguments)[0], choose(*arguments)), (level, start)
        greedy = (*logits_and_seen(3), *rows(*[Sampling(repetition_penalty=1.4)] * 3))
        greedy[0][:, 3] = NAN
        assert run(greedy)[0].tolist() == [3, 3, 3]


@pytest.mark.parametrize("size", [V, 33_023])
def test_tokens_are_chosen_in_one_kernel(size):
    """Whatever a row is, it is read once; one that no block holds is a cluster's, for which all blocks make the random
    numbers. The rounds of a search, and draws, are loops that end early."""
    job = compiled(2, size)
    job.lower("gpu")
    calls = re.findall(r"call @([a-z]+_[0-9]+)\(", job.text("kernels"))
    assert calls == (["reduction_0"] if size == V else ["elementwise_0", "reduction_0"])
    assert ("clusters in" in job.text("gpu")) == (size > V)
    assert job.text("tiles").count("mlirc.until = 1") == job.text("gpu").count("scf.while") == 2


def test_a_row_in_a_cluster_is_right_on_the_host_device():
    """Of its two blocks the second one has less of it; some warps have copies. Searches go to their last round, where
    tokens are equally probable, or end early, or at once."""
    job = compiled(1, 131, "reduction:blocks=2")
    job.lower("ptx")
    levels = Levels.of({level: job.text(level) for level in HOST_LEVELS}, job.plan)
    model = HostModel(Path("choose"), job.plan, job.tensors(), levels=levels)
    for s in (LIMITS[-1], Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=3)):
        logits, seen = logits_and_seen(1, 131)
        for given in (logits, logits.round()):
            arguments = (given, seen, *rows(s))
            assert np.array_equal(model(*(a.numpy() for a in arguments)), choose(*arguments).numpy())
