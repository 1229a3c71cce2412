"""Runs architectures and rewrites their lines of the list: `python python_tests/architectures/update.py [CLASS...]`.

Without names all of the list are run. A name that is not on the list is added, with `--kind KIND`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent.parent))

from architectures.runner import LIST, Architecture, check_architecture, read_list  # noqa: E402


def main() -> None:
    """Prints each architecture as it is run, with its seconds; writes the list at the end of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kind", help="of a name that is not on the list yet")
    parser.add_argument("--levels", default="linalg,tiles")
    options = parser.parse_args()
    known = {a.name: a for a in read_list()}
    for name in options.names or list(known):
        kind = known[name].kind if name in known else options.kind
        if not kind:
            parser.error(f"{name} is not on the list: give its --kind")
        start = time.perf_counter()
        outcome = check_architecture(name, options.levels.split(","))
        known[name] = Architecture(name, kind, outcome)
        print(f"{time.perf_counter() - start:5.1f} s  {known[name]}", flush=True)
        write(known.values())


def write(architectures) -> None:
    """Writes the list, sorted by kind and name, under its head."""
    head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    order = sorted(architectures, key=lambda a: (a.kind, a.name.lower()))
    LIST.write_text("\n".join([*head, *map(str, order)]) + "\n")


if __name__ == "__main__":
    main()
