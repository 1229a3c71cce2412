"""An engine that decodes when a test lets it."""

from __future__ import annotations

import threading

from support.generate.fake_engine import FakeEngine


class Gated(FakeEngine):
    """Each decoding takes one of what was released at `gate`."""

    def __init__(self, **options):
        super().__init__(**options)
        self.gate = threading.Semaphore(0)

    def decode(self):
        self.gate.acquire()
        return super().decode()
