"""Products of queries, keys and values whose blocks rotate and write the rows: beside transformers' `generate`."""

from __future__ import annotations

import copy
import re

import numpy as np
import pytest
import torch

from mlirc.bench.generation.build import pack_weights
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.generate.compilation import CompiledGenerator, compile_generation
from mlirc.generate.engine import Sampling
from mlirc.generate.export import exported, open_generator
from mlirc.generate.plan_engine import PlanEngine
from mlirc.mlir import context, ir
from mlirc.passes import get_pass
from mlirc.targets import DEFAULT_TARGET, get_target
from support.generation import VOCABULARY, assert_greedy, greedy, tiny
from support.randomness import generator

ODD = dict(hidden_size=66, num_attention_heads=3, num_key_value_heads=1, head_dim=10, attention_bias=True)
OPT = dict(ffn_dim=96, word_embed_proj_dim=64)


def calls(text: str) -> list[str]:
    """The kinds of the kernels that @main of a `kernels` level calls, in order."""
    main = text.split("func.func private")[0]
    return [re.sub(r"_\d+$", "", name) for name in re.findall(r"call @(\w+)\(", main)]


def decoding(
    model: torch.nn.Module, quantize: str | None = None, level: str = "kernels", schedules: tuple[str, ...] = ()
) -> CompiledGenerator:
    """A decoding step of one sequence."""
    made = open_generator(model, slots=1, context=24, page_size=5, chunks=(1,), quantize=quantize)
    job = Compilation("decode", get_target(DEFAULT_TARGET), schedules, None, helpers=0)
    job.import_source(exported(made, "decode"))
    job.lower(level)
    return CompiledGenerator(made, {"decode": job}, None)


def kernels_of(name: str, quantize: str | None = None, **sizes) -> list[str]:
    """The kernels of a decoding step of one sequence."""
    return calls(decoding(tiny(name, num_hidden_layers=1, **sizes), quantize).jobs["decode"].text("kernels"))


# Halves of five rows and one head of keys, rotated; no rotation. On the host device kernels are checked, too.
@pytest.mark.parametrize(
    "name, sizes, device", [("LlamaForCausalLM", ODD, "host"), ("OPTForCausalLM", OPT, "cpu")], ids=["llama", "opt"]
)
def test_tokens_of_products_that_write(name, sizes, device):
    model = tiny(name, num_hidden_layers=1, **sizes)
    level = "ptx" if device == "host" else "tiles"
    compiled = compile_generation(model, slots=1, context=24, page_size=5, chunks=(1,), level=level)
    for job in compiled.jobs.values():
        found = calls(job.text("kernels"))
        if "attention" in found:
            assert found[found.index("attention") - 1] == "matmul", found
    prompt = [int(t) for t in generator().integers(0, VOCABULARY, 4)]
    [made] = greedy(compiled.engine(device), [prompt], 4)
    assert_greedy(model, prompt, made)


def cache_of(engine: PlanEngine, tokens: list[int]) -> list[torch.Tensor]:
    """Keys and values [heads, tokens, size] of a sequence whose tokens are all read by steps of decoding."""
    pages = engine.sizes.pages_each
    engine.assign(0, list(range(pages, 0, -1)), Sampling(), tokens)
    engine.decode()  # the sequence is not there yet: its rows go nowhere
    assert not np.asarray(engine.models["decode"].state["cache.0.keys"]).any()
    engine._set(0, {"active": 1})
    for at, token in enumerate(tokens):
        engine.rewind(0, token, at)
        engine.decode()
    found = []
    for kind in ("keys", "values"):
        pool = np.asarray(engine.models["decode"].state[f"cache.0.{kind}"]).astype(np.float32)
        rows = pool[pages:0:-1].swapaxes(0, 1)  # [H,T,P,D]
        found.append(torch.from_numpy(rows.reshape(len(rows), -1, rows.shape[3])[:, : len(tokens)].copy()))
    return found


# Heads of 80, 48 and 96; one, seven and three of queries to one of keys; halves of five, three and six panels of words.
# On the host device kernels are checked, too.
@pytest.mark.parametrize(
    "quantize, sizes, device",
    [
        ("int4:group=64", dict(hidden_size=160, num_attention_heads=2, num_key_value_heads=2, head_dim=80), "cpu"),
        (
            "int3:group=32,asymmetric",
            dict(hidden_size=70, num_attention_heads=7, num_key_value_heads=1, head_dim=48, attention_bias=True),
            "host",
        ),
        ("int8:head", dict(hidden_size=72, num_attention_heads=3, num_key_value_heads=1, head_dim=96), "cpu"),
    ],
    ids=["int4", "int3", "int8"],
)
def test_cache_of_packed_products_that_write(quantize, sizes, device):
    model = tiny("LlamaForCausalLM", num_hidden_layers=1, **sizes).to(torch.bfloat16)
    wide = copy.deepcopy(model)
    pack_weights(wide, quantize)
    level = "ptx" if device == "host" else "tiles"
    compiled = decoding(model, quantize, level)
    found = calls(compiled.jobs["decode"].text("kernels"))
    assert found[found.index("attention") - 1] == "matmul", found
    tokens = [int(t) for t in generator().integers(0, VOCABULARY, 6)]
    with torch.no_grad():
        layer = wide(torch.tensor([tokens]), use_cache=True).past_key_values.layers[0]
    for got, want in zip(cache_of(compiled.engine(device), tokens), (layer.keys, layer.values), strict=True):
        assert float((got - want[0]).norm() / want.float().norm()) < 1e-2


# Of heads of 10 a block's eight rows would be of two panels of words.
@pytest.mark.parametrize(
    "name, quantize, sizes",
    [("GPTNeoXForCausalLM", None, {}), ("GPTNeoXForCausalLM", "int8", {}), ("LlamaForCausalLM", "int8", ODD)],
)
def test_rotations_of_parts_of_heads_and_of_parts_of_panels_keep_a_launch(name, quantize, sizes):
    found = kernels_of(name, quantize, **sizes)
    assert found[found.index("attention") - 1] == "bundle", found


def test_packed_weights_in_f32_and_heads_that_are_not_rotated():
    for name, sizes in (("LlamaForCausalLM", {}), ("OPTForCausalLM", OPT)):
        found = kernels_of(name, "int8", **sizes)
        assert found[found.index("attention") - 1] == "matmul", found


def test_products_that_write_are_not_divided():
    model = tiny("LlamaForCausalLM", num_hidden_layers=1).half()
    text = decoding(model, "int8").jobs["decode"].text("kernels").split("func.func private")[0]
    found = re.findall(r"call @(\w+)\(", text)
    name = found[next(i for i, n in enumerate(found) if n.startswith("attention")) - 1]
    with pytest.raises(MlircError, match=f"'{name}': parts=2: blocks that write rows to their places have all of K"):
        decoding(model, "int8", "tiles", (f"{name}:parts=2",))


def test_the_pass_has_no_options():
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with pytest.raises(MlircError, match="mlirc-fuse-row-writes has no options"):
            get_pass("mlirc-fuse-row-writes")(module, heads="2")
