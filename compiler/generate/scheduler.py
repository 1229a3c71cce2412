"""Continuous batching: requests wait, get a slot and pages, are read, decoded together, and end, each on its own.

A turn reads at most `turn_tokens` tokens of prompts and then decodes one token of every running sequence, so that a
long prompt delays the others by so much and no more. Prompts are read one at a time, in the order of their requests,
but that calls of several requests take turns with others (`Scheduler.submit`); one that is not read to its end in a
turn gives its slot back for the decoding, since the engine decodes every slot in use. Where a slot keeps more than
pages (`Engine.paged`), prompts are read to their end in one turn, however long.

Pages are taken as a sequence grows. Where none is left, the youngest sequence gives its own back and waits at the front
of the queue; what it has is read again later, most of it from pages that are still there. The oldest always goes on,
and alone it fits (`check_request`), so that every sequence ends. Its tokens are the same as without the pause, up to
the rounding in which a model's plans for several tokens differ from the one for a single token.

Where the engine's steps go on while the host does other things (`Engine.ahead`), the next step is begun before the
tokens of the last one are looked at. What it makes for a sequence that turns out to have ended is dropped: it was
written behind that sequence's tokens, into pages that nobody else had.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mlirc.generate.drafting import lookup
from mlirc.generate.engine import Engine
from mlirc.generate.pages import Lease, PagePool
from mlirc.generate.requests import Event, Request, check_request, most_tokens


@dataclass(eq=False)
class Progress:
    """How far a request is. Times are the scheduler's clock's, in seconds."""

    number: int
    request: Request
    tokens: list[int]  # the prompt, then what was generated
    most: int  # new tokens
    submitted: float
    first: float | None = None  # when the first new token was there
    ended: float | None = None
    reused: int = 0  # tokens of the prompt that were in the cache when it was first read
    written: int = 0  # positions of `tokens` that the cache holds for it
    slot: int | None = None
    lease: Lease = field(default_factory=Lease)
    reason: str | None = None
    drafted: int = 0  # tokens that were guessed
    accepted: int = 0  # of them, those that were right
    pauses: int = 0  # how often its pages were given to an older sequence
    call: object = None  # whose requests take turns with those of other calls; None: it is a call of its own

    @property
    def new(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens) - len(self.request.prompt)


class Scheduler:
    """Runs requests on an engine. Nothing here is safe for several threads at once.

    `turn_tokens`: how many tokens of prompts a turn reads at most (default: the engine's largest chunk). `draft`: how
    many tokens are guessed where one greedy sequence runs alone (default 0: none); the engine's `verify_limit` bounds
    it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        turn_tokens: int | None = None,
        draft: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.engine = engine
        self.pool = PagePool(engine.pages, engine.page_size)
        self._turn_tokens = turn_tokens or max(engine.chunks)
        self._draft = min(draft, engine.verify_limit - 1)
        self._clock = clock
        self._last = None if engine.source is None else engine.source.last
        self._count = 0
        self._waiting: deque[Progress] = deque()
        self._reading: Progress | None = None
        self._running: dict[int, Progress] = {}  # by slot
        self._begun: deque[set[Progress]] = deque()  # for whom the steps under way are, the oldest first
        self._events: list[Event] = []
        engine.drop()  # what another scheduler began is none of this one's

    @property
    def busy(self) -> bool:
        """Whether a turn has something to do."""
        return bool(self._waiting or self._reading or self._running)

    @property
    def requests(self) -> list[Progress]:
        """All that have not ended, in the order of their numbers."""
        reading = [self._reading] if self._reading else []
        return sorted([*self._waiting, *reading, *self._running.values()], key=lambda p: p.number)

    def submit(self, request: Request, call: object = None) -> Progress:
        """Takes a request, which waits for its turn. Its `number` is what events name. Of several requests with one
        `call`, which is compared by identity, none gets a slot while another call has none and waits.

        Raises MlircError for what the engine can never run (`check_request`).
        """
        check_request(request, self.engine)
        self._count += 1
        prompt = [int(t) for t in request.prompt]
        progress = Progress(self._count, request, prompt, most_tokens(request, self.engine), self._clock(), call=call)
        self._waiting.append(progress)
        return progress

    def cancel(self, number: int) -> Event | None:
        """Ends a request at once, wherever it is; None for one that has ended or never was."""
        progress = next((p for p in self.requests if p.number == number), None)
        return None if progress is None else self._end(progress, (), "", "cancelled")

    def step(self) -> list[Event]:
        """One turn: reads prompts, then decodes. Returns what it made, in the order in which it was made."""
        self._events = []
        self._read_prompts()
        self._park()
        if self._running:
            self._decode()
        return self._events

    # Reading prompts

    def _read_prompts(self) -> None:
        left = self._turn_tokens
        while True:
            progress = self._reading or self._admit()
            if progress is None:
                return
            # What fits into a turn is read at once: in the next one rather than in two parts, each of a run or more.
            count = len(progress.tokens) - progress.written
            count = min(count, self._turn_tokens) if self.engine.paged else count
            if count > left and (self.engine.paged or left < self._turn_tokens):
                return
            self._read(progress, count)
            left -= count

    def _admit(self) -> Progress | None:
        """Gives the first of the queue its pages, where there are enough."""
        if not self._waiting or len(self._running) == self.engine.slots:
            return None
        progress = self._next()
        lease = self.pool.open(
            progress.tokens if self.engine.paged else (), self.pool.pages_for(self._needed(progress))
        )
        if lease is None:
            return None
        self._waiting.remove(progress)
        progress.lease = lease
        progress.written = lease.shared * self.pool.page_size
        if not progress.pauses:
            progress.reused = progress.written
        self._reading = progress
        return progress

    def _next(self) -> Progress:
        """Whose turn it is of those that wait: the oldest that had to give its pages back, then the first request of
        the call that has the fewest slots, so that a short call does not wait for all the choices of a long one."""
        paused = [p for p in self._waiting if p.pauses]
        if paused:
            return min(paused, key=lambda p: p.number)
        running: dict[int, int] = {}
        for progress in self._running.values():
            if progress.call is not None:
                running[id(progress.call)] = running.get(id(progress.call), 0) + 1
        return min(self._waiting, key=lambda p: (running.get(id(p.call), 0), p.number))

    def _needed(self, progress: Progress) -> int:
        """Positions that a sequence writes up to its next decoded token. The last token of all is never written."""
        return min(len(progress.tokens) + 1, len(progress.request.prompt) + progress.most - 1)

    def _read(self, progress: Progress, count: int) -> None:
        """Reads so many tokens of the sequence at hand; from the last one on it runs."""
        if progress.slot is None:
            progress.slot = next(s for s in range(self.engine.slots) if s not in self._running)
            self.engine.assign(progress.slot, progress.lease.pages, progress.request.sampling, progress.tokens)
            if progress.request.source is not None:
                self.engine.encode(progress.slot, progress.request.source, len(progress.request.prompt))
        start = progress.written
        token = self.engine.prefill(progress.slot, progress.tokens[start : start + count], start)
        progress.written += count
        if progress.written < len(progress.tokens):
            self.pool.keep(progress.lease, progress.tokens, progress.written)
            return
        self._reading = None
        self._running[progress.slot] = progress
        self._made(progress, [token])

    def _park(self) -> None:
        """Takes the slot of a sequence that is not read to its end: a decoding would add to it, and the token behind a
        part of a prompt, which the engine samples, is none that the sequence has."""
        if self._reading and self._reading.slot is not None:
            self.engine.release(self._reading.slot)
            self._reading.slot = None

    # Decoding

    def _decode(self) -> None:
        while self._begun and not self._begun[0]:  # all that it was for have ended
            self._begun.popleft()
            self.engine.decode()
        if not self._begun:
            for progress in sorted(self._running.values(), key=lambda p: p.number):  # the oldest takes pages first
                if progress.slot is not None:
                    self._make_room(progress)
            if not self._running:
                return
            if len(self._running) == 1 and not self._waiting and not self._reading:
                progress = next(iter(self._running.values()))
                if self._verify(progress):
                    return
            self._begin()
            if self._events and self.engine.ahead:  # who waits for a prompt's first token need not wait for another
                return
        while len(self._begun) <= self.engine.ahead and self._may_run_ahead():
            self._begin()
        tokens = self.engine.decode()
        for progress in sorted(self._begun.popleft(), key=lambda p: p.number):
            assert progress.slot is not None
            progress.written += 1
            self._made(progress, [int(tokens[progress.slot])])

    def _begin(self) -> None:
        self.engine.begin()
        self._begun.append(set(self._running.values()))

    def _under_way(self, progress: Progress) -> int:
        """How many tokens of a sequence the steps under way make."""
        return sum(progress in step for step in self._begun)

    def _may_run_ahead(self) -> bool:
        """Whether the next step can begin now: somebody needs it, and there are pages for it."""
        if self._draft:  # what is guessed follows from the last token
            return False
        more = [p for p in self._running.values() if p.new + self._under_way(p) < p.most]
        for progress in sorted(more, key=lambda p: p.number):
            pages = self.pool.pages_for(len(progress.tokens) + self._under_way(progress))
            if pages > len(progress.lease.pages):
                if not self.pool.grow(progress.lease, pages):
                    return False
                assert progress.slot is not None
                self.engine.extend(progress.slot, progress.lease.pages)
        return bool(more)

    def _make_room(self, progress: Progress) -> None:
        """Gives a running sequence the page of its next position; the youngest give theirs where there is none."""
        pages = self.pool.pages_for(len(progress.tokens))
        if pages <= len(progress.lease.pages):
            return
        while not self.pool.grow(progress.lease, pages):
            # What is being read has no token yet, and is soon read again.
            youngest = self._reading or max(self._running.values(), key=lambda p: p.number)
            self._pause(youngest)
            if youngest is progress:
                return
        assert progress.slot is not None
        self.engine.extend(progress.slot, progress.lease.pages)

    def _pause(self, progress: Progress) -> None:
        self._leave(progress)
        progress.written = 0
        progress.pauses += 1
        self._waiting.appendleft(progress)

    def _verify(self, progress: Progress) -> bool:
        """Guesses the next tokens and has them judged in one step; False where there is no guess to make.

        A token is accepted where it is the one that the model samples there, so that with or without guesses the tokens
        are the same.
        """
        sampling = progress.request.sampling
        if self._draft < 1 or not self.engine.paged or sampling.temperature or sampling.repetition_penalty != 1:
            return False
        start, slot = progress.written, progress.slot
        guess = lookup(progress.tokens, min(self._draft, progress.most - progress.new - 1))
        while guess and not self.pool.grow(progress.lease, self.pool.pages_for(start + 1 + len(guess))):
            guess.pop()
        if not guess or slot is None:
            return False
        self.engine.extend(slot, progress.lease.pages)
        sampled = self.engine.verify(slot, [progress.tokens[-1], *guess], start)
        right = 0
        while right < len(guess) and guess[right] == sampled[right]:
            right += 1
        progress.drafted += len(guess)
        progress.accepted += right
        if right < len(guess):
            self.engine.rewind(slot, sampled[right], start + right + 1)
        progress.written += right + 1
        self._made(progress, sampled[: right + 1])
        return True

    # What both do

    def _made(self, progress: Progress, tokens: list[int]) -> None:
        """Adds new tokens, up to the one that ends the sequence, and notes the event."""
        if progress.first is None:
            progress.first = self._clock()
        request, text, taken, reason = progress.request, "", [], None
        for made in tokens:
            forced = self._last is not None and progress.new + 1 >= progress.most
            token = self._last if forced and self._last is not None else made
            taken.append(token)
            progress.tokens.append(token)
            if token in request.stop_tokens:
                reason = "length" if forced and token != made else "stop"
            else:
                if request.reader is not None:
                    text += request.reader.push(token)
                if request.reader is not None and request.reader.stopped:
                    reason = "stop"
                elif progress.new >= progress.most:
                    reason = "length"
            if reason:
                break
        # A stop token may be one that was guessed, behind which the cache holds more than the sequence has.
        if self.engine.paged:
            self.pool.keep(progress.lease, progress.tokens, min(progress.written, len(progress.tokens)))
        if reason:
            self._events.append(self._end(progress, tuple(taken), text, reason))
        else:
            self._events.append(Event(progress.number, tuple(taken), text))

    def _end(self, progress: Progress, tokens: tuple[int, ...], text: str, reason: str) -> Event:
        reader = progress.request.reader
        if reader is not None and not reader.stopped:
            text += reader.end()
            if reader.stopped and reason == "length":  # the stop string was in the text that was held back
                reason = "stop"
        if progress in self._waiting:
            self._waiting.remove(progress)
        else:
            self._leave(progress)
        progress.reason, progress.ended = reason, self._clock()
        return Event(progress.number, tokens, text, reason)

    def _leave(self, progress: Progress) -> None:
        """Takes a sequence's slot and pages."""
        if progress.slot is not None:
            self._running.pop(progress.slot, None)
            self.engine.release(progress.slot)
            progress.slot = None
        if self._reading is progress:
            self._reading = None
        for step in self._begun:
            step.discard(progress)
        self.pool.close(progress.lease)
