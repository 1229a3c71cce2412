"""Models that take and return lists, dicts and records, and complex tensors, are called as their modules are."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

import mlirc
from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.runtime.plan_json import from_json, to_json
from mlirc.runtime.structure import TENSOR, Structure, Tree, read_structure, structure_out
from mlirc.targets import get_target
from mlirc.tools import mlirc as program
from mlirc.tools import mlirc_run

Pair = collections.namedtuple("Pair", "first rest")


@dataclasses.dataclass
class Record:
    main: torch.Tensor
    more: object = None


class Nested(nn.Module):
    def forward(self, x, tables, flag=True, *, options=None, record=None, several=()):
        y = x + tables["b"][0] * 2 - tables["a"]
        y = y * several[0].sum() + record.main if flag else y
        return {
            "pair": Pair(y, [y * options["k"], None]),
            "record": Record(y + 1, (y,)),
            "spectrum": torch.complex(y, -y),
            "none": None,
            "lone": (x,),
        }


def examples(seed):
    generator = torch.Generator().manual_seed(seed)
    x, a, b, c, d = (torch.randn(3, generator=generator) for _ in range(5))
    return (x, {"b": [b], "a": a}), dict(options={"k": 1.5, "s": "t"}, record=Record(c), several=(d, None))


@pytest.fixture(scope="module")
def model():
    return mlirc.compile(Nested(), *examples(0), device="host")


def same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted)
    elif dataclasses.is_dataclass(wanted):
        same(vars(found), vars(wanted))
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            same(found[key], wanted[key])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    else:
        assert found == wanted


def test_a_model_is_called_as_its_module(model):
    args, kwargs = examples(1)
    same(model(*args, **kwargs), Nested()(*args, **kwargs))
    args[1]["a"] = args[1].pop("a")  # in another order
    other = dict(reversed(kwargs.items()))
    other["options"] = {"s": "t", "k": 1.5}
    same(model(*args, True, **other), Nested()(*args, **kwargs))
    same(model(tables=args[1], x=args[0], **kwargs), Nested()(*args, **kwargs))
    flat = [args[0], args[1]["b"][0], args[1]["a"], kwargs["record"].main, kwargs["several"][0]]
    same(model(*flat), Nested()(*args, **kwargs))
    names = [s.name for s in model.plan.asked]
    assert names == ["x", "tables_b_0", "tables_a", "record_main", "several_0"]
    same(model(**dict(zip(names, flat, strict=True))), Nested()(*args, **kwargs))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, k: a.append(False), "flag is False, but the model was compiled for"),
        (lambda a, k: a[1].pop("a"), "tables: a dict with b, a is needed, not a dict with b"),
        (lambda a, k: a[1].update(c=1), "tables: a dict with b, a is needed, not a dict with b, a, c"),
        (lambda a, k: a.__setitem__(1, [1]), "tables: a dict with b, a is needed, not a list of 1"),
        (lambda a, k: a[1].update(b=[]), r"tables\['b'\]: a list of 1 is needed, not a list of 0"),
        (lambda a, k: a[1].update(a=None), r"tables\['a'\]: a tensor is needed, not None"),
        (lambda a, k: a.pop(), "argument 'tables' is missing: the model takes x, tables"),
        (lambda a, k: k.pop("record"), "argument 'record' is missing"),
        (lambda a, k: k.update(record=None), "record: Record with main, more is needed, not None"),
        (lambda a, k: k.update(options={"k": 2.5, "s": "t"}), r"options\['k'\] is 2.5, but the model was compiled for 1.5"),
        (lambda a, k: k.update(wrong=3), "no argument is called 'wrong'"),
        (lambda a, k: k.update(x=a[0]), "argument 'x' is given twice"),
    ],
)  # fmt: skip
def test_arguments_that_the_model_does_not_take(model, change, words):
    args, kwargs = examples(2)
    args = list(args)
    if "flag is" in words:
        module = mlirc.compile(Flagged(), (torch.ones(2), True), device="host")
        with pytest.raises(MlircError, match=words):
            module(torch.ones(2), False)
        return
    change(args, kwargs)
    with pytest.raises(MlircError, match=words) as refused:
        model(*args, **kwargs)
    assert "\n" not in str(refused.value)


class Flagged(nn.Module):
    def forward(self, x, flag):
        return [x + 1 if flag else x - 1]


FILE = """
import collections, dataclasses, torch
Pair = collections.namedtuple("Pair", "first rest")
@dataclasses.dataclass
class Record:
    main: torch.Tensor
class Model(torch.nn.Module):
    def forward(self, ids, parts):
        z = parts["z"] * 1j
        return Pair(ids[0] + ids[1], {"r": Record(z), "n": [z.abs()]})
def make():
    return Model(), ([torch.randn(3), torch.randn(3)], {"z": torch.randn(2, 3, dtype=torch.complex64)})
"""


def test_files_are_called_in_the_same_structure_of_plain_containers(tmp_path, monkeypatch, ran):
    (tmp_path / "nested_factory.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = ran(program.main, "nested_factory:make", "-o", "m.ptx", "--check")
    assert result.status == 0, result.err
    model = mlirc.load("m.ptx", device="host")
    x, y, z = np.ones(3, np.float32), np.arange(3, dtype=np.float32), np.full((2, 3), 3 + 4j, np.complex64)
    first, rest = found = model([x, y], {"z": z})
    assert type(found) is tuple and np.array_equal(first, x + y)
    assert list(rest) == ["r", "n"] and rest["r"]["main"].dtype == np.complex64
    assert np.array_equal(rest["r"]["main"], z * 1j) and np.allclose(rest["n"][0], 5)
    for name, array in {"ids_0": x, "ids_1": y, "parts_z": z}.items():
        np.save(f"{name}.npy", array)
    inputs = [a for name in ("ids_0", "ids_1", "parts_z") for a in ("--input", f"{name}={name}.npy")]
    for where in (["--device", "host"], ["--level", "tiles"]):
        result = ran(mlirc_run.main, "m.ptx", *inputs, "-o", "out.npz", *where)
        assert result.status == 0, result.err
        with np.load("out.npz") as out:
            assert any(a.dtype == np.complex64 and np.array_equal(a, z * 1j) for a in out.values())


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1 + 2j, 0.5, -1j, 2]))  # whose products are exact

    def forward(self, z, w):
        w.mul_(2j)
        return z * 1j + w, torch.fft.fft(z), z.abs(), (z * self.factor).imag, z.conj()


def test_complex_tensors_of_both_libraries():
    module, generator = Complex(), torch.Generator().manual_seed(0)
    for dtype in (torch.complex64, torch.complex128):
        z, w = (torch.randn(shape, dtype=dtype, generator=generator) for shape in ((3, 4), (4,)))
        model = mlirc.compile(module, (z, w), device="host")
        for given in (z, z.conj()):
            ours, theirs = w.clone(), w.clone()
            for a, b in zip(model(given, ours), module(given, theirs), strict=True):
                torch.testing.assert_close(a, b.detach())
            torch.testing.assert_close(ours, theirs)
        arrays = z.numpy(), w.numpy().copy()
        for a, b in zip(model(*arrays), module(z, w), strict=True):
            assert a.dtype == b.detach().resolve_conj().numpy().dtype
            np.testing.assert_allclose(a, b.detach().resolve_conj().numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(arrays[1], w.numpy())
        with pytest.raises(MlircError, match="input 'w' is changed by the model, and lazily conjugated"):
            model(z, w.conj())


def test_numbers_that_are_lazily_negated():
    z = torch.randn(5, dtype=torch.complex64)
    model = mlirc.compile(Flagged(), (z.real.contiguous(), True), device="host")
    x = torch._neg_view(z.real.contiguous())
    assert torch.equal(model(x, True)[0], x + 1)


def structure():
    parts = (
        TENSOR,
        Tree("constant", value=None),
        Tree("constant", value=0.1),
        Tree("object", value="dtype torch.int8"),
    )
    tree = Tree("dict", (Tree("list", parts), Tree("complex"), Tree("absent")), ("a", 3, "c"), "")
    named = Tree("named", (TENSOR, Tree("record", (TENSOR,), ("f",), "R")), ("p", "q"), "P")
    return Structure(("x",), (tree,), (("y", named),), Tree("node", (TENSOR,), (), "Cache"))


def test_structures_as_json():
    def wrong(value, where, wanted):
        raise MlircError(f"{where}: {value} where {wanted}")

    text = json.dumps(structure_out(structure()))
    assert read_structure(json.loads(text), wrong) == structure()
    deep = structure_out(structure())
    deep["result"] = ["tensor"]
    for _ in range(70):
        deep["result"] = ["list", [deep["result"]]]
    bad = [deep, [], {}, None, {**deep, "result": 3}]
    for key, value in (
        ("result", ["tensor", 1]), ("result", ["constant", [1]]), ("result", ["float", "x"]), ("result", ["code", "x"]),
        ("result", ["dict", [["tensor"]], "", []]), ("result", ["dict", [["tensor"], ["tensor"]], "", ["a", "a"]]),
        ("result", ["record", [["tensor"]], "R", [3]]), ("result", ["node", [["tensor"]], 5]), ("args", 3),
        ("result", ["list", "tensor"]), ("kwargs", [["x"]]), ("kwargs", [[3, ["tensor"]]]), ("parameters", ["x", "x"]),
        ("parameters", [None]), ("kwargs", [["x", ["tensor"]]]),
    ):  # fmt: skip
        bad.append({**structure_out(structure()), key: value})
    for data in bad:
        with pytest.raises(MlircError, match="where"):
            read_structure(json.loads(json.dumps(data)), wrong)


def test_a_plan_whose_structure_does_not_fit_is_refused(model):
    text = to_json(model.plan)
    assert from_json(text).structure == model.plan.structure
    plan = copy.copy(model.plan)
    for result, words in (
        (TENSOR, "1 outputs, but the plan has"),
        (Tree("tuple", (Tree("complex"),) * len(plan.outputs)), "holds no complex numbers"),
        (Tree("record", (TENSOR,) * len(plan.outputs), tuple(f"\n{i}" for i in range(len(plan.outputs)))), "control"),
    ):
        plan.structure = dataclasses.replace(model.plan.structure, result=result)
        with pytest.raises(MlircError, match=words):
            from_json(to_json(plan))


def test_the_levels_know_the_structure():
    job = Compilation("model", get_target("sm_90a"), ())
    args, kwargs = examples(0)
    job.import_module(Nested(), args, kwargs)
    job.lower("kernels")
    for level in ("torch", "linalg", "kernels"):
        assert "mlirc.structure" in job.text(level).split("\n{", 1)[0]
