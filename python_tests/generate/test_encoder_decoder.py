"""Encoder-decoders beside transformers' `generate`: T5 and Whisper, as PyTorch runs their steps, and T5 compiled."""

from __future__ import annotations

import dataclasses
import json
import wave

import numpy as np
import pytest
import torch

from mlirc.errors import MlircError
from mlirc.generate.artifact import ABOUT, About, as_json, read_about
from mlirc.generate.audio import read_audio
from mlirc.generate.compilation import compile_generation
from mlirc.generate.families import open_generator
from mlirc.generate.llm import LLM
from mlirc.generate.opening import Opened
from mlirc.tools import mlirc_generate
from support.generation import VOCABULARY, eager_engine, tiny
from support.randomness import generator

T5 = dict(
    d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
    relative_attention_max_distance=20, decoder_start_token_id=0, pad_token_id=0,
)  # fmt: skip
WHISPER = dict(
    d_model=64, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=50, max_target_positions=40,
    decoder_start_token_id=1, pad_token_id=0, eos_token_id=2,
)  # fmt: skip


def t5(**sizes):
    """A tiny T5 whose head is apart from its embeddings: tied, it says one token again and again."""
    model = tiny("T5ForConditionalGeneration", **{**T5, **sizes})
    model.config.tie_word_embeddings = False
    head = torch.randn(VOCABULARY, 64, generator=torch.Generator().manual_seed(3))
    model.lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
    return model


def wanted(model, source, count):
    mask = torch.ones(1, len(source), dtype=torch.int64)
    made = model.generate(torch.tensor([source]), attention_mask=mask, max_new_tokens=count, do_sample=False)
    return made[0, 1:].tolist()


def sources(*lengths):
    g = generator()
    return [[int(t) for t in g.integers(2, VOCABULARY, n)] for n in lengths]


def opened(steps, eos=()):
    return LLM(Opened("tiny", eager_engine(steps), None, eos))


def test_t5_makes_the_tokens_of_generate():
    model = t5()
    llm = opened(open_generator(model, slots=3, context=40, page_size=8, source_tokens=70))
    assert llm.engine.source.lengths == (64, 70)
    given = sources(1, 7, 33, 70)  # more than there are slots
    for source, made in zip(given, llm.generate(given, max_new_tokens=20), strict=True):
        assert made.tokens == wanted(model, source, 20) and made.prompt_tokens == len(source)


def test_t5_compiled():
    model = t5(num_layers=1)
    compiled = compile_generation(model, slots=2, context=20, page_size=8, source_tokens=11, level="kernels")
    llm = LLM(Opened("t5", compiled.engine("cpu"), None, ()))
    given = sources(11, 1, 5)
    for source, made in zip(given, llm.generate(given, max_new_tokens=12), strict=True):
        assert made.tokens == wanted(model, source, 12)


@pytest.fixture(scope="module")
def whisper():
    model = tiny("WhisperForConditionalGeneration", **WHISPER)
    config = model.generation_config
    config.lang_to_id = {"<|en|>": 10, "<|de|>": 11, "<|fr|>": 12}
    config.task_to_id = {"transcribe": 13, "translate": 14}
    config.no_timestamps_token_id, config.is_multilingual = VOCABULARY - 1, True
    config.suppress_tokens, config.begin_suppress_tokens = [20, 40, 71], [2, 30]
    config.max_length, config.pad_token_id = WHISPER["max_target_positions"], 0
    return model, open_generator(model, page_size=8)


def sound(count=12000):
    return (0.1 * generator().standard_normal(count)).astype(np.float32)


@pytest.mark.parametrize(
    "asked", [{}, {"language": "de"}, {"task": "translate"}, {"language": "fr", "task": "translate"}]
)
def test_whisper_makes_the_tokens_of_generate(whisper, asked):
    model, steps = whisper
    llm = opened(steps, (2,))
    prompt = llm.speech(sound())
    made = llm.transcribe(sound(), **asked)
    found = model.generate(torch.from_numpy(prompt.frames)[None], do_sample=False, **asked)[0].tolist()
    assert len(made.tokens) > 10 and made.tokens == found


def test_whisper_compiled(whisper):
    model, _ = whisper
    compiled = compile_generation(model, page_size=8, chunks=(1,), level="kernels")
    llm = LLM(Opened("whisper", compiled.engine("cpu"), None, (2,)))
    prompt = llm.speech(sound())
    made = llm.transcribe(sound(), language="de")
    both = llm.generate([llm.speech(sound(), "de"), llm.speech(sound(), "de")])
    assert [m.tokens for m in both] == [made.tokens] * 2
    found = model.generate(torch.from_numpy(prompt.frames)[None], do_sample=False, language="de")[0].tolist()
    assert len(made.tokens) > 10 and made.tokens == found


def test_old_forced_tokens_are_heeded(whisper):
    model, _ = whisper
    model.generation_config.forced_decoder_ids = [[1, None], [2, 14]]
    try:
        llm = opened(open_generator(model, page_size=8), (2,))
        found = model.generate(torch.from_numpy(llm.speech(sound()).frames)[None], do_sample=False)[0].tolist()
        assert llm.transcribe(sound()).tokens == found
    finally:
        model.generation_config.forced_decoder_ids = None


def test_files_of_sound(tmp_path, whisper, ran, monkeypatch):
    samples = sound(700)
    whole = np.round(samples * 32767).astype("<i2")
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setnchannels(2), file.setsampwidth(2), file.setframerate(16000)
        file.writeframes(np.stack([whole, whole], 1).tobytes())
    np.save(tmp_path / "a.npy", samples)
    assert np.abs(read_audio(tmp_path / "a.wav") - samples).max() < 1e-4
    assert np.array_equal(read_audio(tmp_path / "a.npy"), samples)

    llm = opened(whisper[1], (2,))
    monkeypatch.setattr("mlirc.generate.llm.open_generating", lambda model, **options: llm.opened)
    done = ran(mlirc_generate.main, tmp_path, "--audio", tmp_path / "a.npy", "--language", "en", "--device", "cpu")
    assert (done.status, "no tokenizer" in done.err) == (1, True)

    (tmp_path / "text").write_text("no sound")
    np.save(tmp_path / "long.npy", sound(16001))
    with wave.open(str(tmp_path / "slow.wav"), "wb") as file:
        file.setnchannels(1), file.setsampwidth(1), file.setframerate(8000)
        file.writeframes(bytes(9))
    for name, message in (
        ("text", "neither a WAV nor a .npy file"), ("slow.wav", "8000 samples a second"), ("long.npy", "hears 1 s at once"),
    ):  # fmt: skip
        with pytest.raises(MlircError, match=message):
            llm.transcribe(tmp_path / name)


def test_what_does_not_go_together(whisper):
    llm = opened(whisper[1])
    with pytest.raises(MlircError, match="the model knows en, de, fr"):
        llm.transcribe(sound(), language="xx")
    with pytest.raises(MlircError, match="hears sound: use transcribe"):
        llm.generate([1, 2])
    reads = opened(open_generator(t5(num_layers=1), context=20, source_tokens=9))
    with pytest.raises(MlircError, match="hears nothing"):
        reads.transcribe(sound())
    with pytest.raises(MlircError, match="the source has 10 tokens"):
        reads.generate(sources(10)[0])
    with pytest.raises(MlircError, match="leave draft out"):
        LLM(reads.opened, draft=2)
    with pytest.raises(MlircError, match="has no encoder"):
        open_generator(tiny("LlamaForCausalLM"), source_tokens=9)


def test_what_a_folder_says_of_its_source(tmp_path, whisper):
    about = About("w", "WhisperForConditionalGeneration", "f32", "sm_90a", whisper[1].sizes, (2,), stops=("\n\n", "é"))
    (tmp_path / ABOUT).write_text(json.dumps(as_json(about)))
    assert read_about(tmp_path) == about
    wrong = dataclasses.replace(about.sizes.source, start=(None,))
    (tmp_path / ABOUT).write_text(
        json.dumps(as_json(dataclasses.replace(about, sizes=dataclasses.replace(about.sizes, source=wrong))))
    )
    with pytest.raises(MlircError, match="damaged"):
        read_about(tmp_path)
