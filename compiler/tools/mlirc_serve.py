"""`mlirc-serve MODEL`: answers completions and chats over HTTP, in the form that OpenAI's clients use."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mlirc.errors import MlircError
from mlirc.tools.cli import Parser, run_main
from mlirc.tools.generating import add_options, compile_options, count, stages

_PACKAGES = ("starlette", "uvicorn")
_EPILOG = """MODEL is a folder that mlirc-generate -o wrote, or a Hugging Face folder, which is compiled first.

examples
  mlirc-serve llama.gen
  mlirc-serve llama/ --slots 8 --context 4096 --port 8000
  curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
       -d '{"model": "llama.gen", "prompt": "Once upon a time", "max_tokens": 20}'"""


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "mlirc-serve", description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", metavar="MODEL", type=Path, help="a folder that mlirc-generate -o wrote, or a Hugging Face folder")
    add("--name", metavar="NAME", help="what calls name the model (default: the folder's name)")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="listen at this address (default 127.0.0.1)")
    add("--port", type=_port, default=8000, metavar="N", help="and this port, 0 for any free one (default 8000)")
    add("--most-requests", type=count, default=256, metavar="N", help="at once, with those that wait (default 256)")
    add("--largest-body", type=count, default=8, metavar="MIB", help="of a call (default 8)")
    add("--grace", type=count, default=10, metavar="S", help="seconds that calls have to end at a stop (default 10)")
    add("--tokenizer", type=Path, metavar="FOLDER", help="take the tokenizer from this folder")
    add_options(parser)
    add("-v", "--verbose", action="store_true", help="a line for each call")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is no port: give 0 to 65535")
    return int(text)


def _main(argv: list[str] | None) -> int:
    options = _parser().parse_args(argv)
    try:  # its packages first: without them nothing need be compiled
        from mlirc.serve.server import bind, serve
    except ModuleNotFoundError as e:
        if e.name not in _PACKAGES:
            raise
        raise MlircError(f"serving needs the package {e.name}: pip install 'mlirc[serve]'") from e

    with bind(options.host, options.port) as bound:
        from mlirc.generate.opening import open_generating

        opened = open_generating(
            options.model,
            device=options.device,
            tokenizer=options.tokenizer,
            progress=stages(),
            verify=not options.no_verify,
            **compile_options(options),
        )
        try:
            if opened.tokenizer is None:
                raise MlircError(
                    f"{options.model}: no tokenizer (tokenizer.json), and calls are texts: give --tokenizer FOLDER"
                )
            for note in opened.notes:
                print(f"note: {note}", file=sys.stderr)
            serve(
                opened.engine, opened.tokenizer, options.name or options.model.resolve().name, opened.eos, bound,
                most=options.most_requests, largest_body=options.largest_body << 20, grace=options.grace,
                verbose=options.verbose, stops=opened.stops,
            )  # fmt: skip
        finally:
            opened.close()
    return 0


def main(argv: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    return run_main(lambda: _main(argv))


if __name__ == "__main__":
    sys.exit(main())
