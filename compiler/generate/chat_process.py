"""`python -m mlirc.generate.chat_process`: renders chat templates, which are not trusted, for lines of JSON."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from typing import Any

_MEMORY = 1 << 30  # bytes on top of what the process has once it runs


def _render(question: dict[str, Any]) -> dict[str, str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        texts, _ = render_jinja_template(
            [question["messages"]],
            chat_template=question["template"],
            add_generation_prompt=True,
            **question["special"],
        )
    except Exception as e:  # whatever a template does wrong
        return {"error": str(e) or type(e).__name__}
    return {"text": texts[0]}


def _limit_time(seconds: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + seconds, most))


def main() -> None:
    """Answers until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing but answers goes there
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import transformers.utils.chat_template_utils  # noqa: F401

    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY, taken + _MEMORY))
    for line in sys.stdin.buffer:
        question = json.loads(line)
        _limit_time(question["seconds"])
        print(json.dumps(_render(question)), file=answers, flush=True)


if __name__ == "__main__":
    main()
