"""generation_config.json of a Hugging Face folder: which tokens end a text, begin it, or are none of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import check_inside, parse_json, read_bytes, shorten
from mlirc.frontend.diagnose import first_line

_LIMIT = 32 << 20
_LONGEST_STOP = 1000


def _id(value: Any) -> bool:
    return type(value) is int and -1 <= value < 1 << 31


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(map(_id, value))


def _one_or_more(value: Any) -> bool:
    return _id(value) or _ids(value)


def _named(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_id, value.values()))


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(_ids(word) and word for word in value)


def _texts(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, list) and all(isinstance(t, str) and 0 < len(t) <= _LONGEST_STOP for t in texts)


def _places(value: Any) -> bool:
    pairs = isinstance(value, list) and all(isinstance(p, list) and len(p) == 2 for p in value)
    return pairs and all(_id(place) and (token is None or _id(token)) for place, token in value)


_FORMS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("eos_token_id", "forced_eos_token_id"), (_one_or_more, "a token id, or a list of them")),
    **dict.fromkeys(
        ("pad_token_id", "bos_token_id", "decoder_start_token_id", "forced_bos_token_id", "no_timestamps_token_id"),
        (_id, "a token id"),
    ),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), (_ids, "a list of token ids")),
    **dict.fromkeys(("lang_to_id", "task_to_id"), (_named, "names with token ids")),
    "stop_strings": (_texts, f"a text of at most {_LONGEST_STOP} characters, or a list of them, none empty"),
    "bad_words_ids": (_words, "a list of lists of token ids"),
    "forced_decoder_ids": (_places, "a list of places with token ids"),
}


def read_generation_config(folder: Path, model_class: Any) -> Any:
    """transformers' GenerationConfig of a folder; None for a model that does not generate. A folder of older days has
    it in config.json, which has been judged.

    Raises MlircError for a file that is a link out of the folder, too large, damaged, or has token ids that are none.
    """
    from transformers import GenerationConfig

    if not model_class.can_generate():
        return None
    path = folder / "generation_config.json"
    own = os.path.lexists(path)
    path = path if own else folder / "config.json"
    check_inside(folder, path)
    found = parse_json(read_bytes(path, limit=_LIMIT), str(path))
    if not isinstance(found, dict):
        raise MlircError(f"{path}: not a usable generation config: it is no JSON object")
    for name, (fits, wanted) in _FORMS.items():
        value = found.get(name)
        if value is not None and not fits(value):
            raise MlircError(f"{path}: '{name}' is {ascii(shorten(value, 60))}, not {wanted}")
    try:
        return GenerationConfig.from_dict(found, **({} if own else {"_from_model_config": True}))
    except Exception as e:
        raise MlircError(f"{path}: not a usable generation config: {first_line(str(e))}") from e
