"""Clients that come and go at random for minutes, at a server whose engine has no model: every answer that ends is the
one that its request gets alone, and neither pages nor the process's memory are lost.

    python benchmarks/serve_soak.py --clients 64 --minutes 5        # needs mlirc[serve] and the tests' packages

Exit status 1 where an answer differs, pages are not free at the end, or memory grows by more than --may-grow in the
second half of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import time
from pathlib import Path

import tests_path  # noqa: F401  # finds support

from support.generate.fake_engine import FakeEngine
from support.serve.clients import come_and_go
from support.serve.running import Words, running


def resident() -> int:
    """Bytes of memory that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--may-grow", type=float, default=16, help="MiB in the second half")
    args = parser.parse_args()
    engine = FakeEngine(vocabulary=Words().size, slots=8, pages=96)  # fewer than its slots may need
    parts, answered, sizes = 10, 0, [resident()]
    with running(engine) as server:
        for part in range(parts):
            begin = time.monotonic()
            seconds = args.minutes * 60 / parts
            answered += asyncio.run(come_and_go(server, args.clients, seconds=seconds, seed=part))
            server.wait_until_idle()
            if server.worker.failure is not None or not server.free():
                print(f"pages or slots are not free: {server.worker.failure}", file=sys.stderr)
                return 1
            engine.calls.clear()  # what the engine without a model keeps of its own
            sizes.append(resident())
            spent, held = time.monotonic() - begin, sizes[-1] >> 10
            print(f"{spent:5.0f} s: {answered:,} answers in all, each as alone; {held:,} KiB", flush=True)
    grown = (sizes[-1] - sizes[1 + parts // 2]) / (1 << 20)
    print(f"memory grew by {grown:.1f} MiB in the second half")
    return int(grown > args.may_grow)


if __name__ == "__main__":
    sys.exit(main())
