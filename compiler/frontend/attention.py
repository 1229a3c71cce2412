"""Attention as one op on its way into MLIR: the torch op `mlirc::attention`, and the ways models reach it.

Models reach it through a decomposition of `aten.scaled_dot_product_attention` (see `decompositions.py`), and Hugging
Face models without that op through `transformers_attention.py`. `simplify.py` then turns constant masks into the causal
and window attributes.
"""

from __future__ import annotations

import torch

from mlirc.dialects.score_functions import torch_score
from mlirc.errors import MlircError
from mlirc.frontend.head_vectors import check_vectors, softmax_with
from mlirc.frontend.opmath import HALF
from mlirc.frontend.random.dropouts import dropout


@torch.library.custom_op("mlirc::attention", mutates_args=())
def attention_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    inputs: list[torch.Tensor],
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    nan_rows: bool = False,
    score: str = "",
    softmax: bool = True,
    sinks: torch.Tensor | None = None,
    padding_rows: bool = False,
) -> torch.Tensor:
    """softmax(softcap(q k^T * scale) + bias, where mask) v for q [B,Hq,Sq,D], k [B,Hkv,Sk,D], v [B,Hkv,Sk,Dv].

    `mask` (bool, True: visible) and `bias` (float) broadcast to [B,Hq,Sq,Sk]. `causal` and `window` count from the last
    key: query i sees keys j with i + Sk - Sq - window < j <= i + Sk - Sq. A row that sees nothing gives 0, with
    `nan_rows` NaN. `score` are the lines of a function of scores and of `inputs`, which broadcast as a mask does, but
    for a first one of less than rank 4 (`score_functions.py`); without `softmax` it makes the weights. With `sinks`
    [Hq] each row's softmax has one more key, whose score this is and whose value is 0. With `padding_rows` nobody reads
    a row whose keys the lowest finite number hides all: it may give 0 for the mean of the values.
    """
    return _attend(q, k, v, mask, bias, inputs, scale, causal, window, softcap, nan_rows, score, softmax, sinks)[0]


@torch.library.custom_op("mlirc::attention_lse", mutates_args=())
def attention_lse_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    inputs: list[torch.Tensor],
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    nan_rows: bool = False,
    score: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """`mlirc::attention`, and the natural logarithm of the sum of each row's exponentials, [B,Hq,Sq] in f32 (f64 for
    f64), which is -inf for a row that sees nothing."""
    return _attend(q, k, v, mask, bias, inputs, scale, causal, window, softcap, nan_rows, score, True, None)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, bias: torch.Tensor | None,
    inputs: list[torch.Tensor], scale: float, causal: bool, window: int, softcap: float, nan_rows: bool, score: str,
    softmax: bool, sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The result, and the log-sum-exp of its rows."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q.to(wide) @ k.to(wide).transpose(-1, -2) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if score:
        place = [torch.arange(n).view([-1 if d == at else 1 for d in range(4)]) for at, n in enumerate(scores.shape)]
        scores = torch_score(tuple(score.split("\n")), scores, place, inputs)
    hidden = ~visible_keys(q.shape[2], k.shape[2], causal, window)
    if not softmax:
        return (scores.masked_fill(hidden, 0.0) @ v.to(wide)).to(q.dtype), scores.logsumexp(-1)
    scores = scores.masked_fill(hidden, float("-inf"))
    shares = softmax_with(scores, sinks)
    if not nan_rows and sinks is None:
        shares = shares.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    return (shares @ v.to(wide)).to(q.dtype), scores.logsumexp(-1)


ATTENTIONS = (torch.ops.mlirc.attention.default, torch.ops.mlirc.attention_lse.default)


@attention_op.register_fake
def _fake_attention(
    q, k, v, mask, bias, inputs, scale, causal, window, softcap, nan_rows=False, score="", softmax=True, sinks=None,
    padding_rows=False,
):  # fmt: skip
    check_vectors(q.shape[1], sinks=sinks)
    scores = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    for x in (mask, bias, *(x for x in inputs if x.dim() == 4)):
        if x is not None and (
            len(x.shape) > 4 or any(m not in (1, n) for m, n in zip(x.shape[::-1], scores[::-1], strict=False))
        ):
            raise ValueError(f"an attention mask of shape {list(x.shape)} does not fit scores of shape {list(scores)}")
    return q.new_empty((q.shape[0], q.shape[1], q.shape[2], v.shape[3]))


@attention_lse_op.register_fake
def _(q, k, v, *more):
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return _fake_attention(q, k, v, *more), q.new_empty(q.shape[:3], dtype=wide)


def visible_keys(q_len: int, kv_len: int, causal: bool, window: int) -> torch.Tensor:
    """The bool matrix [Sq,Sk] of the causal and window limits of `mlirc::attention`."""
    last = torch.arange(q_len)[:, None] + (kv_len - q_len)
    key = torch.arange(kv_len)[None, :]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool)
    if causal:
        seen &= key <= last
    if window:
        seen &= key > last - window
    return seen


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """PyTorch's function of that name on tensors of any rank from 2, as `mlirc::attention` and reshapes.

    PyTorch's `is_causal` counts from the first key, so that it becomes a mask when the lengths differ.
    """
    return attention_of(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)[0]


def attention_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool = False,
    with_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """That function's result, and with `with_lse` the log-sum-exp of its rows, f32 [..., Sq] (f64 for f64)."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    if not query.shape[-1]:  # scores of 0, whatever the scale
        query, key, scale = query.new_zeros((*query.shape[:-1], 1)), key.new_zeros((*key.shape[:-1], 1)), 1.0
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if not (key.shape[-2] and value.shape[-1] and query.numel()):
        shared = (query if enable_gqa else value).shape[-3:-2]
        lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-3] + shared, value.shape[:-3] + shared)
        nothing = query.new_full((*lead, query.shape[-2]), float("-inf"), dtype=wide)
        if with_lse and key.shape[-2] and query.numel():
            raise MlircError("the log-sum-exp of attention whose values have no elements: use torch.logsumexp")
        return query.new_zeros((*lead, query.shape[-2], value.shape[-1])), nothing
    if dropout_p:
        return _with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa), None
    q_len, kv_len = query.shape[-2], key.shape[-2]
    masks = () if attn_mask is None else (attn_mask.shape[:-3],)
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3], *masks)

    def rank4(x: torch.Tensor) -> torch.Tensor:
        heads = x.shape[-3] if x.dim() > 2 else 1
        if tuple(x.shape[:-3]) != tuple(batch):
            x = x.expand(*batch, heads, *x.shape[-2:])
        return x if x.dim() == 4 else x.reshape(-1, heads, *x.shape[-2:])

    q, k, v = rank4(query), rank4(key), rank4(value)
    mask = bias = None
    if attn_mask is not None:
        attn_mask = _mask_of_rank4(attn_mask, tuple(batch))
    heads = max(q.shape[1], k.shape[1], v.shape[1], 1 if attn_mask is None else attn_mask.shape[1])
    if enable_gqa and k.shape[1] != v.shape[1]:
        k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    if k.shape[1] != v.shape[1] or q.shape[1] != heads or (k.shape[1] != heads and not enable_gqa):
        q, k, v = (x.expand(x.shape[0], heads, *x.shape[2:]) for x in (q, k, v))
    if attn_mask is not None:
        mask, bias = (attn_mask, None) if attn_mask.dtype == torch.bool else (None, attn_mask)
    causal = is_causal and q_len == kv_len
    if is_causal and not causal:
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).tril()[None, None]
    if with_lse:
        out, lse = torch.ops.mlirc.attention_lse(q, k, v, mask, bias, [], scale, causal, 0, 0.0)
        return out.reshape(*batch, *out.shape[1:]), lse.reshape(*batch, *lse.shape[1:])
    out = torch.ops.mlirc.attention(q, k, v, mask, bias, [], scale, causal, 0, 0.0)
    if max(query.dim(), key.dim(), value.dim()) == 2 and out.shape[:2] == (1, 1):
        return out.reshape(out.shape[2:]), None
    return out.reshape(*batch, *out.shape[1:]), None


def _with_dropout(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
    enable_gqa: bool,
) -> torch.Tensor:
    """The formula of attention, with dropout of its weights, as PyTorch's plain implementation has it: in f32 for
    16-bit floats, by whose size dropout draws other numbers."""
    dtype = query.dtype
    if dtype in HALF:
        query, key, value = query.float(), key.float(), value.float()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * scale
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None and mask.dtype == torch.bool:  # a row that sees nothing
        weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return (dropout(weights, dropout_p, True) @ value).to(dtype)


def _mask_of_rank4(mask: torch.Tensor, batch: tuple[int, ...]) -> torch.Tensor:
    """The mask of a call with these batch dimensions, as [B or 1, H or 1, Sq or 1, Sk or 1]."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    if len(batch) > 1 and any(n != 1 for n in mask.shape[:-3]):
        mask = mask.expand(*batch, *mask.shape[-3:])
    return mask.reshape(-1, *mask.shape[-3:])


def is_lowest(value: torch.Tensor) -> torch.Tensor:
    """Where a float mask hides keys: -inf, or next to the lowest number of its type."""
    return value <= max(torch.finfo(value.dtype).min, -3.0e38) if value.is_floating_point() else value != value


def pattern_of(mask: torch.Tensor, q_len: int, kv_len: int) -> tuple[bool, int] | None:
    """(causal, window) if a bool mask says just that, else None. All visible is (False, 0)."""
    if mask.dim() > 2:
        first = mask[(0,) * (mask.dim() - 2)]
        if not bool((mask == first).all()):
            return None
        mask = first
    mask = mask.expand(q_len, kv_len)
    if bool(mask.all()):
        return False, 0
    if q_len == 0 or not bool((mask == visible_keys(q_len, kv_len, True, 0)).logical_or(~mask).all()):
        return None
    if torch.equal(mask, visible_keys(q_len, kv_len, True, 0)):
        return True, 0
    window = int(mask[-1].sum())
    return (True, window) if window and torch.equal(mask, visible_keys(q_len, kv_len, True, window)) else None
