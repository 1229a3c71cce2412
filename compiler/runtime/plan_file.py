"""The launch plan: what a compiled model's PTX file says of itself, as JSON in comment lines.

The file starts with a header line, `//mlirc: plan VERSION LINES BYTES SHA256`, then LINES lines of JSON, each behind
`//mlirc: `, then BYTES bytes of PTX. The checksum covers the JSON lines and the PTX. ptxas and the driver take the
file as it is, since to them the plan is a comment.
"""

from __future__ import annotations

import hashlib
import re

from mlirc.errors import MlircError
from mlirc.runtime.plan import VERSION, Plan
from mlirc.runtime.plan_check import check_plan, check_ptx
from mlirc.runtime.plan_json import from_json, json_lines

PREFIX = "//mlirc: "


def _digest(plan_lines: list[str], ptx: bytes) -> str:
    digest = hashlib.sha256("\n".join(plan_lines).encode())
    digest.update(b"\0")
    digest.update(ptx)
    return digest.hexdigest()


def identity(text: str) -> str:
    """The checksum in the first line of a PTX file, which no other model or compilation has; "" where there is none."""
    fields = text.partition("\n")[0].split()
    return fields[-1] if text.startswith(f"{PREFIX}plan ") and re.fullmatch("[0-9a-f]{64}", fields[-1]) else ""


def embed(ptx_text: str, plan: Plan) -> str:
    """Returns the PTX file's text: the plan as comment lines, then the PTX.

    Raises MlircError when the plan is inconsistent, or does not fit the kernels that the PTX defines.
    """
    check_plan(plan)
    check_ptx(plan, ptx_text)
    lines = list(json_lines(plan))
    data = ptx_text.encode()
    header = f"plan {VERSION} {len(lines)} {len(data)} {_digest(lines, data)}"
    return "".join(f"{PREFIX}{line}\n" for line in (header, *lines)) + ptx_text


def with_plan(text: str, plan: Plan) -> str:
    """A PTX file's text with another plan of the same kernels."""
    count = int(text.split(maxsplit=4)[3])
    return embed(text.split("\n", count + 1)[-1], plan)


def extract(text: str, where: str = "PTX file") -> Plan:
    """Reads the plan out of a PTX file's text; raises MlircError (naming `where`) when it is missing, truncated or
    damaged, when the PTX was changed after the plan was made, or when the two do not fit."""
    if not text.startswith(PREFIX):
        raise MlircError(f"{where}: carries no launch plan: it was not made by mlirc, or its comments were removed")
    header, _, rest = text.partition("\n")
    fields = header[len(PREFIX) :].split()
    if len(fields) != 5 or fields[0] != "plan" or not all(re.fullmatch("[0-9]{1,18}", f) for f in fields[1:4]):
        raise MlircError(f"{where}: the launch plan's header is damaged: compile the model again")
    version, count, size = map(int, fields[1:4])
    if version != VERSION:
        raise MlircError(f"{where}: plan version {version}, but this mlirc reads {VERSION}: compile the model again")
    parts = rest.split("\n", count)
    if len(parts) <= count:
        raise MlircError(f"{where}: truncated inside the launch plan: compile the model again")
    lines, data = parts[:count], parts[count].encode()
    if any(not line.startswith(PREFIX) for line in lines):
        raise MlircError(f"{where}: the launch plan is damaged: compile the model again")
    if len(data) < size:
        raise MlircError(f"{where}: truncated: {len(data)} of {size} bytes of PTX: compile the model again")
    lines = [line[len(PREFIX) :] for line in lines]
    if len(data) > size or _digest(lines, data) != fields[4]:
        raise MlircError(f"{where}: damaged: the checksum over plan and PTX does not match: compile the model again")
    try:
        plan = from_json("\n".join(lines))
        check_ptx(plan, parts[count])
        return plan
    except MlircError as e:
        raise MlircError(f"{where}: {e}") from e
