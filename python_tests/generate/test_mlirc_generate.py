"""`mlirc-generate`: what it prints, and what it says of a person's mistakes. Over an engine without a model."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlirc.generate.cost import cost_of
from mlirc.generate.llm import LLM, Generation
from mlirc.generate.opening import Opened
from mlirc.generate.tokenizer import load_tokenizer
from mlirc.runtime.plan import Plan, TensorSpec
from mlirc.tools import mlirc_generate
from support.generate.fake_engine import FakeEngine, alone
from support.generate.tokenizers import CHAT, write_tokenizer

LETTERS = 300
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """What the program opens, whatever it is called with."""
    words = load_tokenizer(write_tokenizer(tmp_path / "words", chat_template=CHAT))
    made = Opened("fake", FakeEngine(vocabulary=LETTERS, context=96), words, (1,), notes=("slow attention",))
    monkeypatch.setattr("mlirc.generate.llm.open_generating", lambda model, **options: made)
    return made


@pytest.fixture
def generate(ran, opened):
    return lambda *words: ran(mlirc_generate.main, "model", "--device", "cpu", *words)


def expected(opened, text, count):
    tokens = opened.tokenizer.encode(text)
    made = alone(tokens, count, vocabulary=LETTERS, stop=(1,))
    return opened.tokenizer.decode(tokens + made)[len(opened.tokenizer.decode(tokens)) :]


def test_a_text_goes_to_standard_output_and_figures_to_the_other(generate, opened):
    done = generate("--prompt", "the fox", "--max-new-tokens", 7)
    assert (done.status, done.out) == (0, expected(opened, "the fox", 7) + "\n")
    note, read, first, memory = done.err.splitlines()
    assert note == "note: slow attention"
    assert read.startswith(f"{len(opened.tokenizer.encode('the fox'))} tokens read, 7 made (as long as asked for)")
    assert first.startswith("time to first token ") and first.endswith(" tokens per second")
    assert memory.startswith("peak memory of the process ") and memory.endswith(("MiB", "GiB"))


def test_tokens_in_and_out(generate):
    done = generate("--prompt-tokens", "5, 6,7", "--max-new-tokens", 5, "-q")
    assert done.out == ",".join(map(str, alone([5, 6, 7], 5, vocabulary=LETTERS))) + "\n"
    assert done.err == "note: slow attention\n"


def test_prompts_from_files(generate, opened, tmp_path, monkeypatch):
    (tmp_path / "p.txt").write_text("the fox\n")
    from_file = generate("--prompt-file", tmp_path / "p.txt", "--max-new-tokens", 7)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the fox\r\n")))
    assert from_file.out == generate("--prompt", "the fox", "--max-new-tokens", 7).out
    assert from_file.out == generate("--prompt-file", "-", "--max-new-tokens", 7).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert "--prompt-file -: not a text" in generate("--prompt-file", "-").err


def test_one_end_of_a_line_alone_is_no_part_of_a_prompt(generate, tmp_path):
    (tmp_path / "p.txt").write_text("the fox\n\n")
    from_file = generate("--prompt-file", tmp_path / "p.txt", "--max-new-tokens", 7)
    assert from_file.out == generate("--prompt", "the fox\n", "--max-new-tokens", 7).out
    (tmp_path / "p.txt").write_text("\n")
    assert "the prompt is empty" in generate("--prompt-file", tmp_path / "p.txt").err


PROGRAM = """
import sys
sys.path.insert(0, "python_tests")
import mlirc.generate.llm
from mlirc.generate.opening import Opened
from mlirc.generate.tokenizer import Tokenizer
from mlirc.tools import mlirc_generate
from support.generate.fake_engine import FakeEngine

class Words(Tokenizer):
    encode = lambda self, text, most=None: [5]
    decode = lambda self, tokens: "é" * len(tokens)

made = Opened("fake", FakeEngine(), Words(None, None), ())
mlirc.generate.llm.open_generating = lambda model, **options: made
sys.exit(mlirc_generate.main(["model", "--device", "cpu", "--prompt", "x", "--max-new-tokens", "4", "-q"]))
"""


@pytest.mark.parametrize(
    "redirection, status, out, err",
    [
        ("", 0, "éééé\n", ""),
        (">/dev/full", 1, "", "error: standard output: No space left on device\n"),
        (">&-", 1, "", "error: standard output: Bad file descriptor\n"),
        ("2>&-", 0, "éééé\n", ""),
        ("| head -c 0", 0, "", ""),
    ],
)
def test_standard_output_that_takes_nothing_is_an_error_of_one_line(redirection, status, out, err):
    command = f'"{sys.executable}" -c "$PROGRAM" {redirection}'
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env={**os.environ, "PROGRAM": PROGRAM}, text=True,
                          capture_output=True, encoding="utf-8")  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (status, out, err)


def test_what_standard_output_has_no_characters_for_is_written_as_escapes():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"\\xe9" * 4 + b"\n", b"")


def test_stages_are_told_where_figures_are(ran, monkeypatch, tmp_path):
    def compiled(model, output, progress, **options):
        progress("a stage")
        return ()

    monkeypatch.setattr("mlirc.tools.mlirc_generate.compile_only", compiled)
    loud = ran(mlirc_generate.main, tmp_path, "-o", tmp_path / "out")
    assert re.fullmatch(r"\[ *\d+\.\d s\] a stage", loud.err.splitlines()[0])
    assert "a stage" not in ran(mlirc_generate.main, tmp_path, "-o", tmp_path / "out", "-q").err


def test_a_conversation_with_a_system(generate, opened):
    done = generate("--chat", "--system", "be brief", "--prompt", "the fox?", "--max-new-tokens", 4, "--seed", 3)
    talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the fox?"}]
    tokens = opened.tokenizer.encode_chat(talk)
    made = alone(tokens, 4, vocabulary=LETTERS, stop=(1,))
    whole = opened.tokenizer.decode(tokens + made)
    assert done.out == whole[len(opened.tokenizer.decode(tokens)) :] + "\n"


def test_stops(generate, opened):
    tokens = alone([5, 6], 20, vocabulary=LETTERS)
    done = generate("--prompt-tokens", "5,6", "--max-new-tokens", 20, "--stop-token", tokens[3])
    assert done.out == ",".join(map(str, tokens[: tokens.index(tokens[3]) + 1])) + "\n"
    assert "(ended by itself)" in done.err
    whole = expected(opened, "the fox", 20)
    shown = generate("--prompt", "the fox", "--max-new-tokens", 20, "--stop", whole[4:6], "--stop", "never")
    assert shown.out == whole[: whole.index(whole[4:6])] + "\n"


def test_a_terminal_gets_no_escapes():
    assert mlirc_generate._shown("a\tb\n\x1b[2Jc\u202ed") == "a\tb\n\\x1b[2Jc\\u202ed"


MISTAKES = [
    ([], "give one of --prompt TEXT, --prompt-file FILE (or -), --prompt-tokens 1,2,3 and --audio FILE"),
    (["--prompt", "a", "--prompt-tokens", "1"], "give one of --prompt TEXT"),
    (["--prompt", ""], "the prompt is empty: give at least one character"),
    (["--prompt-tokens", ""], "'' is no list of token ids"),
    (["--prompt-tokens", "1,x"], "'1,x' is no list of token ids, as in 1,2,3"),
    (["--prompt-tokens", "1,300"], "the prompt: 300 is no token of this model: its ids are 0 to 299"),
    (["--prompt-tokens", "1", "--chat"], "--chat takes a text"),
    (["--prompt", "a", "--system", "b"], "--system goes with --chat"),
    (["--prompt", "a", "--stop-token", "<|none|>"], "'<|none|>' is no token of this model's tokenizer"),
    (["--prompt", "a", "--stop", ""], "the stop string '' is empty"),
    (["--prompt", "a", "--max-new-tokens", "0"], "'0' is no whole number of 1 or more"),
    (["--prompt", "a", "--max-new-tokens", "500"], "are more than the 96 that the model was compiled for"),
    (["--prompt", "a", "--temperature", "-1"], "temperature is -1.0: give 0"),
    (["--prompt", "a", "--temperature", "hot"], "invalid float value: 'hot'"),
    (["--prompt", "a", "--top-p", "2"], "top_p is 2.0"),
    (["--prompt", "a", "--top-k", "-3"], "top_k is -3"),
    (["--prompt", "a", "--device", "gpu"], "'gpu' is neither a GPU's number nor cpu or host"),
    (["--prompt-file", "/nowhere/p.txt"], "--prompt-file /nowhere/p.txt: cannot be read"),
]


@pytest.mark.parametrize("words, why", MISTAKES, ids=[w for _, w in MISTAKES])
def test_mistakes(ran, opened, words, why):
    done = ran(mlirc_generate.main, "model", "-q", *words)
    assert why in done.err.splitlines()[-1] and done.status == 1 and "Traceback" not in done.err


def test_text_without_a_tokenizer(generate, opened):
    opened.tokenizer = None
    assert "fake has no tokenizer (tokenizer.json): give token ids" in generate("--prompt", "a").err
    done = generate("--prompt-tokens", "7", "--max-new-tokens", 3, "-q")
    assert done.out == ",".join(map(str, alone([7], 3, vocabulary=LETTERS))) + "\n"


def test_what_is_no_generating_model(ran, tmp_path):
    (tmp_path / "m.ptx").write_text("")
    done = ran(mlirc_generate.main, tmp_path / "m.ptx", "--prompt", "a")
    assert "m.ptx: a compiled model without a cache: generating text needs a Hugging Face folder" in done.error
    assert "no such folder" in ran(mlirc_generate.main, tmp_path / "none", "-o", tmp_path / "out").error


def plan(*tensors):
    specs = [TensorSpec(name, "bf16", shape, kind) for name, shape, kind in tensors]
    return Plan(model="m", target="sm_90a", inputs=[], outputs=[], weights=specs, arena_size=0, steps=[])


EMBEDDING, HEAD = ("embed.weight", (300, 64), "weight"), ("head.weight", (300, 64), "weight")
INNER, POOL = ("up.weight", (128, 64), "weight"), ("cache.0.keys", (73, 2, 4, 16), "state")


@pytest.mark.parametrize("tables", [[EMBEDDING], [EMBEDDING, HEAD]], ids=["one table", "a head of its own"])
def test_what_a_step_reads(tables):
    cost = cost_of(plan(*tables, INNER, POOL, ("token", (3,), "state")), FakeEngine(vocabulary=300, context=96))
    assert cost.weights == 2 * 64 * (300 * len(tables) + 128)
    assert cost.read == 2 * 64 * (300 + 128)
    assert cost.token == 2 * 2 * 16 and cost.cache == 73 * 4 * cost.token
    assert cost.step(10) == cost.read + 10 * cost.token


class Gpu:
    """A driver that knows its name."""

    def __init__(self, number):
        self.name = self.names[number]

    def close(self):
        pass


def test_figures_of_a_gpu(opened, monkeypatch):
    monkeypatch.setattr("mlirc.runtime.cuda.Driver", Gpu)
    monkeypatch.setattr(Gpu, "names", ["NVIDIA H200", "Another"], raising=False)
    opened.plan, opened.arenas = plan(EMBEDDING, INNER, POOL), 5 << 20
    llm = LLM(opened)
    result = Generation("x", [1] * 11, "stop", 5, 4, time_to_first_token=0.25, time=0.2502, drafted=0)
    read, first, memory = mlirc_generate.report(result, llm, 0, 1.0)
    assert read == "5 tokens read, 4 of them known, 11 made (ended by itself); opened in 1.0 s"
    # 10 tokens in 0.2 ms, each of which reads 54,784 bytes of weights and 64 bytes for each of 10.5 tokens
    assert first == (
        "time to first token 250.0 ms, then 50,000.0 tokens per second: "
        "5.55e-05 GB each, 0.1 % of the memory's bandwidth"
    )
    assert memory == "memory of the GPU 5.1 MiB: weights 0.1 MiB, cache 0.0 MiB, steps 5.0 MiB"
    assert "bandwidth" not in mlirc_generate.report(result, llm, 1, 1.0)[1]
