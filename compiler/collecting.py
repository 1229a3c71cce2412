"""Python's cycle collector, while millions of objects are made that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = 50_000, 20, 100


@contextlib.contextmanager
def collecting_rarely() -> Iterator[None]:
    """Runs the body with Python's cycle collector called every 50,000 objects, not every 700: importing PyTorch and
    exporting a model make millions that stay, and looking through them again and again takes a tenth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
