"""PyTorch's attention in which keys that a mask hides take no part at all, for scores and values that are not finite.

PyTorch's plain formula adds -inf to a hidden key's score and multiplies its value by 0, so that a score of +inf or a
value of NaN makes the whole row NaN although nothing of it is seen; its fused attention leaves such keys out, and so
does `mlirc.attention`, where a limit by position hides them. Of finite scores and values both give the same, but for a
row that sees nothing but scores of -inf beside hidden ones of the lowest finite number: it is 0 here.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


class UnseenKeys(TorchFunctionMode):
    """Inside, `scaled_dot_product_attention` leaves hidden keys out; `used` tells whether it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and not kwargs.get("dropout_p", 0.0) and len(args) < 5:
            self.used = True
            return attention(*args, **kwargs)
        return func(*args, **kwargs)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """PyTorch's function of that name, without dropout: [..., L, E], [..., S, E], [..., S, Ev] to [..., L, Ev]. A row
    that sees nothing, or nothing but scores of -inf, gives 0, as in PyTorch's."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device)
    if is_causal:
        seen = seen.tril()
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = attn_mask
    elif attn_mask is not None:
        seen = attn_mask > torch.finfo(attn_mask.dtype).min
        scores = scores + attn_mask
    seen = seen.expand(scores.shape)
    scores = scores.masked_fill(~seen, float("-inf"))
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(scores, -1).masked_fill(nothing, 0.0)
    return _weighed(weights, seen, value)


def _weighed(weights: torch.Tensor, seen: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The product, in which a value that is not finite reaches the rows that see its key."""
    finite = torch.isfinite(value)
    result = weights @ value.masked_fill(~finite, 0.0)
    others = (~finite).flatten(0, -3).any(0) if value.dim() > 2 else ~finite
    for j in torch.nonzero(others.any(-1))[:, 0].tolist():
        of_key = weights[..., j : j + 1] * value.masked_fill(finite, 0.0)[..., j : j + 1, :]
        result = result + of_key.masked_fill(~seen[..., j : j + 1], 0.0)
    return result
