"""What a folder's generation_config.json asks for: heeded wherever the weights come from, said, or refused."""

from __future__ import annotations

import json
import os

import pytest

from mlirc.errors import MlircError
from mlirc.generate.compilation import CompiledGenerator
from mlirc.generate.families import open_generator
from mlirc.generate.settings import notes_of, stop_strings_of
from support.generation import tiny

SIZES = {"context": 16, "page_size": 8, "chunks": (1,)}


@pytest.fixture
def folder(tmp_path):
    tiny("LlamaForCausalLM", num_hidden_layers=1).save_pretrained(tmp_path)
    return tmp_path


def asks(folder, **settings):
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def about_of(generator):
    job = type("Job", (), {"target": type("Target", (), {"name": "sm_90a"})})
    return CompiledGenerator(generator, {"decode": job}, None).about()


def eos_of(generator):
    return about_of(generator).eos


@pytest.mark.parametrize("options", [{}, {"quantize": "int8"}, {"random_weights": 0}])
def test_tokens_that_end_a_text_are_those_of_the_folder(folder, options):
    assert eos_of(open_generator(asks(folder, eos_token_id=[5, 6]), **SIZES, **options)) == (5, 6)


def test_texts_that_end_a_text_are_those_of_the_folder(folder):
    for stops, wanted in ((["ab", "c"], ("ab", "c")), ("ab", ("ab",)), (None, ())):
        assert stop_strings_of(open_generator(asks(folder, stop_strings=stops), **SIZES).network) == wanted


def test_an_end_that_is_no_token_of_the_model_is_said(folder):
    generator = open_generator(asks(folder, eos_token_id=[5, 99_999]), **SIZES)
    assert eos_of(generator) == (5,)
    assert "eos_token_id 99999: the model has" in about_of(generator).notes[-1]


def test_folders_of_older_days_have_it_in_their_config(folder):
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 7, "no_repeat_ngram_size": 3}))
    with pytest.raises(MlircError, match="asks for no_repeat_ngram_size"):
        open_generator(folder, **SIZES, random_weights=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eos_token_id": "abc"}, "'eos_token_id' is 'abc', not a token id"),
        ({"eos_token_id": [1, [2]]}, "not a token id, or a list of them"),
        ({"eos_token_id": 99999999999999999999}, "'eos_token_id' is '?99999999999999999999'?, not a token id"),
        ({"pad_token_id": -2}, "'pad_token_id' is '?-2'?, not a token id"),
        ({"stop_strings": ["a", ""]}, "not a text of at most 1000 characters, or a list of them, none empty"),
        ({"stop_strings": [3]}, "'stop_strings' is"),
        ({"suppress_tokens": [1.5]}, "not a list of token ids"),
        ({"bad_words_ids": [3]}, "not a list of lists of token ids"),
        ({"forced_decoder_ids": [[1]]}, "not a list of places with token ids"),
        ({"max_new_tokens": -4}, "not a usable generation config"),
        ({"watermarking_config": {"a": 1}}, "not a usable generation config"),
        *(({name: value}, f"asks for {name}, which is not supported: remove that") for name, value in {
            "no_repeat_ngram_size": 3, "min_new_tokens": 4, "bad_words_ids": [[3]], "suppress_tokens": [3],
            "forced_bos_token_id": 3, "guidance_scale": 1.5, "sequence_bias": [[[3], -2.0]],
        }.items()),
    ],
)  # fmt: skip
def test_what_would_be_left_out_is_refused(folder, settings, message):
    with pytest.raises(MlircError, match=message) as caught:
        open_generator(asks(folder, **settings), **SIZES)
    assert "\n" not in str(caught.value)


def test_a_link_out_of_the_folder_and_what_is_no_object_are_refused(folder, tmp_path_factory):
    path = folder / "generation_config.json"
    path.write_text("[1]")
    with pytest.raises(MlircError, match="it is no JSON object"):
        open_generator(folder, **SIZES)
    path.unlink()
    path.symlink_to(asks(tmp_path_factory.mktemp("other")) / path.name)
    assert os.path.exists(path)
    with pytest.raises(MlircError, match="a link that leads out of the folder"):
        open_generator(folder, **SIZES)


def test_how_else_tokens_would_be_chosen_is_said():
    model = tiny("LlamaForCausalLM", num_hidden_layers=1)
    config = model.generation_config
    config.top_p, config.num_beams = 0.9, 1  # without do_sample nobody samples
    assert notes_of(model) == []
    config.do_sample, config.typical_p, config.repetition_penalty = True, 0.8, 1.05
    [note] = notes_of(model)
    assert "with --temperature 1 --top-p 0.9 --repetition-penalty 1.05 where that is asked for" in note
    assert note.endswith("typical_p not supported")
    config.do_sample, config.repetition_penalty, config.num_beams = False, None, 4
    assert notes_of(model)[0].endswith("the most probable one: num_beams 4 not supported")
