"""What NVIDIA's assembler says of a PTX file, summed up over its kernels."""

from __future__ import annotations

import re
from typing import Any


def summarize(log: str) -> dict[str, Any]:
    """From the log of `ptxas -v`: kernels, the most registers of any, how many spill, and bytes of spill stores."""
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    registers = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
    return {
        "kernels": len(registers),
        "registers": max(registers, default=0),
        "spilling": sum(1 for n in spills if n),
        "spill_bytes": sum(spills),
    }


_ENTRY = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", re.DOTALL)


def entries(log: str) -> dict[str, dict[str, int]]:
    """From the log of `ptxas -v`: each kernel's registers, and its bytes of spill stores."""
    found = {}
    for name, text in _ENTRY.findall(log):
        registers = re.search(r"Used (\d+) registers", text)
        spills = re.search(r"(\d+) bytes spill stores", text)
        found[name] = {
            "registers": int(registers[1]) if registers else 0,
            "spill_bytes": int(spills[1]) if spills else 0,
        }
    return found
