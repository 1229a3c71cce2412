"""Random numbers: the generator, its levels beside PyTorch's arithmetic, and what a compiled model does from call to
call. test_random_on_gpu.py compares with PyTorch's own numbers."""

from __future__ import annotations

import pytest
import torch

from mlirc.frontend.random.philox import philox

# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, result):
    low, high = words(key)
    found = philox([torch.tensor(word) for word in words(counter)], low | high << 32)
    assert [int(word) for word in found] == words(result)
