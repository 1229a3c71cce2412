"""Results of reductions over permuted tensors come in the order that their readers count on."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from mlirc import host
from mlirc.frontend import from_torch, import_torch, lower_to_linalg
from mlirc.ir import levels
from mlirc.scripts.graph import to_kernels
from mlirc.targets import get_target


class _HeadNorm(torch.nn.Module):
    """A norm of each head whose heads are then repeated, as grouped key heads are."""

    def forward(self, x, weight):
        k = x.view(2, 9, 3, 8).transpose(1, 2)
        k = k * torch.rsqrt((k * k).mean(-1, keepdim=True) + 1e-6) * weight
        return k[:, :, None].expand(2, 3, 2, 9, 8).reshape(2, 6, 9, 8)


class _Permuted(torch.nn.Module):
    """Reductions of one tensor in every order of its dimensions."""

    def forward(self, x):
        out = []
        for order in itertools.permutations(range(3)):
            y = x.permute(order)
            out += [(y * y).sum(-1), y.mean(0), (y.exp() / y.exp().sum(1, keepdim=True)).amax(2)]
        return tuple(out)


def check(module, *arguments):
    linalg = lower_to_linalg(import_torch(from_torch(module, arguments, {}, "m")))
    kernels = to_kernels(levels.copy(linalg), get_target("sm_90a"))
    found = host.run_module(kernels, [a.numpy() for a in arguments])
    wanted = module(*arguments)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=2e-5, atol=2e-6)


def test_a_norm_of_heads_that_are_repeated():
    torch.manual_seed(0)
    check(_HeadNorm(), torch.randn(2, 9, 24), torch.randn(8))


def test_reductions_in_every_order():
    torch.manual_seed(1)
    check(_Permuted(), torch.randn(3, 5, 7))
