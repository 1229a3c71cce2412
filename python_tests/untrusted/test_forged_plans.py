"""Plans that were changed and signed again: refused at load in one line that says where, or nothing comes of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mlirc.errors import MlircError
from mlirc.runtime import load_text
from mlirc.runtime.plan import VERSION
from mlirc.runtime.plan_file import PREFIX, embed, extract
from mlirc.runtime.plan_json import to_json
from mlirc.tools.mlirc_run import main
from support.devices.fake_gpu import FakeDriver
from support.plans.forged import BAD, FOR_PEOPLE, TEXT, get, good_plan, places, signed
from support.plans.tiny import KERNELS, N, W, randn

DATA = json.loads(to_json(good_plan()))


# Lists whose members may be of one size: a plan in another order is the plan of another model.
EXCHANGED = ("args", "outputs")


def changed(at: tuple, to: Any) -> Any:
    if not at:
        return to
    data = json.loads(json.dumps(DATA))
    get(data, at[:-1])[at[-1]] = to
    return data


def forgeries() -> Iterator[tuple[str, Any]]:
    """(what, JSON value), some thousand."""
    for at in places(DATA):
        value = get(DATA, at)
        for to in BAD[type(value)]:
            yield f"{at} = {to!r:.40}", changed(at, to)
        if isinstance(value, dict):
            for key in value:
                yield f"{at} without {key}", changed(at, {k: v for k, v in value.items() if k != key})
            yield f"{at} with more", changed(at, {**value, "more": 1})
        if isinstance(value, list) and value:
            yield f"{at} emptied", changed(at, [])
            yield f"{at} twice", changed(at, value + value)
            yield f"{at} cut", changed(at, value[:-1])
            yield f"{at} longer", changed(at, [*value, value[-1]])
            if at[-1] not in EXCHANGED:
                yield f"{at} reversed", changed(at, value[::-1])


def judge(text: str) -> str:
    """ "" when a file is refused as it should be, or runs and gives what the right file gives; else what is wrong."""
    try:
        extract(text, "m.ptx")
        weights = {"m.w": W, "c": W[0]}
        with load_text(text, weights, driver=FakeDriver(KERNELS)) as model:
            got = model(randn())
    except MlircError as e:
        said = str(e)
        return "" if said.isprintable() and len(said) < 700 else f"refused with {said!r}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    x = randn()
    wanted = (((x + (W[0] + W[0])) * 2).reshape(N, 1), x)
    if len(got) == 2 and all(np.array_equal(a.ravel(), b.ravel()) for a, b in zip(got, wanted, strict=True)):
        return ""  # another shape of as many bytes is as good
    return "accepted, and gives something else"


def test_the_plan_is_good_before_it_is_forged():
    assert judge(signed(to_json(good_plan()))) == "" and judge(embed(TEXT, good_plan())) == ""
    assert extract(signed(json.dumps(DATA))) == good_plan()


def test_every_change_of_every_field_is_refused_or_harmless():
    found = {what: judge(signed(json.dumps(data))) for what, data in forgeries()}
    assert len(found) > 1500
    wrong = {what: why for what, why in found.items() if why}
    assert not wrong, wrong


def test_what_is_accepted_is_for_people():
    """No bad value of a field that a run depends on gets through, though a fake GPU would not mind it."""
    for at in places(DATA):
        for to in BAD[type(get(DATA, at))]:
            try:
                extract(signed(json.dumps(changed(at, to))))
            except MlircError:
                continue
            name = at[0] in ("inputs", "outputs", "weights") and at[2:] == (0,) and to == "no_such"
            wide = at[0] in ("inputs", "weights") and at[2:3] == (2,)  # what is given will not fit it
            assert name or wide or any(part in FOR_PEOPLE for part in at), (at, to)


def step(number: int, **fields: Any) -> Any:
    data = copy.deepcopy(DATA)
    data["steps"][number] |= fields
    return data


def ref(number: int, which: int, /, **fields: int) -> Any:
    data = copy.deepcopy(DATA)
    item = data["steps"][number]["args"][which]
    for name, value in fields.items():
        item[("space", "index", "offset", "size").index(name)] = value
    return data


def map_(which: int, to: Any) -> Any:
    """Another number, dtype, shape, box or swizzle of the tensor map."""
    data = copy.deepcopy(DATA)
    data["steps"][2]["maps"][0][which] = to
    return data


def with_(**fields: Any) -> Any:
    return {**copy.deepcopy(DATA), **fields}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (step(1, grid=[-1, 1, 1]), "step 1 .'add'.: grid -1x1x1: each must be from 1 to 2147483647x65535x65535"),
        (step(1, grid=[0, 1, 1]), "grid 0x1x1"),
        (step(1, grid=[2, 65536, 1]), "grid 2x65536x1"),
        (step(1, grid=[3, 1, 1]), "cluster 2x1x1: does not divide grid 3x1x1"),
        (step(1, cluster=[32, 1, 1], grid=[32, 1, 1]), "at most 16 blocks"),
        (step(1, block=[0, 1, 1]), "block 0x1x1"),
        (step(1, block=[1025, 1, 1]), "block 1025x1x1"),
        (step(1, block=[512, 1, 4]), "at most 1024 threads"),
        (step(1, block=[1, 1, 65]), "block 1x1x65"),
        (step(1, smem=-1), "-1 bytes of shared memory: sm_90a has 0 to 232448"),
        (step(1, smem=232449), "232449 bytes of shared memory"),
        (step(1, launch="sub"), "kernel 'sub' is launched but the PTX defines no such entry"),
        (step(1, launch="add(.param"), "no name of a kernel"),
        (step(1, args=DATA["steps"][1]["args"][:2]), "kernel 'add' takes 3 pointers, not 2"),
        (step(1, args=DATA["steps"][1]["args"] * 2), "kernel 'add' takes 3 pointers, not 6"),
        (ref(1, 2, offset=366), "reaches outside of arena 0, which has 512 bytes"),
        (ref(1, 2, offset=-4), "reaches outside of arena 0"),
        (ref(1, 2, size=-1), "reaches outside of arena 0"),
        (ref(1, 2, space=4), r"steps\[1\], args: 4 where one of 0 to 3"),
        (ref(1, 2, index=1), "names buffer arena 1"),
        (ref(0, 2, space=2), "runs at load but uses output 0"),
        (ref(2, 1, size=4), "no step writes all of output 'y'"),
        (with_(steps=DATA["steps"][:-1]), "no step writes all of output 'z'"),
        (with_(steps=[*DATA["steps"], {"copy": [3, 0, 404, 4], "to": [2, 0, 0, 4]}]), "what no earlier step made"),
        (with_(steps=[*DATA["steps"], {"copy": [0, 0, 0, 4], "to": [1, 0, 0, 4]}]), "overwrites weight 0"),
        (with_(steps=[*DATA["steps"], {"copy": [2, 0, 0, 8], "to": [2, 0, 4, 8]}]), "onto itself"),
        (with_(steps=[*DATA["steps"], {"copy": [2, 0, 0, 8], "to": [2, 1, 0, 4]}]), "copies 8 bytes onto 4"),
        (with_(setup=5), "the first 5 of 4 steps run at load"),
        (map_(0, 2), "a tensor map as argument 2 of 2"),
        (map_(0, 1), "takes as argument 0 a tensor map, not a pointer"),
        (map_(1, "f33"), "argument 0, a tensor map: elements of type 'f33'"),
        (map_(2, [N + 1]), "argument 0, a tensor map of 152 bytes: it is given 148"),
        (map_(2, [2**33]), "each is 1 to 4294967296"),
        (map_(2, []), "an array of 0 dimensions"),
        (map_(2, [2, 2]), "a box of 1 dimensions of an array of 2"),
        (map_(3, [3]), "the innermost extent of the box has 12 bytes: it must be a multiple of 16"),
        (map_(3, [260]), "a box of extents .260.: each is 1 to 256"),
        (map_(4, 16), "a swizzle of 16 bytes"),
        (step(2, maps=[]), r"at least one tensor map must be"),
        (step(2, maps=DATA["steps"][2]["maps"] * 2), "a number above those before it"),
        (step(2, maps=[[0, "f32", [3, 5], [1, 4], 0]]), "rows of 20 bytes: they must be a multiple of 16"),
        (step(2, maps=[[0, "f32", [4], [32], 64]]), "has 128 bytes: with a swizzle of 64 it has as many"),
        (ref(2, 0, offset=260), "a tensor map: is given byte 260 of arena 0: not a multiple of 16"),
        (step(1, maps=[[0, "f32", [N], [4], 0]]), "kernel 'add' takes as argument 0 a pointer, not a tensor map"),
        (with_(arena_size=513), "arena_size is 513 bytes, but the steps use 512"),
        (with_(arena_size=2**40 + 1), "arena_size is 1099511627777 bytes"),
        (with_(target="sm_80"), "is for sm_80, but the PTX for sm_90a|sm_80 has no clusters"),
        (with_(target="sm_9"), "unknown target 'sm_9'"),
        (with_(inputs=[["x", "f33", [N], "input"]]), "invalid type: 'f33'"),
        (with_(inputs=[["x", "f32", [-N], "input"]]), "invalid type"),
        (with_(inputs=[["x", "f32", [2**20, 2**20], "input"]]), "more than 1099511627776 bytes"),
        (with_(inputs=[["x", "f32", [1] * 65, "input"]]), "invalid type"),
        (with_(inputs=[["x", "f32", [N], "weight"]]), "has kind 'weight'"),
        (with_(outputs=DATA["outputs"][:1] * 2), "two outputs are called 'y'"),
        (with_(version=1), f"format version 1, but this mlirc reads {VERSION}"),
        (with_(version=[1]), "format version unknown"),
        (with_(model="\x1b]0;owned\x07"), r"model: .*x1b.* has the control character U\+001B"),
    ],
)
def test_the_line_says_what_is_wrong_and_where(data, why):
    with pytest.raises(MlircError, match=f"^m.ptx: plan: .*{why}") as error:
        extract(signed(json.dumps(data)), "m.ptx")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 100_000,
        "[" * 5000 + "]" * 5000,
        "NaN",
        "1e999",
        '{"version": 1, "version": 1}',
        '{"version": ' + "9" * 5000 + "}",
        "",
        "null",
        '"text"',
        json.dumps(DATA) + " {}",
    ],
    ids=lambda text: text[:8],
)
def test_json_that_is_no_plan(text):
    with pytest.raises(MlircError, match="plan: ") as error:
        extract(signed(text))
    assert len(str(error.value)) < 700


@pytest.mark.parametrize("header", [f"plan {VERSION} {lines} 1 0" for lines in ("9" * 5000, "9" * 18, "\u0661")])
def test_headers_with_numbers_beyond_reason(header):
    with pytest.raises(MlircError, match="header is damaged|truncated"):
        extract(f"{PREFIX}{header}\nx\n{TEXT}")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (".param .u64 c)", ".param .u64 c, .param .u64 d)", "takes 4 pointers, not 3"),
        (".param .u64 c)", ".param .u32 c)", "takes as argument 2 a value of 4 bytes, not a pointer"),
        (".param .u64 c)", ".param .align 64 .b8 c[128])", "takes as argument 2 a tensor map, not a pointer"),
        (".param .u64 c)", ".param .align 64 .b8 c[64])", "takes something else than pointers"),
        (".align 64 .b8 a[128]", ".u64 a", "takes as argument 0 a pointer, not a tensor map"),
        (".align 64 .b8 a[128]", ".align 16 .b8 a[128]", "takes as argument 0 a tensor map at a multiple of 16"),
        (".param .u64 c)", ".param .u64 .ptr .align 512 c)", "given byte 256 of arena 0: not a multiple of 512"),
        (".param .u64 c)", ".param .u64 c) .reqntid 32, 1, 1", "is for blocks of 32x1x1, not 64x1x1"),
        (".param .u64 c)", ".param .u64 c) .maxntid 32", "is for blocks of 32x1x1, not 64x1x1"),
        (".param .u64 c)", ".param .u64 c) .reqnctapercluster 4, 1, 1", "is for clusters of 4x1x1"),
        (".visible .entry add", "// .visible .entry add", "defines no such entry"),
        (".visible .entry add", "/* .visible .entry add", "defines no such entry"),
        (".target sm_90a", ".target sm_80", "is for sm_90a, but the PTX for sm_80"),
        (".target sm_90a", "", "but the PTX for no target"),
    ],
)
def test_a_plan_has_to_fit_its_ptx(old, new, why):
    with pytest.raises(MlircError, match=why):
        extract(signed(to_json(good_plan()), TEXT.replace(old, new)))


def test_hostile_sizes_take_no_time():
    """Each would take minutes were it read with more than one look at every byte."""
    copies = ",".join(f'{{"copy":[0,0,0,1],"to":[3,0,{2 * i},1]}}' for i in range(30_000))
    data = to_json(good_plan()).replace('"arena_size":512', '"arena_size":60160')
    many = data.replace('"steps":[\n', f'"steps":[\n{copies},', 1).replace('"setup":1', '"setup":0')
    assert len(extract(signed(many)).steps) == 30_004
    for text in ("/*" * 500_000, ".entry a " * 200_000, ".entry a(" * 200_000, "//" * 10):
        assert extract(signed(to_json(good_plan()), TEXT + text)) == good_plan()


def test_mlirc_run_shows_no_forged_plan(tmp_path, ran):
    (tmp_path / "m.ptx").write_text(signed(json.dumps(with_(model="\x1b[2Jowned"))))
    for words in (["--info"], [], ["--level", "tiles"]):
        error = ran(main, tmp_path / "m.ptx", *words).error
        assert "control character U+001B" in error and error.isprintable()
