"""mlirc: a compiler from PyTorch and Hugging Face models to PTX, scheduled by transform scripts written in Python."""

from __future__ import annotations

from typing import Any

from mlirc.version import __version__

__all__ = ["LLM", "__version__", "compile", "load"]  # LLM is made by __getattr__


def compile(module: Any, args: tuple = (), kwargs: dict | None = None, **options: Any) -> Any:  # noqa: A001
    """Compiles a torch module for the given example inputs and returns a callable bound to its weights; see
    `mlirc.driver.live.compile_torch` for the options."""
    try:
        from mlirc.driver.live import compile_torch
    except ModuleNotFoundError as e:
        from mlirc.errors import missing_package

        raise missing_package(e) or e from e
    return compile_torch(module, args, kwargs or {}, **options)


def load(path: str, **options: Any) -> Any:
    """Loads a compiled model file; see `mlirc.runtime.load`."""
    from mlirc.runtime import load as runtime_load

    return runtime_load(path, **options)


def __getattr__(name: str) -> Any:
    """`mlirc.LLM`, a model that generates text; see `mlirc.generate.llm.LLM`."""
    if name == "LLM":
        from mlirc.generate.llm import LLM

        return LLM
    raise AttributeError(f"module 'mlirc' has no attribute '{name}'")
