"""BART's relatives, whose decoders embed positions, and other T5s beside transformers' `generate`, with what their
generation configs ask for; as PyTorch runs their steps, and one compiled."""

from __future__ import annotations

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.files.marks import marked_json
from mlirc.generate.artifact import ABOUT, About, as_json, read_about
from mlirc.generate.compilation import compile_generation
from mlirc.generate.families import open_generator
from mlirc.generate.llm import LLM
from mlirc.generate.opening import Opened
from support.generation import VOCABULARY, eager_engine, tiny
from support.randomness import generator

BART = dict(
    d_model=48, encoder_layers=1, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
    encoder_ffn_dim=50, decoder_ffn_dim=70, max_position_embeddings=64, pad_token_id=1, bos_token_id=0, eos_token_id=9,
    decoder_start_token_id=2, forced_eos_token_id=9,
)  # fmt: skip
T5 = dict(d_model=50, d_kv=20, d_ff=70, num_layers=2, num_heads=3, relative_attention_num_buckets=8,
          relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0, eos_token_id=9)  # fmt: skip
MODELS = {
    "bart": ("BartForConditionalGeneration", BART, {"suppress_tokens": [20, 40]}),
    "mbart": ("MBartForConditionalGeneration", BART, {"forced_bos_token_id": 7, "forced_eos_token_id": None}),
    "marian": ("MarianMTModel", {**BART, "scale_embedding": True}, {"bad_words_ids": [[1], [11], [9]]}),
    "pegasus": ("PegasusForConditionalGeneration", BART, {"begin_suppress_tokens": [3, 12]}),
    "umt5": ("UMT5ForConditionalGeneration", T5, {}),
    "longt5": ("LongT5ForConditionalGeneration", {**T5, "local_radius": 3, "global_block_size": 4,
               "encoder_attention_type": "transient-global"}, {"forced_bos_token_id": 7}),
}  # fmt: skip


def made(name, **sizes):
    kind, own, asked = MODELS[name]
    model = tiny(kind, **{**own, **sizes})
    model.config.tie_word_embeddings = False  # tied, such a model says one token again and again
    head = model.get_output_embeddings()
    drawn = torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(3))
    head.weight = torch.nn.Parameter(drawn, requires_grad=False)
    for key, value in asked.items():
        setattr(model.generation_config, key, value)
    return model


def sources(*lengths):
    g = generator()
    return [[int(t) for t in g.integers(2, VOCABULARY, n)] for n in lengths]


def assert_generates(model, llm, given, count):
    start = len(llm.engine.source.start)
    for source, one in zip(given, llm.generate(given, max_new_tokens=count), strict=True):
        mask = torch.ones(1, len(source), dtype=torch.int64)
        wanted = model.generate(
            torch.tensor([source]), attention_mask=mask, max_new_tokens=count + start - 1, do_sample=False
        )  # fmt: skip
        assert one.tokens == wanted[0, start:].tolist()
    return one


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_generate(name):
    model = made(name)
    # A chunk is longer than what the decoder begins with: tokens that are not to be the first are still not.
    steps = open_generator(model, slots=2, context=30, page_size=7, source_tokens=33, chunks=(1, 4))
    llm = LLM(Opened(name, eager_engine(steps), None, (9,)))
    given = sources(1, 7, 32, 33)
    for count in (1, 12):
        one = assert_generates(model, llm, given, count)
    if model.generation_config.forced_eos_token_id is not None and len(one.tokens) == 12:
        assert one.tokens[-1] == 9 and one.reason == "length"


def test_bart_compiled():
    model = made("bart", decoder_layers=1)
    compiled = compile_generation(model, slots=2, context=20, page_size=8, source_tokens=11, level="kernels")
    assert_generates(model, LLM(Opened("bart", compiled.engine("cpu"), None, (9,))), sources(11, 1, 5), 12)


def test_the_token_that_ends_long_texts_is_in_the_folder(tmp_path):
    sizes = open_generator(made("bart"), context=20, source_tokens=11).sizes
    about = About("b", "BartForConditionalGeneration", "f32", "sm_90a", sizes, (9,))
    (tmp_path / ABOUT).write_text(marked_json(as_json(about)))
    assert read_about(tmp_path).sizes.source.last == 9


@pytest.mark.parametrize(
    ("name", "asked", "options", "message"),
    [
        ("bart", {}, {"source_tokens": 65}, "source_tokens 65: the model has 64 positions"),
        ("bart", {}, {"context": 65}, "context 65: the model has 64 positions"),
        ("marian", {"bad_words_ids": [[1, 2]]}, {}, "bad_words_ids of several tokens"),
        ("bart", {"no_repeat_ngram_size": 3}, {}, "asks for no_repeat_ngram_size"),
    ],
)
def test_what_cannot_be_right_is_refused(name, asked, options, message):
    model = made(name)
    for key, value in asked.items():
        setattr(model.generation_config, key, value)
    with pytest.raises(MlircError, match=message):
        open_generator(model, **options)


def test_a_model_that_fails_with_a_cache_is_refused():
    """MPT's biases are for so many keys as it has positions, and the last page has more."""
    model = tiny("MptForCausalLM", d_model=64, n_layers=1, n_heads=4, max_seq_len=30)
    with pytest.raises(MlircError, match="cannot be run with a cache .* its generation is not supported") as caught:
        open_generator(model, context=30, page_size=8)
    assert "\n" not in str(caught.value)
