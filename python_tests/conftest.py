"""What the tests share."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from support import randomness

# Models come from packages and folders, never from a hub; tests run side by side, so each keeps to one core.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that runs tests in the background ignores these, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """What the test modules import lives as long as the process: the garbage collector need not go through it again and
    again. What tests make is collected as ever."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_helpers(monkeypatch):
    """Tests run side by side, one on each core: a compilation that does not ask for helper processes has none, since to
    start two costs more than to compile a tiny model. Programs that tests start are as they are for users."""
    monkeypatch.setattr("mlirc.driver.workers.cores", lambda: 1)


@dataclass
class Ran:
    """What a command-line program did."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line it printed on standard error; fails the test unless it is one `error: ` line with status 1."""
        lines = self.err.strip().split("\n")
        assert self.status == 1, f"status {self.status}, stderr: {self.err}"
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        return lines[0]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """No test sees a kernel that another run compiled, unless it asks for that."""
    monkeypatch.setenv("MLIRC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _own_randomness():
    """No test's inputs depend on the tests before it."""
    randomness.start()
    yield
    randomness.stop()


@pytest.fixture
def ticking(monkeypatch) -> Callable[[], int]:
    """The host device's clock: a second later at each look at it, so that what is stopped is the same on every machine.
    Returns the seconds since the test began."""
    looks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(looks)))
    monkeypatch.setattr("mlirc.device.limits.time", clock)
    monkeypatch.setattr("mlirc.device.report.time", clock)
    return lambda: next(looks)


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def run_kernel(request) -> Callable[[str, list, list], None]:
    """Runs a kernel, its `gpu` level as text with inputs and results as arrays (results are filled), on the host device,
    where any finding fails the test, and on the GPU, which is skipped where there is none."""
    from mlirc import mlir

    if request.param == "gpu":
        from support.devices import gpu_kernel

        if gpu_kernel.NO_GPU is not None:
            pytest.skip(gpu_kernel.NO_GPU)
        return lambda text, inputs, results: gpu_kernel.run_kernel(mlir.parse(text), inputs, results)

    from mlirc.device import DeviceKernel

    def on_host(text: str, inputs: list, results: list) -> None:
        report = DeviceKernel(mlir.parse(text)).run([*inputs, *results])
        assert report.ok, "\n".join(map(str, report.findings))

    return on_host


@pytest.fixture
def ran(capfd) -> Callable[..., Ran]:
    """Calls a program's `main` with command-line words and gives back what it did."""

    def call(main: Callable[[list[str]], int], *words: object) -> Ran:
        capfd.readouterr()
        status = main([str(w) for w in words])
        captured = capfd.readouterr()
        return Ran(status, captured.out, captured.err)

    return call
