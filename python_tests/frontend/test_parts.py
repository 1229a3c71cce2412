"""Parts of the frontend: attention decompositions, mask patterns, random weights, the weight file."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import nn

from mlirc.errors import MlircError
from mlirc.frontend import from_torch, lower_to_linalg, open_model, random_state_dict, write_weights
from mlirc.frontend.attention import attention_op, pattern_of, visible_keys
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.weights import random_weight
from support.models.small import attentions, check, run_on_host, write_config


class Wrap(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def run(function, *shapes, tolerance=1e-5):
    torch.manual_seed(0)
    args = tuple(torch.randn(s) if isinstance(s, tuple) else s for s in shapes)
    return check(from_torch(Wrap(function), args), tolerance)[1]


@pytest.mark.parametrize(
    "shapes, options, mask",
    [
        ([(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 3)], dict(is_causal=True), None),
        ([(1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 8)], dict(enable_gqa=True, scale=0.3), None),
        ([(1, 2, 3, 8), (1, 2, 7, 8), (1, 2, 7, 8)], dict(is_causal=True), "tensor<1x1x3x7xi1>"),
        ([(3, 5, 8), (3, 7, 8), (3, 7, 8)], {}, None),
        ([(2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 8)], {}, None),
        ([(5, 8), (7, 8), (7, 8)], {}, None),
    ],
)
def test_scaled_dot_product_attention(shapes, options, mask):
    module = run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), *shapes)
    assert [a["mask"] for a in attentions(module)] == [mask]


@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (2, 4, 5, 7), (2, 1, 1, 7)])
def test_attention_masks(shape):
    q, kv = (2, 4, 5, 8), (2, 4, 7, 8)
    seen = torch.rand(shape) > 0.3
    seen[..., 0] = True
    module = run(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, kv, kv, seen)
    full = (1,) * (4 - len(shape)) + shape
    assert attentions(module)[0]["mask"] == f"tensor<{'x'.join(map(str, full))}xi1>"
    run(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), q, kv, kv, shape)


def test_constant_masks_become_attributes():
    def causal(q, k, v):
        lowest = torch.finfo(q.dtype).min
        mask = torch.triu(torch.full((q.shape[2], k.shape[2]), lowest), diagonal=1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert attentions(run(causal, *[(1, 2, 5, 8)] * 3)) == [
        dict(scale=8**-0.5, causal=True, window=0, softcap=0.0, mask=None)
    ]


def test_mask_patterns():
    assert pattern_of(torch.ones(1, 1, 3, 5, dtype=torch.bool), 3, 5) == (False, 0)
    assert pattern_of(visible_keys(3, 5, True, 0), 3, 5) == (True, 0)
    assert pattern_of(visible_keys(9, 9, True, 4)[None, None], 9, 9) == (True, 4)
    assert pattern_of(torch.ones(3, 5, dtype=torch.bool).tril(), 3, 5) is None
    assert pattern_of(torch.ones(1, 1, 1, 1, dtype=torch.bool), 1, 4) == (False, 0)
    other = visible_keys(6, 6, True, 0)
    other[3, 2] = False
    assert pattern_of(other, 6, 6) is None
    assert pattern_of(torch.stack([other, visible_keys(6, 6, True, 0)])[:, None], 6, 6) is None


def test_attention_op_rejects_a_mask_that_does_not_fit():
    q = torch.randn(1, 2, 3, 8, device="meta")
    with pytest.raises(ValueError, match="does not fit"):
        attention_op(q, q, q, torch.ones(1, 1, 3, 4, dtype=torch.bool, device="meta"), None, [], 1.0, False, 0, 0.0)


@pytest.mark.parametrize(
    "function, shape",
    [
        (lambda x: F.layer_norm(x, (7,)), (3, 7)),
        (lambda x: F.rms_norm(x, (7,), eps=1e-6), (3, 7)),
        (lambda x: F.group_norm(x, 2), (2, 6, 5)),
        (lambda x: F.softmax(x, 1), (3, 7, 2)),
        (lambda x: F.log_softmax(x, -1), (3, 7)),
        (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh"), (13,)),
        (lambda x: x.var(1) + x.var(1, unbiased=False), (3, 7)),
        (lambda x: F.normalize(x, dim=-1), (3, 7)),
        (lambda x: x**2 + x**3 + x.abs() ** 0.5 + x.abs() ** 1.5, (7,)),
        (lambda x: F.conv2d(x, x.new_ones(4, 3, 2, 2), x.new_ones(4), stride=2), (2, 3, 6, 4)),
        (lambda x: F.conv2d(x, x.new_ones(4, 3, 1, 1), stride=2), (1, 3, 5, 7)),
        (lambda x: F.conv2d(x, x.new_ones(4, 3, 1, 1), x.new_ones(4)), (2, 3, 5, 7)),
        (lambda x: F.conv2d(x, x.new_ones(4, 3, 1, 1), x.new_ones(4)), (1, 3, 5, 7)),
        (lambda x: F.conv1d(x, x.new_ones(4, 3, 3), x.new_ones(4), stride=2, padding=1), (1, 3, 7)),
        (lambda x: F.max_pool2d(x, 3, 2, 1), (1, 2, 7, 7)),
        (lambda x: x.mean() + x.sum((0, 2)), (3, 2, 5)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decompositions(function, shape, dtype):
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    _, module = check(from_torch(Wrap(function), (x,)), 1e-5 if dtype == torch.float32 else 1e-2)
    assert "f64" not in str(module)


def test_random_weights_depend_on_name_and_seed_alone(tmp_path):
    path = write_config(tmp_path, "llama")
    first, second = random_state_dict(path, 3), random_state_dict(path, 3)
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(first[name], random_state_dict(path, 4)[name])
    assert torch.equal(first[name].bfloat16(), random_state_dict(path, 3, dtype="bf16")[name])
    assert torch.equal(first["lm_head.weight"], first["model.embed_tokens.weight"]), "tied weights are equal"
    code = (
        "import sys; from mlirc.frontend import random_state_dict as r;"
        f"print(r(sys.argv[1], 3)[{name!r}].double().sum().item())"
    )
    other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert float(other.stdout) == first[name].double().sum().item()


def test_random_weights_have_sensible_scales():
    def scale(name, *shape):
        w = random_weight(InputSpec(name, torch.float32, shape), 0)
        return float(w.mean()), float(w.std())

    mean, std = scale("a.q_proj.weight", 100, 100)
    assert abs(mean) < 1e-3 and abs(std - 0.02) < 1e-3
    assert abs(scale("a.norm.weight", 10000)[0] - 1) < 1e-3
    assert abs(scale("a.norm.bias", 10000)[0]) < 1e-3
    assert scale("bn.running_var", 10000)[0] > 1
    assert abs(scale("conv.weight", 64, 32, 3, 3)[1] - (2 / 288) ** 0.5) < 1e-3


def test_reference_uses_the_random_weights(tmp_path):
    source = open_model(write_config(tmp_path, "llama"), random_weights=1, inputs=["input_ids=i64[1,3]"])
    state = source.torch_module().state_dict()
    assert all(torch.equal(state[name], source.weights[name]) for name in source.weights)


def test_weight_file(tmp_path):
    weights = {
        "a": torch.randn(3, 5).bfloat16(),
        "b.c": torch.arange(7),
        "t": torch.randn(4, 6).t(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(True),
    }
    calls = []
    size = write_weights(tmp_path / "w.safetensors", weights, progress=lambda done, all_: calls.append((done, all_)))
    assert size == (tmp_path / "w.safetensors").stat().st_size
    assert len(calls) == len(weights) and calls[-1][0] == calls[-1][1]
    with safe_open(str(tmp_path / "w.safetensors"), "pt") as file:
        assert set(file.keys()) == set(weights)
        assert all(torch.equal(file.get_tensor(name), weights[name]) for name in weights)
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"], "no temporary file stays"


def test_weight_file_that_cannot_be_written(tmp_path):
    with pytest.raises(MlircError, match="cannot write .*nowhere/w.safetensors: folder .* does not exist"):
        write_weights(tmp_path / "nowhere" / "w.safetensors", {"a": torch.zeros(1)})


def test_one_tensor_given_as_two_inputs_stays_two_inputs():
    class Difference(nn.Linear):
        def forward(self, a, b):
            return a - b + self.weight

    module, x = Difference(3, 3, bias=False), torch.randn(3, 3)
    for args in ((x, x), (x, module.weight)):
        imported, _ = check(from_torch(module, args))
        assert [name for name, *_ in imported.inputs] == ["a", "b"] and list(imported.weights) == ["weight"]
        first, second = torch.randn(3, 3), torch.randn(3, 3)
        [found] = run_on_host(imported, lower_to_linalg(imported), [first, second])
        assert torch.allclose(found, (first - second + module.weight).double().detach(), atol=1e-6)
