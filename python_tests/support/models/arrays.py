"""PyTorch's tensors as NumPy's arrays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch


def as_array(a) -> np.ndarray:
    if isinstance(a, np.ndarray):
        return a
    a = a.detach().contiguous()
    return a.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if a.dtype == torch.bfloat16 else a.numpy()
