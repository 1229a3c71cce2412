"""TorchScript archives that are damaged, or whose code reaches out of its arguments: refused, and nothing runs."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from mlirc.errors import MlircError
from mlirc.frontend import open_model
from mlirc.frontend.judge.archive import Archive
from mlirc.frontend.judge.torchscript import judge_torchscript
from support.hostile.archives import changed, members, pack, touching_pickle
from support.models.small import check


def saved(module, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module.eval()), path)
    return path


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 5)

    def forward(self, x):
        return torch.relu(self.fc(x)) + x.sum()


class Many(torch.nn.Module):
    """Operators of many kinds, some of which take strings."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(
            [torch.nn.Conv2d(3, 4, 3, padding="same"), torch.nn.BatchNorm2d(4), torch.nn.GELU("tanh")]
        )
        self.table = torch.nn.Embedding(7, 5)
        self.rnn = torch.nn.LSTM(5, 3, batch_first=True)
        self.load = torch.nn.Dropout(0.5)

    def forward(self, x, ids):
        # type: (Tensor, Tensor) -> Tuple[Tensor, Dict[str, Tensor]]
        for part in self.parts:
            x = part(x)
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        y, _ = self.rnn(self.table(ids))
        z = torch.einsum("bij,bkj->bik", y, y)
        z = torch.div(z, 3.0, rounding_mode="floor") + torch.zeros_like(z)
        if ids.dim() != 2:
            raise ValueError(f"expected {2} dimensions")
        with torch.no_grad():
            w = torch.nn.functional.pad(z, [1, 1], mode="constant", value=0.0)
        sizes = [int(n) for n in w.shape]
        return x.flatten(1), {"a": w.softmax(-1), "b": torch.tensor(sizes)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return members(saved(Net(), tmp_path_factory.mktemp("script") / "net.pt"))


@pytest.fixture
def marker(tmp_path):
    yield tmp_path / "marker"
    assert not (tmp_path / "marker").exists(), "the file ran code"


def error(path, **options) -> str:
    with pytest.raises(MlircError) as caught:
        open_model(str(path), inputs=["x=f32[2,6]"], **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    return str(caught.value)


def code(parts) -> str:
    return next(name for name in parts if name.endswith("test_torchscript.py"))


def test_sound_archives(sound, tmp_path):
    check(open_model(str(pack(tmp_path / "net.pt", sound)), inputs=["x=f32[2,6]"]))
    check(open_model(str(pack(tmp_path / "net.pt", sound, compress=True)), inputs=["x=f32[2,6]"]))


def test_common_operators_are_let_through(tmp_path):
    models = [Many(), torch.nn.TransformerEncoderLayer(8, 2, 16), torch.nn.MultiheadAttention(8, 2), torch.nn.GRU(3, 4),
              torch.nn.Sequential(torch.nn.GroupNorm(2, 4), torch.nn.PReLU(), torch.nn.AdaptiveAvgPool2d(2), torch.nn.Upsample(2))]  # fmt: skip
    for model in models:
        path = saved(model, tmp_path / "m.pt")
        with Archive(path, "m.pt") as archive:
            judge_torchscript(archive, trusted=False)


BODIES = [
    '_9 = torch.from_file("MARKER", True, 4)', '_9 = ops.aten.from_file("MARKER", True, 4)', 'torch.save(x, "MARKER")',
    'x.save("MARKER")', '(x).save("MARKER")', 'x.\n    save("MARKER")', 'getattr(x, "save")("MARKER")', "x = torch. from_file",
    'getattr(x, "s\\x61ve")("MARKER")', 'ops.debugprims.load_tensor("MARKER", [1], [1], dtype=6, device="cpu")',
    'ops.profiler._record_function_enter("x", None)', "ops.prim.PythonOp(x)", 'ops.prim.rpc_sync("x", "y")', 'rpc_async("x")',
    'y = __torch__.torch.classes.quantized.Linear(x)', "torch.hub(x)", "torch.no_such_thing(x)", "ops.aten.no_such_thing(x)",
    "y = ops.aten", "y = ops", 'y = """\n"""', "y = 'x'", "# torch", "y = \\\n  torch", "y = $x", "y = `x`", "\ty = x", "y = é",
    'y = r"x"', 'torch.symm_mem(x)', 'ops.c10d.barrier(x)', 'ops.inductor._alloc_from_pool(x)', "torch.load(x)",
]  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_code(sound, tmp_path, marker, body):
    name = code(sound)
    text = sound[name].decode()
    line = next(x for x in text.split("\n") if x.startswith("    return "))
    text = text.replace(line, f"    {body.replace('MARKER', str(marker))}\n{line}")
    error(changed(tmp_path / "net.pt", sound, name, text.encode()))


def test_a_file_that_the_parent_made_of_from_file(tmp_path, marker):
    class Reads(torch.nn.Module):
        def __init__(self, name: str):
            super().__init__()
            self.name = name

        def forward(self, x):
            return x + torch.from_file(self.name, shared=True, size=2)

    path = saved(Reads(str(marker)), tmp_path / "m.pt")
    assert "from_file" in error(path)


class Endless(torch.nn.Module):
    def forward(self, x):
        i = 0
        while True:
            i += 1
        return x


class Longer(torch.nn.Module):
    def forward(self, x):
        s = "a"
        for _ in range(60):
            s = s + s
        return x + len(s)


@pytest.mark.parametrize("module", [Endless, Longer])
def test_loops_over_constants(tmp_path, module):
    assert "a loop in it cannot be converted" in error(saved(module(), tmp_path / "m.pt"))


def test_setstate(tmp_path, marker):
    class State(torch.nn.Module):
        @torch.jit.export
        def __getstate__(self):
            return (1, self.training)

        @torch.jit.export
        def __setstate__(self, state: tuple[int, bool]):
            while True:
                self.training = state[1]

        def forward(self, x):
            return x

    assert "__setstate__" in error(saved(State(), tmp_path / "m.pt"))


def test_pickles(sound, tmp_path, marker):
    path = tmp_path / "net.pt"
    for name in ("data.pkl", "constants.pkl", code(sound) + ".debug_pkl"):
        for data in (
            touching_pickle(marker),
            b"",
            b"\x80\x02",
            sound["data.pkl"][:-9],
            b"\x80\x02cos\nsystem\n.",
            b"\x80\x05" + bytes(9),
        ):
            if name.endswith("debug_pkl") and data.endswith(b"system\n."):
                continue
            error(changed(path, sound, name, data))
    object_ = b"\x80\x02c__torch__.torch.classes.quantized\nLinear\n)\x81."
    assert "classes" in error(changed(path, sound, "data.pkl", object_))


def test_damaged_storages(sound, tmp_path):
    for data in (b"", sound["data/0"][:-4], sound["data/0"] + bytes(4), None):
        assert "bytes in place of" in error(changed(tmp_path / "net.pt", sound, "data/0", data))
    pickled = sound["data.pkl"]
    for old, new in ((b"K\x05K\x06t", b"K\x09K\x06t"), (b"K\x06K\x01t", b"K\x99K\x01t")):
        assert old in pickled
        assert "larger than its data" in error(
            changed(tmp_path / "net.pt", sound, "data.pkl", pickled.replace(old, new))
        )


def test_other_members(sound, tmp_path):
    for name in ("model.json", "bytecode.pkl", "code/x.so", "data/x", "code/../x.py", "extra", "x.pkl"):
        error(changed(tmp_path / "net.pt", sound, name, b"x"))
    assert open_model(str(changed(tmp_path / "net.pt", sound, "extra/notes.txt", b"x")), inputs=["x=f32[2,6]"])


def test_flipped_bytes(sound, tmp_path):
    path = tmp_path / "net.pt"
    good = pack(path, sound).read_bytes()
    rng = random.Random(5)
    for _ in range(80):
        at = rng.randrange(len(good))
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :])
        try:
            with Archive(path, "net.pt") as archive:
                judge_torchscript(archive, trusted=False)
        except MlircError as e:
            assert "\n" not in str(e)


def test_the_flag(tmp_path):
    class Seeds(torch.nn.Module):
        def forward(self, x):
            torch.manual_seed(3)
            return x * 2

    path = saved(Seeds(), tmp_path / "m.pt")
    assert "--allow-pickle" in error(path)
    assert "--allow-pickle" not in str(error_or_model(path))


def error_or_model(path):
    try:
        return open_model(str(path), inputs=["x=f32[2,6]"], allow_pickle=True)
    except MlircError as e:
        return e
