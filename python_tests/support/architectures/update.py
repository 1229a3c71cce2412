"""Runs architectures and rewrites their lines of the list: `python python_tests/support/architectures/update.py [CLASS...]`.

Without names all of the list are run. A name that is not on the list is added, with `--kind KIND`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from support.architectures.runner import LIST, Architecture, check_architecture, levels_for, read_list  # noqa: E402


def main() -> None:
    """Prints each architecture as it is run, with its seconds, and writes its line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--kind", help="of a name that is not on the list yet")
    parser.add_argument("--levels", help="default: as in the test, tiles for all and those above it for some")
    options = parser.parse_args()
    known = {a.name: a for a in read_list()}
    for name in options.names or list(known):
        kind = known[name].kind if name in known else options.kind
        if not kind:
            parser.error(f"{name} is not on the list: give its --kind")
        start = time.process_time()
        outcome = check_architecture(name, options.levels.split(",") if options.levels else levels_for(name))
        found = Architecture(name, kind, outcome)
        print(f"{time.process_time() - start:5.1f} s  {found}", flush=True)
        write(found)


def write(architecture: Architecture) -> None:
    """Puts one line into the list, sorted by kind and name under its head; several processes may do so at once."""
    with LIST.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        head = [line for line in file.read().splitlines() if line.startswith("#")]
        known = {a.name: a for a in read_list()} | {architecture.name: architecture}
        order = sorted(known.values(), key=lambda a: (a.kind, a.name.lower()))
        file.seek(0)
        file.truncate()
        file.write("\n".join([*head, *map(str, order)]) + "\n")


if __name__ == "__main__":
    main()
