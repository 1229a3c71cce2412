"""Errors meant for the person at the command line."""

from __future__ import annotations


class MlircError(Exception):
    """What was wrong, where, and what to do, in one line. Tools print it as `error: ...` and exit with status 1."""
