"""The server's addresses: /v1/models, /v1/completions, /v1/chat/completions, /health."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlirc.errors import MlircError
from mlirc.files.opening import parse_json
from mlirc.generate import requests as generating
from mlirc.generate.text import TextReader
from mlirc.generate.tokenizer import LONG
from mlirc.serve.answers import DONE, Choice, Form, error_event
from mlirc.serve.asked import Asked, Prompt, check_model, parse_asked
from mlirc.serve.bodies import least_text
from mlirc.serve.errors import ApiError
from mlirc.serve.worker import BusyError, Ending, StoppedError, Ticket, Worker

LARGEST_BODY = 8 << 20
_PACE = 0.001  # seconds between two parts of large bodies, of 256 KiB or so: the tokens of others come between
_PAUSE = 0.03  # seconds between two large bodies' becoming values, each of which takes half of that
_NICE = 10  # of the thread that makes long texts into tokens
_STOPPING = "the server is stopping"


class Words(Protocol):
    """A model's tokenizer: `mlirc.generate.tokenizer.Tokenizer`. Several threads may ask at once."""

    def encode(self, text: str, most: int | None = None) -> list[int]: ...

    def encode_chat(self, messages: Sequence[dict[str, Any]], most: int | None = None) -> list[int]: ...

    def check_size(self, size: int, most: int | None) -> None: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class Service:
    """One model, by the name that calls give it. `eos`: tokens that end a text, as do the texts `stops`;
    `largest_body`: bytes of a call. An encoder-decoder's encoder reads the prompts of its calls."""

    def __init__(
        self,
        worker: Worker,
        words: Words,
        model: str,
        eos: Sequence[int] = (),
        largest_body: int = LARGEST_BODY,
        stops: Sequence[str] = (),
    ) -> None:
        self.worker, self.words, self.model = worker, words, model
        self.eos, self.stops = frozenset(eos), tuple(stops)
        # Calls of long texts are made into tokens one after the other, so that they take neither all threads nor all
        # memory, and where others leave a core.
        self._long = ThreadPoolExecutor(1, "mlirc long texts", _step_back)
        self._parsing = asyncio.Lock()
        self._uploads = 0  # large bodies that are being read
        self.largest_body = largest_body
        self._started = int(time.time())

    def app(self) -> Any:
        """The ASGI application."""
        routes = [
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{model:path}", self._one_model),
            Route("/v1/completions", self._answers(chat=False), methods=["POST"]),
            Route("/v1/chat/completions", self._answers(chat=True), methods=["POST"]),
        ]
        handlers: dict[Any, Any] = {
            ApiError: _refused,
            HTTPException: _http_error,
            ClientDisconnect: _nobody,
            Exception: _failed,
        }
        return _stopping_quietly(Starlette(routes=routes, exception_handlers=handlers), self.worker)

    async def _health(self, request: Request) -> Response:
        if self.worker.running:
            return JSONResponse({"status": "ok", "requests": self.worker.active})
        return JSONResponse({"status": "stopped", "requests": self.worker.active}, 503)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._about()]})

    async def _one_model(self, request: Request) -> Response:
        check_model(request.path_params["model"], self.model)
        return JSONResponse(self._about())

    def _about(self) -> dict[str, Any]:
        return {"id": self.model, "object": "model", "created": self._started, "owned_by": "mlirc"}

    def _answers(self, chat: bool) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            asked = parse_asked(await self._json(request, chat), chat, self.model)
            self._check_count(asked)
            try:
                thread = self._long if asked.size >= LONG else None
                wanted = await asyncio.get_running_loop().run_in_executor(thread, self._requests, asked)
                running = Running(self.worker, wanted, asked)
            except MlircError as e:
                raise _api_error(e, asked) from e
            except BusyError as e:
                raise ApiError(429, f"{self.worker.most} requests are at work or wait: try again later") from e
            except StoppedError as e:
                raise ApiError(503, _STOPPING) from e
            form = Form(chat, self.model)
            if asked.stream:
                return EventStream(running, form, asked.include_usage)
            async with _cancelled_with(request.receive, running):
                async for _ in running.events():
                    pass
            return JSONResponse(form.whole(running.choices))

        return answer

    def _check_count(self, asked: Asked) -> None:
        """Raises ApiError for more sequences than are ever taken at once, before anything is made of them."""
        count, most = len(asked.prompts) * asked.choices, self.worker.most
        if count > most:
            raise ApiError(400, f"{count:,} sequences in one call: {most:,} are taken at once", "prompt")

    async def _json(self, request: Request, chat: bool) -> Any:
        """The value of a call's body, read up to the limit. Raises ApiError where a text in it is certain to be too
        long, without making values of it."""
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "the body is JSON: send it with Content-Type: application/json")
        body, more = bytearray(), False
        try:
            async for part in request.stream():
                body += part
                if len(body) > self.largest_body:
                    raise ApiError(413, f"the body is larger than {self.largest_body:,} bytes")
                if len(body) > LONG:
                    self._uploads += not more
                    more = True
                    await asyncio.sleep(_PACE * self._uploads)
        finally:
            self._uploads -= more
        if more:
            self._check_texts(body, chat)
        async with self._parsing if more else contextlib.nullcontext():
            try:
                return parse_json(body, "the body")
            except MlircError as e:
                raise ApiError(400, str(e)) from e
            finally:
                await asyncio.sleep(_PAUSE if more else 0)

    def _check_texts(self, body: bytearray, chat: bool) -> None:
        try:
            self.words.check_size(least_text(body), generating.most_read(self.worker.engine))
        except MlircError as e:
            raise ApiError(400, str(e), "messages" if chat else "prompt", getattr(e, "code", None)) from e

    def _requests(self, asked: Asked) -> list[generating.Request]:
        """The scheduler's requests: the choices of the first prompt, then those of the next. In a thread, since long
        texts and chat templates take their time."""
        made, source, stops = [], self.worker.engine.source, (*asked.stops, *self.stops)
        for prompt in asked.prompts:
            tokens, read = self._tokens(prompt, asked.chat), None
            if source is not None:
                tokens, read = [t for t in source.start if t is not None], tokens
            for choice in range(asked.choices):
                wanted = generating.Request(
                    tokens, asked.max_new_tokens, asked.sampling_of(choice), self.eos, source=read
                )
                self.worker.check(wanted)  # first: a reader decodes the prompt's end
                made.append(replace(wanted, reader=TextReader(self.words.decode, tokens, stops)))
        return made

    def _tokens(self, prompt: Prompt, chat: bool) -> list[int]:
        most = generating.most_read(self.worker.engine)
        if chat:
            return self.words.encode_chat(prompt, most)  # type: ignore[arg-type]
        return self.words.encode(prompt, most) if isinstance(prompt, str) else list(prompt)  # type: ignore[arg-type]


def _step_back() -> None:
    """Makes this thread one that runs where others, of any process, have nothing to do."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Running:
    """The sequences of one call, from when the worker has them."""

    def __init__(self, worker: Worker, requests: Sequence[generating.Request], asked: Asked) -> None:
        self.choices = [
            Choice(i, i // asked.choices, len(r.prompt if r.source is None else r.source))
            for i, r in enumerate(requests)
        ]
        self._worker, self._asked = worker, asked
        self._events: asyncio.Queue[tuple[int, Ending | generating.Event]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._tickets: list[Ticket] = worker.submit(requests, self._deliver)

    def _deliver(self, place: int, event: Ending | generating.Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop ended before the worker
            self._loop.call_soon_threadsafe(self._events.put_nowait, (place, event))

    async def events(self) -> AsyncIterator[tuple[Choice, str]]:
        """New text of the choices, noted in them, until all have ended. Raises ApiError where they cannot end."""
        left = len(self.choices)
        while left:
            place, event = await self._events.get()
            choice, progress = self.choices[place], self._tickets[place].progress
            if isinstance(event, MlircError):
                raise _api_error(event, self._asked) from event
            if isinstance(event, StoppedError) or event.reason == "cancelled":
                raise ApiError(503, _STOPPING)
            choice.text.append(event.text)
            choice.tokens += len(event.tokens)
            choice.reused = progress.reused if progress else 0
            choice.reason = event.reason
            left -= event.reason is not None
            yield choice, event.text

    def cancel(self) -> None:
        """Ends what has not ended."""
        if any(c.reason is None for c in self.choices):
            self._worker.cancel(self._tickets)


@contextlib.asynccontextmanager
async def _cancelled_with(receive: Callable, running: Running) -> AsyncIterator[None]:
    """Cancels the sequences where the body ends before they do, and ends the body with ClientDisconnect where the
    client goes away."""
    task, gone = asyncio.current_task(), False

    async def watch() -> None:
        nonlocal gone
        while (await receive())["type"] != "http.disconnect":
            pass
        gone = True
        task.cancel()  # type: ignore[union-attr]

    watching = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError as e:
        if gone:
            task.uncancel()  # type: ignore[union-attr]
            raise ClientDisconnect from e
        raise
    finally:
        watching.cancel()
        running.cancel()


class EventStream(Response):
    """An answer in pieces, as server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, running: Running, form: Form, include_usage: bool) -> None:
        super().__init__(headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._running, self._form, self._include_usage = running, form, include_usage

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(ClientDisconnect):
            async with _cancelled_with(receive, self._running):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for piece in self._pieces():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        begun: set[int] = set()
        try:
            async for choice, text in self._running.events():
                first = None if choice.index in begun else self._form.first(choice)
                begun.add(choice.index)
                for piece in (first, self._form.piece(choice, text)):
                    if piece is not None:
                        yield piece
        except ApiError as e:
            yield error_event(e)
            return
        if self._include_usage:
            yield self._form.usage(self._running.choices)
        yield DONE


def _api_error(error: MlircError, asked: Asked) -> ApiError:
    """What a call is told of a request that is refused, with the field of the call that it is about."""
    field = getattr(error, "field", "prompt")
    field = {"prompt": "messages" if asked.chat else "prompt", "max_new_tokens": asked.limit_name}.get(field, field)
    return ApiError(400, str(error), field, getattr(error, "code", None))


def _stopping_quietly(app: Any, worker: Worker) -> Any:
    """An ASGI application whose calls are told that the server stops where they are cancelled by that; those that
    have begun their answer have been told already."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        begun = False

        async def note(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await app(scope, receive, note)
        except asyncio.CancelledError:
            if worker.running:
                raise
            if not begun:
                await JSONResponse(ApiError(503, _STOPPING).body(), 503, {"Connection": "close"})(scope, receive, send)

    return call


async def _refused(request: Request, error: ApiError) -> Response:
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.body(), error.status, headers)


async def _http_error(request: Request, error: HTTPException) -> Response:
    return JSONResponse(
        ApiError(error.status_code, f"{request.method} {request.url.path}: {error.detail}").body(), error.status_code,
        error.headers,
    )  # fmt: skip


async def _nobody(request: Request, error: ClientDisconnect) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse(ApiError(500, "the server has failed: its log says why").body(), 500)
