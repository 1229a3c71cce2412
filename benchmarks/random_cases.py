"""Random programs, one after another, in a process that may die of any: see random_programs.py."""

from __future__ import annotations

import sys
from collections.abc import Callable

import tests_path  # noqa: F401
from case_check import Call, Outcome, check_call, import_mlirc, own_output, serve

LEVELS = {"gpu": ("tiles", "gpu")}  # what is run beside the level that is asked for, before it


def run_case(name: str, level: str, say: Callable[[str], None]) -> Outcome:
    """Compiles the random program of a seed, and compares `level` (and at `gpu` also `tiles`) with PyTorch. What is
    wrong is said of the first step whose value is wrong, with the program cut down to what that step needs."""
    from support.models.random_programs import Program

    say("PyTorch")
    program, levels = Program(name), LEVELS.get(level, (level,))
    say("mlirc")
    outcome = _check(program, name, levels)
    if outcome.outcome in ("right", "nothing to compare", "not imported"):
        return outcome
    for number in range(len(program.inputs), len(program.inputs) + len(program.steps)):
        part = Program(name).only(number)
        cause = _check(part, name, levels)
        if cause.outcome == outcome.outcome:
            return Outcome(cause.outcome, f"{cause.why} [{part.described()}]")
    return outcome


def _check(program: object, name: str, levels: tuple[str, ...]) -> Outcome:
    return check_call(program, name, Call("forward", tuple(program.inputs), {}), *levels)  # type: ignore[attr-defined]


def main() -> None:
    """Runs the seeds that standard input names, at the level of the command line."""
    with own_output() as out:
        import_mlirc()
        serve(lambda name, say: run_case(name, sys.argv[1], say), out)


if __name__ == "__main__":
    main()
