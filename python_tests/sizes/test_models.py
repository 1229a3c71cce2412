"""Whole models, each compiled once and run at many sizes: transformers, archives with dynamic shapes, conditions."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn
from torch.export import Dim

from mlirc.check.run import check_job
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend.sizes.rules import reductions
from mlirc.targets import DEFAULT_TARGET, get_target
from support.models.together import randn
from support.randomness import generator
from support.sizes import Of, agree, compiled, runner

TINY = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=101)


def tokens(*shape: int) -> torch.Tensor:
    return torch.from_numpy(generator().integers(0, TINY["vocab_size"], shape))


class Logits(nn.Module):
    """A causal model's logits of tokens."""

    def __init__(self):
        super().__init__()
        self.model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, num_key_value_heads=2))

    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


def test_a_causal_model_takes_every_length():
    module = Logits().eval()
    job = compiled(module, (tokens(2, 5),), {"ids": "b<=2, s<=37"})
    assert 'mlirc.conditions = ""' in str(job.modules["torch"]), "one token, and one sequence, are no other program"
    agree(runner(job), module, [(tokens(b, s),) for b, s in ((1, 1), (2, 1), (1, 2), (2, 7), (1, 33), (2, 37))])


class Encoder(nn.Module):
    """BERT's hidden states at the visible tokens, and their mean."""

    def __init__(self):
        super().__init__()
        self.model = transformers.BertModel(transformers.BertConfig(**TINY), add_pooling_layer=False)

    def forward(self, ids, mask):
        hidden = self.model(ids, attention_mask=mask).last_hidden_state
        seen = mask[..., None].to(hidden.dtype)
        return hidden * seen, (hidden * seen).sum(1) / seen.sum(1)


def test_an_encoder_with_padding_of_its_own():
    module = Encoder().eval()
    job = compiled(module, (tokens(2, 5), torch.ones(2, 5, dtype=torch.int64)), {"ids": "b<=3, s<=19", "mask": "b, s"})

    def inputs(b, s):
        lengths = torch.from_numpy(generator().integers(1, s + 1, (b, 1)))
        return tokens(b, s), (torch.arange(s) < lengths).long()

    run = runner(job)
    agree(run, module, [inputs(b, s) for b, s in ((1, 1), (3, 2), (2, 7), (3, 19))])
    with pytest.raises(
        MlircError, match="dimension 1 of input 'mask' is 4, but must be s: s is 5 by dimension 1 of input"
    ):
        run(tokens(2, 5), torch.ones(2, 4, dtype=torch.int64))


def test_an_archive_with_dynamic_shapes(tmp_path):
    module = Of(lambda m, x: m.parts[0](x).softmax(0), nn.Linear(7, 5)).eval()
    shapes = {"x": {0: Dim("rows", max=64)}}
    torch.export.save(torch.export.export(module, (randn(4, 7),), dynamic_shapes=shapes), tmp_path / "model.pt2")
    job = Compilation("model", get_target(DEFAULT_TARGET))
    job.import_model(str(tmp_path / "model.pt2"), inputs=["x=f32[n<=11,7]"])
    agree(runner(job), module, [(randn(n, 7),) for n in (1, 2, 11)])
    with pytest.raises(MlircError, match="n is 12, but the model was compiled for 1 to 11"):
        runner(job)(randn(12, 7))


def test_dims_of_torch_export():
    module = Of(lambda m, x: x.mean(0))
    job = compiled(module, (randn(4, 7),), dynamic_shapes={"x": {0: Dim("n", min=2, max=9)}})
    agree(runner(job), module, [(randn(n, 7),) for n in (2, 5, 9)])
    with pytest.raises(MlircError, match="n is 1, but the model was compiled for 2 to 9"):
        runner(job)(randn(1, 7))
    with pytest.raises(MlircError, match="has no bound of its own: give torch.export.Dim\\('n', max=...\\)"):
        compiled(module, (randn(4, 7),), dynamic_shapes={"x": {0: Dim("n")}})


def test_what_the_path_depends_on_is_a_condition():
    module = Of(lambda m, x: x * 2 if x.shape[0] % 3 == 0 else x)
    run = runner(compiled(module, (randn(3, 2),), {"x": "n<=9, 2"}))
    agree(run, module, [(randn(n, 2),) for n in (3, 6, 9)])
    with pytest.raises(MlircError, match="compiled for \\(n % 3\\) == 0, which n = 4 does not fulfil"):
        run(randn(4, 2))
    path = Of(lambda m, x: x * 2 if x.shape[0] == 1 else x + 1)
    run = runner(compiled(path, (randn(3, 2),), {"x": "n<=9, 2"}))
    agree(run, path, [(randn(n, 2),) for n in (2, 9)])
    with pytest.raises(MlircError, match="compiled for n != 1"):
        run(randn(1, 2))
    with pytest.raises(MlircError, match="takes another path, or fails, for some of these sizes: PyTorch suggests n ="):
        compiled(Of(lambda m, x: x * 2 if x.shape[0] > 4 else x), (randn(3, 2),), {"x": "n<=9, 2"})


def test_a_model_that_writes_has_fixed_sizes():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count += 1
            return x + self.count

    with pytest.raises(MlircError, match="a model that writes to its buffers or inputs has fixed sizes"):
        compiled(Counts(), (randn(3, 2),), {"x": "n<=9, 2"})


@pytest.mark.parametrize("broken", [False, True])
def test_a_check_runs_several_sizes_and_finds_padding_that_shows(broken, monkeypatch):
    if broken:
        monkeypatch.setattr(reductions, "filled", lambda w, x, dims, value: x)
    job = compiled(Of(lambda m, x: x.sum(0)), (randn(9, 2),), {"x": "n<=9, 2"})
    result = check_job(job, ["linalg"], kinds=["plain", "n=1", "n=5", "n=8"])
    assert result.kinds == ["plain", "n=1", "n=5", "n=8"]
    wrong = [kind for kind, found in result.differences["linalg"].items() if found.wrong]
    assert wrong == (["n=1", "n=5", "n=8"] if broken else [])


def test_a_size_with_the_name_of_a_weight_is_refused():
    module = Of(lambda m, x: x * m.s)
    module.s = nn.Parameter(torch.ones(8))
    with pytest.raises(MlircError, match="the size 's' has the name of an input or a weight: give it another"):
        compiled(module, (randn(1, 2, 8),), {"x": "b<=3, s<=7, 8"})
