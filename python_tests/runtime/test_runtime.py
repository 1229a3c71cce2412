"""The runtime: binding, weights, graphs and errors on a fake device; the same on the GPU where there is one."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.runtime import load, load_text
from mlirc.runtime.cuda import check_target
from mlirc.runtime.plan import CopyStep, Plan, Ref, TensorSpec
from mlirc.runtime.plan_file import embed
from mlirc.runtime.weights import WeightFile
from support.devices.fake_gpu import CudaArray, FakeDriver
from support.devices.gpu_kernel import on_gpu
from support.plans.tiny import KERNELS, PTX, N, W, expected, make_plan, ptx_for, randn, ref, write_weights


@pytest.fixture
def driver():
    return FakeDriver(KERNELS)


@pytest.fixture
def model(driver):
    return load_text(embed(PTX, make_plan()), {"m.w": W}, driver=driver)


def assert_equal(got, wanted):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        g = g.numpy() if hasattr(g, "numpy") else g
        assert g.shape == w.shape
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("graph", [True, False])
def test_numpy_in_numpy_out(driver, graph):
    model = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=driver, graph=graph)
    for seed in range(3):
        x = randn(seed)
        before = x.copy()
        got = model(x) if seed else model(x=x)
        assert all(isinstance(g, np.ndarray) for g in got)
        assert_equal(got, expected(x))
        np.testing.assert_array_equal(x, before)
    assert len(driver.graphs) == int(graph)
    assert driver.smem == {"add": 0, "twice": 64 * 1024}


def test_non_contiguous_numpy_is_copied(model):
    x = np.repeat(randn(), 2)[::2]
    assert_equal(model(x), expected(x))


def test_gpu_tensors_are_used_in_place_and_only_their_nodes_updated(driver, model):
    first, second = CudaArray(randn(1)), CudaArray(randn(2))
    allocated = len(driver.memory)
    one = model(first)
    assert len(driver.memory) == allocated + 2  # the outputs, nothing for the input
    two = model(second)
    assert_equal(one, expected(first.array))
    assert_equal(two, expected(second.array))
    (graph,) = driver.graphs
    assert graph.launches == 2 and graph.updates == 3  # add and copy read x; twice and copy write outputs
    del one, two
    gc.collect()
    assert len(driver.memory) == allocated


def test_unaligned_and_strided_gpu_tensors(model):
    skewed = CudaArray(randn(), skew=4)
    assert_equal(model(skewed), expected(skewed.array))
    strided = CudaArray(randn())
    strided.strides = (8,)
    with pytest.raises(MlircError, match="'x': not contiguous"):
        model(strided)


def test_torch_on_the_host_gives_torch_on_the_host(model):
    torch = pytest.importorskip("torch")
    x = torch.nn.Parameter(torch.from_numpy(randn()))
    got = model(x)
    assert all(isinstance(g, torch.Tensor) for g in got)
    assert_equal([g.numpy() for g in got], expected(x.detach().numpy()))


def test_scalars_and_empty_tensors(driver):
    specs = [TensorSpec("a", "i64", (), "input"), TensorSpec("b", "bf16", (0, 3), "input")]
    outputs = [TensorSpec(s.name, s.dtype, s.shape, "output") for s in specs]
    steps = [CopyStep(Ref("input", 0, 0, 8), Ref("output", 0, 0, 8))]
    model = load_text(embed(PTX, Plan("p", "sm_80", specs, outputs, [], 0, steps)), {}, driver=driver)
    for a in (np.array(5), np.int64(-3)):
        got, empty = model(a, np.zeros((0, 3), ml_dtypes.bfloat16))
        assert got.shape == () and got.dtype == np.int64 and got == a
        assert empty.shape == (0, 3) and empty.dtype == ml_dtypes.bfloat16


def test_a_model_without_inputs(driver):
    plan = Plan("p", "sm_80", [], [TensorSpec("y", "f32", (N,), "output")], make_plan().weights, 0, [])
    plan.steps = [CopyStep(ref("weight"), ref("output"))]
    model = load_text(embed(PTX, plan), {"m.w": W}, driver=driver)
    np.testing.assert_array_equal(model(), W[0])
    model.launch()
    np.testing.assert_array_equal(model.outputs[0].numpy(), W[0])


def test_torch_weights_need_not_be_dense(driver):
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(np.repeat(W, 2, axis=1))[:, ::2]
    assert not w.is_contiguous()
    model = load_text(embed(PTX, make_plan()), {"m.w": w}, driver=driver)
    assert_equal(model(randn()), expected(randn()))


def test_launch_replays_on_the_given_stream(driver, model):
    with pytest.raises(MlircError, match=r"bind\(...\) first"):
        model.launch()
    x = CudaArray(randn())
    model.bind(x)
    model.launch(stream=77)
    assert_equal(model.outputs, expected(x.array))
    x.array[:] = randn(5)
    model.launch(stream=77)
    assert_equal(model.outputs, expected(x.array))
    assert {stream for _, stream in driver.launched} == {77}
    # A call afterwards has outputs of its own, and `launch` goes back to the static ones.
    kept = model(x)
    x.array[:] = randn(6)
    model.launch()
    assert_equal(model.outputs, expected(x.array))
    assert_equal(kept, expected(randn(5)))


def test_everything_is_freed(driver):
    model = load_text(embed(PTX, make_plan()), {"m.w": W}, driver=driver)
    kept = model(CudaArray(randn()))
    model(randn())
    model.close()
    model.close()
    assert driver.graphs[0].closed and not driver.streams and not driver.modules
    assert len(driver.memory) == 2 and not driver.closed  # the outputs outlive the model
    assert_equal(kept, expected(randn()))
    del kept
    gc.collect()
    assert not driver.memory and driver.closed


def test_leaving_the_context_or_the_scope_frees(driver):
    with load_text(embed(PTX, make_plan()), {"m.w": W}, driver=driver) as model:
        model(randn())
    assert driver.closed and not driver.memory
    other = FakeDriver(KERNELS)
    load_text(embed(PTX, make_plan()), {"m.w": W}, driver=other)(randn())
    gc.collect()
    assert other.closed and not other.memory


def test_weights_on_the_gpu_are_bound_in_place(driver):
    w = CudaArray(W)
    model = load_text(embed(PTX, make_plan()), {"m.w": w}, driver=driver)
    w.array += 1
    x = randn()
    assert_equal(model(x), (((x + (W[0] + 1)) * 2).reshape(N, 1), x))


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, r"input 'x' \(f32\[37\]\) is missing"),
        ((1, 2), {}, "2 inputs given, but the model takes 1: x"),
        ((), {"y": 1}, "no input is called 'y'"),
        ((np.zeros(N, np.float32),), {"x": 1}, "given twice"),
        ((np.zeros(N),), {}, r"'x': got f64\[37\], but the model was compiled for f32\[37\]"),
        ((np.zeros((N, 1), np.float32),), {}, r"got f32\[37,1\]"),
        (([1.0],), {}, "a list is no tensor"),
        ((np.zeros(N, np.complex64),), {}, "complex64 is not supported"),
    ],
)
def test_wrong_inputs(model, args, kwargs, why):
    with pytest.raises(MlircError, match=why):
        model(*args, **kwargs)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({}, r"weight 'm.w' \(f32\[1,37\]\) is missing"),
        ({"m.w": W[0]}, r"weight 'm.w': got f32\[37\]"),
        ({"m.w": W.astype(ml_dtypes.bfloat16)}, r"got bf16\[1,37\]"),
    ],
)
def test_wrong_weights(driver, weights, why):
    with pytest.raises(MlircError, match=why):
        load_text(embed(PTX, make_plan()), weights, driver=driver)
    assert not driver.memory and driver.closed


def test_weights_come_from_the_file_beside_the_model(tmp_path, driver):
    path = tmp_path / "model.ptx"
    path.write_text(embed(PTX, make_plan()))
    with pytest.raises(MlircError, match=r"weights are missing: expected .*model.safetensors"):
        load(path, driver=driver)
    with pytest.raises(MlircError, match="other.safetensors: cannot be read"):
        load(path, tmp_path / "other.safetensors", driver=driver)
    write_weights(tmp_path / "model.safetensors", {"m.w": W})
    assert_equal(load(path, driver=driver)(randn()), expected(randn()))
    write_weights(tmp_path / "other.safetensors", {"m.w": W * 0})
    other = load(path, tmp_path / "other.safetensors", driver=FakeDriver(KERNELS))
    assert_equal(other(randn()), ((randn() * 2).reshape(N, 1), randn()))
    live = load(path, {"m.w": W}, driver=FakeDriver(KERNELS))
    assert_equal(live(randn()), expected(randn()))


def test_constants_come_from_the_file_even_with_given_weights(tmp_path, driver):
    path = tmp_path / "model.ptx"
    path.write_text(embed(PTX, make_plan(kind="constant")))
    write_weights(tmp_path / "model.safetensors", {"m.w": W})
    assert_equal(load(path, {}, driver=driver)(randn()), expected(randn()))


def test_damaged_models(tmp_path, driver):
    path = tmp_path / "model.ptx"
    text = embed(PTX, make_plan())
    for data, why in ((text[:-9].encode(), "truncated"), (b"\xff\xfe", "not text"), (PTX.encode(), "no launch plan")):
        path.write_bytes(data)
        with pytest.raises(MlircError, match=rf"model.ptx: .*{why}"):
            load(path, driver=driver)


def test_targets():
    for target, cc in (("sm_80", 80), ("sm_80", 90), ("sm_90a", 90), ("sm_100a", 100), ("sm_120", 120)):
        check_target(target, cc, "GPU")
    for target, cc, why in (
        ("sm_90a", 80, "compiled for sm_90a, but GPU is sm_80, which is older"),
        ("sm_90a", 100, "runs on sm_90 only"),
        ("sm_120", 90, "older"),
        ("gfx942", 90, "unknown target"),
    ):
        with pytest.raises(MlircError, match=why):
            check_target(target, cc, "GPU")


def test_an_older_gpu_is_refused():
    with pytest.raises(MlircError, match="Fake GPU is sm_80, which is older"):
        load_text(embed(ptx_for("sm_90a"), make_plan("sm_90a")), {"m.w": W}, driver=FakeDriver(KERNELS, cc=80))


# The weight file


def test_weight_file_holds_every_dtype(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "a": rng.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
        "b": rng.standard_normal(7).astype(np.float16),
        "c": np.array(3.5, np.float64),
        "d": np.array([True, False, True]),
        "e": rng.integers(-100, 100, (2, 3)).astype(np.int8),
        "f": rng.integers(-9, 9, 4).astype(np.int64),
        "g": np.zeros((0, 4), np.float32),
        "h": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    }
    write_weights(tmp_path / "w.safetensors", tensors)
    file = WeightFile(tmp_path / "w.safetensors")
    assert set(file.entries) == set(tensors)
    for name, tensor in tensors.items():
        got = file.array(name)
        assert got.dtype == tensor.dtype
        np.testing.assert_array_equal(got, tensor)
    from safetensors import safe_open

    with safe_open(tmp_path / "w.safetensors", "np") as theirs:
        np.testing.assert_array_equal(theirs.get_tensor("b"), tensors["b"])
        np.testing.assert_array_equal(theirs.get_tensor("h"), tensors["h"])


def test_damaged_weight_files(tmp_path):
    path = tmp_path / "w.safetensors"
    write_weights(path, {"m.w": W})
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:4],
        data[:20],
        data[:-1],
        data[:8] + b"!" + data[9:],
        data.replace(b"[0,148]", b"[0,144]"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(MlircError, match="w.safetensors"):
            WeightFile(path)


# On the GPU


class TestOnTheGpu:
    pytestmark = on_gpu

    @pytest.fixture
    def torch(self):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        return torch

    @pytest.mark.parametrize("graph", [True, False])
    def test_numpy(self, graph):
        with load_text(embed(PTX, make_plan()), {"m.w": W}, graph=graph) as model:
            for seed in range(3):
                assert_equal(model(randn(seed)), expected(randn(seed)))

    @pytest.mark.parametrize("graph", [True, False])
    def test_torch_tensors_in_and_out(self, torch, graph):
        w = torch.from_numpy(W).cuda()
        with load_text(embed(PTX, make_plan()), {"m.w": w}, graph=graph) as model:
            kept = []
            for seed in range(20):
                x = torch.from_numpy(randn(seed)).cuda()
                kept.append((x, model(x)))
            for seed, (_x, got) in enumerate(kept):
                assert all(g.is_cuda for g in got)
                assert_equal([g.cpu().numpy() for g in got], expected(randn(seed)))
            w += 1  # bound in place
            got = model(torch.from_numpy(randn()).cuda())
            np.testing.assert_array_equal(got[0].cpu().numpy(), ((randn() + (W[0] + 1)) * 2).reshape(N, 1))

    def test_streams_order_the_work(self, torch):
        with load_text(embed(PTX, make_plan()), {"m.w": W}) as model:
            side = torch.cuda.Stream()
            big = torch.randn(4096, 4096, device="cuda")
            x = torch.zeros(N, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                for _ in range(20):
                    big = torch.tanh(big @ big)
                x.copy_(torch.from_numpy(randn()))
                got = [g.clone() for g in model(x)]
            side.synchronize()
            assert_equal([g.cpu().numpy() for g in got], expected(randn()))

    def test_launch_and_static_outputs_through_dlpack(self, torch):
        with load_text(embed(PTX, make_plan()), {"m.w": W}) as model:
            x = torch.from_numpy(randn()).cuda()
            model.bind(x)
            outs = [torch.from_dlpack(t) for t in model.outputs]
            for out in outs:
                out.fill_(float("nan"))
            torch.cuda.synchronize()
            model.launch(torch.cuda.current_stream())
            torch.cuda.synchronize()
            assert_equal([o.cpu().numpy() for o in outs], expected(randn()))
            assert_equal(model.outputs, expected(randn()))
            del outs

    def test_unaligned_torch_slice(self, torch):
        with load_text(embed(PTX, make_plan()), {"m.w": W}) as model:
            x = torch.zeros(N + 1, device="cuda")[1:]
            x.copy_(torch.from_numpy(randn()))
            assert_equal([g.cpu().numpy() for g in model(x)], expected(randn()))

    def test_memory_comes_back(self, torch):
        free = []
        for _ in range(3):
            plan = make_plan()
            plan.arena_size = 4 << 30
            plan.steps.append(CopyStep(ref("input"), Ref("arena", 0, (4 << 30) - 256, 4 * N)))
            with load_text(embed(PTX, plan), {"m.w": W}) as model:
                model(randn())
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
        assert free[2] >= free[0] - (3 << 30)  # tests in other processes take some, too

    def test_the_drivers_log_is_in_the_error(self):
        text = embed(PTX.replace("add.f32 %x, %x, %y;", "frobnicate %x;"), make_plan())
        with pytest.raises(MlircError, match="refused the PTX.*frobnicate"):
            load_text(text, {"m.w": W})

    def test_a_plan_for_another_generation(self):
        from mlirc.runtime.cuda import Driver

        driver = Driver(0)
        other = "sm_90a" if driver.cc != 90 else "sm_120"
        driver.close()
        with pytest.raises(MlircError, match="compile again"):
            load_text(embed(ptx_for(other), make_plan(other)), {"m.w": W})
