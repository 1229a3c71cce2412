"""Prompt-lookup drafting: what came after the last few tokens the last time, as a guess at what comes.

Source: Saxena, "Prompt Lookup Decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 3  # tokens that have to agree, at most
_FAR = 4096  # how many tokens back a guess is looked for: a step of the host must stay short


def lookup(tokens: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that may follow `tokens`: those behind the latest earlier place where its last tokens, the
    more the better, occur. Empty where there is none."""
    recent = list(tokens[-_FAR:]) if count > 0 else []
    for length in range(min(_LONGEST, len(recent) - 1), 0, -1):
        tail = recent[-length:]
        for start in range(len(recent) - length - 1, -1, -1):
            if recent[start : start + length] == tail:
                return recent[start + length : start + length + count]
    return []
