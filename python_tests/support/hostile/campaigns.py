"""A hostile or clumsy day in many small trials: each ends in what is right, or in one line that refuses it.

A campaign yields one word for each trial: how it ended. What did not hold raises Broken, which says what was done.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mlirc
from mlirc.driver.compilation import Compilation, compile_model
from mlirc.errors import MlircError
from mlirc.frontend import open_model
from mlirc.frontend.weights import write_weights
from mlirc.internal import InternalError
from mlirc.runtime.weights import WeightFile
from mlirc.targets import get_target
from support.hostile.altered_json import altered, places
from support.hostile.archives import members, pack
from support.threads import COUNT, at_once

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
PATIENCE = 300  # seconds that a program may take to end


class Broken(Exception):
    """What did not hold, and what was done."""


class Net(torch.nn.Module):
    """A product, a constant, and a state that counts calls."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(7, 5)
        self.register_buffer("scale", torch.arange(1.0, 6.0), persistent=False)
        self.register_buffer("calls", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        return torch.relu(self.linear(x)) * self.scale


@dataclass
class World:
    """What the trials spoil copies of: `m.pt2`, and what it compiles to. `y` is right for `x`."""

    folder: Path
    net: torch.nn.Module
    x: np.ndarray
    y: np.ndarray

    @staticmethod
    def make(folder: Path) -> World:
        torch.manual_seed(0)
        net, x = Net().eval(), torch.randn(3, 7)
        torch.export.save(torch.export.export(net, (x,), strict=False), folder / "m.pt2")
        compile_model(str(folder / "m.pt2"), folder / "m.ptx")
        return World(folder, net, x.numpy(), net(x).detach().numpy())

    def is_right(self, found: Any) -> bool:
        return found is None or np.allclose(found, self.y, rtol=1e-4, atol=1e-5)

    def copy(self, name: str) -> Path:
        """A folder with the compiled model."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for file in ("m.ptx", "m.safetensors", "m.pt2"):
            shutil.copy(self.folder / file, folder / file)
        shutil.copytree(self.folder / "m.levels", folder / "m.levels")
        return folder


def ended(world: World, call: Callable[[], Any], what: str) -> str:
    """How a trial ended: `refused` or `right`; raises Broken for all else."""
    try:
        found = call()
    except MlircError as e:
        if isinstance(e, InternalError):
            raise Broken(f"{what}: {e}") from e
        return "refused"
    except Exception as e:
        raise Broken(f"{what}: {type(e).__name__}: {e}") from e
    if not world.is_right(found):
        raise Broken(f"{what}: another result")
    return "right"


def spoiled(data: bytes, generator: np.random.Generator) -> tuple[bytes, str]:
    """A file's bytes with one bit flipped, mostly, or cut off, or with a hole of zeros."""
    at, way = int(generator.integers(len(data))), int(generator.integers(10))
    if way == 0:
        return data[:at], f"cut at byte {at}"
    if way == 1:
        return data[:at] + bytes(len(data[at : at + 64])) + data[at + 64 :], f"zeros from byte {at}"
    bit = int(generator.integers(8))
    return data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], f"bit {bit} of byte {at}"


def flips(world: World, generator: np.random.Generator) -> Iterator[str]:
    """Damage to each kind of file that mlirc reads."""
    folder = world.copy("flips")
    levels = [f"m.levels/{p.name}" for p in sorted((folder / "m.levels").iterdir())]
    while True:
        for name in ("m.ptx", "m.safetensors", "m.pt2", *levels):
            path = folder / name
            data = path.read_bytes()
            new, what = spoiled(data, generator)
            path.write_bytes(new)

            def use(path: Path = path) -> Any:
                if path.suffix == ".pt2":
                    return open_model(str(path)).torch_module()(torch.from_numpy(world.x)).detach().numpy()
                return mlirc.load(folder / "m.ptx", device="host")(world.x)

            verdict = ended(world, use, f"{name}, {what}")
            if verdict == "right" and name in ("m.ptx", "m.safetensors") and new != data:
                raise Broken(f"{name}, {what}: not found")
            path.write_bytes(data)
            yield f"{Path(name).name}: {verdict}"


def headers(world: World, generator: np.random.Generator) -> Iterator[str]:
    """JSON with another value: of a torch.export archive, of a Hugging Face folder, of a safetensors header."""
    parts, folder = members(world.folder / "m.pt2"), world.folder / "headers"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = json.loads(parts["models/model.json"])
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 11, "hidden_size": 8,
              "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "rms_norm_eps": 1e-5, "max_position_embeddings": 32, "tie_word_embeddings": False}  # fmt: skip
    write_weights(
        folder / "w.safetensors", {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.int8)}
    )
    data = (folder / "w.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, found = json.loads(data[8 : 8 + length]), list(places(model))
    while True:
        new, what = altered(model, generator, found)
        pack(folder / "m.pt2", parts | {"models/model.json": json.dumps(new).encode()})

        def lower() -> None:
            job = Compilation("m", get_target("sm_90a"), helpers=0)
            job.open(str(folder / "m.pt2"))
            job.lower("linalg")

        yield f"model.json: {ended(world, lower, f'model.json, {what}')}"
        new, what = altered(config, generator)
        (folder / "config.json").write_text(json.dumps(new))
        opening = dict(random_weights=0, inputs=["input_ids=i64[1,3]"])
        verdict = ended(world, lambda: open_model(str(folder), **opening) and None, f"config.json, {what}")  # noqa: B023
        yield f"config.json: {verdict}"
        new, what = altered(header, generator)
        text = json.dumps(new).encode()
        (folder / "w.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
        yield f"safetensors header: {ended(world, lambda: _read(folder / 'w.safetensors'), what)}"


def _read(path: Path) -> None:
    file = WeightFile(path)
    for name in file.entries:
        file.array(name).sum()


def signals(world: World, generator: np.random.Generator) -> Iterator[str]:
    """A signal at some moment of `mlirc m.pt2 -o o.ptx`, with a cache and without one."""
    folder, whole = world.copy("signals"), 0.0
    while True:
        for number in (None, *SIGNALS) if not whole else SIGNALS:
            cached = bool(generator.integers(2))
            mark = uuid.uuid4().hex
            environment = os.environ | {"MLIRC_TRIAL": mark, "MLIRC_CACHE_DIR": str(folder / "cache")}
            command = [sys.executable, "-m", "mlirc", "m.pt2", "-o", "o.ptx", *([] if cached else ["--no-cache"])]
            start = time.monotonic()
            child = subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
            if number is not None:
                time.sleep(float(generator.uniform(0.05, 1.1)) * whole)
                child.send_signal(number)
            _, words = child.communicate(timeout=PATIENCE)
            whole = whole or time.monotonic() - start
            what = f"signal {number} after {time.monotonic() - start:.2f} of {whole:.2f} s"
            _check_end(world, folder, number, child.returncode, words, what)
            _check_left(mark, what)
            yield "whole" if child.returncode == 0 else f"signal {number.value}"
            for path in (folder / "o.ptx", folder / "o.safetensors"):
                path.unlink(missing_ok=True)
            shutil.rmtree(folder / "o.levels", ignore_errors=True)


def _check_end(world: World, folder: Path, number: int | None, status: int, words: str, what: str) -> None:
    """The files are whole or not there, and the status tells of the signal."""
    early = number is not None and status in (-number, 128 + number) and ("KeyboardInterrupt" in words or not words)
    if status != 0 and not early:
        raise Broken(f"{what}: status {status}: {words}")
    if (folder / "o.ptx").exists():
        if not world.is_right(mlirc.load(folder / "o.ptx", device="host")(world.x)):
            raise Broken(f"{what}: another result")
    elif status == 0:
        raise Broken(f"{what}: status 0, and no model")
    left = [p.name for p in folder.rglob(".mlirc-*")]
    if left and number != signal.SIGKILL:
        raise Broken(f"{what}: left {left}")


def _check_left(mark: str, what: str) -> None:
    """No process of the trial is there a little later."""
    end = time.monotonic() + 20
    while left := _processes(mark):
        if time.monotonic() > end:
            raise Broken(f"{what}: left processes {left}")
        time.sleep(0.05)


def _processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"MLIRC_TRIAL={mark}".encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return found


def caches(world: World, generator: np.random.Generator) -> Iterator[str]:
    """Damage to the folder of compiled kernels: the model comes out the same."""
    folder = world.folder / "caches"
    folder.mkdir(exist_ok=True)
    old = os.environ.get("MLIRC_CACHE_DIR")
    wanted = (world.folder / "m.ptx").read_text()
    try:
        while True:
            os.environ["MLIRC_CACHE_DIR"] = str(folder / "cache")
            files = [p for p in (folder / "cache").glob("**/*") if p.is_file()]
            if files:
                what = _damage(files[generator.integers(len(files))], generator)
            else:  # made anew; where a folder has a kernel's name, it stays empty
                what = "empty"
                shutil.rmtree(folder / "cache", ignore_errors=True)
            ended(world, lambda: compile_model(str(world.folder / "m.pt2"), folder / "o.ptx") and None, what)
            if (folder / "o.ptx").read_text() != wanted:
                raise Broken(f"cache, {what}: another PTX file")
            yield what.split(" ")[0]
    finally:
        os.environ.pop("MLIRC_CACHE_DIR")
        if old is not None:
            os.environ["MLIRC_CACHE_DIR"] = old


def _damage(path: Path, generator: np.random.Generator) -> str:
    way = ("bytes", "folder", "link", "empty", "name", "rights")[generator.integers(6)]
    data = path.read_bytes()
    if way == "rights":
        path.chmod(0)
    elif way == "name":
        path.rename(path.with_name(f"{generator.bytes(32).hex()}.json"))
    elif way == "bytes":
        new, what = spoiled(data, generator) if data else (b"x", "one byte")
        path.write_bytes(new)
        return f"bytes {what}"
    else:
        path.unlink()
        path.mkdir() if way == "folder" else path.symlink_to("/etc/passwd") if way == "link" else path.touch()
    return way


def threads(world: World, generator: np.random.Generator) -> Iterator[str]:
    """Eight threads at public calls, drawn anew each time."""
    shared, x = mlirc.load(world.folder / "m.ptx", device="host"), torch.from_numpy(world.x)
    compiled = torch.compile(torch.nn.Softsign(), backend="mlirc", options={"fallback": False, "level": "kernels"})

    def set_state() -> None:
        shared.state["calls"] = np.zeros(2, np.float32)

    calls: dict[str, Callable[[], Any]] = {
        "load": lambda: mlirc.load(world.folder / "m.ptx", device="host")(world.x),
        "compile": lambda: mlirc.compile(world.net, (x,), device="host")(world.x),
        "call": lambda: shared(world.x),
        "state": lambda: shared.state.restore(shared.state.snapshot()),
        "set": set_state,
        "torch.compile": lambda: _require_close(compiled(x), torch.nn.functional.softsign(x)),
        "open": lambda: open_model(str(world.folder / "m.pt2")) and None,
    }
    while True:
        names = [list(calls)[generator.integers(len(calls))] for _ in range(COUNT)]
        with torch.no_grad():
            results = at_once(lambda i: ended(world, calls[names[i]], names[i]), seconds=PATIENCE)  # noqa: B023
        for result in results:
            if isinstance(result, BaseException):
                raise Broken(f"threads at {', '.join(names)}: {result}") from result
        yield "right"


def _require_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    if not torch.allclose(found, wanted, rtol=1e-4, atol=1e-5):
        raise Broken("torch.compile: another result")


CAMPAIGNS = {"flips": flips, "headers": headers, "signals": signals, "caches": caches, "threads": threads}
