"""Products of queries, keys and values whose blocks rotate and write the rows: beside transformers' `generate`."""

from __future__ import annotations

import re

import pytest

from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.generate.compilation import compile_generation
from mlirc.generate.export import exported, open_generator
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


def kernels_of(name: str, quantize: str | None = None, **sizes) -> list[str]:
    """The kernels of a decoding step of one sequence."""
    made = open_generator(tiny(name, **sizes), slots=1, context=40, page_size=8, chunks=(1,), quantize=quantize)
    job = Compilation(name, get_target(DEFAULT_TARGET), (), None)
    job.import_source(exported(made, "decode"))
    job.lower("kernels")
    return calls(job.text("kernels"))


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


@pytest.mark.parametrize("name, quantize", [("GPTNeoXForCausalLM", None), ("LlamaForCausalLM", "int8")])
def test_rotations_of_parts_of_heads_and_packed_weights_keep_a_launch(name, quantize):
    found = kernels_of(name, quantize, num_hidden_layers=1)
    assert found[found.index("attention") - 1] == "bundle", found


def test_the_pass_has_no_options():
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        with pytest.raises(MlircError, match="mlirc-fuse-row-writes has no options"):
            get_pass("mlirc-fuse-row-writes")(module, heads="2")
