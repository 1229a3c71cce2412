"""torch.export archives that are damaged, or that would run code: refused in one line, and nothing runs."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from collections import OrderedDict
from pathlib import PurePosixPath

import pytest
import torch

from mlirc.driver.compilation import Compilation
from mlirc.errors import MlircError
from mlirc.frontend import open_model
from mlirc.internal import InternalError
from mlirc.targets import get_target
from support import randomness
from support.hostile.altered_json import altered, places
from support.hostile.archives import (
    Touch,
    changed,
    edited,
    members,
    pack,
    touching_pickle,
    with_directory,
    with_local_header,
)

MODEL, SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(6, 5)
        self.tied = self.fc
        self.register_buffer("shift", torch.arange(5.0), persistent=False)
        self.register_buffer("none", torch.zeros(0, 3))

    def forward(self, x, *, scale):
        with torch.no_grad():
            y = self.fc(x)
        return {
            "a": y * scale["s"] + self.shift,
            "b": (y * 2, self.none.sum()),
            "c": OrderedDict(d=y[: x.shape[0] // 2]),
        }


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The members of a sound archive with dynamic shapes, and the program that it holds."""
    path = tmp_path_factory.mktemp("sound") / "model.pt2"
    batch = torch.export.Dim("batch", min=4, max=64)
    args, kwargs = (torch.randn(2 * 3, 6),), {"scale": {"s": torch.randn(1)}}
    shapes = {"x": {0: 2 * batch}, "scale": {"s": {0: None}}}
    program = torch.export.export(Net().eval(), (torch.randn(14, 6),), kwargs, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)
    return members(path), program, args


@pytest.fixture
def marker(tmp_path):
    """A file that must not appear."""
    yield tmp_path / "marker"
    assert not (tmp_path / "marker").exists(), "the file ran code"


def error(path) -> str:
    with pytest.raises(MlircError) as caught:
        open_model(str(path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1500
    return str(caught.value)


def test_a_sound_archive_is_as_pytorch_reads_it(sound, tmp_path):
    parts, program, _ = sound
    path = pack(tmp_path / "m.pt2", parts)
    found, wanted = open_model(str(path)), torch.export.load(path)
    assert {k: v.tolist() for k, v in found.weights.items()} == {k: v.tolist() for k, v in program.state_dict.items()}
    x, scale = torch.randn(10, 6), {"s": torch.randn(1)}
    ours, theirs = found.torch_module()(x, scale=scale), wanted.module()(x, scale=scale)
    for a, b in zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs), strict=True):
        assert torch.equal(a, b)


def test_compressed_archives_are_read(sound, tmp_path):
    assert open_model(str(pack(tmp_path / "m.pt2", sound[0], compress=True))).weights["fc.bias"].shape == (5,)


def test_the_older_format(tmp_path, marker):
    from torch._export.serde.serialize import serialize

    program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),), strict=False)
    made = serialize(program)
    parts = {
        "serialized_exported_program.json": made.exported_program, "serialized_state_dict.pt": made.state_dict,
        "serialized_constants.pt": made.constants, "serialized_example_inputs.pt": made.example_inputs, "version": b"8.8",
    }  # fmt: skip
    source = open_model(str(pack(tmp_path / "old.pt2", parts, root="")))
    assert torch.equal(source.weights["weight"], program.state_dict["weight"])
    for name in ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt"):
        error(pack(tmp_path / "bad.pt2", parts | {name: touching_pickle(marker)}, root=""))
        error(pack(tmp_path / "bad.pt2", parts | {name: saved({"x": Touch(marker)})}, root=""))


def saved(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_pickles(sound, tmp_path, marker):
    parts = sound[0]
    path = tmp_path / "m.pt2"
    for data in (touching_pickle(marker), saved(((Touch(marker),), {})), saved(Touch(marker)), b"\x80\x02."):
        error(changed(path, parts, SAMPLES, data))
    for name, table in (("fc.weight", WEIGHTS), ("shift", CONSTANTS)):
        for file in ("weight_0", "tensor_0", "custom_obj_0", "opaque_obj_0", "../../x"):
            folder = table.rsplit("/", 1)[0]

            def use(config, name=name, file=file):
                config["config"][name] |= {"path_name": file, "use_pickle": True}

            bad = dict(parts) | {f"{folder}/{file}": saved(Touch(marker)), f"{folder}/x": touching_pickle(marker)}
            bad.pop(f"{folder}/../../x", None)
            assert "pickled object" in error(edited(path, bad, table, use))
    without = {k: v for k, v in parts.items() if k not in (WEIGHTS, CONSTANTS)}
    error(pack(path, without | {"data/weights/model.pt": saved({"fc.weight": Touch(marker)})}))


def graph(program: dict) -> dict:
    return program["graph_module"]["graph"]


CODE = "__import__('pathlib').Path({!r}).touch()"


@pytest.mark.parametrize(
    "text",
    [
        CODE, f"[{CODE}]", f"Symbol('s0', positive={CODE})", f"s0 + {CODE}", "(lambda: s0)()", "s0.__class__", "s0[0]",
        f"Symbol('s0'), {CODE}", "__builtins__", "9**9**9**9", "Pow(Integer(9), Integer(999999999))", "s0**(9**9)",
        "PowByNatural(9, PowByNatural(9, 9999))", "LShift(1, 10**9)", "1 << 99999999", "((s0**64)**64)**64", "f'{s0}'",
        "s0 if s0 else s0", "Symbol('s0; x')", "print(s0)", "factorial(99999)", "s0!", "(" * 3000 + ")" * 3000, "",
        "-" * 5000 + "s0", f"Function('x')({CODE})", "exec('1')", "open", "s0:=1", "*s0", "0x" + "f" * 3999, "S('1')",
    ],
)  # fmt: skip
def test_symbolic_sizes(sound, tmp_path, marker, text):
    def put(program):
        sizes = graph(program)["tensor_values"]["x"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = text.replace("{!r}", repr(str(marker)))

    assert "arithmetic" in error(edited(tmp_path / "m.pt2", sound[0], MODEL, put))


HARMFUL = [
    lambda p, code, touch: p["guards_code"].append(code),  # left out: Python that the module would run
    lambda p, code, touch: p["range_constraints"].update({code: {"min_val": 0, "max_val": 9}}),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="torch.os.system"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="torch.ops.aten.from_file.default"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="torch.ops.debugprims.load_tensor.default"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="torch.ops.higher_order.call_torchbind"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="_operator.attrgetter"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="math.__loader__.load_module"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="#x:y"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target=["torch.os.system"]),
    lambda p, code, touch: graph(p)["nodes"][-1].update(target="torch.ops.aten.no_such_thing.default"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(name=f"x\n    {code}\n    y"),
    lambda p, code, touch: graph(p)["nodes"][-1].update(name="import"),
    lambda p, code, touch: graph(p)["inputs"][0]["as_tensor"].update(name=f"x={code}"),
    lambda p, code, touch: graph(p)["inputs"].append({"as_string": f"'+{code}+'"}),
    lambda p, code, touch: graph(p)["nodes"][-1]["inputs"][0].update(arg={"as_operator": "torch.os.system"}),
    lambda p, code, touch: graph(p)["nodes"][-1]["inputs"][0].update(arg={"as_custom_obj": {"name": "x", "class_fqn": "x"}}),
    lambda p, code, touch: graph(p)["custom_obj_values"].update(x={"name": "x", "class_fqn": "y"}),
    lambda p, code, touch: call(p).update(forward_arg_names=[f"x={code}", "scale"]),
    lambda p, code, touch: call(p).update(in_spec=call(p)["in_spec"].replace("scale", f"scale={touch}")),
    lambda p, code, touch: call(p).update(out_spec=tree("collections.defaultdict", {"default_factory_module": "hostile_module", "default_factory_name": "x", "dict_context": []})),
    lambda p, code, touch: call(p).update(out_spec=tree("builtins.dict", '[{"__enum__": true, "fqn": "hostile_module:X", "name": "A"}]')),
    lambda p, code, touch: call(p).update(out_spec=tree("hostile_module.Thing", "null")),
    lambda p, code, touch: call(p).update(out_spec="[1, " + '{"type": "builtins.tuple", "context": "null", "children_spec": [' * 5000),
    lambda p, code, touch: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name=f"x'); {code}; ('"),
    lambda p, code, touch: p["graph_module"]["signature"]["input_specs"][0]["parameter"].update(parameter_name="__class__"),
    lambda p, code, touch: p.update(verifiers=[code]),
    lambda p, code, touch: p.update(schema_version={"major": 99, "minor": 0}),
    lambda p, code, touch: graph(p)["tensor_values"]["x"]["device"].update(type=code),
    lambda p, code, touch: graph(p)["tensor_values"]["x"].update(dtype=77),
]  # fmt: skip


def call(program: dict) -> dict:
    return program["graph_module"]["module_call_graph"][0]["signature"]


def tree(kind: str, context: object) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


@pytest.mark.parametrize("number", range(len(HARMFUL)))
def test_graphs(sound, tmp_path, marker, monkeypatch, number):
    (tmp_path / "hostile_module.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = CODE.format(str(marker))
    path = edited(tmp_path / "m.pt2", sound[0], MODEL, lambda p: HARMFUL[number](p, code, "open('marker','w')"))
    if number == 0:
        open_model(str(path)).torch_module()
    else:
        error(path)


def test_metadata_is_no_code(sound, tmp_path, marker):
    def put(program):
        for node in graph(program)["nodes"]:
            node["metadata"] = {
                k: f"x\r\n{CODE.format(str(marker))}" for k in ("stack_trace", "nn_module_stack", "custom")
            }
            node["metadata"] |= {"from_node": "[1", "source_fn_stack": "a,torch.os.system"}

    open_model(str(edited(tmp_path / "m.pt2", sound[0], MODEL, put))).torch_module()


def test_damaged_tensors(sound, tmp_path):
    """Zeros, or what lies behind the data, must never stand in for weights that are not there."""
    parts, path = sound[0], tmp_path / "m.pt2"
    weight = parts["data/weights/weight_0"]
    for data in (b"", weight[:-4], weight[:-1], weight[:4], None):
        assert "damaged" in error(changed(path, parts, "data/weights/weight_0", data))
    assert "damaged" in error(changed(path, parts, "data/constants/tensor_0", b""))
    for meta in (
        {"storage_offset": {"as_int": 1}}, {"sizes": [{"as_int": 5}, {"as_int": 7}]}, {"storage_offset": {"as_int": -1}},
        {"strides": [{"as_int": 1 << 40}, {"as_int": 1}]}, {"sizes": [{"as_int": 1 << 60}, {"as_int": 1 << 60}]},
        {"sizes": [{"as_int": 5}, {"as_int": -6}]}, {"dtype": 8}, {"dtype": 6}, {"dtype": 99}, {"sizes": 5},
        {"sizes": [{"as_int": 5.5}, {"as_int": 6}]}, {"sizes": [{"as_int": 30}], "strides": [{"as_int": 1}]}, {"sizes": []},
    ):  # fmt: skip
        error(edited(path, parts, WEIGHTS, lambda c, meta=meta: c["config"]["fc.weight"]["tensor_meta"].update(meta)))
    error(edited(path, parts, WEIGHTS, lambda c: c["config"].pop("fc.weight")))
    error(changed(path, parts, "byteorder", b"big"))
    sample = parts[SAMPLES]
    for cut in (len(sample) // 2, len(sample) - 1):
        error(changed(path, parts, SAMPLES, sample[:cut]))


@pytest.mark.parametrize("member", [MODEL, WEIGHTS, CONSTANTS])
def test_other_json(sound, tmp_path, member):
    path = tmp_path / "m.pt2"
    deep = b"[" * 100_000
    wrong = (
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b'{"config": 1}',
        b'{"graph_module": []}',
        deep,
        b"\xff\xfe{}",
        None,
    )
    for data in wrong:
        error(changed(path, sound[0], member, data))


def wrong_types(value, found=()):
    """Every place in a JSON value, with a value of another type for it."""
    others = ("x", 7, None, [], {}, -1.5, True)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for number, (key, child) in enumerate(items):
        yield (*found, key), others[(number + len(found)) % len(others)]
        yield from wrong_types(child, (*found, key))


def test_wrong_types(sound, tmp_path):
    """Of all places in the JSON every fifteenth with a value of another type: one line, or (what nobody reads) right."""
    data = json.loads(sound[0][MODEL])
    places = list(wrong_types(data))[::15]
    assert len(places) > 50
    for place, other in places:

        def put(program, place=place, other=other):
            for key in place[:-1]:
                program = program[key]
            program[place[-1]] = other

        try:
            open_model(str(edited(tmp_path / "m.pt2", sound[0], MODEL, put)))
        except MlircError as e:
            assert "\n" not in str(e)


def test_archives_that_readers_see_differently(sound, tmp_path):
    parts, path = sound[0], tmp_path / "m.pt2"
    good = pack(path, parts).read_bytes()
    names = list(parts)
    first = len("model/" + names[0])
    crc = struct.pack("<I", zlib.crc32(parts[names[0]]) ^ 1)
    cases = {
        "appended": good + b"x",
        "a comment": good[:-2] + b"\1\0x",
        "prepended": b"PK\3\4" + good,
        "cut": good[:-30],
        "half": good[: len(good) // 2],
        "a longer name in front": with_local_header(good, 0, 26, struct.pack("<H", first + 1)),
        "another name in front": with_local_header(good, 0, 30, b"x"),
        "another name in the directory": with_directory(good, 0, 46, b"x"),
        "encrypted": with_directory(with_local_header(good, 0, 6, b"\1\0"), 0, 8, b"\1\0"),
        "another packing": with_directory(good, 0, 10, b"\x0c\0"),
        "another size": with_local_header(good, 0, 18, b"\x10\0\0\0\x10\0\0\0"),
        "another checksum": with_directory(with_local_header(good, 0, 14, crc), 0, 16, crc),
        "one checksum": with_directory(good, 0, 16, crc),
        "overlapping": with_directory(good, 1, 42, b"\0\0\0\0"),
        "twice the end": good + good[-22:],
    }
    for what, data in cases.items():
        path.write_bytes(data)
        assert "archive" in error(path), what


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a//b", "a/../b", "models/MODEL.json", "models/model.json", "a\\b", "\x07"]
)
def test_names_in_archives(sound, tmp_path, name):
    import warnings
    import zipfile

    path = pack(tmp_path / "m.pt2", sound[0])
    with warnings.catch_warnings(), zipfile.ZipFile(path, "a") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(f"model/{name}", b"x")
    assert "archive" in error(path)


def test_flipped_bytes(sound, tmp_path):
    """One byte in sixty places: refused, or right where nothing reads it."""
    path = tmp_path / "m.pt2"
    good = pack(path, sound[0]).read_bytes()
    weight = open_model(str(path)).weights["fc.weight"].clone()
    refused = 0
    for at in range(7, len(good), len(good) // 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            assert torch.equal(open_model(str(path)).weights["fc.weight"], weight), at
        except MlircError as e:
            refused += 1
            assert "\n" not in str(e)
    assert refused > 40


def test_bombs(sound, tmp_path):
    import zipfile

    path = pack(tmp_path / "m.pt2", sound[0])
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("model/extra/zeros", "w") as member:
        for _ in range(20):
            member.write(bytes(16 << 20))
    assert "zip bomb" in error(path)


def test_the_flag_opens_what_cannot_be_judged_and_still_wants_it_whole(sound, tmp_path):
    parts, path = sound[0], tmp_path / "m.pt2"
    sample = saved(((torch.randn(14, 6),), {"scale": PurePosixPath("x")}))
    changed(path, parts, SAMPLES, sample)
    assert "--allow-pickle" in error(path)
    inputs = ["x=f32[8,6]", "scale_s=f32[1]"]
    assert open_model(str(path), allow_pickle=True, inputs=inputs).weights["fc.bias"].shape == (5,)
    changed(path, parts, "data/weights/weight_0", b"")
    with pytest.raises(MlircError, match="damaged"):
        open_model(str(path), allow_pickle=True)


def test_values_of_other_types(sound, tmp_path):
    """At any place of any JSON in it: refused as what the file is, and never as a bug of mlirc's."""
    path, refused, generator = tmp_path / "m.pt2", 0, randomness.generator()
    for member, count in ((MODEL, 300), (WEIGHTS, 60), (CONSTANTS, 30)):
        document = json.loads(sound[0][member])
        found = list(places(document))
        for _ in range(count):
            new, change = altered(document, generator, found)
            changed(path, sound[0], member, json.dumps(new).encode())
            try:
                open_model(str(path))
            except MlircError as e:
                refused += 1
                assert not isinstance(e, InternalError) and "\n" not in str(e), change
    assert refused > 300


@pytest.mark.parametrize("at, value, why", [
    (("tensor_values", "b_shift", "sizes"), True, r"tensor_values\['b_shift'\].sizes is True, not list"),
    (("tensor_values", "b_shift", "dtype"), [], r"tensor_values\['b_shift'\].dtype is list, not ScalarType"),
    (("tensor_values", "b_shift", "dtype"), 99, "dtype is 99, not ScalarType"),
    (("nodes", 0, "target"), 5, r"nodes\[0\].target is 5, not str"),
])  # fmt: skip
def test_the_value_is_named(sound, tmp_path, at, value, why):
    def edit(document):
        holder = document["graph_module"]["graph"]
        for key in at[:-1]:
            holder = holder[key]
        holder[at[-1]] = value

    edited(tmp_path / "m.pt2", sound[0], MODEL, edit)
    assert re.search(why, error(tmp_path / "m.pt2"))


def test_an_operator_that_cannot_be_computed(tmp_path):
    """A constant that the compiler computes: `cat` of nothing."""

    class Constant(torch.nn.Module):
        def forward(self, x):
            return x + torch.cat([torch.arange(2.0), torch.arange(3.0)])

    torch.export.save(torch.export.export(Constant(), (torch.ones(5),), strict=False), tmp_path / "m.pt2")

    def edit(document):
        for node in document["graph_module"]["graph"]["nodes"]:
            if ".cat." in node["target"]:
                node["inputs"][0]["arg"]["as_tensors"] = []

    edited(tmp_path / "m.pt2", members(tmp_path / "m.pt2"), MODEL, edit)
    job = Compilation("m", get_target("sm_90a"))
    with pytest.raises(MlircError, match="cat.*cannot be computed of constants") as caught:
        job.open(str(tmp_path / "m.pt2"))
    assert not isinstance(caught.value, InternalError)
