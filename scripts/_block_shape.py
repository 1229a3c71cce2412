"""How blocks cut a product, and what of a product decides it: what the files that choose a tile share."""

from __future__ import annotations

from dataclasses import dataclass

from mlirc.ir.tensors import ELEMENT_BYTES
from mlirc.passes.distribute.instructions import ElementTypes
from mlirc.schedule.contraction_info import ContractionInfo
from mlirc.schedule.kernel_info import KernelInfo
from mlirc.schedule.verbs import product

ROW_BYTES, STEP_BYTES = 128, 32  # along k, of a slice that warpgroups read and of one instruction


def element_types(c: ContractionInfo) -> ElementTypes:
    """The element types of a product's operands and sums."""
    return ElementTypes(c.a_type, c.b_type, c.acc_type)


def is_fp32(c: ContractionInfo) -> bool:
    """Whether a product's factors and sums are all f32."""
    return c.a_type == c.b_type == c.acc_type == "f32"


def is_short(kernel: KernelInfo) -> bool:
    """Whether results have 16 bits or less, which do not miss what 13 bits of a sum of 128 products lack."""
    return all(ELEMENT_BYTES.get(r.dtype, 8) <= 2 for r in kernel.results)


@dataclass(frozen=True)
class BlockShape:
    """How blocks cut a product: a block's tile, the slice of K per step, its warps, the depth of the copy pipeline, the
    instruction; how many columns of blocks are visited together; how operands come to shared memory ("tma": a producer
    warp copies them); how many blocks are launched (0: all), and how many of them form a cluster; into how many parts K
    is divided, and whether blocks of a cluster add them or, through memory, a second launch; whether the transpose is
    computed; how many of the last waves of tiles are divided by steps of K (`stream_k`; 0: none)."""

    block_m: int
    block_n: int
    block_k: int
    warps_m: int
    warps_n: int
    stages: int
    mma: str = "mma"
    group: int = 1
    copy: str = "cp_async"
    persist: int = 0
    cluster: int = 1
    store: str = "vector"
    warps_k: int = 1
    parts: int = 1
    producers: int = 1
    through: str = "cluster"
    swap_operands: bool = False
    stream: int = 0


@dataclass(frozen=True)
class Sizes:
    """A product's sizes: of the root dimensions that are cut, `m_dim` and `n_dim`, and of all others together."""

    m_dim: int
    n_dim: int
    m: int
    n: int
    batch: int

    @staticmethod
    def of(kernel: KernelInfo, c: ContractionInfo) -> Sizes:
        extents = [d.extent for d in kernel.dims]
        m, n = (max(dims, key=lambda d: extents[d]) for dims in (c.m, c.n))
        n = c.n[-1] if kernel.places else n  # rows of one head
        return Sizes(
            m, n, extents[m], extents[n], product([extents[d] for d in (*c.batch, *c.m, *c.n) if d not in (m, n)])
        )
