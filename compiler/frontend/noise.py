"""Keeps libraries from writing to the terminal: a compiler's stderr is for its own messages."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences Python warnings, the libraries' loggers and progress bars inside the body, and takes the folder away
    that PyTorch makes for temporary files when it is imported, unless something is in it."""
    loggers = [logging.getLogger(name) for name in ("transformers", "torch", "huggingface_hub", "torch.export", "root")]
    levels = [logger.level for logger in loggers]
    old = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY", "TQDM_DISABLE")}
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="critical", TQDM_DISABLE="1")
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""))
        if folder.name.startswith("torchinductor_") and folder.parent == Path(tempfile.gettempdir()):
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in old.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


@contextlib.contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switches transformers' progress bars off inside the body: it reads the environment only when it is imported."""
    from transformers.utils import logging as transformers_logging

    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
