"""Attention over a paged cache whose parts the last block combines, in a whole file: its plan, its PTX, kernels that begin
early, beside PyTorch, call after call."""

from __future__ import annotations

import torch

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.frontend.cached_attention import cached_attention
from mlirc.targets import get_target
from support.randomness import generator


class Twice(torch.nn.Module):
    """The result of one attention is the query of another: two calls of one kernel, with the same counters."""

    def forward(self, q, keys, values, pages, lengths):
        first = cached_attention(q, keys, values, pages, lengths, 0.25)
        return cached_attention(first, keys, values, pages, lengths, 0.25)


def expected(q, keys, values, pages, lengths):
    """Twice the attention, in FP64."""
    for _ in range(2):
        rows = []
        for b, length in enumerate(lengths.tolist()):
            k, v = (pool.double()[pages[b]].transpose(0, 1).flatten(1, 2)[:, :length] for pool in (keys, values))
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[0], 0) for x in (k, v))
            rows.append(torch.softmax(q[b].double() @ k.transpose(1, 2) * 0.25, -1) @ v)
        q = torch.stack(rows)
    return q


def test_calls_of_one_kernel(tmp_path) -> None:
    draw = generator()
    q, keys, values = (
        torch.from_numpy(draw.standard_normal(shape, "f4")) for shape in ((2, 2, 1, 16), (9, 1, 16, 16), (9, 1, 16, 16))
    )
    pages, lengths = torch.from_numpy(draw.permutation(8).reshape(2, 4)), torch.tensor([7, 61])
    schedule = ("graph:dependent=true", "cached_attention:parts=3")
    job = Compilation("twice", get_target("sm_90a"), schedule, helpers=0)
    job.import_module(Twice(), (q, keys, values, pages, lengths), {})
    job.lower("ptx")
    job.write(tmp_path / "twice.ptx")
    assert len(job.plan.launches) == 2
    with mlirc.load(tmp_path / "twice.ptx", device="host") as model:
        model.execute_ptx, model.input_sets = True, "none"
        for now in (lengths, torch.tensor([64, 1])):
            found = torch.as_tensor(model(q, keys, values, pages, now))
            wanted = expected(q, keys, values, pages, now)
            torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
            assert "the whole plan executed in its arena" in model.summary(), model.summary()
