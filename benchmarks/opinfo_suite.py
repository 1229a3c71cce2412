"""PyTorch's own samples of its operators (OpInfo) through mlirc: each compiled, run at one level, beside PyTorch.

    python benchmarks/opinfo_suite.py --level tiles -o opinfo.json [-j 4] [--samples 6] [--dtypes float32 bool]

The samples come with PyTorch; they need the package expecttest. The cases run in processes of their own: one that
crashes, hangs or eats the memory costs that case only. Exit status 1 if a case is wrong, crashes or does not end."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from case_runner import parser_of, run_suite  # noqa: E402
from opinfo_cases import DTYPES, case_names  # noqa: E402


def main(words: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    parser = parser_of((__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=6, metavar="N", help="at most so many of an operator and dtype")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, choices=DTYPES)
    parser.add_argument("--operators", default="", metavar="REGEX", help="only operators whose names it is found in")
    options = parser.parse_args(words)
    names = case_names(options.samples, tuple(options.dtypes), options.operators)
    return run_suite(parser, options, names, "opinfo_cases.py")


if __name__ == "__main__":
    sys.exit(main())
