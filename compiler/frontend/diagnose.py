"""Turns the exceptions of torch.export and of the importer into one line for the person at the command line."""

from __future__ import annotations

import re
import traceback

from mlirc.errors import MlircError

PACKED = (
    "a recurrent layer on a packed sequence (pack_padded_sequence), whose time steps have batches of different sizes, "
    "is not supported: give it the padded tensor, and select the last states with gather"
)


class DataDependent(Exception):
    """What the user's code asks for depends on a tensor's values: the message says what to write instead."""


def export_error(name: str, error: Exception) -> MlircError:
    """One line: what could not be exported, where in the model's source, and what to do."""
    if isinstance(error, MlircError):
        return error
    text = str(error)
    where = _where(error, text)
    if isinstance(error, DataDependent):
        return MlircError(f"{name}: {text}{where}")
    if isinstance(error, RecursionError) or "maximum recursion depth exceeded" in text:
        return MlircError(
            f"{name}: calls itself without end, or is nested too deep to be followed{where}: take the recursion out of "
            "the model, or raise sys.setrecursionlimit"
        )
    kind = type(error).__name__
    if kind in _OF_VALUES or "DataDependent" in kind or "data-dependent" in text.lower():
        return MlircError(
            f"{name}: control flow or a shape depends on the values of a tensor{where}: a compiled model has one fixed "
            "path; select between results with torch.where, or take the branch out of the model"
        )
    for pattern, words in _SAID_BETTER:
        found = re.search(pattern, text)
        if found:
            return MlircError(f"{name}: {words.format(*found.groups())}{where}")
    return MlircError(f"{name}: cannot be exported{where}: {kind}: {first_line(text)}")


_OF_VALUES = ("DynamicOutputShapeException", "PendingUnbackedSymbolNotFound")  # PyTorch's names of these errors

# What torch.export says, and what that means for the model.
_SAID_BETTER = (
    (
        r"Constraints violated[\s\S]*Suggested fixes:\s*\n\s*([^\n]+)",
        "takes another path, or fails, for some of these sizes: PyTorch suggests {0}",
    ),
    (
        r"^torch\.(q\w+)$",
        "quantized tensors ({0}) are not supported: compute with integers and their scales, or in floats",
    ),
    (
        r"\.numpy\(\) is not supported",
        "calls .numpy(), which cannot be followed: compute with torch",
    ),
    (
        r"passed to FakeTensor.__format__",
        "formats the values of a tensor as text, which are not known before the model runs: take that out of the model",
    ),
    (
        r"Constant (\S+) is mutated in the forward",
        "forward writes into the tensor '{0}', so that the next call would see another: make it a buffer "
        "(register_buffer); its new value is an output of the compiled model then",
    ),
    (
        r"Attempted to set the storage|Encountered a set_ on a graph input|num_mutated_inp_runtime_indices"
        r"|Trying to resize storage|non-resizable",
        "changes the shape or the memory of a tensor in place (resize_, set_, x.data = ...), which cannot be compiled: "
        "make a new tensor of that shape",
    ),
    (
        r"fake tensor in the exported program constant's list",
        "forward replaces the data of a tensor (x.data = ...), which cannot be followed: use copy_ on a buffer",
    ),
    (
        r"Found <class '(?:.*\.)?([^']+)'> in output, which is not a known type",
        "returns a {0}: return tensors or numbers, or tuples, lists or dicts with them",
    ),
)


def first_line(text: str, limit: int = 300) -> str:
    """The first line of a message that says something, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else "no message"
    if line.endswith(":") and len(lines) > 1:  # announces the reason
        line += " " + lines[1]
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _where(error: Exception, text: str) -> str:
    """` (at file:line)` of the innermost frame outside of the libraries, if there is one."""
    frames = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    frames += [(file, int(line)) for file, line in re.findall(r'File "([^"]+)", line (\d+)', text)]
    own = [f for f in frames if not re.search(r"/(torch|torch_mlir|contextlib|mlirc)/|/compiler/frontend/|<", f[0])]
    own = [f for f in own if "contextlib" not in f[0] and "functools" not in f[0]]
    return f" (at {own[-1][0]}:{own[-1][1]})" if own else ""
