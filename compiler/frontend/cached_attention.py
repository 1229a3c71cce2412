"""Attention of a few new tokens over a paged cache of keys and values, as models that generate call it.

It stays one op, `mlirc::cached_attention`, and becomes `mlirc.attention` with `paged`.
"""

from __future__ import annotations

import torch

from mlirc.frontend.head_vectors import alibi, check_vectors, softmax_with


def cached_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """softmax(softcap(q k^T * scale), where visible) v, causal, of one float type, keys and values also of e4m3.

    q [B,Hq,Sq,D]; keys [N,Hkv,P,D] and values [N,Hkv,P,Dv]: N pages of P tokens each. `pages` (int64 [B,T]) are the
    pages of each sequence in their order, all in 0..N-1, of which the first ceil(length / P) count; `lengths` (int64
    [B]) how many keys each sequence has, those of its Sq queries included (Sq <= length <= T P). Query i sees keys j
    with j <= i + length - Sq and, with a window w > 0, j > i + length - Sq - w. Returns [B,Hq,Sq,Dv].

    With `slopes` [Hq], slope * (j - (length - 1)) is added to the scores; with `sinks` [Hq] the softmax has one more
    key, whose score this is and whose value is 0.

    What the pages hold behind a sequence's length does not matter, NaNs neither. A query that sees no key gives 0.
    """
    return torch.ops.mlirc.cached_attention(q, keys, values, pages, lengths, scale, window, softcap, slopes, sinks)


@torch.library.custom_op("mlirc::cached_attention", mutates_args=())
def cached_attention_op(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    pages: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    window: int,
    softcap: float,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The function above, which says what the arguments are, in PyTorch: scores and sums in f32 (f64 for f64)."""
    _check(q, keys, values, pages, lengths)
    check_vectors(q.shape[1], slopes=slopes, sinks=sinks)
    queries, count = q.shape[2], pages.shape[1] * keys.shape[2]
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    place = torch.arange(count, device=q.device)
    inside = (place < lengths[:, None])[:, None, :, None]

    def gathered(pool: torch.Tensor) -> torch.Tensor:  # [B,Hq,T P,D]
        whole = pool[pages].transpose(1, 2).reshape(q.shape[0], pool.shape[1], count, pool.shape[3])
        whole = torch.where(inside, whole.to(wide), torch.zeros((), dtype=wide, device=pool.device))
        return whole.repeat_interleave(q.shape[1] // pool.shape[1], 1)

    scores = q.to(wide) @ gathered(keys).transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + alibi(slopes, lengths, count).to(wide)
    last = torch.arange(queries, device=q.device) + (lengths[:, None] - queries)  # [B,Sq]
    visible = place <= last[..., None]
    if window:
        visible &= place > last[..., None] - window
    shares = softmax_with(scores.masked_fill(~visible[:, None], float("-inf")), sinks)
    shares = shares.masked_fill(~visible.any(-1)[:, None, :, None], 0.0)
    return (shares @ gathered(values)).to(q.dtype)


@cached_attention_op.register_fake
def _(q, keys, values, pages, lengths, scale, window, softcap, slopes=None, sinks=None):
    _check(q, keys, values, pages, lengths)
    check_vectors(q.shape[1], slopes=slopes, sinks=sinks)
    return q.new_empty((q.shape[0], q.shape[1], q.shape[2], values.shape[3]))


def _check(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor
) -> None:
    """Raises ValueError for shapes or types that the op does not take."""
    given = f"q {_form(q)}, keys {_form(keys)}, values {_form(values)}, pages {_form(pages)}, lengths {_form(lengths)}"
    pools = q.dim() == keys.dim() == values.dim() == 4 and keys.shape[:3] == values.shape[:3]
    heads = pools and keys.shape[3] == q.shape[3] and keys.shape[1] > 0 and q.shape[1] % keys.shape[1] == 0
    table = pages.dim() == 2 and lengths.dim() == 1 and pages.shape[0] == lengths.shape[0] == q.shape[0]
    if not (heads and table):
        what = "q [B,Hq,Sq,D], keys [N,Hkv,P,D], values [N,Hkv,P,Dv], pages [B,T], lengths [B], Hq a multiple of Hkv"
        raise ValueError(f"cached_attention takes {what}, not {given}")
    stored = {keys.dtype, values.dtype}
    if stored not in ({q.dtype}, {torch.float8_e4m3fn}) or not q.is_floating_point():
        what = "queries, keys and values of one float type, or keys and values of float8_e4m3fn"
        raise ValueError(f"cached_attention takes {what}, not {given}")
    if {pages.dtype, lengths.dtype} != {torch.int64}:
        raise ValueError(f"cached_attention takes pages and lengths of int64, not {given}")


def _form(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"
