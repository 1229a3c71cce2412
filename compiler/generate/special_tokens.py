"""A tokenizer's special tokens, by the files beside tokenizer.json, as transformers 5 reads them.

`added_tokens_decoder` of tokenizer_config.json says how tokens are found in a text (`lstrip`, `rstrip`, `single_word`,
`normalized`), whatever tokenizer.json says; where it is not there, special_tokens_map.json names special tokens before
tokenizer_config.json does. What neither names has the default of the tokenizer's class, which transformers alone knows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import check_inside, parse_json, read_bytes

CONFIG, MAP = "tokenizer_config.json", "special_tokens_map.json"
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_LIMIT = 32 << 20
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_MOST = 1 << 20  # tokens


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of a folder's, {} where it has no such file. Raises MlircError for a damaged one."""
    path = folder / name
    if not os.path.lexists(path):
        return {}
    check_inside(folder, path)
    found = parse_json(read_bytes(path, limit=_LIMIT), str(path))
    if not isinstance(found, dict):
        raise MlircError(f"{path}: not a usable tokenizer: it is no JSON object")
    return found


class SpecialTokens:
    """What a folder says of its special tokens. `texts`: by name, those that it has none of left out. `kind`: the name
    of the tokenizer's class, or else of the model's type, which has more of them by default."""

    def __init__(self, folder: Path) -> None:
        self.config = read_object(folder, CONFIG)
        self._where = folder / CONFIG
        self._decoder = self._added_tokens()
        self.declared: dict[str, Any] = {k: v for k, v in self.config.items() if k.endswith("_token")}
        if self._decoder is None:
            self.declared |= {k: v for k, v in read_object(folder, MAP).items() if k.endswith("_token")}
        self.texts = {n: t for n, v in self.declared.items() if (t := _text(v)) is not None}
        self.kind = kind_of(folder, self.config)

    def put_into(self, tokenizer: Any) -> None:
        """Gives a tokenizer of the `tokenizers` library the tokens that it should have, found as they should be."""
        from tokenizers import AddedToken

        known = {repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
        flags = [AddedToken(content, **about) for content, about in (self._decoder or {}).items()]
        changed = [token for token in flags if repr(token) not in known]
        held = {t.content for t in tokenizer.get_added_tokens_decoder().values()} | {t.content for t in changed}
        for name in NAMED:
            if name in self.texts and self.texts[name] not in held:
                value = self.declared[name]
                about = {f: value[f] for f in _FLAGS if f in value} if isinstance(value, dict) else {}
                changed.append(AddedToken(self.texts[name], **{**about, "special": True}))
                held.add(self.texts[name])
        for text in self._further():
            if text not in held:
                changed.append(AddedToken(text, special=True))
                held.add(text)
        if changed:
            tokenizer.add_tokens(changed)

    def _further(self) -> list[str]:
        """The texts of special tokens without names."""
        lists = [self.config.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
        return [t for found in lists if isinstance(found, list) for v in found if (t := _text(v)) is not None]

    def _added_tokens(self) -> dict[str, dict[str, bool]] | None:
        """`added_tokens_decoder`: flags by content, in the order of ids; None where there is none."""
        found = self.config.get("added_tokens_decoder")
        if found is None:
            return None
        entries = found.items() if isinstance(found, dict) and len(found) <= _MOST else [("", None)]
        made: list[tuple[int, str, dict[str, bool]]] = []
        for number, about in entries:
            about = about if isinstance(about, dict) else {}
            flags = {f: about[f] for f in _FLAGS if f in about}
            if (
                not isinstance(about.get("content"), str)
                or not about["content"]
                or not number.isdecimal()
                or not all(isinstance(v, bool) for v in flags.values())
            ):
                raise MlircError(f"{self._where}: not a usable tokenizer: 'added_tokens_decoder' is none")
            made.append((int(number[:20]), about["content"], flags))
        return {content: flags for _, content, flags in sorted(made, key=lambda m: m[0])}


def kind_of(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The name of a tokenizer's class, as tokenizer_config.json or config.json has it, or the model's type; None for a
    folder that says nothing of it."""
    model = read_object(folder, "config.json")
    for found in (config.get("tokenizer_class"), model.get("tokenizer_class"), config.get("model_type")):
        if isinstance(found, str) and found:
            return found
    kind = model.get("model_type")
    return kind if isinstance(kind, str) else None


def _text(value: Any) -> str | None:
    """A special token's text, which is there as text or as an object with its content."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) and value else None
