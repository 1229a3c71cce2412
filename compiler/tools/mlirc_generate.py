"""`mlirc-generate MODEL --prompt TEXT`: continues a text with a compiled model, and prints it while it comes."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlirc.errors import MlircError, is_control
from mlirc.files.opening import read_text
from mlirc.generate.llm import DEFAULT_NEW_TOKENS, LLM, Generation
from mlirc.generate.opening import compile_only
from mlirc.generate.progress import silent
from mlirc.tools.cli import Parser, run_main
from mlirc.tools.generating import add_options, compile_options, count, natural, stages

_PROMPT_LIMIT = 64 << 20
_EPILOG = """MODEL is a Hugging Face folder, which is compiled first (-o keeps the result), or a folder that -o wrote.
What it makes goes to standard output; how long it took to standard error.

examples
  mlirc-generate llama/ --prompt 'Once upon a time' --max-new-tokens 100
  mlirc-generate llama/ --dtype bf16 --context 4096 --slots 8 -o llama.gen
  mlirc-generate llama.gen --chat --prompt 'Why is the sky blue?' --temperature 0.7 --top-p 0.9 --seed 1
  mlirc-generate llama.gen --prompt-file - < story.txt
  mlirc-generate whisper/ --audio speech.wav --language en
  mlirc-generate llama/ --random-weights 0 --prompt-tokens 1,2,3 --device cpu"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "mlirc-generate", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", metavar="MODEL", type=Path, help="a Hugging Face folder, or one that -o wrote")
    add("--prompt", metavar="TEXT", help="what to continue")
    add(
        "--prompt-file",
        metavar="FILE",
        help="the same from a file, or - for standard input: without the end of its last line",
    )
    add("--prompt-tokens", metavar="IDS", type=_tokens, help="the same as token ids, as in 1,2,3; prints ids, too")
    add("--audio", metavar="FILE", help="the sound to be written down, of a model that hears: WAV or .npy, 16 kHz")
    add("--language", metavar="L", help="with --audio: what is spoken, as in en (default: the model finds out)")
    add("--task", metavar="T", help="with --audio: transcribe or translate (default: the model's)")
    add("--chat", action="store_true", help="the prompt is a user's message, by the model's chat template")
    add("--system", metavar="TEXT", help="with --chat: the system's message in front")
    add(
        "--max-new-tokens",
        type=count,
        metavar="N",
        help=f"how long at most (default {DEFAULT_NEW_TOKENS}, or what fits)",
    )
    add("--stop", action="append", default=[], metavar="S", help="end in front of this text")
    add(
        "--stop-token",
        action="append",
        default=[],
        metavar="T",
        help="end with this token, by its id or as the tokenizer writes it",
    )
    add("--ignore-eos", action="store_true", help="do not end with the model's own token for that")
    add("--temperature", type=float, metavar="T", help="0, the default, takes the most probable token")
    add("--top-k", type=int, metavar="K", help="only the K most probable tokens")
    add("--top-p", type=float, metavar="P", help="only the most probable tokens that make up P")
    add("--min-p", type=float, metavar="P", help="only tokens at least P times as probable as the most probable one")
    add("--repetition-penalty", type=float, metavar="R", help="above 1: tokens that were there become less probable")
    add("--seed", type=int, metavar="N", help="another seed, other tokens (default 0)")
    add(
        "--draft",
        type=natural,
        default=0,
        metavar="N",
        help="guess N tokens at a time from the text so far (default 0)",
    )
    add("-o", dest="output", type=Path, metavar="FOLDER", help="keep what was compiled")
    add_options(parser)
    add("-q", "--quiet", action="store_true", help="no figures at the end, and no stages before")
    return parser


def _tokens(text: str) -> list[int]:
    parts = [p.strip() for p in text.split(",")]
    if not all(p.isdecimal() for p in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is no list of token ids, as in 1,2,3")
    return [int(p) for p in parts]


def _prompt(options: argparse.Namespace) -> Any:
    """The one prompt that was given: a text, a conversation, token ids; None with -o and no prompt."""
    given = [n for n in ("prompt", "prompt_file", "prompt_tokens", "audio") if getattr(options, n) is not None]
    if len(given) > 1 or (not given and options.output is None):
        raise MlircError("give one of --prompt TEXT, --prompt-file FILE (or -), --prompt-tokens 1,2,3 and --audio FILE")
    if options.audio is None and (options.language is not None or options.task is not None):
        raise MlircError("--language and --task go with --audio")
    if not given:
        return None
    if options.audio is not None:
        if options.chat or options.system is not None:
            raise MlircError("--chat takes a text: give --prompt or --prompt-file, not --audio")
        return Path(options.audio)
    if options.prompt_tokens is not None:
        if options.chat:
            raise MlircError("--chat takes a text: give --prompt or --prompt-file, not --prompt-tokens")
        return options.prompt_tokens
    text = options.prompt
    if options.prompt_file is not None:
        text = _without_last_end(_read(options.prompt_file))
    if not text:
        raise MlircError("the prompt is empty: give at least one character")
    if options.system is not None and not options.chat:
        raise MlircError("--system goes with --chat")
    if not options.chat:
        return text
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return [*system, {"role": "user", "content": text}]


def _read(file: str) -> str:
    if file != "-":
        return read_text(file, "--prompt-file", _PROMPT_LIMIT)
    data = sys.stdin.buffer.read(_PROMPT_LIMIT + 1)
    if len(data) > _PROMPT_LIMIT:
        raise MlircError(f"--prompt-file -: is larger than {_PROMPT_LIMIT >> 20} MiB, which is no prompt")
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        raise MlircError(f"--prompt-file -: not a text (byte {e.start} is no UTF-8)") from e


def _without_last_end(text: str) -> str:
    """A file's text without the end of its last line, which editors and `echo` write, and which is no part of it."""
    return text.removesuffix("\n").removesuffix("\r")


def _stop_token(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _shown(text: str) -> str:
    """A model's text for a terminal: white space as it is, escapes that a terminal would follow as text."""
    return "".join(ascii(c)[1:-1] if is_control(c) and c not in "\n\t" else c for c in text)


def _run(llm: LLM, prompt: Any, options: argparse.Namespace) -> Generation:
    """Generates, and prints what comes."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
    sampling = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    stream = llm.stream(
        prompt, max_new_tokens=options.max_new_tokens, stop=options.stop, ignore_eos=options.ignore_eos,
        stop_tokens=[_stop_token(t) for t in options.stop_token], **sampling,
    )  # fmt: skip
    show = _shown if sys.stdout.isatty() else str
    with stream:
        if options.prompt_tokens is not None:
            for i, token in enumerate(stream.tokens()):
                print(token if i == 0 else f",{token}", end="", flush=True)
        else:
            for piece in stream:
                print(show(piece), end="", flush=True)
        print(flush=True)
    assert stream.result is not None
    return stream.result


def report(result: Generation, llm: LLM, device: int | str, loading: float) -> list[str]:
    """What a run says of itself at its end, a line each."""
    why = {"stop": "ended by itself", "length": "as long as asked for"}.get(result.reason, result.reason)
    reused = f", {result.reused:,} of them known" if result.reused else ""
    lines = [
        f"{result.prompt_tokens:,} tokens read{reused}, {len(result.tokens):,} made ({why}); opened in {loading:.1f} s",
        f"time to first token {1e3 * result.time_to_first_token:,.1f} ms",
    ]
    speed = result.tokens_per_second
    if speed is not None:
        lines[-1] += f", then {speed:,.1f} tokens per second"
        lines[-1] += _bandwidth(result, llm, device, speed)
    if result.drafted:
        lines.append(f"{result.accepted:,} of {result.drafted:,} guessed tokens were right")
    lines.append(_memory(llm, device))
    return lines


def _bandwidth(result: Generation, llm: LLM, device: int | str, speed: float) -> str:
    """The share of the GPU's memory bandwidth that the tokens took, where both are known and each took a step."""
    from mlirc.generate.cost import cost_of, known_bandwidth

    if isinstance(device, str) or llm.opened.plan is None or result.drafted:
        return ""
    from mlirc.runtime.cuda import Driver

    driver = Driver(device)
    known = known_bandwidth(driver.name)
    driver.close()
    if known is None:
        return ""
    read = cost_of(llm.opened.plan, llm.engine).step(result.prompt_tokens + len(result.tokens) / 2)
    return f": {read / 1e9:.3g} GB each, {100 * read * speed / known:.1f} % of the memory's bandwidth"


def _memory(llm: LLM, device: int | str) -> str:
    from mlirc.generate.cost import cost_of

    if isinstance(device, int) and llm.opened.plan is not None:
        cost = cost_of(llm.opened.plan, llm.engine)
        total = cost.weights + cost.cache + llm.opened.arenas
        return (
            f"memory of the GPU {_size(total)}: weights {_size(cost.weights)}, cache {_size(cost.cache)}, "
            f"steps {_size(llm.opened.arenas)}"
        )
    return f"peak memory of the process {_size(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)}"


def _size(count: int) -> str:
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _say(notes: Sequence[str], output: Path | None) -> None:
    lines = [f"note: {note}" for note in notes] + ([] if output is None else [f"{output} written"])
    for line in lines:
        print(line, file=sys.stderr)


def _main(argv: list[str] | None) -> int:
    options = _parser().parse_args(argv)
    prompt = _prompt(options)
    compiling = compile_options(options)
    progress = silent if options.quiet else stages()
    if prompt is None:
        notes = compile_only(options.model, options.output, progress, **compiling)
        _say(notes, options.output)
        return 0
    start = time.perf_counter()
    with LLM(
        options.model,
        device=options.device,
        draft=options.draft,
        output=options.output,
        progress=progress,
        verify=not options.no_verify,
        **compiling,
    ) as llm:
        loading = time.perf_counter() - start
        if isinstance(prompt, Path):
            prompt = llm.speech(prompt, options.language, options.task)
        _say(llm.opened.notes, options.output)
        result = _run(llm, prompt, options)
        if not options.quiet:
            print("\n".join(report(result, llm, options.device, loading)), file=sys.stderr)
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
