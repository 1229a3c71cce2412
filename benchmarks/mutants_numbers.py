"""Writes results/mutants-numbers.md: what the host device says to kernels that break no rule and compute another thing,
on every set of made-up inputs. Needs no GPU; takes minutes, a process for each core:

    python benchmarks/mutants_numbers.py -j 16
    python benchmarks/mutants_numbers.py -j 2 --sample 25 --seed 1    # of each kernel's mutants
"""

from __future__ import annotations

import functools
import itertools
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import side_by_side
import tests_path  # noqa: F401

from mlirc.device.input_sets import INPUT_SETS, QUICK
from support.kernels.number_cases import NUMBERS
from support.kernels.torch_kinds import KINDS
from support.mutants.numbers import number_mutants
from support.mutants.tried import Tried, tried

NEAR = 1.5  # times as far from the level above as the unchanged kernel: nearly as right
PARTS = 8  # of each name's mutants, at the most
# Why results with other bits are not reported, by the start of what was changed, and why a change can leave all bits.
MISSED = {
    "accumulator": "one partial sum of many, rounded once to nearest: attention may round its weights to 16 bits in "
    "front of the GEMM with V, relative to any maximum so far, and the bound allows each of them half a unit; a "
    "variance corrects for the mean that it subtracts",
    "constant": "less than the rounding of attention's weights to 16 bits, or of a result",
    "maximum": "any bound of the scores, from another lane, is right in a softmax but where it overflows, and only the "
    "rounding differs",
    "count": "the mean that a variance subtracts, and corrects for: any number near it is right",
    "term": "what corrects a sum for its rounding, or a variance for the mean that it subtracts: what its correction "
    "loses is within a bound that adds up the errors of both",
    "lowest": "what lanes beyond a row hold, all of whose numbers are larger",
    "function flushes": "a subnormal number within the bound, or the sign of a zero, which is not judged",
    "element": "an element that a running maximum of scores leaves out: any bound of them is right where nothing "
    "overflows",
    "comparison off": "a comparison with 0 that decides the sign of a zero, which is not judged",
    "integer operand": "which of two TF32 numbers has the last bit of the first one: both together are the same",
    "comparison of NaN": "the way for numbers that are not finite, which is exact, is taken for the others, too",
    "rounding cut off": "some of the roundings of attention's weights: too few for the mean of all errors",
}
SAME = {
    "index": "an index of a warp or thread, which is small",
    "sign": "a number that is not negative, such as an index of a thread",
    "comparison": "equality or NaN does not occur, decides between equal values, or about what is never stored",
    "term": "a term of 0, to which a reduction adds what it starts from",
    "maximum": "lanes and rows that hold the same value, or the lowest one; NaN that comes by another way, too",
    "factor": "a factor of what is never stored",
    "subtrahend": "a difference that is never stored",
    "accumulator": "rounded to 16 bits behind it anyway",
    "constant": "a limit of 8 bits, which rounding takes back",
    "count": "a number that is no count, and decides nothing",
    "element": "elements of what is never stored, or that are alike",
    "lanes": "all lanes hold the same, or only the first lane's result is used",
    "choice": "both are alike, or what is never stored",
    "integer": "an operand of 0, or of what is never stored",
    "function": "small results do not occur, or are 0",
    "rounding": "a number that 16 bits hold, and that does not overflow",
    "flag": "no bit is lost",
}


@dataclass
class Part:
    """A part of the mutants of a name: how many there are by kernel, what was changed, how and the verdict's word;
    by set how many it reported, how many it alone, and its seconds; `rules`: those that break a rule; `farther`: of
    what is not reported, how many times as far as the unchanged kernel's its results are from the level above."""

    verdicts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    alone: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    rules: int = 0
    farther: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def see(self, key: tuple[str, str, str], farther: float) -> None:
        self.farther[key] = max(farther, self.farther.get(key, 0.0))

    def add(self, other: Part) -> None:
        for mine, theirs in ((self.verdicts, other.verdicts), (self.found, other.found), (self.alone, other.alone),
                             (self.seconds, other.seconds)):  # fmt: skip
            mine.update(theirs)
        self.rules += other.rules
        for key, farther in other.farther.items():
            self.see(key, farther)


@functools.lru_cache(maxsize=1)
def made(name: str) -> list[Tried]:
    return list(tried(name))


def judge(work: side_by_side.Part, sample: int, seed: int) -> Part:
    """A part of a name's mutants, or of a sample of each kernel's."""
    name, part, parts = work
    whole = Part()
    for kernel in made(name):
        mutants = list(number_mutants(kernel.text))
        if sample:
            mutants = random.Random(f"{seed} {kernel.name}").sample(mutants, min(sample, len(mutants)))
        kernel.seconds.clear()
        for mutant in itertools.islice(mutants, part, None, parts):
            verdict = kernel.judge(mutant)
            if verdict is None:
                continue
            whole.verdicts[kernel.name, mutant.what, mutant.how, verdict.word] += 1
            if verdict.word == "missed":
                whole.see((kernel.name, mutant.what, mutant.how), verdict.farther)
            whole.found.update(verdict.sets)
            whole.alone.update(verdict.sets if len(verdict.sets) == 1 else [])
            whole.rules += verdict.rule
        whole.seconds.update(kernel.seconds)
    return whole


def main() -> int:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--sample", type=int, default=0, help="so many mutants of each kernel (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--kinds", default="", help="only names that have this text in them")
    given, start, whole = parser.parse_args(), time.perf_counter(), Part()
    names = [n for n in (*KINDS, *NUMBERS) if given.kinds in n]
    work = functools.partial(judge, sample=given.sample, seed=given.seed)
    for name, found in side_by_side.shared(work, names, given.jobs, died := [], min(given.jobs, PARTS)):
        whole.add(found)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    sampled = f" --sample {given.sample} --seed {given.seed}" if given.sample else ""
    page = report(whole, time.perf_counter() - start, given.jobs, sampled)
    if given.kinds:
        print(page)
        return int(bool(died))
    return side_by_side.write("mutants-numbers.md", page, died)


def report(whole: Part, seconds: float, cores: int, sampled: str) -> str:
    """The page, in Markdown."""
    total: Counter[str] = Counter()
    for (*_, word), n in whole.verdicts.items():
        total[word] += n
    harmful = total["default"] + total["all"] + total["missed"]
    near = sum(n for key, n in _of_word(whole, "missed") if whole.farther[key] < NEAR)
    lines = [
        "# Kernels that compute something else, on the host device", "",
        f"Made by `python benchmarks/mutants_numbers.py{sampled}` in {seconds:.0f} s on {cores} cores; the kernels are "
        "those of `number_cases.py` and `torch_kinds.py` in `python_tests/support/kernels/`, the changes those of "
        "`numbers.py` and `values.py` in `python_tests/support/mutants/`: in one place at a time, and in all places of "
        "a kind at once. Each is run on every set of made-up inputs that fits the kernel ([host device]"
        "(../../docs/host-device.md#made-up-inputs)); unchanged, no kernel has a finding on any.", "",
        f"{sum(total.values())} mutants, of which {harmful} change a bit of a result on some set, or break a rule. Of "
        f"these {total['default']} ({_share(total['default'], harmful)}) are reported on the default sets, "
        f"{total['default'] + total['all']} ({_share(harmful - total['missed'], harmful)}) on all sets; {whole.rules} "
        f"as a broken rule, too. Of the others {near} take no result more than {NEAR} times as far from the level "
        f"above as the unchanged kernel is: without these {_share(total['default'], harmful - near)} are reported on "
        "the default sets.", "", *_table("kernels of", whole, lambda key: key[0].split(", ")[0]), "",
        *_table("change", whole, lambda key: f"{key[1]} {key[2]}"), "",
        "| set | default | mutants reported | by it alone | s | reported a second |", "|---|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for name in INPUT_SETS:
        took = whole.seconds[name]
        rate = f"{whole.found[name] / took:.1f}" if took else "-"
        mark = "yes" if name in QUICK else ""
        lines.append(f"| {name} | {mark} | {whole.found[name]} | {whole.alone[name]} | {took:.0f} | {rate} |")
    lines += [
        "", "## Not reported", "",
        "`farther`: the root mean square of the results' distance from the level above, in units of the unchanged "
        "kernel's, on the set where it is largest.", "",
        "| change | kernel | mutants | farther | why |", "|---|---|---:|---:|---|",
        *(f"| {what} {how} | {name} | {n} | {whole.farther[name, what, how]:.2f} | {_why(MISSED, f'{what} {how}')} |"
          for (name, what, how), n in _of_word(whole, "missed")),
        "", "## Reported on other sets than the default ones", "", "| change | kernel | mutants |", "|---|---|---:|",
        *(f"| {what} {how} | {name} | {n} |" for (name, what, how), n in _of_word(whole, "all")),
    ]  # fmt: skip
    lines += ["", "## Without effect", "", "| change of | mutants | why |", "|---|---:|---|"]
    same: Counter[str] = Counter()
    for (_, what, _, word), n in whole.verdicts.items():
        same[what] += n if word == "same" else 0
    lines += [f"| {what} | {n} | {SAME.get(what, '?')} |" for what, n in same.most_common() if n]
    return "\n".join(lines) + "\n"


def _of_word(whole: Part, word: str) -> list[tuple[tuple[str, str, str], int]]:
    """What was changed in which kernel, and how often, of one verdict."""
    few = Counter({key[:3]: n for key, n in whole.verdicts.items() if key[3] == word})
    return few.most_common()


def _why(reasons: dict[str, str], change: str) -> str:
    return next((why for start, why in reasons.items() if change.startswith(start)), "?")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def _table(title: str, whole: Part, group) -> list[str]:
    """Rows of mutants, harmful ones, those reported on the default sets, on others, and not."""
    rows: dict[str, Counter[str]] = {}
    for key, n in whole.verdicts.items():
        rows.setdefault(group(key), Counter())[key[3]] += n
    lines = [f"| {title} | mutants | harmful | by default | on other sets | missed |", "|---|---:|---:|---:|---:|---:|"]
    for name, c in sorted(rows.items()):
        harmful = c["default"] + c["all"] + c["missed"]
        lines.append(f"| {name} | {sum(c.values())} | {harmful} | {c['default']} | {c['all']} | {c['missed']} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
