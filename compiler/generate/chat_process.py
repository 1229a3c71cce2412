"""`python -m mlirc.generate.chat_process`: renders chat templates, which are not trusted, for lines of JSON, and says
which special tokens a tokenizer's class has by default."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
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


def _defaults(kind: str) -> dict[str, dict[str, str]]:
    """The special tokens that a tokenizer's class has where nothing is said of them; `kind`: its name, or the type of
    a model that it goes with. Only transformers' own are looked at."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    name = TOKENIZER_MAPPING_NAMES.get(kind, kind) or ""
    if not re.fullmatch(r"[A-Za-z0-9]{1,80}", name):
        return {"special": {}}
    try:
        found = tokenizer_class_from_name(name) or tokenizer_class_from_name(name.removesuffix("Fast"))
        parameters = inspect.signature(found).parameters if isinstance(found, type) else {}
    except Exception:  # whatever a class needs that is not installed
        return {"special": {}}
    texts = {n: str(p.default) for n, p in parameters.items() if n.endswith("_token") and p.default}
    return {"special": {n: t for n, t in texts.items() if parameters[n].default is not inspect.Parameter.empty}}


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
        answer = _defaults(question["defaults"]) if "defaults" in question else _render(question)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
