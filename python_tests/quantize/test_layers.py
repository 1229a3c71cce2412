"""Models whose linear layers have packed weights: one kernel a layer, right at every level."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import mlirc
from mlirc.check.gates import gate_of, relative_error
from mlirc.driver.compilation import Compilation, compile_model
from mlirc.errors import MlircError
from mlirc.frontend import from_torch, open_model, packed_as
from mlirc.frontend.quantize.layers import QuantizedLinear, places_of
from mlirc.ir import levels
from mlirc.targets import get_target
from support.models.small import write_config
from support.randomness import generator


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.from_numpy(generator().standard_normal(shape)).to(dtype)


class Layer(torch.nn.Module):
    def __init__(self, k: int, n: int, dtype: torch.dtype, bias: bool = True):
        super().__init__()
        self.proj = torch.nn.Linear(k, n, bias=bias, dtype=dtype)
        with torch.no_grad():
            self.proj.weight.copy_(tensor(n, k, dtype=dtype) * k**-0.5)

    def forward(self, x):
        return torch.nn.functional.silu(self.proj(x))


def wide_reference(module: torch.nn.Module, scheme: str, x: torch.Tensor) -> torch.Tensor:
    """What the packed model computes, in FP64."""
    source = packed_as(from_torch(module, (x,)), scheme)
    with torch.no_grad():
        return copy.deepcopy(source.module).double()(x.double())


def kernels(module: torch.nn.Module, x: torch.Tensor, scheme: str) -> list[str]:
    job = Compilation("m", get_target("sm_90a"))
    job.import_module(module, (x,), {}, quantize=scheme)
    job.lower("kernels")
    return list(levels.kernels(job.modules["kernels"]))


@pytest.mark.parametrize(
    "m, k, n, dtype, scheme",
    [
        (1, 200, 77, torch.bfloat16, "int4:group=64"),
        (1, 130, 3, torch.float32, "int3:group=32,asymmetric"),
        (1, 97, 16, torch.float16, "int8"),
        (5, 72, 33, torch.float32, "int5:group=16"),
        (7, 200, 40, torch.bfloat16, "int4:group=48,asymmetric"),
        (33, 65, 24, torch.float16, "int7"),
        (17, 64, 130, torch.bfloat16, "fp8"),
        (40, 128, 1, torch.bfloat16, "int2:group=32"),
        (1, 192, 1, torch.bfloat16, "int4:group=128"),
        (3, 331, 17, torch.bfloat16, "int7:group=64,asymmetric"),
        (1, 320, 19, torch.bfloat16, "int8"),
    ],
)
def test_one_kernel_gives_what_the_dequantized_model_gives(m, k, n, dtype, scheme):
    module, x = Layer(k, n, dtype), tensor(m, k, dtype=dtype)
    assert len(kernels(module, x, scheme)) == 1
    model = mlirc.compile(module, (x,), quantize=scheme, device="host")
    assert relative_error(model(x), wide_reference(module, scheme, x)) <= gate_of(dtype, 0)


@pytest.mark.parametrize(
    "dtype, scheme", [(torch.bfloat16, "int4:group=48,asymmetric"), (torch.float32, "int3:group=32")]
)
def test_weights_are_unpacked_once_for_many_rows(dtype, scheme):
    module, x = Layer(136, 33, dtype), tensor(129, 136, dtype=dtype)
    assert len(kernels(module, x, scheme)) == 2 and len(kernels(module, x[:128], scheme)) == 1
    model = mlirc.compile(module, (x,), quantize=scheme, device="host")
    assert relative_error(model(x), wide_reference(module, scheme, x)) <= gate_of(dtype, 0)


@pytest.mark.parametrize("knobs", ["parts=2,warps=2", "parts=3,warps=1,through=memory"])
def test_few_rows_in_parts_of_k(knobs):
    module, x = Layer(1031, 33, torch.bfloat16), tensor(3, 1031)
    schedule = [f"packed_rows:{knobs}"]
    model = mlirc.compile(module, (x,), quantize="int4:group=48", schedule=schedule, device="host")
    assert relative_error(model(x), wide_reference(module, "int4:group=48", x)) <= gate_of(torch.bfloat16, 0)


def test_epilogues_of_two_products_stay_in_their_kernel():
    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = (torch.nn.Linear(96, 56, bias=False, dtype=torch.bfloat16) for _ in range(2))

        def forward(self, x):
            return torch.nn.functional.silu(self.gate(x)) * self.up(x)

    module, x = Gated(), tensor(19, 96)
    assert len(kernels(module, x, "int4:group=32")) == 1
    model = mlirc.compile(module, (x,), quantize="int4:group=32", device="host")
    assert relative_error(model(x), wide_reference(module, "int4:group=32", x)) <= gate_of(torch.bfloat16, 0)


def test_the_module_stays_as_it_is_and_shared_weights_stay_shared():
    one = torch.nn.Linear(16, 16, dtype=torch.bfloat16)
    two = torch.nn.Linear(16, 16, dtype=torch.bfloat16)
    two.weight = one.weight
    module = torch.nn.Sequential(one, two)
    source = packed_as(from_torch(module, (tensor(2, 16),)), "int8")
    assert type(module[0]) is torch.nn.Linear and isinstance(source.module[0], QuantizedLinear)
    assert source.module[0].weight_words is source.module[1].weight_words
    assert source.module[0].bias is one.bias  # bound where it lies
    assert [e.name for e in source.quantized] == ["0"] and 0 < source.quantized[0].error < 0.02


def test_heads_embeddings_and_routers_stay_as_they_are(tmp_path):
    source = open_model(write_config(tmp_path, "qwen2"), random_weights=0, dtype="bf16")
    names = [p.name for p in places_of(source.module)]
    assert len(names) == 7 and "lm_head" not in names
    assert "lm_head" in [p.name for p in places_of(source.module, head=True)]

    class Mixture(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = torch.nn.Linear(8, 4), torch.nn.ModuleList([torch.nn.Linear(8, 8)])

    assert [p.name for p in places_of(Mixture())] == ["experts.0"]


@pytest.mark.parametrize("name, scheme", [("llama", "int4:group=16"), ("gpt2", "int8")])
def test_random_weights_are_the_same_on_demand_and_built(tmp_path, name, scheme):
    """A model whose weights are made when they are read is quantized as one that is there."""
    source = open_model(write_config(tmp_path, name), random_weights=3, dtype="bf16", quantize=scheme)
    built = source.torch_module().state_dict()
    names = set(source.weights)
    assert any(n.endswith("weight_words") for n in names) and names == set(built)
    for key in names:
        assert torch.equal(source.weights[key], built[key]), key


def test_a_folder_compiles_to_a_file_with_packed_weights(tmp_path):
    folder = write_config(tmp_path, "llama")
    options = dict(inputs=["input_ids=i64[1,5]"], random_weights=1, dtype="bf16", quantize="int4:group=16")
    job = compile_model(folder, tmp_path / "m.ptx", **options)
    ids = np.arange(5, dtype=np.int64)[None]
    found = mlirc.load(str(tmp_path / "m.ptx"), device="host")(ids)
    kinds = {name: tensor.dtype for name, tensor in job.imported.weights.items() if "weight" in name}
    assert sum(dtype == torch.int32 for dtype in kinds.values()) == 7
    wanted = job.imported.source.torch_module().double()(torch.from_numpy(ids), use_cache=False).logits
    assert relative_error(torch.from_numpy(np.asarray(found, np.float64)), wanted.detach()) <= gate_of(
        torch.bfloat16, 0
    )


def test_a_head_that_shares_its_weight_gets_a_packed_one_of_its_own(tmp_path):
    folder = write_config(tmp_path, "llama", tie_word_embeddings=True)
    source = open_model(folder, random_weights=3, dtype="bf16", quantize="int4:group=16,head")
    built = source.torch_module()
    assert built.lm_head.weight_words.dtype == torch.int32 and set(source.weights) == set(built.state_dict())
    for name in ("lm_head.weight_words", "model.embed_tokens.weight"):
        assert torch.equal(source.weights[name], built.state_dict()[name]), name
    (error,) = [e.error for e in source.quantized if e.name == "lm_head"]
    table = built.model.embed_tokens.weight.double()
    assert relative_error(built.lm_head.weight, table) == pytest.approx(error, rel=1e-6)


def test_what_cannot_be_quantized_is_refused(tmp_path):
    with pytest.raises(MlircError, match="no linear layer"):
        packed_as(from_torch(torch.nn.ReLU(), (tensor(2),)), "int8")
    program = torch.export.export(Layer(4, 4, torch.float32), (tensor(2, 4, dtype=torch.float32),))
    torch.export.save(program, tmp_path / "m.pt2")
    with pytest.raises(MlircError, match="the archive fixes"):
        open_model(str(tmp_path / "m.pt2"), quantize="int8")
    with pytest.raises(MlircError, match="computes in torch.float64"):
        packed_as(from_torch(Layer(4, 4, torch.float64), (tensor(2, 4, dtype=torch.float64),)), "int8")
