"""Is a PTX file's text what the kernels at the `gpu` level compile to? Each kernel is compiled again and compared, line
by line: the instructions of an edited or stale kernel are never executed here, and nothing else would vouch for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata

from mlirc.backend.ptx import merge_ptx
from mlirc.device.plan.flow import Problem
from mlirc.driver.kernel_build import KernelBuild, KernelJob, build_kernel
from mlirc.driver.kernel_cache import KernelCache
from mlirc.runtime.plan import Plan
from mlirc.targets import get_target

_ENTRY = re.compile(r"^\.(?:visible|extern|weak)?\s*\.?(?:entry|func)\b.*?([\w$]+)\s*\($")
_LONGEST = 100  # characters of a line that are shown


def compare_text(text: str, plan: Plan, kernels: Mapping[str, str], cache: KernelCache | None = None) -> list[Problem]:
    """The kernels whose PTX in a file's text is not what their `gpu` level (text by name) compiles to, with the first
    line that differs. `cache` has kernels that were compiled before, and gets those that are compiled now. Raises
    MlircError for a kernel that does not compile."""
    target = get_target(plan.target)
    right = merge_ptx([_built(name, part, target.name, cache).ptx for name, part in kernels.items()], target)
    first = plan_lines(text)
    found = text.split("\n")[first:]
    if found == right.split("\n"):
        return []
    here, there = _parts(found), _parts(right.split("\n"))
    problems = []
    for name in dict.fromkeys([*there, *here]):
        a, b = here.get(name), there.get(name)
        if a is None or b is None:
            missing = "is missing" if a is None else "is in the PTX, but not at the gpu level"
            problems.append(Problem(f"{name or 'its head'} {missing}", "the PTX", _kernel(name, kernels)))
        elif a[1] != b[1]:
            problems.append(_difference(name, a, b, first, kernels, other_versions(plan)))
    return problems or [Problem("its kernels are in another order than at the gpu level", "the PTX")]


def plan_lines(text: str) -> int:
    """How many lines of a PTX file are its plan's."""
    return 1 + int(text.partition("\n")[0].split()[3])


def other_versions(plan: Plan) -> str:
    """Which tools a file was compiled with that are of other versions here, in words; "" where none is."""
    other = []
    for name, version in plan.versions.items():
        try:
            here = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if here != version:
            other.append(f"{name} {version}, which is {here} here")
    return f" (the file was compiled with {' and '.join(other)}: compile the model again)" if other else ""


def _built(name: str, text: str, target: str, cache: KernelCache | None) -> KernelBuild:
    job = KernelJob(name, text, text, "gpu", target)
    known = cache.get(job) if cache else None
    build = known or build_kernel(job)
    if cache and not known:
        cache.put(job, build)
    return build


def _parts(lines: list[str]) -> dict[str, tuple[int, list[str]]]:
    """Lines by the entry or function that they are of, "" for those before the first one: where they start, and they
    without empty ones at their end."""
    parts: dict[str, tuple[int, list[str]]] = {"": (0, [])}
    name = ""
    for number, line in enumerate(lines):
        if match := _ENTRY.match(line):
            name = match[1]
            parts[name] = (number, [])
        parts[name][1].append(line)
    for _, part in parts.values():
        while part and not part[-1].strip():
            part.pop()
    return parts


def _difference(
    name: str, a: tuple[int, list[str]], b: tuple[int, list[str]], first: int, kernels: Mapping[str, str], versions: str
) -> Problem:
    start, here = a
    there = b[1]
    differ = [i for i, (x, y) in enumerate(zip(here, there, strict=False)) if x != y] + [min(len(here), len(there))]
    at = next((i for i in differ if not here[i : i + 1] or ".reg ." not in here[i]), differ[0])
    said, right = (f"`{_shown(x[at])}`" if at < len(x) else "the end" for x in (here, there))
    message = f"is {said}, where the gpu level compiles to {right}{versions}"
    return Problem(message, f"line {first + start + at + 1}", _kernel(name, kernels))


def _shown(line: str) -> str:
    text = " ".join(line.split())
    return ascii(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")[1:-1]


def _kernel(symbol: str, kernels: Mapping[str, str]) -> str:
    """The kernel that an entry is of."""
    return max((k for k in kernels if symbol == k or symbol.startswith(f"{k}_")), key=len, default="")
