"""`mlirc.compile` in one process, and the `mlirc` program on model files; a GPU's work is done by a stand-in."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch

import mlirc
from mlirc.errors import MlircError
from mlirc.runtime import plan_file
from mlirc.timing import Progress, Timer
from mlirc.tools.mlirc import main
from support.devices.fake_gpu import FakeDriver, at


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(7.0))

    def forward(self, x):
        return x * self.weight


class Kernels(dict):
    """Whatever the one kernel is called, it does what `Scale` does."""

    def __missing__(self, symbol):
        def kernel(*pointers):
            sizes = {id(p): p for p in pointers}
            assert len(sizes) == 3
            x, w, y = at(pointers[0], 35), at(pointers[1], 7), at(pointers[2], 35)
            y[...] = (x.reshape(5, 7) * w).reshape(-1)

        return kernel


def test_compile_binds_the_modules_own_weights():
    module, x = Scale(), torch.randn(5, 7)
    model = mlirc.compile(module, (x,), target="sm_90a", driver=FakeDriver(Kernels()))
    np.testing.assert_allclose(model(x.numpy()), (x * module.weight).detach().numpy())
    model.close()


def test_compile_without_a_gpu_says_what_to_do():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(MlircError, match="--level"):
        mlirc.compile(Scale(), (torch.randn(5, 7),))


def test_the_host_device_needs_no_gpu_and_no_driver(monkeypatch):
    """It asks torch for no GPU, even where there is one, and loads no CUDA driver; a change of a weight shows."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: pytest.fail("asked for the GPU"))
    monkeypatch.setattr("mlirc.runtime.model.Driver", lambda *_: pytest.fail("loaded the driver"))
    module, x = Scale().eval(), torch.randn(5, 7)
    model = mlirc.compile(module, (x,), device="host")
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(model(x), module(x)) and isinstance(model(x.numpy()), np.ndarray)
            module.weight += 1
    tried = "tried on 5 sets of made-up inputs"
    judged = "judged 100 % of elements"
    assert (
        model.summary() == f"1 kernel, 1 block, 1 input, compared with level kernels, {judged}, {tried}, plan checked"
    )


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(device="cuda:0"), "device 'cuda:0': give a GPU's number, or 'host'"),
        (dict(device=-1), "device '-1': give"),
        (dict(device=None), "device 'None': give"),
        (dict(device="host", blocks=[0]), "unknown option 'blocks' of device 'host'"),
    ],
)
def test_devices_that_are_none_are_errors(options, message):
    with pytest.raises(MlircError, match=message):
        mlirc.compile(Scale(), (torch.randn(5, 7),), **options)
    if "blocks" not in options:
        with pytest.raises(MlircError, match=message):
            mlirc.load("nowhere.ptx", **options)


def test_compile_takes_schedules():
    driver = FakeDriver(Kernels())
    module, x = Scale(), torch.randn(5, 7)
    with pytest.raises(MlircError, match="no knob 'no_such'"):
        mlirc.compile(module, (x,), target="sm_90a", schedule=["elementwise:no_such=1"], driver=driver)


def archive(path, corrupt=False):
    torch.export.save(torch.export.export(Scale().eval(), (torch.randn(5, 7),)), path)
    if corrupt:
        path.write_bytes(path.read_bytes()[:-400])


def test_an_archive_becomes_three_files(ran, tmp_path):
    archive(tmp_path / "scale.pt2")
    result = ran(main, tmp_path / "scale.pt2", "-o", tmp_path / "out.ptx")
    assert result.status == 0 and result.err == "" and result.out == ""
    found = plan_file.extract((tmp_path / "out.ptx").read_text())
    assert [s.name for s in found.weights] == ["weight"]
    from safetensors.torch import load_file

    assert torch.equal(load_file(tmp_path / "out.safetensors")["weight"], torch.arange(7.0))
    assert sorted(p.name for p in (tmp_path / "out.levels").iterdir())[-1] == "tiles.mlir"
    result = ran(main, tmp_path / "scale.pt2", "-o", tmp_path / "bare.ptx", "--weights", "none")
    assert result.status == 0 and not (tmp_path / "bare.safetensors").exists()


def test_the_torch_level_is_taken_back(ran, tmp_path):
    archive(tmp_path / "scale.pt2")
    emitted = ran(main, tmp_path / "scale.pt2", "--emit", "torch")
    assert "torch.aten.mul.Tensor" in emitted.out
    (tmp_path / "torch.mlir").write_text(emitted.out)
    again = ran(main, tmp_path / "torch.mlir", "--emit", "linalg")
    assert again.status == 0, again.err
    assert again.out == ran(main, tmp_path / "scale.pt2", "--emit", "linalg").out


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("missing.pt2", [], "missing.pt2"),
        ("truncated.pt2", [], "truncated.pt2"),
        ("text.pt", [], "text.pt"),
        ("zip.pt", [], "zip.pt"),
        ("pickled.pt", [], "--allow-pickle"),
        ("good.pt2", ["--input", "y=f32[5,7]"], "'y'"),
        ("good.pt2", ["--input", "x=f16[5,7]"], "f16"),
        ("good.pt2", ["--input", "x=f32[5,8]"], "5,"),
        ("good.pt2", ["--input", "x"], "--input"),
        ("good.pt2", ["--dtype", "f31"], "f31"),
        ("no.such.module:make", [], "no.such.module"),
    ],
)
def test_bad_models_are_one_line_and_leave_nothing(ran, tmp_path, name, words, message):
    models, out = tmp_path / "models", tmp_path / "out"
    models.mkdir()
    out.mkdir()
    archive(models / "good.pt2")
    archive(models / "truncated.pt2", corrupt=True)
    (models / "text.pt").write_text("not a model")
    with zipfile.ZipFile(models / "zip.pt", "w") as z:
        z.writestr("readme.txt", "not a model either")
    torch.save(Scale(), models / "pickled.pt")
    spec = name if ":" in name else models / name
    result = ran(main, spec, "-o", out / "x.ptx", *words)
    assert message in result.error
    assert list(out.iterdir()) == []


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, True), (io.StringIO, False)])
def test_progress_is_for_terminals(monkeypatch, stream, shown):
    err = stream()
    monkeypatch.setattr("mlirc.timing.PROGRESS_DELAY", 0.01)
    monkeypatch.setattr("sys.stderr", err)
    progress = Progress()
    timer = Timer(progress)
    with timer.step("kernels"):
        if shown:
            progress._timer.join()  # the line appears in a thread of its own
        timer.advance(3, 7)
    progress.close()
    assert ("kernels" in err.getvalue()) == shown
    assert list(timer.seconds) == ["kernels"]


def test_a_kernel_build_survives_the_cache_format(tmp_path):
    from mlirc.backend.kernel import Copy, Launch
    from mlirc.driver.kernel_build import KernelBuild, KernelJob
    from mlirc.driver.kernel_cache import KernelCache

    job = KernelJob("k", "text", "identity", "tiles", "sm_90a")
    launches = [Launch("k_0", (4, 2, 1), (32, 1, 1), 128, [0, 1], [0, 16], (2, 1, 1)), Copy(0, 1, 64)]
    build = KernelBuild("k", "gpu", "llvm", "ptx", launches, [256], {"gpu": 1.0})
    cache = KernelCache(tmp_path / "cache")
    assert cache.get(job) is None
    cache.put(job, build)
    found = cache.get(job)
    assert found == build and found.cached
    assert pickle.loads(pickle.dumps(found)) == build
