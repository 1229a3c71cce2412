"""Attention over a paged cache: cases, inputs whose pages lie anywhere and hold NaN where nobody may read, and what is
expected, in FP64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from support.kernels.payloads import kernel
from support.randomness import generator


@dataclass(frozen=True)
class Case:
    """Lengths of sequences, heads (query, key), elements of a head (key, value), tokens of a page, pages of a sequence."""

    lengths: tuple[int, ...] = (1, 7, 16, 33)
    queries: int = 1
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (64, 64)
    page: int = 16
    pages: int = 3
    window: int = 0
    softcap: float = 0.0
    dtype: str = "f32"
    scale: float = 0.3
    layouts: tuple[str, ...] = ("bhsd",) * 4
    vectors: tuple[str, ...] = ()  # those of "slopes" and "sinks", of f32, that there are
    stored: str = ""  # the type of keys and values, where it is another one

    def __str__(self) -> str:
        heads, dims = ("x".join(map(str, pair)) for pair in (self.heads, self.dims))
        more = (
            f"-w{self.window}" * bool(self.window)
            + f"-cap{self.softcap}" * bool(self.softcap)
            + "".join(f"-{v}" for v in self.vectors)
            + f"-{self.stored}" * bool(self.stored)
        )
        return f"{self.dtype}-q{self.queries}-h{heads}-d{dims}-p{self.page}x{self.pages}{more}"

    @property
    def pool(self) -> int:
        """Pages that there are: more than the sequences have."""
        return len(self.lengths) * self.pages + 2


def inputs(case: Case) -> list[np.ndarray]:
    """Queries, keys, values, pages, lengths and numbers of heads, in f32 (the caller rounds them), in the op's own order of dimensions."""
    g, batch = generator(), len(case.lengths)
    q = g.standard_normal((batch, case.heads[0], case.queries, case.dims[0]), np.float32)
    pools = [g.standard_normal((case.pool, case.heads[1], case.page, d), np.float32) for d in case.dims]
    pages = g.permutation(case.pool)[: batch * case.pages].reshape(batch, case.pages)
    read = np.zeros((case.pool, case.page), bool)
    for row, length in zip(pages, case.lengths, strict=True):
        place = np.arange(length)
        read[row[place // case.page], place % case.page] = True
    for pool in pools:
        pool[np.broadcast_to(~read[:, None, :, None], pool.shape)] = np.nan
    vectors = [g.standard_normal(case.heads[0], np.float32) for _ in case.vectors]
    return [q, *pools, pages.astype(np.int64), np.array(case.lengths, np.int64), *vectors]


def expected(case: Case, arguments: list[Any]) -> np.ndarray:
    """The attention of each sequence by itself, [B,Hq,Sq,Dv] in FP64; 0 where a query sees no key."""
    q, keys, values, pages, lengths, *vectors = (np.asarray(x) for x in arguments)
    of_head = dict(zip(case.vectors, [x.astype(np.float64) for x in vectors], strict=True))
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    result = np.zeros((*q.shape[:3], values.shape[3]))
    for b, length in enumerate(lengths):
        for h in range(q.shape[1]):
            head = h * keys.shape[1] // q.shape[1]
            k, v = (np.concatenate([pool[p, head] for p in pages[b]])[:length] for pool in (keys, values))
            for i in range(q.shape[2]):
                last = i + length - q.shape[2]
                first = max(last - case.window + 1, 0) if case.window else 0
                if last < first:
                    continue
                scores = k[first : last + 1] @ q[b, h, i] * case.scale
                if case.softcap:
                    scores = case.softcap * np.tanh(scores / case.softcap)
                if "slopes" in of_head:
                    scores = scores + of_head["slopes"][h] * np.arange(first, last + 1)
                sinks = [of_head["sinks"][h]] if "sinks" in of_head else []
                if "slopes" in of_head:  # a sink stands beside scores that count from the last key
                    sinks = [s + of_head["slopes"][h] * (length - 1) for s in sinks]
                top = max(scores.max(), *sinks, scores.max())
                weights = np.exp(scores - top)
                result[b, h, i] = weights @ v[first : last + 1] / (weights.sum() + sum(np.exp(s - top) for s in sinks))
    return result


def payload(case: Case) -> str:
    """The kernel of a case at the `kernels` level."""
    batch = len(case.lengths)
    q = {"b": batch, "h": case.heads[0], "s": case.queries, "d": case.dims[0]}
    k = {"b": case.pool, "h": case.heads[1], "s": case.page, "d": case.dims[0]}
    stored = case.stored or case.dtype
    sizes = [q, k, k | {"d": case.dims[1]}, q | {"d": case.dims[1]}]
    types = [
        "tensor<" + "x".join(str(s[c]) for c in layout) + f"x{kind}>"
        for s, layout, kind in zip(sizes, case.layouts, [case.dtype, stored, stored, case.dtype], strict=True)
    ]
    arguments = dict(zip("qkv", types[:3], strict=True))
    arguments |= {"pages": f"tensor<{batch}x{case.pages}xi64>", "lengths": f"tensor<{batch}xi64>"}
    arguments |= {name: f"tensor<{case.heads[0]}xf32>" for name in case.vectors}
    quoted = ", ".join(f'"{x}"' for x in case.layouts)
    attributes = f"scale = {case.scale} : f64, window = {case.window} : i64, softcap = {case.softcap} : f64, layouts = [{quoted}]"
    attributes += "".join(f", {name}" for name in case.vectors)
    listed, kinds = ", ".join(f"%{a}" for a in arguments), ", ".join(arguments.values())
    body = f'  %r = "mlirc.cached_attention"({listed}) {{{attributes}}} : ({kinds}) -> {types[3]}'
    return kernel("attention_0", "attention", arguments, types[3], body)
