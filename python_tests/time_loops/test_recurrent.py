"""Recurrent layers are loops over time steps, at every level and in the launch plan, and equal PyTorch's."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.utils import rnn

from mlirc.host.tensors import run_level
from mlirc.tools.mlirc import main
from support.models.planned import run_plan
from support.models.recurrent import STEP_BY_STEP, assert_right, compiled, leaves

# class, sizes of input and state, options of the layer, (steps, batch) or (steps,), whether initial states are given
LAYERS = {
    "lstm": ("LSTM", 8, 16, {}, (6, 2), False),
    "lstm of odd sizes, both ways": ("LSTM", 5, 7, dict(num_layers=2, bidirectional=True), (7, 3), True),
    "lstm with a projection": ("LSTM", 3, 11, dict(proj_size=4, batch_first=True, bias=False), (3, 5), True),
    "gru of two layers": ("GRU", 8, 12, dict(num_layers=2, dropout=0.5), (5, 1), True),
    "gru both ways": ("GRU", 1, 3, dict(bidirectional=True, batch_first=True, bias=False), (2, 3), False),
    "rnn": ("RNN", 5, 4, dict(bidirectional=True), (4, 3), True),
    "rnn with relu": ("RNN", 2, 1, dict(nonlinearity="relu"), (13,), False),
    "one step": ("LSTM", 5, 7, dict(num_layers=2), (1, 2), True),
    "no batch": ("GRU", 3, 5, dict(bidirectional=True, num_layers=2), (3,), True),
}  # fmt: skip


def layer(name: str) -> tuple[torch.nn.Module, tuple]:
    """The layer and its example inputs."""
    kind, width, state, options, sizes, given = LAYERS[name]
    torch.manual_seed(len(name))
    module = getattr(torch.nn, kind)(width, state, **options).eval()
    x = torch.randn(*sizes, width)
    if options.get("batch_first") and len(sizes) == 2:
        x = x.transpose(0, 1).contiguous()
    if not given:
        return module, (x,)
    rows = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    h = torch.randn(rows, *sizes[1:], options.get("proj_size") or state)
    return module, (x, (h, torch.randn(rows, *sizes[1:], state)) if kind == "LSTM" else h)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_pytorch_at_every_level_and_in_the_plan(name):
    module, args = layer(name)
    job = compiled(module, args)
    with torch.no_grad():
        wanted = leaves(module(*args))
    for level in ("linalg", "kernels", "tiles"):
        assert_right(run_level(job.modules[level], leaves(args), job.tensors()), wanted)
    assert_right(run_plan(job, leaves(args)), wanted)


@pytest.mark.parametrize("name", ["lstm", "gru both ways"])
def test_the_host_device_runs_every_step(name):
    module, args = layer(name)
    result = compiled(module, args).check(["gpu"], kinds=["plain"])
    assert result.ok, result


def test_time_steps_are_launched_and_not_compiled_one_by_one():
    """512 steps are the kernels of a few: one loop in the plan of three launches a step, and no copies."""
    torch.manual_seed(0)
    module, x = torch.nn.LSTM(5, 8), torch.randn(512, 1, 5)
    job = compiled(module.eval(), (x,), schedules=STEP_BY_STEP)
    few = compiled(module.eval(), (x[:3],), schedules=STEP_BY_STEP)
    assert len(job.builds) == len(few.builds)
    assert [dataclasses.replace(r, first=0) for r in job.plan.repeats] == [type(job.plan.repeats[0])(0, 3, 512)]
    assert len(job.ptx) < 2 * len(few.ptx)
    with torch.no_grad():
        wanted = leaves(module(x))
    assert_right(run_level(job.modules["tiles"], [x], job.tensors()), wanted)
    assert_right(run_plan(job, [x]), wanted)


def test_layers_of_a_network_share_their_loop():
    """What stands before, between and behind; two layers of one shape are one loop and one step."""

    class Tagger(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(11, 6)
            self.first, self.second = torch.nn.GRU(6, 6, batch_first=True), torch.nn.GRU(6, 6, batch_first=True)
            self.head = torch.nn.Linear(6, 3)

        def forward(self, tokens):
            x, last = self.first(self.embedding(tokens))
            x, _ = self.second(torch.relu(x), last)
            return self.head(x).softmax(-1)

    torch.manual_seed(3)
    module, tokens = Tagger().eval(), torch.tensor([[1, 5, 10, 0, 7], [2, 2, 3, 9, 4]])
    job = compiled(module, (tokens,), schedules=STEP_BY_STEP)
    assert job.text("linalg").count("mlirc.loop") == 1
    assert len(job.plan.repeats) == 2
    with torch.no_grad():
        wanted = [module(tokens)]
    assert_right(run_level(job.modules["tiles"], [tokens], job.tensors()), wanted)
    assert_right(run_plan(job, [tokens]), wanted)


def test_steps_that_depend_on_constants_alone_run_at_load():
    class Positions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = torch.nn.RNN(4, 4)
            for name, value in list(self.rnn.named_parameters()):
                delattr(self.rnn, name)
                self.rnn.register_buffer(name, value.detach(), persistent=False)
            self.register_buffer("table", torch.randn(6, 1, 4), persistent=False)

        def forward(self, x):
            return x + torch.ops.aten.rnn_tanh.input(
                self.table, torch.zeros(1, 1, 4), [self.rnn.weight_ih_l0, self.rnn.weight_hh_l0], False, 1, 0.0, False,
                False, False)[0]  # fmt: skip

    torch.manual_seed(4)
    module, x = Positions().eval(), torch.randn(6, 1, 4)
    job = compiled(module, (x,), schedules=STEP_BY_STEP)
    [loop] = job.plan.repeats
    assert loop.first + loop.length * loop.count <= job.plan.setup < len(job.plan.steps)
    assert_right(run_plan(job, [x]), [module(x)])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float64, 1e-9)])
def test_other_float_types(dtype, tolerance):
    torch.manual_seed(5)
    module, x = torch.nn.GRU(5, 9).eval().to(dtype), torch.randn(9, 2, 5, dtype=dtype)
    job = compiled(module, (x,), "tiles")
    got = run_level(job.modules["tiles"], [x], job.tensors())
    wanted = module.double()(x.double())
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == dtype
        torch.testing.assert_close(g.double(), w, rtol=tolerance, atol=tolerance)


class Packed(torch.nn.Module):
    """A recurrent layer on packed sequences; `total` is how long its padded output is, `data` returns the packed one."""

    def __init__(self, kind: str = "LSTM", total: int | None = None, data: bool = False, sort: bool = True, **options):
        super().__init__()
        self.rnn = getattr(torch.nn, kind)(3, 4, **options)
        self.total, self.data, self.sort = total, data, sort

    def forward(self, x, lengths, *states):
        first = self.rnn.batch_first
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=self.sort)
        out, last = self.rnn(packed, *([states if len(states) > 1 else states[0]] if states else []))
        if self.data:
            return out.data
        return rnn.pad_packed_sequence(out, first, padding_value=-7.0, total_length=self.total), last


def make_packed_without_a_length():
    return Packed().eval(), (torch.randn(4, 2, 3), torch.tensor([4, 2]))


def make_packed_data():
    return Packed(data=True).eval(), (torch.randn(4, 2, 3), torch.tensor([4, 2]))


@pytest.mark.parametrize("model, line", [("without_a_length", "total_length=x.size(1)"), ("data", "total_length=...")])
def test_what_has_a_size_by_values_is_refused_in_words(ran, model, line):
    error = ran(main, f"{__name__}:make_packed_{model}", "--emit", "linalg").error
    assert line in error and "test_recurrent.py" in error
    assert isinstance(rnn.pack_sequence([torch.ones(2)]).data, torch.Tensor)  # PyTorch is as it was


@pytest.mark.parametrize(
    "kind, options, lengths, states",
    [
        ("LSTM", dict(total=7), [7, 5, 5, 1, 1], 0),
        ("LSTM", dict(total=9, batch_first=True, sort=False, bidirectional=True, num_layers=2), [2, 7, 1, 5, 3], 2),
        ("LSTM", dict(total=7, sort=False, proj_size=2, bias=False), [1, 1, 1, 1, 1], 0),
        ("GRU", dict(total=7, sort=False, bidirectional=True), [3, 6, 6, 2, 4], 1),
        ("RNN", dict(total=8, batch_first=True, nonlinearity="relu", num_layers=2), [6, 6, 4, 2, 1], 0),
    ],
)  # fmt: skip
def test_packed_sequences(kind, options, lengths, states):
    torch.manual_seed(len(lengths))
    module = Packed(kind, **options).eval()
    x = torch.randn(5, 7, 3) if module.rnn.batch_first else torch.randn(7, 5, 3)
    rows = module.rnn.num_layers * (2 if module.rnn.bidirectional else 1)
    given = [torch.randn(rows, 5, 4) for _ in range(states)]
    job = compiled(module, (x, torch.tensor([7, 4, 2, 1, 1]), *given), "tiles")
    inputs = [x, torch.tensor(lengths), *given]
    got = run_level(job.modules["tiles"], inputs, job.tensors())
    wanted = leaves(module(*inputs))
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.as_tensor(g), w)


def test_dropout_in_training_is_between_the_layers():
    """A dropout of all leaves the second layer nothing of the first; one of a half is drawn."""
    torch.manual_seed(6)
    x = torch.randn(3, 2, 4)
    for p in (1.0, 0.5):
        module = torch.nn.LSTM(4, 4, 2, dropout=p).train()
        program = torch.export.export(module, (x,), strict=False)
        job = compiled(program.module(), (x,), "kernels")
        assert ("mlirc.random" in job.text("linalg")) == (p == 0.5)
        if p == 1.0:
            wanted = leaves(module(x))
            assert_right(run_level(job.modules["kernels"], [x], job.tensors()), [w.detach() for w in wanted])


def test_rwkv_loops_over_its_tokens_and_keeps_its_own_code_where_that_differs(monkeypatch):
    """The recurrence of a Hugging Face model is a loop, with every other thing of the model around it."""
    from transformers import RwkvConfig, RwkvModel
    from transformers.models.rwkv import modeling_rwkv

    from mlirc.frontend.recurrences import FUNCTIONS, agrees

    torch.manual_seed(7)
    config = RwkvConfig(vocab_size=31, context_length=64, hidden_size=12, num_hidden_layers=2, use_cache=False)
    module, tokens = RwkvModel(config).eval(), torch.randint(0, 31, (2, 11))
    own = modeling_rwkv.rwkv_linear_attention_cpu
    job = compiled(module, (tokens,))
    assert modeling_rwkv.rwkv_linear_attention_cpu is own
    assert job.text("linalg").count("mlirc.loop") == 1 and len(job.plan.repeats) == 2
    with torch.no_grad():
        wanted = [module(tokens).last_hidden_state]
    assert_right(run_level(job.modules["tiles"], [tokens], job.tensors()), wanted)
    assert_right(run_plan(job, [tokens]), wanted)
    ours, calls = FUNCTIONS["rwkv_linear_attention_cpu"]
    assert agrees(own, ours, calls())
    assert not agrees(
        lambda decay, first, key, value, **kwargs: own(decay + 1, first, key, value, **kwargs), ours, calls()
    )
    assert not agrees(lambda decay: decay, ours, calls())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["Mamba", "FalconMamba"])
def test_selective_scans_are_no_steps_one_by_one(kind, dtype):
    """A layer's scan, with what its outputs are made of, is one kernel, however many tokens there are."""
    import transformers

    torch.manual_seed(11)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=31, hidden_size=24, state_size=5, num_hidden_layers=2, use_cache=False
    )
    module = getattr(transformers, f"{kind}Model")(config).eval().to(dtype)
    tokens = torch.randint(0, 31, (2, 37))
    job = compiled(module, (tokens,))
    assert job.text("kernels").count("call @scan_") == 2 and "mlirc.loop" not in job.text("linalg")
    with torch.no_grad():
        expected = module(tokens).last_hidden_state
        wide = module.double()(tokens).last_hidden_state
    result = torch.as_tensor(run_level(job.modules["tiles"], [tokens], job.tensors())[0]).double()
    own = torch.linalg.vector_norm(expected.double() - wide)
    assert torch.linalg.vector_norm(result - wide) <= 2 * own + 1e-5 * torch.linalg.vector_norm(wide)


def test_the_last_state_of_a_selective_scan():
    from transformers.models.jamba import modeling_jamba
    from transformers.models.zamba import modeling_zamba

    from mlirc.frontend.recurrences import FUNCTIONS, agrees

    ours, calls = FUNCTIONS["mamba_selective_scan"]
    for own in (modeling_jamba.mamba_selective_scan, modeling_zamba.mamba_selective_scan):
        assert agrees(own, ours, calls())
    assert not agrees(lambda *a, **k: own(*a, **{**k, "D": None}), ours, calls())


def test_an_empty_batch():
    module, x = torch.nn.LSTM(5, 8).eval(), torch.randn(4, 0, 5)
    job = compiled(module, (x,))
    assert_right(
        run_level(job.modules["tiles"], [x], job.tensors()), [torch.empty(4, 0, 8)] + 2 * [torch.empty(1, 0, 8)]
    )
    assert not job.plan.steps
