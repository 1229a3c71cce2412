"""Small Hugging Face configs and PyTorch modules for the tests of the frontend, and how they are run on the CPU."""

from __future__ import annotations

import json
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import torch

from mlirc.frontend import ImportedModel, SourceModel, import_torch, lower_to_linalg, open_model
from mlirc.host import run_module
from mlirc.mlir import ir

_DECODER = dict(
    hidden_size=32, intermediate_size=44, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=97, max_position_embeddings=64,
)  # fmt: skip

CONFIGS = {
    "llama": dict(architectures=["LlamaForCausalLM"], model_type="llama", tie_word_embeddings=True, **_DECODER),
    "qwen2": dict(architectures=["Qwen2ForCausalLM"], model_type="qwen2", **_DECODER),
    "qwen3": dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=16, **_DECODER),
    "mistral": dict(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=5, **_DECODER),
    "gemma2": dict(
        architectures=["Gemma2ForCausalLM"], model_type="gemma2", head_dim=8, sliding_window=5,
        query_pre_attn_scalar=16, **(_DECODER | dict(num_hidden_layers=2)),
    ),
    "gpt2": dict(architectures=["GPT2LMHeadModel"], model_type="gpt2", n_embd=32, n_layer=1, n_head=4, vocab_size=97,
                 n_positions=64, bos_token_id=1, eos_token_id=2),
    "bert": dict(architectures=["BertModel"], model_type="bert", hidden_size=32, intermediate_size=44,
                 num_hidden_layers=1, num_attention_heads=4, vocab_size=97, max_position_embeddings=64),
    "t5": dict(architectures=["T5ForConditionalGeneration"], model_type="t5", d_model=32, d_kv=8, d_ff=44,
               num_layers=1, num_heads=4, vocab_size=97),
    "whisper": dict(
        architectures=["WhisperForConditionalGeneration"], model_type="whisper", d_model=32, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=44, decoder_ffn_dim=44,
        vocab_size=97, max_source_positions=20, max_target_positions=32, num_mel_bins=10, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    ),
    "vit": dict(architectures=["ViTForImageClassification"], model_type="vit", hidden_size=32, intermediate_size=44,
                num_hidden_layers=1, num_attention_heads=4, image_size=24, patch_size=8,
                id2label={str(i): str(i) for i in range(11)}),
    "resnet": dict(architectures=["ResNetForImageClassification"], model_type="resnet", embedding_size=8,
                   hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
                   id2label={str(i): str(i) for i in range(11)}),
}  # fmt: skip


def write_config(folder: Path, name: str, **changes) -> str:
    """Writes a config.json and returns its directory."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIGS[name] | changes))
    return str(path)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    x = x.detach().contiguous()
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def run_on_host(imported: ImportedModel, module: ir.Module, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Runs the linalg level on the CPU; f64 results."""
    named = dict(zip([name for name, *_ in imported.inputs], inputs, strict=True))
    values = {"weight": imported.weights, "constant": imported.constants, "input": named}
    kinds = re.findall(r'mlirc.kind = "(\w+)", mlirc.name = "([^"]+)"', str(module))
    outputs = run_module(module, [to_numpy(values[kind][name]) for kind, name in kinds])
    return [torch.from_numpy(np.asarray(x, dtype=np.float64)) for x in outputs]


def check(source: SourceModel, tolerance: float = 1e-5) -> tuple[ImportedModel, ir.Module]:
    """Imports, runs on the CPU and compares with PyTorch: relative Frobenius error of each output."""
    imported = import_torch(source)
    module = lower_to_linalg(imported)
    inputs = source.example_inputs()
    found, wanted = run_on_host(imported, module, inputs), imported.reference(inputs)
    assert len(found) == len(wanted) == len(imported.outputs)
    for (name, _, shape), x, y in zip(imported.outputs, found, wanted, strict=True):
        assert tuple(x.shape) == shape == tuple(y.shape), name
        error = (x - y.double()).norm() / max(float(y.double().norm()), 1e-30)
        assert error <= tolerance, f"{name}: relative error {error:.2e}"
    return imported, module


def open_random(folder: Path, name: str, *inputs: str, dtype: str = "f32", **changes) -> SourceModel:
    return open_model(write_config(folder, name, **changes), inputs=inputs, random_weights=0, dtype=dtype)


def attentions(module: ir.Module) -> list[dict]:
    """Scale and so on of every attention op, and `mask`: the mask's type or None; `nan_rows` where that is so."""
    found = []

    def visit(op):
        if op.name == "mlirc.attention":
            info = {k: op.attributes[k].value for k in ("scale", "causal", "window", "softcap")}
            info |= {"nan_rows": True} if "nan_rows" in op.attributes else {}
            found.append(info | {"mask": str(op.operands[3].type) if len(op.operands) > 3 else None})
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found
