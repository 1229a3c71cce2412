"""`schedule.pick`: one of the payload ops of a handle."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op


@transform_op("pick", results=("one",), attributes={"number": int}, modifies=False)
def pick(rewriter, targets, number):
    """The payload op of a handle with this number, counted from 0; an error where there is none."""
    if not 0 <= number < len(targets):
        what = f"number {number} of a handle of {len(targets)} payload ops"
        raise PayloadError(f"{what}: they are counted from 0", targets[0] if targets else None)
    return [[targets[number]]]
