"""torch-mlir's end-to-end suite through mlirc: every case compiled, run at one level, and compared with PyTorch.

    python benchmarks/torch_mlir_suite.py CHECKOUT/projects/pt1/python --level tiles -o suite.json [-j 4]

The suite is not part of this repository: FOLDER is one that holds `torch_mlir_e2e_test/`. The cases run in processes of
their own: one that crashes, hangs or eats the memory costs that case only.
Exit status 1 if a case is wrong, crashes or does not end."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from case_runner import parser_of, run_suite  # noqa: E402
from torch_mlir_cases import PACKAGE, case_names  # noqa: E402


def main(words: list[str] | None = None) -> int:
    """The program; returns its exit status."""
    parser = parser_of((__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help=f"the folder that holds {PACKAGE}/")
    options = parser.parse_args(words)
    if not (options.folder / PACKAGE / "test_suite").is_dir():
        parser.error(f"{options.folder} does not hold {PACKAGE}/test_suite: name torch-mlir's projects/pt1/python")
    names = case_names(options.folder)
    return run_suite(parser, options, names, "torch_mlir_cases.py", str(options.folder.resolve()))


if __name__ == "__main__":
    sys.exit(main())
