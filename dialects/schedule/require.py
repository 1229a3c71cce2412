"""`schedule.require`: a match that finds nothing is an error at its line of the script."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op


@transform_op("require", results=("same",), attributes={"what": str}, modifies=False)
def require(rewriter, targets, what):
    """Passes the handle on; fails when it is empty, saying `what` was looked for."""
    if not targets:
        raise PayloadError(f"the match found no {what}")
    return [targets]
