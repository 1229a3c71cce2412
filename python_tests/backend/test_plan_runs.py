"""Random `@main`s, planned and then run on a fake device, against direct evaluation: whatever the arena, the outputs in
place, the copies and the steps at load do, results must not change, run after run."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirc.backend.kernel import CompiledKernel, Copy, Launch
from mlirc.backend.plan_builder import build_plan
from mlirc.mlir import parse
from mlirc.runtime import load_text
from mlirc.runtime.plan_file import embed
from support.devices.fake_gpu import CudaArray, FakeDriver, at

ROWS, COLS = 3, 5
N = ROWS * COLS
FULL, ROW = f"tensor<{ROWS}x{COLS}xf32>", f"tensor<{COLS}xf32>"

# mix: two results through a workspace that it spoils; half: the same of a row; same: a copy made by the host function.
KERNELS = {
    "mix": CompiledKernel(
        "mix",
        "",
        "",
        [Launch("mix_a", (1, 1, 1), (1, 1, 1), 0, [0, 1, 4]), Launch("mix_b", (1, 1, 1), (1, 1, 1), 0, [4, 1, 2, 3])],
        [4 * N],
    ),
    "half": CompiledKernel("half", "", "", [Launch("half_a", (1, 1, 1), (1, 1, 1), 0, [0, 1])], []),
    "same": CompiledKernel("same", "", "", [Copy(0, 1, 4 * N)], []),
}
POINTERS = {"mix_a": "abc", "mix_b": "abcd", "half_a": "ab"}
PTX = ".target sm_80\n" + "".join(
    f".visible .entry {name}({', '.join(f'.param .u64 {p}' for p in names)}) {{}}\n" for name, names in POINTERS.items()
)


def mix_a(a, b, work):
    at(work, N)[:] = at(a, N) + 2 * at(b, N)


def mix_b(work, b, first, second):
    np.copyto(at(first, N), at(work, N) + 1)
    np.copyto(at(second, N), at(work, N) - at(b, N))
    at(work, N)[:] = np.nan


def half_a(a, out):
    np.copyto(at(out, COLS), at(a, COLS) / 2)


SYMBOLS = {"mix_a": mix_a, "mix_b": mix_b, "half_a": half_a}


@st.composite
def programs(draw):
    """(text of the module, function from inputs to results): a random chain of calls and views with reuse."""
    values = [("%x0", FULL), ("%x1", FULL), ("%w", FULL), ("%c", FULL)]
    evaluate = [lambda v: v["x0"], lambda v: v["x1"], lambda v: v["w"], lambda v: v["c"]]
    lines = []
    for i in range(draw(st.integers(0, 12))):
        full = [k for k, (_, t) in enumerate(values) if t == FULL]
        rows = [k for k, (_, t) in enumerate(values) if t == ROW]
        kind = draw(st.sampled_from(["mix", "mix", "same", "row"] + (["half"] if rows else [])))
        a, b = draw(st.sampled_from(full)), draw(st.sampled_from(full))
        (na, _), (nb, _), fa, fb = values[a], values[b], evaluate[a], evaluate[b]
        if kind == "mix":
            lines.append(f"%v{i}:2 = func.call @mix({na}, {nb}) : ({FULL}, {FULL}) -> ({FULL}, {FULL})")
            values += [(f"%v{i}#0", FULL), (f"%v{i}#1", FULL)]
            evaluate.append(lambda v, fa=fa, fb=fb: fa(v) + 2 * fb(v) + 1)
            evaluate.append(lambda v, fa=fa, fb=fb: fa(v) + 2 * fb(v) - fb(v))
        elif kind == "same":
            lines.append(f"%v{i} = func.call @same({na}) : ({FULL}) -> {FULL}")
            values.append((f"%v{i}", FULL))
            evaluate.append(fa)
        elif kind == "row":  # 20 bytes a row: all but the first start off a multiple of 16
            r = draw(st.integers(0, ROWS - 1))
            lines.append(f"%v{i} = tensor.extract_slice {na}[{r}, 0][1, {COLS}][1, 1] : {FULL} to {ROW}")
            values.append((f"%v{i}", ROW))
            evaluate.append(lambda v, fa=fa, r=r: fa(v)[r])
        else:
            k = draw(st.sampled_from(rows))
            lines.append(f"%v{i} = func.call @half({values[k][0]}) : ({ROW}) -> {ROW}")
            values.append((f"%v{i}", ROW))
            evaluate.append(lambda v, fk=evaluate[k]: fk(v) / 2)
    returned = draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=4))
    types = ", ".join(values[k][1] for k in returned)
    text = f"""
    func.func private @mix({FULL}, {FULL}) -> ({FULL}, {FULL})
    func.func private @same({FULL}) -> {FULL}
    func.func private @half({ROW}) -> {ROW}
    func.func @main(%x0: {FULL} {{mlirc.name = "x0"}}, %x1: {FULL} {{mlirc.name = "x1"}},
                    %w: {FULL} {{mlirc.name = "w", mlirc.kind = "weight"}},
                    %c: {FULL} {{mlirc.name = "c", mlirc.kind = "constant"}}) -> ({types}) {{
      {chr(10).join(lines)}
      return {", ".join(values[k][0] for k in returned)} : {types}
    }}"""
    return text, lambda v: [evaluate[k](v) for k in returned]


def small(rng) -> np.ndarray:
    return rng.integers(-4, 5, (ROWS, COLS)).astype(np.float32)  # exact in f32, whatever the order


@given(programs(), st.booleans(), st.booleans())
@settings(max_examples=80, deadline=None)
def test_planned_runs_equal_direct_evaluation(program, graph, live):
    text, evaluate = program
    plan = build_plan(parse(text), KERNELS, model="random", target="sm_80")
    rng = np.random.default_rng(0)
    given_ = {"w": small(rng), "c": small(rng)}
    weights = {**given_, "w": CudaArray(given_["w"])} if live else given_
    driver = FakeDriver(SYMBOLS)
    with load_text(embed(PTX, plan), weights, driver=driver, graph=graph) as model:
        for run in range(3):
            if live:  # changes between runs, in place
                given_["w"] = weights["w"].array[...] = small(rng)
            inputs = {"x0": small(rng), "x1": small(rng)}
            wanted = evaluate({**given_, **inputs})
            passed = {k: CudaArray(v) for k, v in inputs.items()} if run == 1 else inputs
            got = model(**passed)
            got = got if isinstance(got, tuple) else (got,)
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(g if run != 1 else g.numpy(), w)
            del got, g
    assert driver.closed and not driver.memory
