"""Writes results/mutants-numbers.md: what the host device says to kernels that break no rule and compute another thing,
on every set of made-up inputs. Needs no GPU; takes two minutes:

    python benchmarks/mutants_numbers.py
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import tests_path  # noqa: F401

from support.kernels.number_cases import NUMBERS, number_case
from support.mutants.numbers import number_mutants

# Why results with other bits are no error, and why a change can leave them as they were.
CLOSE = {
    "maximum of numbers alone": "NaN comes by way of the weights, too: only its own bits differ",
    "accumulator": "one partial sum of many, or the sum of a softmax, rounded once to 16 bits, where the results are "
    "rounded to 16 bits themselves: the difference is at most theirs",
    "constant": "likewise: one thousandth is less than the last place of 16 bits",
    "maximum": "any bound of the scores, from another lane, is right in a softmax but where it overflows, and only the "
    "rounding differs",
}
UNDEFINED = {"to 8 bits": "which integer NaN becomes is undefined"}
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


def main() -> int:
    start = time.perf_counter()
    table: Counter[tuple[str, str, str]] = Counter()  # what, how, verdict
    kernels: Counter[tuple[str, str]] = Counter()
    silent: Counter[tuple[str, str]] = Counter()
    for name in NUMBERS:
        kernel = number_case(name)
        for mutant in number_mutants(kernel.text):
            verdict = kernel.judge(mutant)
            if verdict == "invalid":
                continue
            table[mutant.what, mutant.how, verdict] += 1
            kernels[name, verdict] += 1
            if verdict == "close":
                silent[f"{mutant.what} {mutant.how}", name] += 1
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    path = Path(__file__).resolve().with_name("results") / "mutants-numbers.md"
    path.write_text(report(table, kernels, silent, time.perf_counter() - start))
    return 0


def report(table: Counter, kernels: Counter, silent: Counter, seconds: float) -> str:
    """The page, in Markdown."""
    total = {v: sum(n for (_, _, verdict), n in table.items() if verdict == v) for v in VERDICTS}
    found = total["rule"] + total["wrong"]
    lines = [
        "# Kernels that compute something else, on the host device", "",
        f"Made by `python benchmarks/mutants_numbers.py` in {seconds:.0f} s on 2 cores; the kernels are those of "
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
    lines += [f"| {how} | {name} | {n} | {_why(how, name)} |" for (how, name), n in silent.most_common()]
    lines += ["", "## Without effect", "", "| change of | mutants | why |", "|---|---:|---|"]
    same: Counter[str] = Counter()
    for (what, _, verdict), n in table.items():
        same[what] += n if verdict == "same" else 0
    lines += [f"| {what} | {n} | {SAME.get(what, '?')} |" for what, n in same.most_common() if n]
    return "\n".join(lines) + "\n"


def _why(how: str, name: str) -> str:
    return UNDEFINED.get(name) or CLOSE.get(how.removesuffix(" everywhere")) or CLOSE.get(how.split()[0], "?")


_HEADER = "| {} | mutants | broken rule | wrong result | within rounding | no effect |"
_RULE = "|---|---:|---:|---:|---:|---:|"


def _row(name: str, counts: list[int]) -> str:
    return f"| {name} | " + " | ".join(map(str, [sum(counts), *counts])) + " |"


if __name__ == "__main__":
    sys.exit(main())
