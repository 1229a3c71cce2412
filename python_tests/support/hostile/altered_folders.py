"""Hugging Face folders whose JSON files were altered at one place: each opens, or is refused in one line."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mlirc.errors import MlircError
from mlirc.frontend import open_model
from mlirc.generate.tokenizer import load_tokenizer
from support.generate.tokenizers import CHAT, write_tokenizer

VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 1 << 31, 1 << 61, 99999999999999999999, -99999999999999999999, 0.5, -0.5, math.nan,
    math.inf, 1e300, "", "x", "0", "../../etc/passwd", "/dev/zero", "a\ud800", "\x00", "x" * 100_000, [], {}, [[]], [1],
    ["x"], {"x": 1}, [{"x": []}], "__import__('os')", "{{ x }}", "(a+)+$",
]  # fmt: skip


def write_folder(folder: Path) -> Path:
    """A small Llama's folder with every JSON file that is read, in two shards, with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, rope_scaling={"rope_type": "linear", "factor": 2.0},
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="30KB")
    flags = {"content": "</s>", "lstrip": False, "rstrip": True, "normalized": False, "special": True}
    write_tokenizer(folder, chat_template=CHAT, added_tokens_decoder={"1": flags}, model_max_length=64)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": flags}))
    settings = {"bos_token_id": 0, "eos_token_id": [1], "stop_strings": ["x"], "temperature": 0.5, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def _places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The places in a JSON value; of long lists and objects the first and the last few."""
    yield path
    if isinstance(value, dict):
        names = list(value)
        for name in names[:40] + names[-3:] if len(names) > 43 else names:
            yield from _places(value[name], (*path, name))
    elif isinstance(value, list):
        for i in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from _places(value[i], (*path, i))


def _altered(value: Any, path: tuple, rng: random.Random) -> tuple[str, Any]:
    """What was done to a copy of a JSON value, and that."""
    made = copy.deepcopy(value)
    if not path:
        other = rng.choice(VALUES)
        return f"is {str(other)[:30]!r}", other
    parent = made
    for key in path[:-1]:
        parent = parent[key]
    if rng.random() < 0.15:
        del parent[path[-1]]
        return f"without {path}", made
    parent[path[-1]] = rng.choice(VALUES)
    return f"{path} is {str(parent[path[-1]])[:30]!r}", made


def alterations(folder: Path, rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Without end: a file's name, what was done to it, and its text then."""
    files = sorted(p.name for p in folder.glob("*.json"))
    held = {name: json.loads((folder / name).read_text()) for name in files}
    places = {name: list(_places(value)) for name, value in held.items()}
    while True:
        name = rng.choice(files)
        what, value = _altered(held[name], rng.choice(places[name]), rng)
        yield name, what, json.dumps(value)


def tried(folder: Path, name: str, text: str) -> str:
    """What became of the folder with another text in one file: "opened", or why it was refused. Raises AssertionError
    where that is more than a line, and whatever else opening it raises."""
    original = (folder / name).read_text()
    (folder / name).write_text(text)
    try:
        open_model(str(folder), inputs=["input_ids=i64[1,3]"])
        tokenizer = load_tokenizer(folder)
        if tokenizer is not None:
            tokenizer.encode("the fox</s> x")
            tokenizer.close()
        return "opened"
    except MlircError as e:
        said = str(e)
        assert "\n" not in said and len(said) < 1500 and said, said
        return said
    finally:
        (folder / name).write_text(original)
