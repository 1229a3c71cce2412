"""Turns of threads, for what a process has once: MLIR's context, and PyTorch's export.

The order in which a thread may take several: Dynamo's lock, MLIR's, a loaded model's.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from mlirc.errors import MlircError

# MLIR's context has no locks of its own: multithreading is off, for dialects that are defined in Python.
MLIR = threading.RLock()

_Function = TypeVar("_Function", bound=Callable[..., Any])


@contextlib.contextmanager
def exporting() -> Iterator[None]:
    """The turn of this thread to export a model: torch.export replaces parts of PyTorch meanwhile, which another
    thread's export, or its Dynamo, would meet. Takes MLIR's turn, too, always behind Dynamo's."""
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock, MLIR:
        yield


def in_turn(turn: Callable[[Any], AbstractContextManager[Any]]) -> Callable[[_Function], _Function]:
    """Makes each call of a function a turn: that which `turn` gives for its first argument, as a method's object."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def run(first: Any, /, *args: Any, **options: Any) -> Any:
            with turn(first):
                return function(first, *args, **options)

        return cast(_Function, run)

    return decorate


class Turn:
    """The turn of whoever uses a loaded model: calls of several threads are made one after the other. `what` names the
    model; `lock` is shared with others that are not used at once. Raises MlircError once `closed` is set."""

    def __init__(self, what: str, lock: Any = None) -> None:
        self.what, self.closed = what, False
        self.lock = lock or threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.closed:
            self.lock.release()
            raise MlircError(f"{self.what}: the model is closed: load it again")

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class LoadedModel:
    """What all loaded models share: their calls are made in turn, and they are neither copied nor pickled."""

    _turn: Turn
    device: Any  # a GPU's number, or "host"

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise MlircError(
            f"{self._turn.what}: a loaded model is neither copied nor pickled: load its file again (mlirc.load), in "
            "each process that uses it"
        )


mlir_turn = in_turn(lambda _: MLIR)
export_turn = in_turn(lambda _: exporting())
model_turn = in_turn(lambda model: model._turn)
