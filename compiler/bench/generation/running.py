"""The half of measuring a model that generates that needs a GPU and no MLIR: checks its plans, then times them."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlirc.bench import timing
from mlirc.bench.artifacts import Compiled, read_compiled
from mlirc.bench.bound import bound_us, limited_by
from mlirc.bench.build import set_buffers
from mlirc.bench.cases import Case
from mlirc.bench.generation import contenders, memory
from mlirc.bench.generation.build import build_generating, pack_weights
from mlirc.bench.generation.cases import DECODE, SAMPLE, chunk
from mlirc.bench.generation.check import Checked, assign_pages, check_generation, draw_tokens
from mlirc.bench.generation.contenders import Contender, host_times, in_turns
from mlirc.bench.kernels import time_kernels
from mlirc.bench.reference import exact_math
from mlirc.errors import MlircError
from mlirc.frontend.join_linears import joined_parts
from mlirc.generate.cost import Cost, cost_of
from mlirc.generate.engine import Sampling
from mlirc.generate.loading import engine_of
from mlirc.generate.plan_engine import PlanEngine
from mlirc.generate.sizes import Sizes
from mlirc.precision import DEFAULT_FP32
from mlirc.runtime.plan_file import extract

_HOST_SAMPLES = 20  # of what is timed by the host's clock
_AHEAD = 8  # steps of such a sample where each begins before the one in front of it has ended


def run_generating(
    case: Case, info: dict[str, Any], folder: Path, settings: dict[str, Any], device: str = "cuda"
) -> dict[str, Any]:
    """Checks, then times what was found right; the result is JSON data. Raises what goes wrong.

    `settings`: as of `mlirc.bench.running.Runner`, with `generating_peers` (of `cases.PEERS`).
    """
    with exact_math(info.get("fp32", DEFAULT_FP32)):
        return _Run(case, info, folder, settings, device).run()


class _Run:
    def __init__(self, case: Case, info: dict[str, Any], folder: Path, settings: dict[str, Any], device: str):
        self.case, self.info, self.settings, self.device = case, info, settings, device
        self.fp32 = info.get("fp32", DEFAULT_FP32)
        self.sizes = Sizes(**{**info["sizes"], "chunks": tuple(info["sizes"]["chunks"])})
        self.folder = folder
        self.compiled = read_compiled(folder, case)
        self.module = build_generating(case, device)
        set_buffers(self.module, self.compiled.constants)
        scheme = case.options["quantize"]
        packed = {} if scheme is None else pack_weights(self.module, scheme)
        constants = {name: tensor.to(device) for name, tensor in self.compiled.constants.items()}
        self.tensors: dict[str, Tensor] = {**self.module.state_dict(), **packed, **constants}
        self.tensors |= _joined(self.compiled, self.tensors)
        self.tokens = draw_tokens(case, self.module, self.sizes, device)

    def run(self) -> dict[str, Any]:
        start = time.perf_counter()
        before = memory.in_use(self.device)
        engine = load_engine(self.compiled, self.sizes, self.tensors)
        result: dict[str, Any] = {"load_s": round(time.perf_counter() - start, 3)}
        try:
            result["memory"] = self._memory(engine, before)
            checked = check_generation(engine, self.module, self.tokens)
            _settle(self.device)
            result["check"] = checked.result
            result["check_s"] = round(time.perf_counter() - start, 3)
            if self.settings["time"] and checked.result["verdict"] != "FAIL":
                result["parts"] = self._parts(engine, checked)
        finally:
            engine.close()
            _settle(self.device)
        result["total_s" if self.settings["time"] else "check_total_s"] = round(time.perf_counter() - start, 3)
        return result

    def _memory(self, engine: PlanEngine, before: int | None) -> dict[str, Any]:
        """What the plans take once each has run."""
        assign_pages(engine, self.tokens)
        engine.prefill(0, self.tokens[0].tolist()[: chunk(self.case)], 0)
        engine.decode()
        after = memory.in_use(self.device)
        plans = {name: extract(text) for name, text in texts_of(self.compiled).items()}
        used = None if before is None or after is None else after - before
        return memory.accounted(plans, used)

    def _parts(self, engine: PlanEngine, checked: Checked) -> dict[str, Any]:
        """Times of a step of decoding, and of reading a prompt, by their names."""
        found = {}
        flush = timing.Flusher()
        context, prompt = self.case.options["context"], self.case.options["prefill"]
        if self.case.options["decode"]:
            found[f"decode{context}"] = self._decode(engine, checked, flush)
        if self.case.options.get("verify"):
            count = self.case.options["verify"]
            found[f"verify{count}"] = self._verify(engine, checked, count, flush)
        if prompt is not None:
            found[f"prefill{prompt}"] = self._prefill(engine, checked, prompt, flush)
        return found

    def _decode(self, engine: PlanEngine, checked: Checked, flush: Callable[[], None]) -> dict[str, Any]:
        """A step whose tokens are the last of their sequences: a plan that is run again stays at a full cache."""
        context = self.tokens.shape[1]
        made = torch.from_numpy(engine.decode())
        if not checked.is_near(made):
            raise MlircError("the step that is to be timed chooses other tokens than when it was checked")
        model = engine.models[DECODE]
        cost = cost_of(extract(self.compiled.ptx), engine)
        work = {**self.info["plans"][DECODE]["work"], "read": int(cost.step(context * engine.slots))}
        work["written"] = cost.token * engine.slots
        outcome = self._against(_Ours([model], flush), work, self.tokens, 1, checked.is_near)
        outcome["through_engine"] = self._by_host(engine.decode, flush)
        outcome["through_engine_ahead"] = self._ahead(engine)
        sampler = engine.models[SAMPLE]
        times = _Ours([model, sampler], flush).turn(self.settings["samples"])
        outcome["sampling"] = timing.summarize(times).to_json()
        return outcome | self._kernels(model, DECODE, flush) | self._sampler(sampler, flush)

    def _sampler(self, model: Any, flush: Callable[[], None]) -> dict[str, Any]:
        """The kernels of what chooses tokens behind a step."""
        found = self._kernels(model, SAMPLE, flush)
        return {"sampling_kernels": found["kernels"]} if found else {}

    def _kernels(self, model: Any, plan: str, flush: Callable[[], None]) -> dict[str, Any]:
        if not self.settings["kernels"]:
            return {}
        model.launch()
        model.synchronize()
        return {"kernels": time_kernels(model, self.info["plans"][plan]["kernels"], flush)}

    def _by_host(self, run: Callable[[], Any], flush: Callable[[], None]) -> dict[str, Any]:
        """What a call that ends with its result on the host takes by the host's clock."""
        return timing.summarize(host_times(run, _HOST_SAMPLES, flush, self.device)).to_json()

    def _ahead(self, engine: PlanEngine) -> dict[str, Any]:
        """What a step takes by the host's clock, each token on the host, where the next step begins before that."""
        times = []
        for _ in range(_HOST_SAMPLES):
            memory.synchronize(self.device)
            engine.begin()
            start = time.perf_counter()
            for _ in range(_AHEAD):
                engine.begin()
                engine.decode()
            times.append(1e6 * (time.perf_counter() - start) / _AHEAD)
            engine.drop()
        return timing.summarize(times).to_json()

    def _verify(self, engine: PlanEngine, checked: Checked, count: int, flush: Callable[[], None]) -> dict[str, Any]:
        """The last tokens of the first slot's sequence, judged at once: a verify step of speculative decoding."""
        tokens, context = self.tokens[:1], self.tokens.shape[1]
        logits = self.module(input_ids=tokens, use_cache=False).logits[0, -count:].double()
        near = replace(checked, last=logits).is_near
        given, start = tokens[0, -count:].tolist(), context - count
        if not near(torch.tensor(engine.verify(0, given, start))):
            raise MlircError("the tokens behind those that are judged are not PyTorch's")
        plan = f"prefill-{count}"
        model, cost = self._reading(engine, plan, tokens[:, -count:].contiguous(), start)
        work = {**self.info["plans"][plan]["work"], "read": int(cost.step(context)), "written": cost.token * count}
        is_near = replace(checked, last=logits[-1:]).is_near  # of a peer, which computes the last one's alone
        outcome = self._against(_Ours([model], flush), work, tokens, count, is_near)
        outcome["through_engine"] = self._by_host(lambda: engine.verify(0, given, start), flush)
        return outcome | self._kernels(model, plan, flush)

    def _prefill(self, engine: PlanEngine, checked: Checked, prompt: int, flush: Callable[[], None]) -> dict[str, Any]:
        """A prompt that is read into an empty cache of one slot."""
        tokens = self.tokens[:1, :prompt]
        if tokens.shape[1] < prompt:  # a prompt that is longer than the sequences that are decoded
            tokens = tokens.repeat(1, -(-prompt // tokens.shape[1]))[:, :prompt]
        tokens = tokens.contiguous()
        logits = self.module(input_ids=tokens, use_cache=False).logits[:, -1].double()
        is_near = replace(checked, last=logits).is_near
        if not is_near(torch.tensor([self._first_token(engine, tokens[0].tolist())])):
            raise MlircError("the token after the prompt that is to be timed is not PyTorch's")
        model, cost = self._reading(engine, f"prefill-{prompt}", tokens, 0)
        work = {**self.info["plans"][f"prefill-{prompt}"]["work"], "read": cost.read, "written": cost.token * prompt}
        outcome = self._against(_Ours([model], flush), work, tokens, prompt, is_near, first=True)
        mine = self._by_host(lambda: self._first_token(engine, tokens[0].tolist()), flush)
        outcome["first_token"] = {"mlirc": mine, **outcome["first_token"]}
        return {**outcome, **self._kernels(model, f"prefill-{prompt}", flush)}

    def _reading(self, engine: PlanEngine, plan: str, tokens: Tensor, start: int) -> tuple[Any, Cost]:
        """A plan that reads tokens [1,C] of the first slot from a position on, these bound, and what its steps read."""
        model = engine.models[plan]
        numbers = {"slot": 0, "start": start, "count": tokens.shape[1]}
        model.bind(tokens=tokens, **{name: torch.tensor(n, device=self.device) for name, n in numbers.items()})
        return model, cost_of(extract(self.compiled.others[plan]), engine)

    def _first_token(self, engine: PlanEngine, prompt: list[int]) -> int:
        """From a prompt on the host to its first token on the host: a slot is given to it, and the prompt is read."""
        engine.assign(0, list(range(1, engine.sizes.pages_each + 1)), Sampling(), prompt)
        return engine.prefill(0, prompt, 0)

    def _against(
        self,
        ours: Contender,
        work: Mapping[str, Any],
        tokens: Tensor,
        count: int,
        is_near: Callable[[Tensor], bool],
        first: bool = False,
    ) -> dict[str, Any]:
        """Times ours beside the peers, which read the last `count` of `tokens`; one that is wrong is not timed.
        `first`: by the host's clock, too."""
        outcome: dict[str, Any] = {"bound_us": bound_us(dict(work)), "limited_by": limited_by(dict(work))}
        outcome |= {"peer_errors": {}} | ({"first_token": {}} if first else {})
        racing: dict[str, Contender] = {"mlirc": ours}
        with contextlib.ExitStack() as open_peers:
            for name in self.settings["generating_peers"]:
                try:
                    peer = contenders.PeerProcess(name, self.case, self.folder, self.device, self.fp32)
                    open_peers.callback(peer.close)
                    if not is_near(torch.tensor(peer.prepare(tokens.tolist(), count))):
                        raise MlircError("chooses other tokens than the reference, and is not timed")
                    if first:
                        times = peer.by_host(_HOST_SAMPLES)
                        outcome["first_token"][name] = timing.summarize(times).to_json()
                    racing[name] = peer
                except MlircError as e:  # a peer that cannot do it is a result, too
                    outcome["peer_errors"][name] = str(e)
            found = in_turns(racing, self.settings["samples"])
        return {**outcome, "times": {name: sampled.to_json() for name, sampled in found.items()}}


class _Ours:
    """Plans that follow each other, as a contender."""

    def __init__(self, models: Sequence[Any], flush: Callable[[], None]):
        def launch() -> None:
            for model in models:
                model.launch(torch.cuda.current_stream())

        self.arm, self.flush = timing.Arm("mlirc", launch, 1), flush

    def turn(self, samples: int) -> list[float]:
        return timing.turn(self.arm, samples, self.flush)


def _joined(compiled: Compiled, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of layers that the plans have as one, by name."""
    specs = [spec for text in texts_of(compiled).values() for spec in extract(text).weights]
    parts = {s.name: joined_parts(s.name) for s in specs if s.kind != "state" and s.name not in tensors}
    return {
        name: torch.cat([tensors[p] for p in found])
        for name, found in parts.items()
        if all(p in tensors for p in found)
    }


def texts_of(compiled: Compiled) -> dict[str, str]:
    """The plans' texts by name."""
    return {DECODE: compiled.ptx, **compiled.others}


def load_engine(compiled: Compiled, sizes: Sizes, tensors: Mapping[str, Any]) -> PlanEngine:
    """The plans of a case on the GPU."""
    plans = {name: (text, extract(text), None) for name, text in texts_of(compiled).items()}
    return engine_of(0, sizes, tensors, plans=plans)


def _settle(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
