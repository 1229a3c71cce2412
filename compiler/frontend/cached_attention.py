"""Attention of a few new tokens over a paged cache of keys and values, as models that generate call it."""

from __future__ import annotations

import torch


def cached_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> torch.Tensor:
    """softmax(softcap(q k^T * scale), where visible) v, causal, of one float type.

    q [B,Hq,Sq,D]; keys [N,Hkv,P,D] and values [N,Hkv,P,Dv]: N pages of P tokens each. `pages` (int64 [B,T]) are the
    pages of each sequence in their order, all in 0..N-1, of which the first ceil(length / P) count; `lengths` (int64
    [B]) how many keys each sequence has, those of its Sq queries included (Sq <= length <= T P). Query i sees keys j
    with j <= i + length - Sq and, with a window w > 0, j > i + length - Sq - w. Returns [B,Hq,Sq,Dv].
    """
    batch, count = pages.shape
    size = keys.shape[2]

    def gathered(pool: torch.Tensor) -> torch.Tensor:  # [B,Hkv,T P,D]
        return pool[pages].transpose(1, 2).reshape(batch, pool.shape[1], count * size, pool.shape[3])

    place = torch.arange(count * size, device=q.device)
    last = torch.arange(q.shape[2], device=q.device) + (lengths[:, None] - q.shape[2])  # [B,Sq]
    visible = place <= last[..., None]
    if window:
        visible &= place > last[..., None] - window
    mask = visible[:, None]
    return torch.ops.mlirc.attention(q, gathered(keys), gathered(values), mask, None, [], scale, False, 0, softcap)
