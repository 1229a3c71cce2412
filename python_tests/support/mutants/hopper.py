"""Mutants of Hopper's instructions: mbarriers that live too short, twice, or where data is; copies that nobody waits for,
or that are of other sizes; fences of another kind; barriers of a cluster; answers that nobody heeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

SUBJECTS = ("mbarrier", "copy", "cluster")
# Why a mutant of a kind can leave everything as it was.
NO_EFFECT = {
    "mbarrier moved down": "passes the initialization, or the end, of another one",
    "mbarrier for one arrival more": "of a phase that nobody waits for at this number of tiles",
    "mbarrier for one arrival less": "likewise",
    "copy doubled": "a store of the same bytes to the same place, in the same group",
    "copy moved down": "passes another copy of the same group or phase",
    "copy moved up": "passes another copy of the same phase, or the arrival that expects its bytes, without which the "
    "phase does not end",
    "cluster moved down": "passes a load of the block's own, or a barrier of the block",
    "cluster moved up": "passes stores that no other block reads, or a proxy fence of the block's own",
    "arrive moved down over an access": "passes a copy that cannot end before it, or a wait for another mbarrier",
    "arrive moved up over an access": "passes a store that nobody reads",
    "barrier moved up over an access": "passes a proxy fence, which every reader executes behind it then, or a wait",
    "fence moved down over an access": "behind the barrier, and every reader executes it",
    "fence moved up over an access": "still behind the initialization of the mbarriers that copies tell",
    "fence removed": "fence.mbarrier.init, where no copy and no other block uses the mbarriers",
    "wait moved down over an access": "passes an access to nothing that is waited for",
    "wait moved up over an access": "likewise",
}

Change = tuple[str, str, list[str]]
Put = Callable[..., list[str]]

EFFECT = re.compile(r"llvm\.(load|store)|nvvm\.(?!read|mapa)|gpu\.barrier|wgmma")  # what lines are moved past
_LINES = {
    "mbarrier": r"nvvm\.mbarrier\.(init|inval) ",
    "copy": r"nvvm\.cp\.async\.(bulk\.(shared|global|tensor)|shared)",
    "commit": r"nvvm\.cp\.async\.bulk\.commit",
    "wait": r"nvvm\.cp\.async\.bulk\.wait_group",
    "arrive": r"nvvm\.cp\.async\.mbarrier\.arrive",
    "cluster": r"nvvm\.cluster\.(arrive|wait)",
    "barrier": r"nvvm\.barrier id",
}
_KINDS = ("alias", "async.global", "async.shared>, space = #nvvm.shared_space<cta")
_FENCE = re.compile(r"#nvvm\.proxy_kind<(.*?)>(, space = #nvvm\.shared_space<\w+>)?\}")


def changes(lines: list[str], i: int, put: Put, moved: Callable[[int], list[str]]) -> Iterator[Change]:
    """What can be spoiled at a line: (what, how, the lines then). `put` replaces the line; `moved` moves it behind the
    next operation that touches memory (1), or before the previous one (-1)."""
    line = lines[i]
    what = next((w for w, pattern in _LINES.items() if re.match(rf"\s*{pattern}", line)), None)
    if what is not None:
        yield what, "removed", put()
        yield what, "moved down", moved(1)
        if what != "wait":
            yield what, "moved up", moved(-1)
    elif re.match(r"\s*(%\S+ = )?nvvm\.(barrier|fence\.|mbarrier\.(arrive|try_wait))", line):
        name = "barrier" if "nvvm.barrier" in line else "fence" if "fence" in line else (
            "wait" if "try_wait" in line else "arrive")  # fmt: skip
        yield name, "moved down over an access", moved(1)
        yield name, "moved up over an access", moved(-1)
    if what in ("mbarrier", "copy", "arrive", "cluster"):
        yield what, "doubled", put(line, line)
    if found := re.match(r"(\s*)(?:%\S+ = )?(nvvm\.mbarrier\.arrive.*?)( -> i64)?$", line):
        yield "arrive", "doubled", put(line, f"{found[1]}%mutant_k = {found[2]}{found[3]}" if found[3] else line)
    yield from _mbarriers(lines, i, put)
    yield from _copies(line, put)
    yield from _fences(line, put)
    yield from _clusters(lines, i, put)


def _mbarriers(lines: list[str], i: int, put: Put) -> Iterator[Change]:
    line = lines[i]
    if (found := re.match(r"\s*(%\S+) = llvm\.getelementptr %(?:0|smem)\[(\d+)\]", line)) and _leads_to_mbarrier(
        lines, i
    ):
        for how, byte in (("over data", "0"), ("over the next one", str(int(found[2]) + 8))):
            yield "mbarrier", how, put(line.replace(f"[{found[2]}]", f"[{byte}]"))
    if found := re.match(r"\s*nvvm\.mbarrier\.init (%\S+), (%\S+) :", line):
        for how, kind in (("for one arrival more", "addi"), ("for one arrival less", "subi")):
            count = f"%mutant_n = arith.{kind} {found[2]}, %mutant_one : i32"
            yield "mbarrier", how, put(_ONE, count, line.replace(f" {found[2]} :", " %mutant_n :"))
        yield "mbarrier", "ended at once", put(line, f"nvvm.mbarrier.inval {found[1]} : !llvm.ptr<3>")
    if found := re.match(r"\s*nvvm\.mbarrier\.try_wait\.parity (%\S+), (%\S+), ", line):
        other = f"%mutant_p = arith.xori {found[2]}, %mutant_one : i32"
        yield "wait", "for the other parity", put(_ONE, other, line.replace(f", {found[2]},", ", %mutant_p,", 1))
        yield (
            "wait",
            "whose answer is ignored",
            put(f"%mutant_d = nvvm.mbarrier.test.wait {found[1]}, {found[2]} : !llvm.ptr<3>, i32 -> i1"),
        )
    if re.match(r"\s*%\S+ = nvvm\.mbarrier\.(test\.wait|try_wait) ", line):
        yield "wait", "relaxed", put(re.sub(r"(, %\S+) :", r"\1 {relaxed = true} :", line, count=1))
    if found := re.match(r"\s*(?:%\S+ = )?nvvm\.mbarrier\.arrive (%\S+) (?!\{)", line):
        yield "arrive", "relaxed", put(line.replace(f"{found[1]} :", f"{found[1]} {{relaxed = true}} :"))
    if found := re.match(r".*mbarrier\.arrive\.expect_tx %\S+, (%\S+) :", line):
        for how, kind in (("of 16 bytes more", "addi"), ("of 16 bytes less", "subi")):
            count = f"%mutant_n = arith.{kind} {found[1]}, %mutant_few : i32"
            yield "arrive", how, put(_FEW, count, line.replace(f", {found[1]} :", ", %mutant_n :"))


_ONE, _FEW = "%mutant_one = arith.constant 1 : i32", "%mutant_few = arith.constant 16 : i32"


def _leads_to_mbarrier(lines: list[str], i: int) -> bool:
    """Whether a pointer, or one to an element from there on, is an mbarrier's."""
    names, depth = {lines[i].split()[0]}, 0
    for line in lines[i + 1 :]:
        depth += line.count("{") - line.count("}")
        if depth < 0:
            return False
        if found := re.match(r"\s*(%\S+) = (?:llvm\.getelementptr|nvvm\.mapa) (%\w+)", line):
            names |= {found[1]} if found[2] in names else set()
        if "mbarrier" in line and names & set(re.findall(r"%\w+", line.partition("mbarrier")[2])):
            return True
    return False


def _copies(line: str, put: Put) -> Iterator[Change]:
    if found := re.match(r"\s*nvvm\.cp\.async\.bulk\.(?:shared|global).*, (%\S+) : ", line):
        for how, kind in (("of 16 bytes more", "addi"), ("of 16 bytes less", "subi")):
            size = f"%mutant_n = arith.{kind} {found[1]}, %mutant_few : i32"
            yield "copy", how, put(_FEW, size, line.replace(f", {found[1]} :", ", %mutant_n :"))
    if "multicast_mask = %" in line:
        one = "%mutant_m = arith.constant 1 : i16"
        yield "copy", "to one block", put(one, re.sub(r"multicast_mask = %\w+", "multicast_mask = %mutant_m", line))
        yield "copy", "to absent blocks", put(one.replace(" 1 ", " 7 "), re.sub(
            r"multicast_mask = %\w+", "multicast_mask = %mutant_m", line))  # fmt: skip
    if found := re.search(r" im2col\[(%\w+), (%\w+)\]", line):
        yield "copy", "of another tap", put(line.replace(found[0], f" im2col[{found[2]}, {found[1]}]"))
    if "wait_group" in line and "bulk" in line:
        weaker = re.sub(r"wait_group (\d+)", lambda m: f"wait_group {int(m[1]) + 1}", line)
        yield "wait", "weakened", put(weaker)
        if "{read}" not in line:
            yield "wait", "for reads only", put(f"{line} {{read}}")
    if "cp.async.mbarrier.arrive" in line:
        yield "arrive", "counted on top", put(line.replace(" {noinc = true}", ""))


def maps(line: str, put: Put) -> Iterator[Change]:
    """What can be spoiled of a tensor map, which a host function makes."""
    if '"mlirc.tensor_map"' not in line:
        return
    if found := re.search(r"\bbox = array<i64: (\d+)", line):
        yield "copy", "of a row less", put(line.replace(found[0], f"{found[0][: -len(found[1])]}{int(found[1]) - 1}"))
    if found := re.search(r"im2col = array<i64: (.*?)>", line):
        numbers = [int(n) for n in found[1].split(", ")]
        spatial = len(numbers) // 3
        for i, how in enumerate(("from another corner", "to another corner", "by another stride")):
            moved = [n + (d == (i + 1) * spatial - 1) for d, n in enumerate(numbers)]
            yield "copy", how, put(line.replace(found[0], f"im2col = array<i64: {', '.join(map(str, moved))}>"))


def _fences(line: str, put: Put) -> Iterator[Change]:
    if "nvvm.fence.proxy" not in line or (found := _FENCE.search(line)) is None:
        return
    for kind in _KINDS:
        if kind.partition(">")[0] != found[1]:
            name = kind.partition(">")[0]
            yield "fence", f"of kind {name}", put(_FENCE.sub(f"#nvvm.proxy_kind<{kind}>}}", line))


def _clusters(lines: list[str], i: int, put: Put) -> Iterator[Change]:
    line = lines[i]
    if line.strip() == "nvvm.cluster.arrive":
        yield "cluster", "relaxed", put(line + ".relaxed")
    if "nvvm.cluster.arrive" in line:  # and the wait that belongs to it
        end = next((j for j in range(i, len(lines)) if "nvvm.cluster.wait" in lines[j]), None)
        if end is not None:
            rest = [*lines[:i], *lines[i + 1 : end], *lines[end + 1 :]]
            yield "cluster", "left out", rest
            yield (
                "cluster",
                "weakened to the block's",
                [*lines[:i], *lines[i + 1 : end], "nvvm.barrier", *lines[end + 1 :]],
            )
    if found := re.match(r"\s*%\S+ = nvvm\.mapa %\S+, (%\S+) :", line):
        own = "%mutant_r = nvvm.read.ptx.sreg.cluster.ctarank : i32"
        yield "offset", "of one's own block", put(own, line.replace(f", {found[1]} :", ", %mutant_r :"))
