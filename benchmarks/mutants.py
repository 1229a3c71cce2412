"""Writes results/mutants.md: what the host device says to every mutant of the shipped kernels. Needs no GPU;
takes minutes, a process for each core:

    python benchmarks/mutants.py [--jobs 16]
"""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections import Counter

import side_by_side
import tests_path  # noqa: F401

from support.kernels.mutant_cases import KERNELS, case
from support.mutants import arithmetic, ends, hopper, warp
from support.mutants.kernels import Case, mutants

SUBJECTS = (
    "barrier",
    "fence",
    "wait",
    "commit",
    "arrive",
    "atomic",
    "predicate",
    "bound",
    "offset",
    *ends.SUBJECTS,
    *hopper.SUBJECTS,
    *warp.SUBJECTS,
    *arithmetic.SUBJECTS,
)

_NOT_ENTERED = "in a loop or branch that no thread enters at this shape"


def _spelled(reasons: dict[str, str]) -> dict[str, str]:
    """Each reason, and for `likewise` the one before it: pages list them in another order."""
    last, found = "", {}
    for how, why in reasons.items():
        found[how] = last = last if why == "likewise" else why
    return found


# Why results with other bits are no error.
CLOSE = {
    "predicate off by one": "a masked column counts in attention's running maximum: any bound of the scores is right "
    "there, and only the rounding of the weights differs",
    "predicate always true": "likewise",
    "number another operation": "of the running maximum that attention's weights are relative to: any number near it "
    "is right there, and only the rounding of the weights differs",
    "number operand dropped": "likewise",
}

CLOSE = _spelled(CLOSE) | dict.fromkeys(
    ("shuffle offset plus one", "shuffle offset doubled", "shuffle offset 16 further", "shuffle of another mode"),
    "the offsets of a reduction still reach every lane: it is the same sum in another order",
)

# Why a mutant of a kind can leave everything as it was.
_REASONS = {
    "integer past 32 bits and back": "the index is below 128: its product with 2^24 fits in 32 bits",
    "integer past 32 bits": "the index is 0",
    "integer with exact": "no thread loses a bit, or nothing that is stored depends on the one that does",
    "integer with nneg": "no thread has a negative number there, or nothing that is stored depends on it",
    "integer with overflow<nuw>": "no thread overflows, or nothing that is stored depends on the one that does",
    "number another operation": "it rescales what a loop starts from (zeros, minus infinity), or what is never stored",
    "number operand dropped": "likewise",
    "number addend dropped": "likewise",
    "number factor dropped": "likewise",
    "number sign turned": "likewise",
    "window of another buffer for half a warp": "only lanes of one half get there",
    "window another one for half a warp": "likewise",
    "wait for reads only": "the last wait of the kernel: nobody in it reads what the copies write",
    "wait whose answer is ignored": "the phase that it asks about has ended by then",
    "cluster relaxed": "the barrier at the end, before which blocks tell each other by mbarriers alone",
    "initial value not stored": "of a row outside of the tensor, which the copy leaves out",
    "barrier removed": "orders nothing: no access before it meets one of another thread after it (the first barrier of "
    "a loop, before shared memory is used; the last one, behind which nothing is written)",
    "barrier moved up": "passes an operation of no other thread's concern (a wait for copies that nobody reads, or "
    "global memory)",
    "barrier moved down": "likewise",
    "barrier weakened to a vote": "no lane reads after it what another one writes before it, or no thread gets there",
    "barrier for 32 threads": "no warp reads after it what another one writes before it",
    "barrier weakened to the warp's": "only threads of one warp meet across it, or none",
    "fence moved up": "still between the writes and the product that reads them",
    "fence moved down": "behind the barrier, and every reader executes it",
    "wait removed": "the last wait of a loop: the groups left over are empty, or nobody reads them",
    "wait weakened": "likewise",
    "wait moved down": "passes an operation that touches nothing of what is waited for",
    "commit removed": "the prologue of a loop that no thread enters at this shape: nobody reads the copies",
    "commit moved up": "likewise",
    "commit moved down": "passes a wait or barrier with the same groups behind it, or nobody reads the copies",
    "arrive moved down": "passes a copy that cannot end before it",
    "arrive removed": "on an mbarrier whose phase nobody waits for at this number of tiles",
    "arrive doubled": "likewise",
    "arrive relaxed": "likewise",
    "arrive twice the count": "an mbarrier of a phase that nobody waits for at this number of tiles",
    "predicate removed": "true for every thread that gets there, or all threads may do what one does (set a flag)",
    "atomic of the block's scope": "an access that barriers and other atomics order anyway",
    "predicate always true": "true for every thread that gets there, or decides about what is never stored",
    "predicate off by one": "no thread has the two sides equal, or the one that has computes what is never stored",
    "bound removed": "the other side is never the smaller one at this shape, or the copy behind it is of zero elements",
    "bound always at the end": "the index is at the end anyway, or the copy behind it is of zero elements",
    "bound one too far": "what is read there is masked or never stored",
    "bound zero fill removed": "what is read in its place lies inside of the tensor, meets zeros of the other operand, "
    "or is never stored",
    "bound one turn more": "the masked end of the loop adds zeros",
    "bound one turn less": _NOT_ENTERED,
    "mask of the first half": _NOT_ENTERED,
    "mask another in one lane": _NOT_ENTERED,
    "mask without a lane": _NOT_ENTERED,
    "mask with a lane more": "the mask names that lane already",
    "mask that names all lanes": "the lanes named are all there and name the same, and the offset stays in the group",
    "divergence in both arms": "each arm has the lanes that their masks name",
    "divergence barrier in both arms": "likewise",
    "divergence store in both arms, no barrier": "no lane reads what the others store there, or no thread gets there",
    "divergence barrier in one arm": "only these lanes meet across it",
    "barrier of another number": "all who meet there use the same one",
    "shuffle offset plus one": "the offsets of a reduction still reach every lane, or all lanes hold the same",
    "shuffle offset doubled": "likewise",
    "shuffle offset 16 further": "likewise",
    "shuffle of another mode": "all lanes hold the same, or only the first lane's result is used",
    "value poison": "nothing that is stored depends on it",
    "initial value poison": "nothing that is stored depends on it, or no thread enters the loop",
    "integer divided by zero": _NOT_ENTERED,
    "ending out of reach": _NOT_ENTERED,
    "ending step of 0": _NOT_ENTERED,
    "ending barrier skipped by a warp": "only other warps come to it, or there is one warp, of which none does",
    "argument another one": "copies of a loop that no thread enters, or whose bytes nobody reads",
    "offset one too far": "copies of a loop that no thread enters, whose bytes nobody reads",
    "offset of a buffer dropped": "a buffer that is no longer in use where the other one is written",
    "offset of a descriptor dropped": "the offset is 0",
    "offset not swizzled": "the rows at hand are not swizzled (the factor is 0)",
}  # fmt: skip
NO_EFFECT = _spelled(_REASONS) | _spelled(hopper.NO_EFFECT)


Counts = Counter[tuple[str, str]]


@functools.lru_cache(maxsize=1)
def made(name: str) -> Case:
    return case(name)


def judge(work: side_by_side.Part) -> tuple[Counts, dict[str, Counts]]:
    """A part of a kernel's mutants by (what was spoiled, verdict), and those without a broken rule by (change,
    kernel)."""
    name, part, parts = work
    kernel, counts = made(name), Counter[tuple[str, str]]()
    groups: dict[str, Counts] = {v: Counter() for v in ("wrong", "close", "same")}
    for mutant in itertools.islice(mutants(kernel.text), part, None, parts):
        verdict = kernel.judge(mutant)
        if verdict == "invalid":
            continue
        counts[mutant.what, verdict] += 1
        if verdict != "rule":
            groups[verdict][f"{mutant.what} {mutant.how}", name] += 1
    return counts, groups


def main() -> int:
    start = time.perf_counter()
    table: dict[str, Counts] = {name: Counter() for name in KERNELS}
    groups: dict[str, Counts] = {v: Counter() for v in ("wrong", "close", "same")}
    workers = side_by_side.jobs(__doc__)
    for name, (counts, found) in side_by_side.shared(judge, KERNELS, workers, died := []):
        table[name] += counts
        for verdict, several in found.items():
            groups[verdict] += several
        print(f"{name}: {dict(table[name])} {time.perf_counter() - start:.0f} s", flush=True)
    return side_by_side.write("mutants.md", report(table, groups, time.perf_counter() - start, workers), died)


def report(table: dict, groups: dict, seconds: float, cores: int) -> str:
    """The page, in Markdown."""
    total: Counter[str] = Counter()
    for counts in table.values():
        for (_, verdict), n in counts.items():
            total[verdict] += n
    found = total["rule"] + total["wrong"]
    harmful = found + total["close"]
    lines = [
        "# Mutants of the shipped kernels on the host device", "",
        f"Made by `python benchmarks/mutants.py` in {seconds:.0f} s on {cores} cores; the kernels are those of "
        "`python_tests/support/kernels/mutant_cases.py`, the changes those of `python_tests/support/mutants/`: one at "
        "a time, every place in turn, each mutant run on two sets of inputs.", "",
        f"{sum(total.values())} mutants; {harmful} of them can change a result or break a rule. {found} of these "
        f"({100 * found / harmful:.2f} %) are reported: {total['rule']} as a rule that the kernel breaks (a race, an "
        f"access out of bounds, ...), {total['wrong']} as a wrong result, against the `kernels` level. "
        f"{total['close']} are not reported, with the reasons below.",
        f"{total['same']} mutants report nothing and leave every bit of the results as it was.", "",
        "By what was spoiled:", "", _HEADER.format(""), _RULE,
    ]  # fmt: skip
    for what in SUBJECTS:
        lines.append(_row(what, [c for c in table.values()], lambda key, w=what: key == w))
    lines += ["", _HEADER.format("kernel"), _RULE]
    for name, counts in table.items():
        lines.append(_row(name, [counts], lambda key: True))
    lines += ["", "## Reported as a wrong result", "",
              "These read or write other elements of the right buffer than they should, at addresses that are in "
              "bounds, initialized and ordered: no rule is broken, the numbers are wrong. Dropped bounds and loops "
              "that end early are of this kind too. The report names the first wrong element and the operation that "
              "stored it.", "", "| change | mutants |", "|---|---:|"]  # fmt: skip
    lines += [f"| {how} | {n} |" for how, n in _summed(groups["wrong"])]
    lines += ["", "## Not reported", "", "| change | kernel | why |", "|---|---|---|"]
    lines += [f"| {how} | {name} | {CLOSE.get(how, '?')} |" for (how, name), _ in groups["close"].most_common()]
    lines += ["", "## Without effect", "", "| change | mutants | why |", "|---|---:|---|"]
    lines += [f"| {how} | {n} | {NO_EFFECT.get(how, '?')} |" for how, n in _summed(groups["same"])]
    return "\n".join(lines) + "\n"


VERDICTS = ("rule", "wrong", "close", "same")
_HEADER = "| {} | mutants | broken rule | wrong result | within rounding | no effect |"
_RULE = "|---|---:|---:|---:|---:|---:|"


def _row(name: str, tables: list, wanted) -> str:
    found: Counter[str] = Counter()
    for counts in tables:
        for (what, verdict), n in counts.items():
            if wanted(what):
                found[verdict] += n
    cells = [sum(found.values()), *(found[v] for v in VERDICTS)]
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"


def _summed(counts: Counter) -> list[tuple[str, int]]:
    found: Counter[str] = Counter()
    for (how, _), n in counts.items():
        found[how] += n
    return found.most_common()


if __name__ == "__main__":
    sys.exit(main())
