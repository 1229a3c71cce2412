"""Tokenizers that are trained in a moment, of the two kinds that models have, and folders that hold one."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = [
    "the quick brown fox jumps over the lazy dog",
    "Stop! says the dog, and the fox stops.",
    "user assistant system",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@functools.cache
def by_bytes() -> str:
    """Byte-level BPE, as GPT-2's and Llama 3's, as the text of tokenizer.json: a character may be several tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"]
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer.to_str()


@functools.cache
def by_pieces() -> str:
    """BPE of pieces with a mark for spaces and bytes for what it does not know, as Llama 2's and Gemma's."""
    pieces = ["<s>", "</s>", "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.,!"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "f"), ("▁f", "o"), ("▁fo", "x")]
    vocabulary = {p: i for i, p in enumerate([*pieces, *(a + b for a, b in merges)])}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer.to_str()


def write_tokenizer(folder: Path, text: str | None = None, **config: object) -> Path:
    """Puts a tokenizer's files into a folder; `config` is more of tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(by_bytes() if text is None else text)
    known = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, **config}))
    return folder
