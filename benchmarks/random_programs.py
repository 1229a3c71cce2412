"""Random programs of PyTorch operations through mlirc: each compiled, run at one level, compared with PyTorch.

    python benchmarks/random_programs.py --first 0 --count 2000 --level gpu -o programs.json [-j 4]

A name is a seed: `--count 1 --first SEED -v` runs one again. A wrong program is cut down to its first wrong step.
Exit status 1 if a case is wrong, crashes or does not end."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from case_runner import parser_of, run_suite  # noqa: E402


def main(words: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    parser = parser_of((__doc__ or "").splitlines()[0])
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=100, metavar="N")
    options = parser.parse_args(words)
    seeds = range(options.first, options.first + options.count)
    return run_suite(parser, options, [str(seed) for seed in seeds], "random_cases.py")


if __name__ == "__main__":
    sys.exit(main())
