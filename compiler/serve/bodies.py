"""What can be told of a large JSON body before it becomes values, which holds the interpreter for longer."""

from __future__ import annotations

_MOST_QUOTES = 1 << 12  # a body of many texts is left to the parser


def least_text(body: bytes | bytearray) -> int:
    """How many bytes of UTF-8 the longest text in a JSON body has at least; 0 where that is not told so quickly."""
    least, begin, at = 0, -1, body.find(b'"')
    for _ in range(_MOST_QUOTES):
        if at < 0:
            return least
        if begin < 0:
            begin = at + 1
        elif not _is_escaped(body, at):
            size = at - begin
            least = max(least, size if body.find(b"\\", begin, at) < 0 else size // 6)  # as an escape has at most six
            begin = -1
        at = body.find(b'"', at + 1)  # which passes gigabytes in a second, unlike `count`
    return 0


def _is_escaped(body: bytes | bytearray, at: int) -> bool:
    """Whether an odd number of backslashes stands in front of a place."""
    first = at
    while first and body[first - 1] == 0x5C:
        first -= 1
    return (at - first) % 2 == 1
