"""Helper processes, files written all or none, the package's folders, and the PyTorch form of kernels."""

import tomllib
from pathlib import Path

import pytest

import mlirc
from mlirc.driver.kernel_build import KernelJob, build_kernel
from mlirc.driver.workers import MIN_JOBS, Helpers, Pool, build_kernels
from mlirc.errors import MlircError
from mlirc.files.marks import marked_text
from mlirc.files.outputs import Outputs

TILES = """
func.func private @NAME(%a: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {mlirc.kernel, mlirc.warps = 1 : i32} {
  %e = tensor.empty() : tensor<4x8xf32>
  %r = scf.forall (%b) in (4) shared_outs(%o = %e) -> (tensor<4x8xf32>) {
    %x = tensor.extract_slice %a[%b, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
    %y = tensor.extract_slice %o[%b, 0] [1, 8] [1, 1] : tensor<4x8xf32> to tensor<1x8xf32>
    %s = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]
    } ins(%x : tensor<1x8xf32>) outs(%y : tensor<1x8xf32>) {
    ^bb0(%u: f32, %v: f32):
      %t = arith.addf %u, %u : f32
      linalg.yield %t : f32
    } -> tensor<1x8xf32>
    scf.forall.in_parallel {
      tensor.parallel_insert_slice %s into %o[%b, 0] [1, 8] [1, 1] : tensor<1x8xf32> into tensor<4x8xf32>
    }
  } {mapping = [#gpu.block<x>]}
  return %r : tensor<4x8xf32>
}"""


def job(name, text=TILES):
    text = text.replace("NAME", name)
    return KernelJob(name, text, text, "tiles", "sm_90a")


def test_helpers_compile_what_this_process_would():
    jobs = [job(f"k_{i}") for i in range(5)]
    built = {b.name: b for b in build_kernels(jobs, helpers=2)}
    assert list(sorted(built)) == [j.name for j in jobs]
    here = build_kernel(jobs[3])
    assert built["k_3"].ptx == here.ptx and built["k_3"].launches == here.launches
    assert built["k_3"].launches[0].grid == (4, 1, 1)


def test_an_error_in_a_helper_reaches_the_caller():
    jobs = [job(f"k_{i}") for i in range(4)] + [job("bad", TILES.replace("arith.addf", "arith.no_such_op"))]
    with pytest.raises(MlircError, match="kernel bad: not valid MLIR.*no_such_op"):
        list(build_kernels(jobs, helpers=2))


def test_helpers_work_while_more_kernels_are_on_their_way():
    with Pool(helpers=2) as pool:
        for i in range(MIN_JOBS):
            pool.add(job(f"k_{i}"))
        first = pool._done.get(timeout=120)  # nobody has asked for results yet
        pool._done.put(first)
        pool.add(job("late"))
        assert sorted(b.name for b in pool.results()) == sorted(["late", *(f"k_{i}" for i in range(MIN_JOBS))])
        processes = [h.process for h in pool._helpers]
    assert len(processes) == 2 and all(p.poll() is not None for p in processes)


def test_a_pool_that_is_left_early_ends_its_helpers():
    with pytest.raises(MlircError, match="of the caller's"), Pool(helpers=2) as pool:
        for i in range(MIN_JOBS + 3):
            pool.add(job(f"k_{i}"))
        helpers = list(pool._helpers)
        raise MlircError("of the caller's")
    assert all(h.process.poll() is not None and not h.thread.is_alive() for h in helpers)


def test_helpers_wait_for_the_next_pool():
    ran: list[set[int]] = []
    with Helpers() as helpers:
        for _ in range(2):
            with Pool(2, waiting=helpers) as pool:
                for i in range(MIN_JOBS):
                    pool.add(job(f"k_{i}"))
                assert {b.name for b in pool.results()} == {f"k_{i}" for i in range(MIN_JOBS)}
            processes = list(helpers._idle)
            assert all(p.poll() is None for p in processes)
            ran.append({p.pid for p in processes})
        assert ran[0] == ran[1] and len(ran[0]) == 2
        with pytest.raises(MlircError, match="of the caller's"), Pool(2, waiting=helpers) as pool:
            for i in range(MIN_JOBS):
                pool.add(job(f"k_{i}"))
            raise MlircError("of the caller's")
        assert not helpers._idle  # what may still be working is ended
    assert all(p.poll() is not None for p in processes)


@pytest.mark.parametrize("helpers", [0, 1])
def test_without_helpers_this_process_compiles(helpers):
    with Pool(helpers) as pool:
        for i in range(MIN_JOBS + 1):
            pool.add(job(f"k_{i}"))
        assert not pool._helpers
        assert [b.name for b in pool.results()] == [f"k_{i}" for i in range(MIN_JOBS + 1)]


def test_helpers_are_started_for_as_many_kernels_as_pay_for_it(monkeypatch):
    least = {}
    for n in (2, 3, 64):
        monkeypatch.setattr("mlirc.driver.workers.cores", lambda n=n: n)
        with Pool() as pool:
            monkeypatch.setattr(pool, "_give", lambda n=n, pool=pool: least.setdefault(n, len(pool._here)))
            for i in range(40):
                pool.add(job(f"k_{i}"))
    assert least == {2: 28, 3: 21, 64: 15}


def test_a_helper_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr("mlirc.driver.workers._send", lambda stream, value: stream.close())
    with pytest.raises(MlircError, match="kernel k_.: the compiler process ended with status"):
        list(build_kernels([job(f"k_{i}") for i in range(4)], helpers=2))


def test_outputs_appear_together_or_not_at_all(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    old, new = (marked_text(first, text, "a test's file") for text in ("old", "new"))
    first.write_text(old)
    with pytest.raises(ZeroDivisionError), Outputs() as outputs:
        outputs.add(first, lambda p: p.write_text(new))
        outputs.add(second, lambda p: 1 // 0)
    assert [p.name for p in tmp_path.iterdir()] == ["first"] and first.read_text() == old
    with Outputs() as outputs:
        outputs.add(first, lambda p: p.write_text(new))
        outputs.add(second, lambda p: p.write_text(new))
        assert first.read_text() == old
    assert first.read_text() == second.read_text() == new
    assert len(list(tmp_path.iterdir())) == 2


def test_every_folder_with_code_is_packaged():
    root = Path(mlirc.__file__).resolve().parent.parent
    if not (root / "pyproject.toml").is_file():
        pytest.skip("mlirc is installed from a wheel: its sources are not here")
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    names = {"compiler": "mlirc", **{d: f"mlirc.{d}" for d in ("dialects", "passes", "scripts")}}
    found = set()
    for folder, package in names.items():
        for path in (root / folder).rglob("*.py"):
            inside = path.parent.relative_to(root / folder).parts
            found.add(".".join((package, *inside)))
    assert sorted(settings["packages"]) == sorted(found)
