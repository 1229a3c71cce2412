"""Peers of a model that generates, each in a process of its own: `python -m mlirc.bench.generation.contenders`.

What else is in a process makes every launch of a graph slower (0.35 us on an H200: 565 us instead of 501 for a step of
SmolLM2-135M beside PyTorch eager), ours and the peers' alike, and nobody who runs a model has its peers in the process.
So parent and peers take turns: while one replays, the others wait for a line.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

from mlirc.bench import timing
from mlirc.bench.artifacts import read_compiled
from mlirc.bench.build import set_buffers
from mlirc.bench.cases import Case
from mlirc.bench.children import end_with_parent
from mlirc.bench.generation.build import build_generating, pack_weights
from mlirc.bench.generation.peers import StaticStep, peer_arm
from mlirc.bench.reference import exact_math
from mlirc.errors import MlircError


class Contender(Protocol):
    """What is timed in turns."""

    def turn(self, samples: int) -> list[float]:
        """Microseconds of so many replays, by CUDA events, the L2 cache cold."""


class Peer:
    """One of `cases.PEERS` in this process."""

    def __init__(self, name: str, case: Case, folder: Path | None, device: str):
        self.name, self.device = name, device
        self.module = build_generating(case, device)
        if folder is not None:
            set_buffers(self.module, read_compiled(folder, case).constants)
        if case.options["quantize"] is not None:
            pack_weights(self.module, case.options["quantize"])
        self.flush: Callable[[], None] = timing.Flusher() if device != "cpu" else lambda: None
        self.arm: timing.Arm | None = None

    def prepare(self, tokens: list[list[int]], count: int) -> list[int]:
        """Makes the step that reads the last `count` of `tokens` [B,S] behind the others; the tokens [B] it chooses."""
        self.arm = None
        step = StaticStep(self.module, torch.tensor(tokens, device=self.device), count, len(tokens[0]))
        self.arm = peer_arm(self.name, step, self.module)
        made = step().tolist()
        for _ in range(3):
            self.arm.replay()
        return made

    def turn(self, samples: int) -> list[float]:
        """As of `Contender`; on the CPU, where there is no other clock, that of the host."""
        assert self.arm is not None
        return self.by_host(samples) if self.device == "cpu" else timing.turn(self.arm, samples, self.flush)

    def by_host(self, samples: int) -> list[float]:
        """The same by the host's clock, from the call to the end of its work."""
        assert self.arm is not None
        return host_times(self.arm.replay, samples, self.flush, self.device)


def host_times(run: Callable[[], Any], samples: int, flush: Callable[[], None], device: str) -> list[float]:
    """Microseconds, by the host's clock, of calls that end with their work on the device."""
    wait: Callable[[], None] = torch.cuda.synchronize if device != "cpu" else lambda: None
    times = []
    for _ in range(samples):
        flush()
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(1e6 * (time.perf_counter() - start))
    return times


class PeerProcess:
    """A `Peer` in a process of its own, to be closed; it ends with this one. All raise MlircError: what went wrong."""

    def __init__(self, name: str, case: Case, folder: Path | None, device: str, fp32: str):
        self.name = name
        command = [sys.executable, "-P", "-m", "mlirc.bench.generation.contenders", fp32]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        given = {"name": name, "case": case.to_json(), "folder": None if folder is None else str(folder)}
        try:
            self._ask({**given, "device": device})
        except MlircError:
            self.close()
            raise

    def prepare(self, tokens: list[list[int]], count: int) -> list[int]:
        """As of `Peer`."""
        return self._ask({"do": "prepare", "given": [tokens, count]})

    def turn(self, samples: int) -> list[float]:
        """As of `Contender`."""
        return self._ask({"do": "turn", "given": [samples]})

    def by_host(self, samples: int) -> list[float]:
        """As of `Peer`."""
        return self._ask({"do": "by_host", "given": [samples]})

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the answer's absence says what happened
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise MlircError(f"the process of '{self.name}' ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise MlircError(answer["error"])
        return answer["found"]


def in_turns(contenders: dict[str, Contender], samples: int, at_once: int = 10) -> dict[str, timing.Sampled]:
    """`samples` of each, `at_once` in a turn: A A B B C C A A B B C C."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for first in range(0, samples, at_once):
        for name, contender in contenders.items():
            times[name] += contender.turn(min(at_once, samples - first))
    return {name: timing.summarize(found) for name, found in times.items()}


def main() -> None:
    """Serves requests, one a line, until there are no more. Answers go to a private copy of standard output. The
    program's argument is the FP32 mode."""
    end_with_parent()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer: Peer | None = None
    with exact_math(sys.argv[1]):
        for line in sys.stdin:
            try:
                request = json.loads(line)
                if peer is None:
                    folder = None if request["folder"] is None else Path(request["folder"])
                    peer = Peer(request["name"], Case.from_json(request["case"]), folder, request["device"])
                    found = None
                else:
                    found = getattr(peer, request["do"])(*request["given"])
                answer = {"found": found}
            except Exception as e:  # a peer that cannot do it is a result, too
                answer = {"error": f"{type(e).__name__}: {' '.join(str(e).split())}"[:500]}
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
