"""What is told of tiles in shared memory: how they lie there, and the bank conflicts of what reads and writes them."""

from __future__ import annotations

from functools import lru_cache

from mlirc.passes.distribute.layouts import banks
from mlirc.passes.distribute.layouts.registers import Layout
from mlirc.passes.distribute.layouts.shared import SharedLayout

_of_registers = lru_cache(maxsize=4096)(banks.of_registers)


class SharedAccesses:
    """The accesses of one kernel's tiles, by how they lie, and of what elements."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, SharedLayout], dict[str, tuple[int, int]]] = {}

    def by_registers(
        self,
        element: str,
        shared: SharedLayout,
        layout: Layout,
        width: int,
        warps: int,
        dims: tuple[int, ...],
        verb: str,
    ) -> None:
        """Notes that threads read or write ("reads", "stores", "cp.async") a tile by a register layout."""
        self._add(element, shared, verb, _of_registers(shared, layout, width, warps, verb != "reads", dims))

    def by_matrices(self, element: str, shared: SharedLayout, instruction: str) -> None:
        """Notes an instruction that reads rows of 16 bytes, eight at a time."""
        self._add(element, shared, instruction, banks.of_matrix(shared))

    def _add(self, element: str, shared: SharedLayout, verb: str, passes: tuple[int, int]) -> None:
        taken, least = self._found.setdefault((element, shared), {}).get(verb, (0, 0))
        self._found[element, shared][verb] = taken + passes[0], least + passes[1]

    def lines(self) -> list[str]:
        """A line for each way that tiles lie."""
        out = []
        for (element, shared), verbs in self._found.items():
            told = [f"{verb} {_conflicts(*passes)}" for verb, passes in verbs.items()]
            atom = "atoms of {}x{} bytes".format(*shared.atom) if shared.swizzle else "not swizzled"
            out.append(f"shared memory {element} in {shared.slots}, {atom}: {', '.join(told)}")
        return out


def _conflicts(taken: int, least: int) -> str:
    return "without bank conflicts" if taken == least else f"in {taken / least:.3g} times the fewest wavefronts"
