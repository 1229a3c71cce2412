"""What `mlirc-generate` and `mlirc-serve` share on the command line: the device, and how a model is compiled."""

from __future__ import annotations

import argparse
import time
from typing import Any

from mlirc.generate.progress import Progress
from mlirc.tools.streams import say


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--device`, and the options of compiling a Hugging Face folder."""
    add = parser.add_argument
    add(
        "--device",
        type=_device,
        default=0,
        metavar="N|cpu|host",
        help="the GPU's number (default 0), cpu, or host: the GPU's kernels on the CPU, checked",
    )
    add("--no-verify", action="store_true", help="do not hold a compiled folder's files against their checksums")
    add("--slots", type=count, metavar="N", help="compile for N sequences at once (default 1)")
    add("--context", type=count, metavar="N", help="compile for so many tokens (default: the model's, at most 2048)")
    add("--source-tokens", type=count, metavar="N", help="of an encoder-decoder: tokens of a source (default 512)")
    add("--dtype", metavar="T", help="compile for this type, as in mlirc (default: the config's)")
    add("--quantize", metavar="SCHEME", help="pack the linear layers' weights, as in mlirc: int8, int4:group=128, fp8")
    add("--cache-dtype", metavar="T", help="fp8: keep keys and values as 8-bit floats (default: the model's type)")
    add("--target", metavar="SM", help="compile for this GPU, as in mlirc (default sm_90a)")
    add("--random-weights", type=natural, metavar="SEED", help="make weights up: for trying an architecture")


def compile_options(options: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, as `compile_generation` names them; None for the others."""
    names = ("slots", "context", "dtype", "quantize", "target", "random_weights", "source_tokens", "cache_dtype")
    return {name: getattr(options, name) for name in names}


def stages() -> Progress:
    """What says on standard error how far a model is, a line for each stage with the seconds so far."""
    start = time.perf_counter()
    return lambda stage: say(f"[{time.perf_counter() - start:6.1f} s] {stage}")


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of 0 or more")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of 1 or more")
    return int(text)


def _device(text: str) -> int | str:
    if text not in ("cpu", "host") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a GPU's number nor cpu or host")
    return int(text) if text.isdecimal() else text
