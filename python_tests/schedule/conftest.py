"""What the tests of schedules share."""

from __future__ import annotations

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes `mine.py` (text or bytes) in the current folder, which is where errors name it from."""
    monkeypatch.chdir(tmp_path)

    def put(content: str | bytes, name: str = "mine.py") -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    return put
