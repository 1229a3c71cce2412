"""How models are named that are no files. Needs neither PyTorch nor MLIR."""

from __future__ import annotations

import re
from pathlib import Path

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # package.module:function
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")  # FILE.py:kernel


def is_kernel_file(path: str) -> bool:
    """Whether a Python file says that it defines kernels of its own, and no problem: it imports `mlirc.kernel`."""
    try:
        text = Path(path).read_text(errors="replace")
    except (OSError, ValueError):
        return False
    return (
        path.endswith(".py")
        and re.search(r"^\s*(from|import) mlirc\.kernel\b|^\s*from mlirc import .*\bkernel\b", text, re.M) is not None
    )
