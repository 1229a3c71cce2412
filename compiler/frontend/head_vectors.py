"""What attention's numbers of heads do to scores and weights, in PyTorch: `slopes` and `sinks` of `mlirc::attention`
and `mlirc::cached_attention`."""

from __future__ import annotations

import torch


def alibi(slopes: torch.Tensor, lengths: torch.Tensor, keys: int) -> torch.Tensor:
    """What is added to the scores [B,Hq,Sq,keys], as [B,Hq,1,keys] in f32: slope * (key - (length - 1)), for slopes
    [Hq] and the numbers of keys [B] (ALiBi: Press et al., 2022)."""
    place = torch.arange(keys, device=slopes.device) - (lengths.to(slopes.device)[:, None] - 1)
    return slopes.float()[:, None, None] * place[:, None, None, :]


def softmax_with(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """The softmax of scores [B,Hq,Sq,Sk] along their last dimension; with sinks [Hq], as if each row had one more score
    (attention sinks: Xiao et al., 2024)."""
    if sinks is None:
        return torch.softmax(scores, -1)
    more = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, more], -1), -1)[..., :-1]


def check_vectors(heads: int, **vectors: torch.Tensor | None) -> None:
    """Raises ValueError for one that is no float vector [Hq]."""
    for name, x in vectors.items():
        if x is not None and (tuple(x.shape) != (heads,) or not x.is_floating_point()):
            raise ValueError(
                f"{name} of attention are {heads} floats, one for each head, not {x.dtype} {list(x.shape)}"
            )
