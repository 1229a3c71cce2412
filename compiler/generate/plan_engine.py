"""An engine of loaded plans: a step of decoding and the reading of chunks, on a GPU, the host device or the CPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirc.errors import MlircError
from mlirc.generate.engine import Sampling
from mlirc.generate.sizes import VERIFY_LIMIT, Sizes

_READS_AHEAD = 2  # runs of a long prompt that are under way while the host prepares the next one
_PADDING = 4  # a chunk may be this many times as long as what is left of a prompt

MOVING = ("token", "position", "active")  # states that steps write, too
# The states that the host writes, with their NumPy types and what they are for an idle slot; `table` and `seen` apart.
SLOT_STATES: dict[str, tuple[type, float]] = {
    "token": (np.int64, 0),
    "position": (np.int64, 0),
    "active": (np.bool_, 0),
    "temperature": (np.float32, 0),
    "top_k": (np.int64, 0),
    "top_p": (np.float32, 1),
    "min_p": (np.float32, 0),
    "penalty": (np.float32, 1),
    "seed": (np.int64, 0),
}


@dataclass
class _Ended:
    """A run that has ended: its outputs, of which there is one."""

    made: Any

    def result(self) -> Any:
        """As of a run under way."""
        return self.made


@dataclass
class _Begun:
    """A step that was begun. `made`: its tokens, once they are on the host; `counts`: the slots that it moves on;
    `runs`: of the plans that it takes, the last of which gives the tokens."""

    runs: list[Any]
    counts: np.ndarray
    made: np.ndarray | None = None


class PlanEngine:
    """`mlirc.generate.engine.Engine` of models by their plans' names, which share their states: `decode`,
    `prefill-C`, and `sample` behind either where some slot samples or has a penalty.

    Copies of the states but the cache are kept on the host, and written to the device where the host changed them. On
    a GPU steps run while the host does other things; elsewhere a step has ended when `begin` returns.
    """

    def __init__(self, models: Mapping[str, Any], sizes: Sizes):
        self._models, self.sizes = dict(models), sizes
        self.slots, self.context, self.vocabulary = sizes.slots, sizes.context, sizes.vocabulary
        self.page_size, self.pages, self.chunks = sizes.page_size, sizes.pages, sizes.chunks
        self.paged, self.source = sizes.paged, sizes.source
        self.verify_limit = max(c for c in sizes.chunks if c <= VERIFY_LIMIT)
        self._table = np.zeros((self.slots, sizes.pages_each), np.int64)
        self._of_slot: dict[str, Any] = {name: np.full(self.slots, idle, t) for name, (t, idle) in SLOT_STATES.items()}
        self._seen = np.zeros((self.slots, self.vocabulary), np.bool_)
        self._tokens: list[list[int]] = [[] for _ in range(self.slots)]  # what a slot's sequence has, for its penalty
        self._unseen: set[int] = set()  # slots whose row of `seen` is out of date
        self._changed = {"table", "seen", *self._of_slot}
        self._begun: deque[_Begun] = deque()  # steps whose tokens nobody has asked for, the oldest first
        first = next(iter(self._models.values()), None)
        self._apart = hasattr(first, "start")  # runs go on while the host does other things
        self.ahead = int(self._apart)

    @property
    def models(self) -> Mapping[str, Any]:
        """The loaded plans by name."""
        return self._models

    # Sequences

    def assign(self, slot: int, pages: Sequence[int], sampling: Sampling, prompt: Sequence[int]) -> None:
        """Makes a slot a new sequence's; as of the protocol. Raises MlircError for what does not fit."""
        self._check_slot(slot)
        self._check_tokens(prompt)
        self._set_pages(slot, pages)
        values = {
            "token": 0, "position": 0, "active": 0, "temperature": _divisor(sampling.temperature),
            "top_k": sampling.top_k, "top_p": sampling.top_p, "min_p": sampling.min_p,
            "penalty": _divisor(sampling.repetition_penalty), "seed": _signed(sampling.seed),
        }  # fmt: skip
        self._set(slot, values)
        self._remember(slot, 0, prompt)

    def encode(self, slot: int, source: Any, begin: int) -> None:
        """Raises MlircError: there is no encoder."""
        raise MlircError("the model has no encoder: give a prompt alone")

    def extend(self, slot: int, pages: Sequence[int]) -> None:
        """Gives a slot's sequence more pages: `pages` are all that it has now."""
        self._check_slot(slot)
        self._set_pages(slot, pages)

    def release(self, slot: int) -> None:
        """The slot is idle."""
        self._check_slot(slot)
        self._set_pages(slot, ())
        self._set(slot, {name: idle for name, (_, idle) in SLOT_STATES.items()})
        self._tokens[slot] = []

    def rewind(self, slot: int, token: int, position: int) -> None:
        """The slot's next input is `token` at `position`."""
        self._check_slot(slot)
        self._check_tokens([token])
        if not 0 <= position < self.context:
            raise MlircError(f"position {position}: a sequence has positions 0 to {self.context - 1}")
        self._set(slot, {"token": token, "position": position})
        self._remember(slot, position)

    # Running

    def prefill(self, slot: int, tokens: Sequence[int], start: int) -> int:
        """Reads tokens into a slot's cache from position `start` on; the token after the last of them."""
        return self._read(slot, tokens, start, self.chunks)[-1]

    def verify(self, slot: int, tokens: Sequence[int], start: int) -> list[int]:
        """As `prefill` for at most `verify_limit` tokens: the token after each of them."""
        if len(tokens) > self.verify_limit:
            raise MlircError(f"{len(tokens)} tokens to verify: at most {self.verify_limit} fit into one run")
        if self._samples()[slot]:  # which is done for the last token of a run
            return [self._read(slot, [token], start + i, self.chunks)[-1] for i, token in enumerate(tokens)]
        return self._read(slot, tokens, start, [c for c in self.chunks if c <= VERIFY_LIMIT])

    def begin(self) -> None:
        """Begins a step of all slots; as of the protocol."""
        self._write_states()
        state = self._of_slot
        active = state["active"].copy()
        sampled = active & self._samples()
        plans = ("decode", "sample")[: 1 + sampled.any()]
        step = _Begun([self._start(plan) for plan in plans], active)
        state["position"] = np.minimum(state["position"] + active, self.context)
        self._begun.append(step)

    def decode(self) -> np.ndarray:
        """The tokens of the oldest step that was begun: int64 [slots]."""
        if not self._begun:
            self.begin()
        self._take(self._begun[0])
        made = self._begun.popleft().made
        assert made is not None
        return made

    def drop(self) -> None:
        """Forgets the steps that were begun and not asked for."""
        for step in self._begun:
            self._take(step)
        self._begun.clear()

    def close(self) -> None:
        """Frees the device's memory."""
        for model in reversed(list(self._models.values())):
            model.close()

    # Inside

    def _take(self, step: _Begun) -> None:
        """Brings the copies of the states up to what a step made. Steps are taken in the order in which they began."""
        if step.made is None:
            step.made = [np.array(run.result()) for run in step.runs][-1]
        state = self._of_slot
        for slot in np.flatnonzero(step.counts & (state["penalty"] != 1)):
            self._tokens[slot] += [int(state["token"][slot])]
        state["token"][step.counts] = step.made[step.counts]
        step.counts[:] = False

    def _read(self, slot: int, tokens: Sequence[int], start: int, chunks: Sequence[int]) -> list[int]:
        self._check_slot(slot)
        self._check_tokens(tokens)
        if not tokens or start < 0 or start + len(tokens) > self.context:
            raise MlircError(
                f"{len(tokens)} tokens from position {start} on: at least one, and the context is {self.context}"
            )
        made: list[int] = []
        reads: deque[tuple[Any, int]] = deque()  # the runs that were not asked for yet, and how many tokens each reads
        at, end = start, start + len(tokens)
        self._leave_out(slot)
        self._remember(slot, start, tokens)
        self._write_states()
        given = np.asarray(tokens, np.int64)
        while at < end:
            chunk = self._chunk(end - at, at, chunks)
            part = given[at - start : at - start + chunk]
            padded = np.zeros((1, chunk), np.int64)
            padded[0, : len(part)] = part
            number = {"slot": slot, "start": at, "count": len(part)}
            numbers = {name: np.array(n, np.int64) for name, n in number.items()}
            reads.append((self._start(f"prefill-{chunk}", tokens=padded, **numbers), len(part)))
            at += len(part)
            last = [self._start("sample")] if at == end and self._samples()[slot] else []
            while len(reads) > (_READS_AHEAD if at < end else 0):
                run, count = reads.popleft()
                result = np.asarray(run.result())
                made += [int(t) for t in (result[:count] if len(result) > 1 else result)]
            for run in last:
                made[-1] = int(np.asarray(run.result())[slot])
            state = self._of_slot
            state["position"][slot], state["active"][slot] = at, True
        state["token"][slot] = made[-1]
        return made

    def _start(self, plan: str, **inputs: Any) -> Any:
        """A run of a plan, which is under way where runs are apart."""
        model = self._models[plan]
        return model.start(**inputs) if self._apart else _Ended(np.array(model(**inputs)))

    def _chunk(self, left: int, at: int, chunks: Sequence[int]) -> int:
        """The chunk to read next: one for all that is left, unless that is mostly padding, or leaves the pages."""
        room = self.sizes.pages_each * self.page_size - at
        whole = [c for c in chunks if left <= c <= min(room, _PADDING * left)]
        return whole[0] if whole else max(c for c in chunks if c <= min(room, left))

    def _samples(self) -> np.ndarray:
        """Whether slots take other tokens than the most probable one: bool [slots]."""
        return (self._of_slot["temperature"] != 0) | (self._of_slot["penalty"] != 1)

    def _remember(self, slot: int, kept: int, tokens: Sequence[int] = ()) -> None:
        """What a slot's sequence has: the first `kept` tokens that it had, and these. Only the penalty asks."""
        if self._of_slot["penalty"][slot] != 1:
            self._tokens[slot] = [*self._tokens[slot][:kept], *map(int, tokens)]
            self._unseen.add(slot)

    def _leave_out(self, slot: int) -> None:
        """What steps that are under way make for a slot is no longer its sequence's."""
        for step in self._begun:
            step.counts[slot] = False

    def _set(self, slot: int, values: Mapping[str, Any]) -> None:
        """Gives a slot's states values. Those that only the host writes are written to the device where they differ."""
        self._leave_out(slot)
        for name, value in values.items():
            old = self._of_slot[name][slot]
            self._of_slot[name][slot] = value
            if name in MOVING or self._of_slot[name][slot] != old:
                self._changed.add(name)

    def _set_pages(self, slot: int, pages: Sequence[int]) -> None:
        if len(pages) > self._table.shape[1] or any(not 0 < page < self.pages for page in pages):
            raise MlircError(
                f"pages {list(pages)[:8]}: a sequence has at most {self._table.shape[1]}, from 1 to {self.pages - 1}"
            )
        row = np.zeros_like(self._table[slot])
        row[: len(pages)] = pages
        if not np.array_equal(row, self._table[slot]):
            self._table[slot] = row
            self._changed.add("table")

    def _write_states(self) -> None:
        """Writes what has changed, whole: but for the table, which only the host changes, that takes what steps under
        way make of the other slots."""
        if self._changed - {"table"} or self._unseen:
            for step in self._begun:
                self._take(step)
        if self._unseen:  # the others' rows, too, which decoding has changed on the device
            self._seen[:] = False
            for slot, tokens in enumerate(self._tokens):
                self._seen[slot, tokens] = True
            self._changed.add("seen")
            self._unseen.clear()
        first = next(iter(self._models.values()))
        for name in self._changed:
            array = self._table if name == "table" else self._seen if name == "seen" else self._of_slot[name]
            if self._apart:
                first.write_state(name, array)
            else:
                first.state[name] = array.copy()
        self._changed.clear()

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < self.slots:
            raise MlircError(f"slot {slot}: the engine has slots 0 to {self.slots - 1}")

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if len(tokens) and not 0 <= min(tokens) <= max(tokens) < self.vocabulary:
            wrong = next(t for t in tokens if not 0 <= t < self.vocabulary)
            raise MlircError(f"token {wrong}: the model has tokens 0 to {self.vocabulary - 1}")


def _divisor(value: float) -> float:
    """What logits are divided by, 0 as it is. Beyond these bounds the choice is the same, but quotients leave f32: all
    that are too large would be equally probable."""
    return min(max(value, 2.0**-50), 2.0**50) if value else 0.0


def _signed(seed: int) -> int:
    """The low 64 bits of a seed as a signed number."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
