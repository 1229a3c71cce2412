"""What the compiler knows of each GPU generation: a value that tests can replace."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError


@dataclass(frozen=True)
class Target:
    """One `--target`. `max_smem` is the shared memory, in bytes, that one block may ask for (CUDA C++ guide, table of
    technical specifications per compute capability); `sms` is only a default for choosing tile sizes."""

    name: str
    cc: int  # compute capability times ten: 90 for sm_90a
    ptx_isa: int  # 83 means PTX ISA 8.3
    max_smem: int
    sms: int

    @property
    def has_wgmma(self) -> bool:
        return self.name == "sm_90a"


TARGETS = {
    t.name: t
    for t in (
        Target("sm_80", 80, 80, 163 * 1024, 108),
        Target("sm_86", 86, 80, 99 * 1024, 84),
        Target("sm_89", 89, 80, 99 * 1024, 128),
        Target("sm_90a", 90, 83, 227 * 1024, 132),
        Target("sm_100a", 100, 86, 227 * 1024, 148),
        Target("sm_120", 120, 87, 99 * 1024, 170),
    )
}
DEFAULT_TARGET = "sm_90a"


def get_target(name: str) -> Target:
    """Looks a target up; raises MlircError for an unknown name."""
    if name not in TARGETS:
        raise MlircError(f"unknown target '{name}': choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
