"""The graph level of small Hugging Face models: right values on the CPU, and the kernels that their layers become."""

from __future__ import annotations

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mlirc import frontend  # noqa: E402
from mlirc.host.tensors import run_level  # noqa: E402
from mlirc.ir import levels  # noqa: E402
from mlirc.scripts.graph import to_kernels  # noqa: E402
from mlirc.targets import get_target  # noqa: E402


def tokens(batch: int, length: int):
    return torch.randint(3, 90, (batch, length), generator=torch.Generator().manual_seed(0))


def llama(layers: int, batch: int = 1, length: int = 17):
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=101,
    )
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens(batch, length), "use_cache": False}


def bert(layers: int, batch: int = 1, length: int = 7):
    config = transformers.BertConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=layers, num_attention_heads=4, vocab_size=101
    )
    ids = tokens(batch, length)
    return transformers.BertModel(config), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def t5(layers: int, batch: int = 1, length: int = 5):
    config = transformers.T5Config(d_model=48, d_kv=12, d_ff=80, num_layers=layers, num_heads=4, vocab_size=101)
    ids = tokens(batch, length)
    return transformers.T5ForConditionalGeneration(config), {
        "input_ids": ids,
        "decoder_input_ids": ids,
        "use_cache": False,
    }


def lowered(model, inputs, dtype=None):
    """The imported model and its kernels level."""
    torch.manual_seed(0)
    model = model.eval().to(dtype or torch.float32)
    imported = frontend.import_torch(frontend.from_torch(model, (), inputs, "model"))
    return imported, to_kernels(frontend.lower_to_linalg(imported), get_target("sm_90a"))


def calls(module) -> list[str]:
    return re.findall(r"call @(\w+)\(", str(levels.functions(module)["main"]))


def error(imported, module, inputs) -> float:
    """Largest relative Frobenius error of the outputs against PyTorch."""
    given = [v for v in inputs.values() if torch.is_tensor(v)]
    found = run_level(module, given, {**imported.weights, **imported.constants})
    worst = 0.0
    for a, b in zip(imported.reference(given), found, strict=True):
        a, b = a.detach().double().numpy(), b.double().numpy()
        worst = max(worst, float(np.linalg.norm(a - b) / np.linalg.norm(a)))
    return worst


@pytest.mark.parametrize(
    "make, batch, length",
    [(llama, 1, 17), (llama, 2, 1), (bert, 2, 7), (t5, 1, 5)],
    ids=lambda p: getattr(p, "__name__", p),
)
def test_values_agree_with_pytorch(make, batch, length):
    model, inputs = make(2, batch, length)
    imported, module = lowered(model, inputs)
    assert error(imported, module, inputs) < 1e-5


def test_bf16_values_agree_with_pytorch():
    model, inputs = llama(1)
    imported, module = lowered(model, inputs, torch.bfloat16)
    assert error(imported, module, inputs) < 2e-2


def test_layers_share_kernels():
    small = lowered(*llama(2))[1]
    large = lowered(*llama(3))[1]
    assert list(levels.kernels(small)) == list(levels.kernels(large))
    kinds = [re.sub(r"_\d+$", "", name) for name in calls(large)]
    # of each layer: norm; q, k, v; two rotations; attention; output and residual; norm; SwiGLU; down and residual
    # The embedding is in the first norm's kernel, which writes both.
    layer = ["reduction", *["matmul"] * 3, *["elementwise"] * 2, "attention", "matmul", "reduction", *["matmul"] * 2]
    assert kinds == [*layer * 3, "reduction", "matmul"]


def test_a_norm_before_a_product_of_rows_is_one_kernel_that_writes_what_the_product_reads():
    class Block(torch.nn.Module):
        """As GPT-2's: the product sees the rows of all batches as one matrix, and widens them by itself."""

        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(48)
            self.weight, self.bias = torch.nn.Parameter(torch.randn(48, 80)), torch.nn.Parameter(torch.randn(80))

        def forward(self, x):
            return torch.addmm(self.bias, self.norm(x).view(-1, 48), self.weight)

    inputs = {"x": torch.randn(3, 7, 48, generator=torch.Generator().manual_seed(0)).bfloat16()}
    imported, module = lowered(Block(), inputs, torch.bfloat16)
    assert [re.sub(r"_\d+$", "", name) for name in calls(module)] == ["reduction", "matmul"]
    assert "f32" not in str(levels.functions(module)["main"])
    assert error(imported, module, inputs) < 1e-2


def test_kernels_name_the_modules_that_they_come_from():
    module = lowered(*llama(2))[1]
    text = str(module)
    assert '"model.layers.*.mlp' in text and '"model.norm"' in text or '"model.layers.*.input_layernorm"' in text
    for name in levels.kernels(module):
        assert "mlirc.origin = []" not in str(levels.functions(module)[name]).split("\n")[0], name


@pytest.mark.parametrize("which", ["q", "k", "v", "mask"])
def test_an_operand_of_attention_that_is_spread_over_the_batch_becomes_a_tensor(which):
    from mlirc.check import check_torch

    class Pooling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.learned = torch.nn.Parameter(torch.randn(1, 2, 5, 8, generator=torch.Generator().manual_seed(0)))

        def forward(self, x):
            spread = {which: self.learned.expand(3, 2, 5, 8)} if which != "mask" else {}
            mask = self.learned[..., :5].expand(3, 2, 5, 5) if which == "mask" else None
            q, k, v = (spread.get(name, x) for name in "qkv")
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)

    result = check_torch(Pooling(), (torch.randn(3, 2, 5, 8),), levels=["kernels"], kinds=["plain"])
    assert result.ok, result.reason()
