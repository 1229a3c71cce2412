"""What a hostile or clumsy night does to the text-generation half: a client beside 1,100 silent connections and eight
prompts of 7.5 MB at once, and Hugging Face folders whose JSON was altered at one place.

    python benchmarks/serving_campaign.py                              # both, ten minutes
    python benchmarks/serving_campaign.py --minutes 300 --seed 7       # a night, of other alterations
    python benchmarks/serving_campaign.py --only clients --factor 2

It needs mlirc[serve] and the tests' packages. Exit status 1 where a client's p99 is more than --factor times what it is
without the load (every process takes its share of the cores: four of them, idle, are what that is for), where a long
prompt is answered with anything but context_length_exceeded, where the server writes anything, or where a folder makes
another exception than an error of one line. `python_tests/serve/test_campaign.py` and
`python_tests/untrusted/test_altered_folders.py` are the same in small.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

import tests_path  # noqa: F401  # finds support

from mlirc.tools.cli import run_main
from support.hostile.altered_folders import alterations, tried, write_folder
from support.serve.campaign import beside, quantile, serving

SILENT, LONG, MEGABYTES = 1100, 8, 7.5
CONTEXTS = (2048, 1 << 20)  # tokens: such prompts are refused by their bytes, or once they are tokens


def clients(seconds: float, factor: float) -> int:
    """How many of the contexts' servers kept a client waiting."""
    late = 0
    for context in CONTEXTS:
        with serving(context) as netloc:
            times = beside(netloc, seconds / len(CONTEXTS) / 2, SILENT, LONG, MEGABYTES)
        for what, found in zip(("alone", "beside"), times, strict=True):
            shown = ", ".join(f"p{100 * q:g} {1e3 * quantile(found, q):.0f} ms" for q in (0.5, 0.9, 0.99))
            print(f"context {context:,}, {what}: {len(found):,} calls, {shown}, at most {1e3 * found[-1]:.0f} ms")
        late += quantile(times[1], 0.99) > factor * quantile(times[0], 0.99)
    return late


def folders(seconds: float, seed: int) -> int:
    """How many alterations made something else than a model or an error of one line."""
    wrong, opened, count, end = 0, 0, 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as place:
        folder = write_folder(Path(place) / "model")
        for name, what, text in alterations(folder, random.Random(seed)):
            if time.monotonic() > end:
                break
            count += 1
            try:
                opened += tried(folder, name, text) == "opened"
            except Exception:
                wrong += 1
                print(f"{name} {what}:\n{traceback.format_exc()}")
    print(f"{count:,} alterations: {opened:,} opened, {count - opened - wrong:,} refused, {wrong:,} wrong")
    return wrong


def command_line() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", choices=["clients", "folders"])
    parser.add_argument("--factor", type=float, default=2, help="of p99 (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main(options: argparse.Namespace) -> int:
    """Both campaigns, or one of them; 1 where something broke."""
    seconds = 60 * options.minutes / (1 if options.only else 2)
    failed = clients(seconds, options.factor) if options.only != "folders" else 0
    failed += folders(seconds, options.seed) if options.only != "clients" else 0
    return int(failed > 0)


if __name__ == "__main__":
    asked = command_line()
    sys.exit(run_main(lambda: main(asked)))
