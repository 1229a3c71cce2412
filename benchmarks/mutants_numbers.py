"""Writes results/mutants-numbers.md: what the host device says to kernels that break no rule and compute another thing,
on every set of made-up inputs. Needs no GPU; takes minutes, a process for each core:

    python benchmarks/mutants_numbers.py [--jobs 16]
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections import Counter
from pathlib import Path

import side_by_side
import tests_path  # noqa: F401

from support.kernels.number_cases import NUMBERS, number_case
from support.mutants.kernels import Case
from support.mutants.numbers import number_mutants

# Why results with other bits are no error, and why a change can leave them as they were.
CLOSE = {
    "accumulator": "one partial sum of many, rounded once. A right attention may round its weights to 16 bits in front "
    "of the product with V, by any maximum seen so far, and the bound allows each of them half a unit in one "
    "direction: more than this one rounding. It is to nearest, so that no sum of signed errors tells, either",
    "constant": "one thousandth of a score changes the weights by less than their rounding to 16 bits",
    "maximum": "any bound of the scores, from another lane, is right in a softmax but where it overflows, and only the "
    "rounding differs",
}
SAME = {
    "index": "an index of a warp or thread, which is small",
    "sign": "an index of a warp or thread, which is not negative",
    "comparison": "equality does not occur, or decides between equal values, or about what is never stored",
    "term": "a term of 0, to which a reduction adds what it starts from",
    "maximum": "lanes and rows that hold the same value, or the lowest one; NaN that comes by another way, too",
    "factor": "a factor of what is never stored",
    "subtrahend": "a difference that is never stored",
    "accumulator": "rounded to 16 bits behind it anyway",
    "constant": "a limit of 8 bits, which rounding takes back",
}
VERDICTS = ("rule", "wrong", "close", "same")


@functools.lru_cache(maxsize=1)
def made(name: str) -> Case:
    return number_case(name)


def judge(work: side_by_side.Part) -> Counter[tuple[str, str, str]]:
    """A part of a kernel's mutants: by what was changed, how, and the verdict."""
    name, part, parts = work
    table: Counter[tuple[str, str, str]] = Counter()
    for mutant in itertools.islice(number_mutants(made(name).text), part, None, parts):
        verdict = made(name).judge(mutant)
        if verdict != "invalid":
            table[mutant.what, mutant.how, verdict] += 1
    return table


def main() -> int:
    start = time.perf_counter()
    table: Counter[tuple[str, str, str]] = Counter()  # what, how, verdict
    kernels: Counter[tuple[str, str]] = Counter()
    silent: Counter[tuple[str, str]] = Counter()
    workers = side_by_side.jobs(__doc__)
    for name, counts in side_by_side.shared(judge, NUMBERS, workers):
        table += counts
        for (what, how, verdict), n in counts.items():
            kernels[name, verdict] += n
            if verdict == "close":
                silent[f"{what} {how}", name] += n
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    path = Path(__file__).resolve().with_name("results") / "mutants-numbers.md"
    path.write_text(report(table, kernels, silent, time.perf_counter() - start, workers))
    return 0


def report(table: Counter, kernels: Counter, silent: Counter, seconds: float, cores: int) -> str:
    """The page, in Markdown."""
    total = {v: sum(n for (_, _, verdict), n in table.items() if verdict == v) for v in VERDICTS}
    found = total["rule"] + total["wrong"]
    lines = [
        "# Kernels that compute something else, on the host device", "",
        f"Made by `python benchmarks/mutants_numbers.py` in {seconds:.0f} s on {cores} cores; the kernels are those of "
        "`python_tests/support/kernels/number_cases.py`, the changes those of "
        "`python_tests/support/mutants/numbers.py`: in one place at a time, and in all places of a kind at once. Each "
        "is run on every set of made-up inputs that fits the kernel ([host device]"
        "(../../docs/host-device.md#made-up-inputs)); unchanged, no kernel has a finding on any.", "",
        f"{sum(total.values())} mutants; {found + total['close']} of them can change a result or break a rule, and "
        f"{found} of these ({100 * found / (found + total['close']):.1f} %) are reported: {total['wrong']} as a wrong "
        f"result, {total['rule']} as a broken rule. {total['same']} leave every bit on every set as it was.", "",
        _HEADER.format("change"), _RULE,
    ]  # fmt: skip
    for key in sorted({(what, how) for what, how, _ in table}):
        lines.append(_row(" ".join(key), [table[(*key, v)] for v in VERDICTS]))
    lines += ["", _HEADER.format("kernel"), _RULE]
    for name in NUMBERS:
        lines.append(_row(name, [kernels[name, v] for v in VERDICTS]))
    lines += ["", "## Not reported", "", "| change | kernel | mutants | why |", "|---|---|---:|---|"]
    lines += [f"| {how} | {name} | {n} | {_why(how)} |" for (how, name), n in silent.most_common()]
    lines += ["", "## Without effect", "", "| change of | mutants | why |", "|---|---:|---|"]
    same: Counter[str] = Counter()
    for (what, _, verdict), n in table.items():
        same[what] += n if verdict == "same" else 0
    lines += [f"| {what} | {n} | {SAME.get(what, '?')} |" for what, n in same.most_common() if n]
    return "\n".join(lines) + "\n"


def _why(how: str) -> str:
    return CLOSE.get(how.removesuffix(" everywhere")) or CLOSE.get(how.split()[0], "?")


_HEADER = "| {} | mutants | broken rule | wrong result | within rounding | no effect |"
_RULE = "|---|---:|---:|---:|---:|---:|"


def _row(name: str, counts: list[int]) -> str:
    return f"| {name} | " + " | ".join(map(str, [sum(counts), *counts])) + " |"


if __name__ == "__main__":
    sys.exit(main())
