"""Bank conflicts of shared memory: 32 banks of four bytes, which a warp's access passes over in wavefronts.

A wavefront serves a whole warp for accesses of up to 4 bytes, 16 lanes for 8 bytes and 8 lanes for 16 bytes, twice as
many where neighbours (lanes i and i xor 1, or i and i xor 2) all want the same. Lanes of a wavefront that want
different words of one bank take turns."""

from __future__ import annotations

import numpy as np

_BANK, _BANKS = 4, 32


def wavefronts(byte: np.ndarray, size: int, active: np.ndarray | None, merge: bool = True) -> tuple[int, int]:
    """(wavefronts, the fewest possible) of shared accesses: `byte` [warps, lanes] first bytes, `size` bytes each.
    `merge`: neighbours that want the same share a wavefront."""
    lanes = min(byte.shape[1], max(8, min(32, 128 // size)))
    active = np.ones(byte.shape, bool) if active is None else active
    if size < 8 or byte.shape[1] < 32 or not merge:
        return _turns(byte.reshape(-1, lanes), size, active.reshape(-1, lanes))
    rows, on = byte.reshape(-1, 2 * lanes), active.reshape(-1, 2 * lanes)
    lane = np.arange(2 * lanes)
    same = [((rows == rows[:, lane ^ k]) | ~on | ~on[:, lane ^ k]).all(axis=1) for k in (1, 2)]
    pairs = same[0] | same[1]
    together = _turns(rows[pairs], size, on[pairs])
    apart = _turns(rows[~pairs].reshape(-1, lanes), size, on[~pairs].reshape(-1, lanes))
    return together[0] + apart[0], together[1] + apart[1]


def _turns(byte: np.ndarray, size: int, active: np.ndarray) -> tuple[int, int]:
    """Wavefronts of rows of lanes that each would like to be one, and the number of rows with an active lane."""
    if not len(byte):
        return 0, 0
    per = max(size // _BANK, 1)
    words = (byte[..., None] // _BANK + np.arange(per)).reshape(len(byte), -1)
    words = np.where(np.repeat(active, per, axis=1), words, -1)
    words.sort(axis=1)
    fresh = np.ones(words.shape, bool)
    fresh[:, 1:] = words[:, 1:] != words[:, :-1]
    fresh &= words >= 0
    bank = np.where(fresh, words % _BANKS, _BANKS)
    row = np.arange(len(words))[:, None]
    table = np.bincount((row * (_BANKS + 1) + bank).ravel(), minlength=len(words) * (_BANKS + 1))
    most = table.reshape(-1, _BANKS + 1)[:, :_BANKS].max(axis=1)
    return int(most.sum()), int((most > 0).sum())
