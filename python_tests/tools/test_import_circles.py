"""Which modules import each other in circles: none. One that cannot be cut yet is listed here.

Imports inside functions and those for types alone count, too: a circle that hides in a function is one all the same. Cut
one by moving what both sides share to a third place, or by giving one of them what it asks for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"compiler": "mlirc", "dialects": "mlirc.dialects", "passes": "mlirc.passes", "scripts": "mlirc.scripts"}
CIRCLES: list[set[str]] = []


def modules(root: Path, packages: dict[str, str]) -> dict[str, Path]:
    """The file of every module, by its name."""
    found = {}
    for folder, package in packages.items():
        for file in sorted((root / folder).rglob("*.py")):
            parts = [package, *file.relative_to(root / folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """(module, name in it, or "") of every import of a module, wherever it stands."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            yield from ((".".join([*start, *filter(None, [node.module])]), alias.name) for alias in node.names)


def graph(root: Path, packages: dict[str, str]) -> dict[str, set[str]]:
    """Which modules a module imports."""
    known = modules(root, packages)
    edges: dict[str, set[str]] = {}
    for name, file in known.items():
        targets = {f"{m}.{n}" if f"{m}.{n}" in known else m for m, n in imported(name, file)}
        edges[name] = {t for t in targets if t in known and t != name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of more than one module."""

    def reached(start: str, along: dict[str, set[str]]) -> set[str]:
        seen, left = {start}, [start]
        while left:
            new = along[left.pop()] - seen
            seen |= new
            left += new
        return seen

    back: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            back[target].add(name)
    found: list[set[str]] = []
    for name in edges:
        if not any(name in circle for circle in found):
            circle = reached(name, edges) & reached(name, back)
            if len(circle) > 1:
                found.append(circle)
    return found


@pytest.fixture(scope="module")
def edges() -> dict[str, set[str]]:
    edges = graph(ROOT, PACKAGES)
    assert (
        len(edges) > 300
        and "mlirc.mlir" in edges["mlirc.passes.distribute.layouts.registers"] | edges["mlirc.passes.contract"]
    )
    return edges


@pytest.fixture(scope="module")
def found(edges: dict[str, set[str]]) -> list[set[str]]:
    return circles(edges)


def test_no_circle_is_new(found: list[set[str]]) -> None:
    new = [sorted(circle) for circle in found if not any(circle <= listed for listed in CIRCLES)]
    assert not new, f"modules that import each other in a circle: {new}"


def test_the_rooms_of_the_distribution_import_one_way_too(edges: dict[str, set[str]]) -> None:
    prefix = "mlirc.passes.distribute."
    rooms: dict[str, set[str]] = {}
    for name, targets in edges.items():
        if name.startswith(prefix):
            room = name.removeprefix(prefix).split(".")[0]
            inside = {t.removeprefix(prefix).split(".")[0] for t in targets if t.startswith(prefix)}
            rooms.setdefault(room, set()).update(inside - {room})
    assert {"layouts", "emit", "tiles", "lowerings"} <= set(rooms)
    assert not circles(rooms), f"rooms of passes/distribute/ that import each other: {circles(rooms)}"


def test_what_is_listed_is_still_there(found: list[set[str]]) -> None:
    everywhere = set().union(*found)
    cut = [sorted(listed - everywhere) for listed in CIRCLES if not listed <= everywhere]
    assert not cut, f"no longer in a circle: take them out of CIRCLES: {cut}"


def test_circles_are_found_in_functions_and_types_and_relative_imports(tmp_path: Path) -> None:
    texts = {
        "__init__": "",
        "a": "def f():\n    from p.b import g\n",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import h\n",
        "c": "import p.a\nfrom p import d\n",
        "d": "import os\n",
        "e": "from p import d, a\n",
    }
    (tmp_path / "p").mkdir()
    for name, text in texts.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert circles(graph(tmp_path, {"p": "p"})) == [{"p.a", "p.b", "p.c"}]
