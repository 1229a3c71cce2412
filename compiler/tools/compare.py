"""`mlirc-run --compare A B`: how far arrays in .npy or .npz files are from a reference, and where the most."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mlirc.check.gates import GATES
from mlirc.errors import MlircError, one_line
from mlirc.runtime.arrays import NUMPY_DTYPES

Arrays = np.ndarray | dict[str, np.ndarray]


def compare_files(a: Path, b: Path, found: Arrays, wanted: Arrays, gate: float | None) -> int:
    """Prints one line per array and returns 0 when all are within the gate, else 1. `found` and `wanted` are what the
    files `a` and `b` hold. Raises MlircError when they cannot be compared: other names, shapes or kinds of numbers."""
    if isinstance(found, dict) != isinstance(wanted, dict):
        raise MlircError(f"--compare {a} {b}: one holds one array, the other several by name: give two of a kind")
    if not isinstance(found, dict) or not isinstance(wanted, dict):
        found, wanted = {a.name: found}, {a.name: wanted}  # type: ignore[dict-item]
    if not wanted or set(found) != set(wanted):
        only = sorted(set(found) ^ set(wanted))
        raise MlircError(f"--compare {a} {b}: {only[0]} is in one of them only" if only else f"--compare: {b} is empty")
    right = [_compare(name, found[name], wanted[name], GATES["f32"] if gate is None else gate) for name in wanted]
    return 0 if all(right) else 1


def _numbers(array: np.ndarray, name: str) -> np.ndarray:
    """An array of numbers: two bytes without a type are bf16, which NumPy does not know."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        return array.view(NUMPY_DTYPES["bf16"])
    if array.dtype.kind not in "biufc":
        raise MlircError(f"--compare: {name} is {array.dtype}: only numbers can be compared")
    return array


def _compare(name: str, found: np.ndarray, wanted: np.ndarray, gate: float) -> bool:
    found, wanted = _numbers(found, name), _numbers(wanted, name)
    if found.shape != wanted.shape:
        raise MlircError(f"--compare: {name} has shape {list(found.shape)}, and the reference {list(wanted.shape)}")
    exact = wanted.dtype.kind in "biu"
    if exact != (found.dtype.kind in "biu"):
        raise MlircError(f"--compare: {name} is {found.dtype}, and the reference {wanted.dtype}: not of one kind")
    equal = (found == wanted) | ((found != found) & (wanted != wanted))
    finite = np.isfinite(found) & np.isfinite(wanted)
    misplaced = np.argwhere(~equal & ~finite)
    error, worst, at = _errors(found, wanted, finite)
    right = bool(equal.all()) if exact or gate == 0 else error <= gate and not len(misplaced)
    text = f"{one_line(name)}: relative error {error:.3g}, largest difference {worst:.6g}"
    if len(misplaced):
        at = tuple(misplaced[0])
        text += f", {len(misplaced)} NaN or infinite where the other is not"
    if not equal.all():
        place = f"[{','.join(map(str, at))}]"
        text += f" at {place} ({found[at]} for {wanted[at]}), {int((~equal).sum())} of {equal.size} elements differ"
    limit = "to the last bit" if exact or gate == 0 else f"within {gate:g}"
    print(f"{text}: {'ok' if right else f'WRONG, not {limit}'}")
    return right


def _errors(found: np.ndarray, wanted: np.ndarray, finite: np.ndarray) -> tuple[float, float, tuple[int, ...]]:
    """(||found - wanted|| / ||wanted||, largest difference, where that is), over what is finite in both."""
    if not finite.any():
        return 0.0, 0.0, ()
    wide: Any = np.complex128 if "c" in (found.dtype.kind, wanted.dtype.kind) else np.longdouble
    reference = np.where(finite, wanted, 0).astype(wide)
    difference = np.abs(np.where(finite, found, 0).astype(wide) - reference)
    at = np.unravel_index(int(difference.argmax()), difference.shape)
    size = _norm(np.abs(reference))
    error = _norm(difference)
    return float(error / size if size else np.inf if error else 0), float(difference[at]), tuple(map(int, at))


def _norm(values: np.ndarray) -> np.floating:
    """The root of the sum of squares, of values that may be as large as numbers can be."""
    largest = values.max()
    return largest * np.sqrt(np.sum((values / largest) ** 2)) if largest else largest
