"""Compiled plans that generate: on the CPU beside transformers' `generate`, and as a folder."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.generate.compilation import compile_generation
from mlirc.generate.engine import Sampling
from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.requests import Request
from mlirc.generate.scheduler import Scheduler
from support.generate.late import Late
from support.generation import CONTEXT, VOCABULARY, assert_greedy, greedy, tiny
from support.randomness import generator


def prompts(*lengths: int) -> list[list[int]]:
    g = generator()
    return [[int(t) for t in g.integers(0, VOCABULARY, n)] for n in lengths]


STAGES: list[str] = []


@pytest.fixture(scope="module")
def llama():
    model = tiny("LlamaForCausalLM")
    sizes = dict(slots=3, context=70, page_size=16, chunks=(1, 8, 24))
    compiled = compile_generation(model, **sizes, level="kernels", progress=STAGES.append)
    return model, compiled, compiled.engine("cpu", STAGES.append)


def test_each_stage_is_told(llama):
    plans = ["decode", "sample", "prefill-1", "prefill-8", "prefill-24"]
    assert llama[1].jobs.keys() == set(plans)
    assert STAGES[:5] == [f"{name} ({i} of 5 plans)" for i, name in enumerate(plans, 1)]
    assert STAGES[-5:] == [f"{name} for this CPU ({i} of 5 plans)" for i, name in enumerate(plans, 1)]


def test_greedy_tokens_are_those_of_generate(llama):
    model, compiled, engine = llama
    given = prompts(1, 7, 33)
    for prompt, made in zip(given, greedy(engine, given, 20), strict=True):
        assert_greedy(model, prompt, made)
    assert compiled.notes == []


def pages(engine, slot: int) -> range:
    each = engine.sizes.pages_each
    return range(1 + slot * each, 1 + (slot + 1) * each)


def test_a_sequence_does_not_depend_on_what_runs_beside_it(llama):
    _, _, engine = llama
    sampling = Sampling(temperature=1.5, top_k=20, top_p=0.95, repetition_penalty=1.3, seed=7)
    (prompt, other) = prompts(5, 12)

    def run(slot: int, beside: bool) -> list[int]:
        engine.assign(slot, pages(engine, slot), sampling, prompt)
        made = [engine.prefill(slot, prompt, 0)]
        for i in range(8):
            if beside and i == 2:
                engine.assign(2, pages(engine, 2), Sampling(temperature=1.0, seed=3), other)
                engine.prefill(2, other, 0)
            made.append(int(engine.decode()[slot]))
        engine.release(slot)
        return made

    alone = run(0, False)
    assert run(1, True) == alone and len(set(alone)) > 3
    engine.release(2)


def counted(engine, monkeypatch) -> list[str]:
    """The plans that the engine runs from now on."""
    ran: list[str] = []

    def noting(name, model):
        return lambda **inputs: ran.append(name) or model(**inputs)

    class Noting:
        def __init__(self, name, model):
            self.run, self.state = noting(name, model), model.state

        def __call__(self, **inputs):
            return self.run(**inputs)

    monkeypatch.setattr(engine, "_models", {name: Noting(name, model) for name, model in engine._models.items()})
    return ran


def test_a_step_samples_where_some_slot_asks_for_it(llama, monkeypatch):
    model, _, engine = llama
    ran = counted(engine, monkeypatch)
    first, second = prompts(9, 4)
    penalized = Sampling(repetition_penalty=1.6)

    def penalized_tokens() -> list[int]:
        engine.assign(1, pages(engine, 1), penalized, second)
        made = [engine.prefill(1, second, 0), *(int(engine.decode()[1]) for _ in range(5))]
        engine.release(1)
        return made

    alone = penalized_tokens()
    assert ran.count("decode") == 5 and ran.count("sample") == 6
    engine.assign(0, pages(engine, 0), Sampling(), first)
    made = [engine.prefill(0, first, 0), *(int(engine.decode()[0]) for _ in range(4))]
    assert ran.count("decode") == 9 and ran.count("sample") == 6
    engine.assign(1, pages(engine, 1), penalized, second)  # what greedy steps have not noted does not matter to it
    beside = [engine.prefill(1, second, 0)]
    for _ in range(5):
        tokens = engine.decode()
        made.append(int(tokens[0])), beside.append(int(tokens[1]))
    assert ran.count("decode") == 14 and ran.count("sample") == 12
    engine.release(1)
    made.append(int(engine.decode()[0]))
    assert ran.count("decode") == 15 and ran.count("sample") == 12
    assert beside == alone
    assert_greedy(model, first, made)
    engine.release(0)


@pytest.mark.parametrize("plan", ["decode", "prefill-1", "prefill-8", "prefill-24"])
def test_there_are_few_launches_behind_the_head(llama, plan):
    """Neither a step nor a prompt samples: the largest logit, and what is known of the slots, is what is left."""
    _, compiled, _ = llama
    calls = re.findall(r"call @([a-z]+_[0-9]+)\(", compiled.jobs[plan].text("kernels"))
    last = max(i for i, name in enumerate(calls) if name.startswith("matmul"))
    assert len(calls) - 1 - last <= 2, calls[last:]


def test_sampling_is_two_launches(llama):
    """The tokens that were seen, and all else."""
    _, compiled, _ = llama
    calls = re.findall(r"call @([a-z]+_[0-9]+)\(", compiled.jobs["sample"].text("kernels"))
    assert [name.split("_")[0] for name in calls] == ["elementwise", "reduction"]


def test_a_prompt_may_be_read_in_parts_while_others_decode(llama):
    model, _, engine = llama
    long, short = prompts(40, 3)
    engine.assign(0, pages(engine, 0), Sampling(), short)
    engine.assign(1, pages(engine, 1), Sampling(), long)
    made = [engine.prefill(0, short, 0)]
    for at in range(0, 40, 10):
        first = engine.prefill(1, long[at : at + 10], at)
        made.append(int(engine.decode()[0]) if at < 30 else made.pop())
    assert_greedy(model, short, made)
    assert_greedy(model, long, [first, *(int(engine.decode()[1]) for _ in range(5))])
    engine.release(0), engine.release(1)


def test_verified_tokens_are_those_of_decoding(llama):
    model, _, engine = llama
    (prompt,) = prompts(9)
    sampling = Sampling(repetition_penalty=1.7)
    engine.assign(0, pages(engine, 0), sampling, prompt)
    wanted = [engine.prefill(0, prompt, 0), *(int(engine.decode()[0]) for _ in range(6))]
    engine.assign(1, pages(engine, 1), sampling, prompt)
    first = engine.prefill(1, prompt, 0)
    assert engine.verify_limit == 8
    draft = [first, *wanted[1:3], (wanted[3] + 1) % VOCABULARY]  # the last one is wrong
    made = engine.verify(1, draft, len(prompt))
    assert made[:3] == wanted[1:4]
    engine.rewind(1, made[2], len(prompt) + 3)
    assert [int(engine.decode()[1]) for _ in range(3)] == wanted[4:7]
    engine.release(0), engine.release(1)


def test_up_to_the_end_of_the_context(llama):
    """The last chunks are smaller ones, since a padded one would leave the pages."""
    model, _, engine = llama
    (prompt,) = prompts(69)
    engine.assign(0, pages(engine, 0), Sampling(), prompt)
    assert_greedy(model, prompt, [engine.prefill(0, prompt, 0)])
    assert np.array_equal(engine.decode()[1:], [0, 0]), "idle slots stay as they are"
    with pytest.raises(MlircError, match="the context is 70"):
        engine.prefill(0, prompt, 2)
    with pytest.raises(MlircError, match="tokens 0 to 96"):
        engine.prefill(0, [VOCABULARY], 0)
    with pytest.raises(MlircError, match="slots 0 to 2"):
        engine.release(3)
    with pytest.raises(MlircError, match="from 1 to 15"):
        engine.assign(0, [0], Sampling(), prompt)
    engine.release(0)


COMPILED = {
    "gemma2": ("Gemma2ForCausalLM", {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 16}),
    "bloom": ("BloomForCausalLM", {"n_layer": 1, "n_head": 4}),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": CONTEXT}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32, "num_hidden_layers": 1}),
}
NAMES = list(COMPILED) if os.environ.get("MLIRC_GENERATION") == "all" else ["gemma2"]


@pytest.mark.parametrize("name", NAMES)
def test_other_architectures_once_compiled(name):
    """Windows, capped scores and two kinds of layers; attention of the model's own (ALiBi); positions that are learned;
    normalized queries and keys."""
    kind, sizes = COMPILED[name]
    model = tiny(kind, tie_word_embeddings=False, **sizes)  # tied, they say one token again and again
    compiled = compile_generation(model, slots=2, context=40, page_size=8, chunks=(1,), level="kernels")
    engine = compiled.engine("cpu")
    given = prompts(3, 17)
    for prompt, made in zip(given, greedy(engine, given, 12), strict=True):
        assert_greedy(model, prompt, made)
        assert len(set(made)) > 1


def test_packed_weights():
    model = tiny("LlamaForCausalLM", num_hidden_layers=1)
    compiled = compile_generation(
        model, context=40, page_size=8, chunks=(1,), level="kernels", quantize="int4:group=32"
    )
    packed = compiled.generator.network
    assert packed is not model and any(name.endswith("proj.weight_words") for name in packed.state_dict())
    engine = compiled.engine("cpu")
    [prompt] = prompts(7)
    [made] = greedy(engine, [prompt], 12)
    assert_greedy(packed, prompt, made)


SAMPLING = (
    Sampling(),
    Sampling(temperature=1.5, top_k=20, seed=7),
    Sampling(repetition_penalty=1.6),
    Sampling(temperature=0.8, top_p=0.9, repetition_penalty=1.3, seed=2),
)


def engines(llama) -> Iterator[PlanEngine]:
    """One whose steps have ended when they were begun, then one whose have not, on the same plans."""
    _, _, engine = llama
    yield PlanEngine(engine.models, engine.sizes)
    queue: deque = deque()
    late = PlanEngine({name: Late(model, queue) for name, model in engine.models.items()}, engine.sizes)
    assert (engine.ahead, late.ahead) == (0, 1)
    yield late


def test_settings_that_stay_are_not_written_again(llama, monkeypatch):
    """Each write is a copy that a prompt's first token waits for."""
    written = []
    write_state = Late.write_state
    monkeypatch.setattr(
        Late, "write_state", lambda self, name, array: written.append(name) or write_state(self, name, array)
    )
    *_, engine = engines(llama)
    (prompt,) = prompts(9)
    for sampling, changed in ((None, None), (Sampling(), set()), (Sampling(temperature=0.5), {"temperature"}),
                              (Sampling(temperature=0.5, seed=3), {"seed"}), (Sampling(), {"temperature", "seed"})):  # fmt: skip
        engine.assign(0, pages(engine, 0), sampling or Sampling(), prompt)
        engine.prefill(0, prompt, 0)
        assert changed is None or set(written) == {"token", "position", "active"} | changed
        written.clear()
    engine.assign(0, pages(engine, 1), Sampling(), prompt)
    engine.prefill(0, prompt, 0)
    assert set(written) == {"table", "token", "position", "active"}
    engine.release(0)
    engine.decode()


def tokens(scheduler: Scheduler, requests: list[Request], every: int = 1) -> list[tuple[list[int], str | None]]:
    """What requests that come one after the other, `every` so many turns, make."""
    taken = []
    for request in requests:
        taken.append(scheduler.submit(request))
        for _ in range(every):
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
    assert scheduler.pool.available == scheduler.pool.size
    return [(p.tokens[len(p.request.prompt) :], p.reason) for p in taken]


def test_tokens_are_the_same_whatever_begins_and_ends_beside(llama):
    """More sequences than slots, sampled or not, some of which end with a stop token in the middle."""
    given = [Request(p, 17, SAMPLING[i % 4]) for i, p in enumerate(prompts(5, 9, 3, 14, 1, 6))]
    found = []
    for engine in engines(llama):
        whole = tokens(Scheduler(engine), given)
        pairs = enumerate(zip(given, whole, strict=True))
        ends = [Request(r.prompt, 17, r.sampling, frozenset([made[4 + i]])) for i, (r, (made, _)) in pairs]
        found.append([whole, tokens(Scheduler(engine), ends), tokens(Scheduler(engine), ends, every=3)])
    plain, ahead = found
    assert plain == ahead
    assert {reason for _, reason in plain[0]} == {"length"} and "stop" in {reason for _, reason in plain[1]}
    assert plain[1] == plain[2] and len({len(made) for made, _ in plain[1]}) > 2


def test_what_was_run_past_a_stop_is_no_part_of_the_cache(llama):
    """A sequence stops after any number of tokens, at a page's end and elsewhere; who goes on from there shares its
    pages, and gets the tokens of one that does not."""
    (prompt,) = prompts(12)
    plain, ahead = engines(llama)
    made, _ = tokens(Scheduler(plain), [Request(prompt, 12)])[0]
    wanted = {}
    for new in range(1, 8):
        text = made[: made.index(made[new - 1]) + 1]
        longer = [*prompt, *text, 5, 3]
        wanted[new] = text, longer, tokens(Scheduler(plain), [Request(longer, 6)])[0][0]
    for new, (text, longer, behind) in wanted.items():
        scheduler = Scheduler(ahead)
        stopping = Request(prompt, 12, stop_tokens=frozenset([made[new - 1]]))
        assert tokens(scheduler, [stopping]) == [(text, "stop")]
        again = scheduler.submit(Request(longer, 6))
        while scheduler.busy:
            scheduler.step()
        assert again.reused == (len(prompt) + len(text) - 1) // 16 * 16
        assert again.tokens[len(longer) :] == behind


def test_the_states_of_the_others_are_right_where_the_host_writes(llama):
    """A slot is released and given to another sequence while steps are under way, whose tokens nobody has asked for."""
    first, second, third = prompts(5, 7, 4)
    found = []
    for engine in engines(llama):
        for slot, (prompt, how) in enumerate([(first, SAMPLING[3]), (second, Sampling())]):
            engine.assign(slot, pages(engine, slot), how, prompt)
            engine.prefill(slot, prompt, 0)
        engine.begin(), engine.begin()
        made = [engine.decode()[:2].tolist()]
        engine.release(1)
        engine.assign(2, pages(engine, 2), SAMPLING[2], third)
        made += [[engine.prefill(2, third, 0)]]
        engine.begin()
        made += [engine.decode()[:1].tolist(), engine.decode()[[0, 2]].tolist(), engine.decode()[[0, 2]].tolist()]
        found.append(made)
        state = next(iter(engine.models.values())).state
        assert np.asarray(state["position"]).tolist() == [9, 0, 6]
        assert np.asarray(state["active"]).tolist() == [True, False, True]
        for slot, prompt in ((0, first), (2, third)):
            assert set(np.flatnonzero(np.asarray(state["seen"])[slot])) >= set(prompt)
    assert found[0] == found[1]


def test_experts_are_read_where_they_lie():
    """Of a layer of experts two products choose their matrices, in chunks and in steps of single tokens alike."""
    model = tiny("OlmoeForCausalLM", num_experts=8, num_experts_per_tok=2, num_hidden_layers=1)
    compiled = compile_generation(model, slots=2, context=40, page_size=16, chunks=(1, 16), level="kernels")
    engine, given = compiled.engine("cpu"), prompts(1, 20)
    for prompt, made in zip(given, greedy(engine, given, 5), strict=True):
        assert_greedy(model, prompt, made)
    for job in (job for name, job in compiled.jobs.items() if name != "sample"):
        kernels = [k for k in job.text("kernels").split("func.func private")[1:] if "tensor<8x192x64x" in k]
        assert kernels and all("mlirc.gather_matrices" in k and 'mlirc.kind = "matmul"' in k for k in kernels)
