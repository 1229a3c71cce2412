"""Chat templates: a conversation as the text that a model was trained on.

A template is a program in Jinja's language, and comes with the model's files. transformers renders it in its sandbox;
here that happens in a process of its own, with limits of time and memory, since no sandbox ends a loop.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mlirc.errors import MlircError, one_line
from mlirc.files.opening import shorten

_LONGEST = 256 << 20  # bytes of an answer
_SECONDS = 10  # of the processor's time for one answer; transformers is imported before
_WALL = 20  # times as many seconds may pass on a busy machine


class ChatTemplate:
    """One model's template. `special`: its special tokens by name, as `bos_token`, which templates write themselves.
    `lacking`: names of others that the template writes, which are what transformers' tokenizer class `kind` (or the one
    of a model type `kind`) has by default, where `is_token` says so.

    The process starts with the first conversation and stays for the next; several threads may ask at once.
    """

    def __init__(
        self,
        template: str,
        special: dict[str, str],
        kind: str | None = None,
        lacking: Sequence[str] = (),
        is_token: Callable[[str], bool] = lambda text: True,
    ) -> None:
        self._template, self._special = template, dict(special)
        self._kind, self._lacking, self._is_token = kind, list(lacking) if kind else [], is_token
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def render(self, messages: Sequence[dict[str, Any]]) -> str:
        """The text of a conversation up to where the model's answer begins.

        `messages`: objects with `role` ("system", "user", "assistant") and `content`, a text. Raises MlircError for
        others, for what the template refuses, and for a template that is damaged or takes too long.
        """
        checked = check_messages(messages)
        with self._lock:
            try:
                if self._lacking:
                    found = self._ask({"defaults": self._kind}).get("special", {})
                    self._special |= {n: found[n] for n in self._lacking if n in found and self._is_token(found[n])}
                    self._lacking = []
                answer = self._ask({"template": self._template, "special": self._special, "messages": checked})
            except BaseException:
                self._stop()  # what it answers late would be taken for the next one's
                raise
        if "error" in answer:
            raise MlircError(f"the chat template refuses the messages: {shorten(one_line(answer['error']), 300)}")
        return answer["text"]

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._stop()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            line = json.dumps({**question, "seconds": _SECONDS}).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as e:
            raise MlircError(f"the messages hold what JSON does not: {shorten(one_line(str(e)), 80)}") from e
        if self._process is None:
            command = [sys.executable, "-P", "-m", "mlirc.generate.chat_process"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(_WALL * _SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(line)
                process.stdin.flush()
            found = process.stdout.readline(_LONGEST)
        finally:
            timer.cancel()
        if not found.endswith(b"\n"):
            self._stop()
            raise MlircError("the chat template takes too long or too much memory: it cannot be used")
        return json.loads(found)

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()


def check_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation; raises MlircError for none, and for one without `role` and `content` as text."""
    taken = None if isinstance(messages, str | bytes | dict) or not isinstance(messages, Iterable) else list(messages)
    if not taken:
        raise MlircError("a conversation is a list of messages, at least one: [{'role': 'user', 'content': 'Hello'}]")
    for message in taken:
        fits = isinstance(message, dict) and all(isinstance(message.get(k), str) for k in ("role", "content"))
        if not fits:
            shown = shorten(one_line(repr(message)), 80)
            raise MlircError(f"{shown} is no message: give {{'role': 'user', 'content': 'Hello'}}, both texts")
    return taken
