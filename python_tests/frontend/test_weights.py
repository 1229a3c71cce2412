"""Weights in a file: random ones are made several at a time, and lie where the others lie in between."""

from __future__ import annotations

from collections import ChainMap

import pytest
import torch
from safetensors.torch import load_file

from mlirc.errors import MlircError
from mlirc.files.outputs import Outputs
from mlirc.frontend import weights
from mlirc.frontend.inputs import InputSpec
from mlirc.frontend.weights import RandomWeights, Renamed, random_weight, weights_writer
from support.randomness import generator

SHAPES = {"a.weight": (31, 7), "b.bias": (1,), "c.weight": (257, 13), "d.running_var": (5,), "e.scalar": ()}


def mixed() -> tuple[ChainMap, dict[str, torch.Tensor]]:
    """Weights of several sources, and what they are."""
    specs = {n: InputSpec(n, torch.bfloat16 if n[0] in "ac" else torch.float32, s) for n, s in SHAPES.items()}
    random = RandomWeights(specs, 3, fixed={"b.bias": torch.ones(1)}, tied={"d.running_var": "d.running_var"})
    x, z = (torch.from_numpy(generator().standard_normal(shape)) for shape in ((3, 5), (2, 3)))
    own = {"x": x, "y": torch.arange(7), "z": z.t()}
    expected = {f"new.{n}": random_weight(spec, 3) for n, spec in specs.items()} | own
    expected["new.b.bias"] = torch.ones(1)
    return ChainMap(own, Renamed(random, {f"new.{n}": n for n in specs})), expected  # type: ignore[arg-type]


@pytest.mark.parametrize("makers", [1, 4])
def test_every_weight_is_in_its_place(tmp_path, monkeypatch, makers):
    monkeypatch.setattr(weights, "_MAKERS", makers)
    given, expected = mixed()
    seen: list[tuple[int, int]] = []
    weights_writer(given, lambda done, of: seen.append((done, of)))(tmp_path / "w.safetensors")
    found = load_file(tmp_path / "w.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    assert len(seen) == len(expected) and seen == sorted(seen) and seen[-1][0] == seen[-1][1]


def test_a_weight_that_cannot_be_made_leaves_no_file(tmp_path, monkeypatch):
    def fails(spec, seed):
        raise MlircError(f"no {spec.name}")

    monkeypatch.setattr(weights, "random_weight", fails)
    with pytest.raises(MlircError, match="no a.weight"), Outputs() as outputs:
        outputs.add(tmp_path / "w.safetensors", weights_writer(mixed()[0]))
    assert not list(tmp_path.iterdir())
