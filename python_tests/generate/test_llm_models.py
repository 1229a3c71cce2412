"""`mlirc.LLM` with real models beside transformers' `generate`: their steps as PyTorch runs them, and once compiled."""

from __future__ import annotations

import pytest
import torch
import transformers

import mlirc
from mlirc.errors import MlircError
from mlirc.generate.export import open_generator
from mlirc.generate.llm import LLM
from mlirc.generate.opening import Opened
from mlirc.generate.tokenizer import load_tokenizer
from mlirc.tools import mlirc_generate
from support.generate.tokenizers import CHAT, write_tokenizer
from support.generation import assert_greedy, eager_engine

LETTERS = 300
TEXTS = ["the", "a dog and a fox 漢字", "Stop! says the dog, and the fox stops.", "the quick brown fox"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder of a tiny Llama with random weights and a tokenizer, and its model."""
    path = write_tokenizer(tmp_path_factory.mktemp("models") / "llama", chat_template=CHAT)
    config = transformers.LlamaConfig(
        vocab_size=LETTERS, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=128, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that attention matters beside the embeddings
            if parameter.dim() > 1:
                parameter.mul_(8)
    model.save_pretrained(path)
    return path, model


def eager(folder, **options):
    """The LLM of a folder's model, with its steps as PyTorch runs them: quick to open."""
    sizes = {"slots": 2, "context": 72, "page_size": 8, "chunks": (1, 8, 24)}
    generator = open_generator(folder[1], **{**sizes, **options.pop("sizes", {})})
    return LLM(Opened("llama", eager_engine(generator), load_tokenizer(folder[0]), ()), **options)


@pytest.fixture(scope="module")
def llm(folder):
    with eager(folder, turn_tokens=16) as made:
        yield made


def test_texts_of_several_lengths(llm, folder):
    for text, made in zip(TEXTS, llm.generate(TEXTS, max_new_tokens=16), strict=True):
        assert len(made.tokens) == 16
        assert_greedy(folder[1], llm.tokenizer.encode(text), made.tokens)


def test_a_pool_that_is_too_small_for_all(folder):
    with eager(folder, sizes={"slots": 3, "pages": 11}) as llm:
        taken = [llm.scheduler.submit(llm.request(text, max_new_tokens=30)) for text in TEXTS]
        while llm.scheduler.busy:
            llm.scheduler.step()
        assert sum(p.pauses for p in taken) > 0
        for progress in taken:
            prompt = list(progress.request.prompt)
            assert_greedy(folder[1], prompt, progress.tokens[len(prompt) :])


def test_guesses_are_judged_by_the_model(folder):
    prompt = [5, 6, 7, 8] * 6
    with eager(folder, draft=4) as llm:
        made = llm.generate(prompt, max_new_tokens=40)
        assert_greedy(folder[1], prompt, made.tokens)
        assert made.drafted > 0


def test_sampled_tokens_do_not_depend_on_what_runs_beside(llm):
    options = dict(max_new_tokens=12, temperature=0.8, top_k=40, top_p=0.9, repetition_penalty=1.2)
    together = llm.generate(TEXTS[:3], seed=5, **options)
    assert [m.tokens for m in together] == [llm.generate(t, seed=5, **options).tokens for t in TEXTS[:3]]
    assert llm.generate(TEXTS[0], seed=6, **options).tokens != together[0].tokens


def test_the_next_turn_reads_what_is_new(llm, folder):
    tokens = list(range(20, 61))
    llm.generate(tokens[:40], max_new_tokens=2)
    again = llm.generate(tokens, max_new_tokens=9)
    assert again.reused == 40
    assert_greedy(folder[1], tokens, again.tokens)


def test_a_folder_compiled_for_the_cpu(folder, ran, monkeypatch):
    with LLM(folder[0], device="cpu", context=40, page_size=16, chunks=(1,)) as llm:
        made = llm.generate(TEXTS, max_new_tokens=9)
        for text, one in zip(TEXTS, made, strict=True):
            assert_greedy(folder[1], llm.tokenizer.encode(text), one.tokens)
        monkeypatch.setattr("mlirc.generate.llm.open_generating", lambda model, **options: llm.opened)
        done = ran(mlirc_generate.main, folder[0], "--prompt", TEXTS[0], "--max-new-tokens", 9, "--device", "cpu")
        assert (done.status, done.out) == (0, made[0].text + "\n") and "tokens per second" in done.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there may be a GPU")
def test_without_a_gpu_nothing_falls_back(folder, ran):
    done = ran(mlirc_generate.main, folder[0], "--prompt", "the")
    assert done.error.endswith("without a GPU, the device cpu runs the model on the CPU, slowly")


def test_what_does_not_go_together(folder, tmp_path):
    with pytest.raises(MlircError, match="weights go with a compiled model"):
        mlirc.LLM(folder[0], device="cpu", weights=tmp_path / "w.safetensors")


def test_a_model_that_does_not_generate(ran, tmp_path):
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        architectures=["BertModel"],
    )  # fmt: skip
    config.save_pretrained(write_tokenizer(tmp_path))
    done = ran(mlirc_generate.main, tmp_path, "--random-weights", 0, "--prompt", "a", "--device", "cpu")
    assert "BertModel" in done.error
