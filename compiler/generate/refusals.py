"""Requests that are refused, with what an API says of them beside the line: the field, and a code."""

from __future__ import annotations

from mlirc.errors import MlircError

CONTEXT_LENGTH = "context_length_exceeded"


class RequestError(MlircError):
    """`field`: what of a request is wrong, by its name there ("prompt", "max_new_tokens", ...). `code`: a name for the
    error, as OpenAI's API has them; None where it has none."""

    def __init__(self, message: str, field: str, code: str | None = None) -> None:
        super().__init__(message)
        self.field, self.code = field, code
