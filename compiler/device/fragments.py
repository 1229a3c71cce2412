"""Matrices in the registers of warps: which lane has which elements.

Fragments follow "Matrix Fragments for mma.m16n8k*" and "ldmatrix". With g = lane / 4, t = lane mod 4, and `per`
elements in a 32-bit register, register i of A is row g + 8 (i mod 2), columns per * (t + 4 (i / 2)) and on; of B
rows (k) per * (t + 4 i) and on of column g; of C and D row g + 8 (i / 2), column 2t + i mod 2."""

from __future__ import annotations

import numpy as np

from mlirc.device.machine import WARP


def matrices(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, k: int, per: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A [warps, 16, k], B [warps, k, 8] and C [warps, 16, 8] from the registers of warps [warps, lanes, ...], `per`
    elements of A and B in each."""
    halves = k // (4 * per)
    left = a.reshape(-1, 8, 4, halves, 2, per).transpose(0, 4, 1, 3, 2, 5).reshape(-1, 16, k)
    right = b.reshape(-1, 8, 4, halves, per).transpose(0, 3, 2, 4, 1).reshape(-1, k, 8)
    return left, right, c.reshape(-1, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(-1, 16, 8)


def registers(total: np.ndarray) -> np.ndarray:
    """D [warps, 16, 8] as registers [warps, lanes, 2, 2]."""
    return total.reshape(-1, 2, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(-1, WARP, 2, 2)
