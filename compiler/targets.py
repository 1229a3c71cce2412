"""What the compiler knows of each GPU generation: a value that tests can replace."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.errors import MlircError


@dataclass(frozen=True)
class Target:
    """One `--target`. `max_smem` is the shared memory, in bytes, that one block may ask for, `sm_threads` and `sm_smem`
    are the threads and the bytes that a multiprocessor holds at once (CUDA C++ guide, table of technical specifications
    per compute capability); `sms` is only a default for choosing tile sizes."""

    name: str
    cc: int  # compute capability times ten: 90 for sm_90a
    ptx_isa: int  # 83 means PTX ISA 8.3
    max_smem: int
    sms: int
    sm_threads: int = 2048

    @property
    def has_wgmma(self) -> bool:
        return self.name == "sm_90a"

    @property
    def has_clusters(self) -> bool:
        return self.cc >= 90

    @property
    def max_cluster(self) -> int:
        """The most blocks of a cluster; more than 8 are not portable (CUDA C++ guide, "thread block clusters")."""
        return 16 if self.cc in (90, 100) else 8 if self.has_clusters else 1

    @property
    def has_stmatrix(self) -> bool:
        return self.cc >= 90

    @property
    def sm_smem(self) -> int:
        return self.max_smem + 1024  # the driver keeps one KiB per block

    def too_many_blocks(self, blocks: int, threads: int, smem: int) -> str:
        """Why a multiprocessor cannot hold so many blocks of `threads` threads and `smem` bytes; "" when it can."""
        if blocks * threads > self.sm_threads:
            return f"{blocks} blocks of {threads} threads, a multiprocessor of {self.name} holds {self.sm_threads}"
        if smem and blocks * (smem + 1024) > self.sm_smem:
            return (
                f"{blocks} blocks of {smem} bytes of shared memory, a multiprocessor of {self.name} has {self.sm_smem}"
            )
        return ""


TARGETS = {
    t.name: t
    for t in (
        Target("sm_80", 80, 80, 163 * 1024, 108),
        Target("sm_86", 86, 80, 99 * 1024, 84, 1536),
        Target("sm_89", 89, 80, 99 * 1024, 128, 1536),
        Target("sm_90a", 90, 83, 227 * 1024, 132),
        Target("sm_100a", 100, 86, 227 * 1024, 148),
        Target("sm_120", 120, 87, 99 * 1024, 170, 1536),
    )
}
DEFAULT_TARGET = "sm_90a"


def get_target(name: str) -> Target:
    """Looks a target up; raises MlircError for an unknown name."""
    if name not in TARGETS:
        raise MlircError(f"unknown target '{name}': choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
