"""Builds a tiny model of an architecture, checks it, and says how that ended: `right`, `WRONG: why`, `refused: why`."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("list.txt")
KINDS = ("plain", "padded right", "padded left", "token changed")
_TEXT, _TARGET = (2, 9), (2, 7)  # batch, tokens


@dataclass(frozen=True)
class Architecture:
    """One line of the list: a model class of transformers, what kind of model it is, and how its check ends."""

    name: str
    kind: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.name:<45} {self.kind:<16} {self.outcome}".rstrip()


def read_list() -> list[Architecture]:
    """The architectures of the list, in its order."""
    lines = [line.split(None, 2) for line in LIST.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [Architecture(name, kind, outcome.strip()) for name, kind, outcome in lines]


def levels_for(name: str) -> list[str]:
    """The levels that a test checks: the lowest that a CPU runs, and, of a seeded fifth, those above it too."""
    return ["linalg", "kernels", "tiles"] if _draw(name) % 5 == 0 else ["tiles"]


def chosen() -> list[Architecture]:
    """The architectures of the list that the tests run: all, if MLIRC_ARCHITECTURES=all asks for that, else one of every
    family that was wrong once or that most use, and a seeded part of the others."""
    if os.environ.get("MLIRC_ARCHITECTURES") == "all":
        return read_list()
    found, families = [], set()
    for a in read_list():
        family = _ALWAYS.search(a.name)
        if (family and family[1] not in families) or (_draw(a.name) % 32 == 0 and a.name not in _SLOW):
            found.append(a)
            families.add(family and family[1])
    return found


_SLOW = {"PegasusXForConditionalGeneration", "KimiLinearForCausalLM", "FocalNetForImageClassification", "CvtForImageClassification",
         "RfDetrForObjectDetection", "RTDetrForObjectDetection", "RTDetrV2ForObjectDetection", "Qwen3_5MoeForCausalLM", "OlmoHybridForCausalLM", "DeepseekV4ForCausalLM"}  # fmt: skip


# Those that were wrong once, and those that most people use and no other test has.
_ALWAYS = re.compile(
    "^(Bloom|Falcon|Mpt|XGLM|Git|SqueezeBert|MegatronBert|Blip|MPNet|RoFormer|ConvBert|RemBert|Rwkv|BigBird|IBert|Luke|"
    "GPTNeoXJapanese|Nystromformer|Mvp|ProphetNet|TrOCR|SpeechT5|OPT|Gemma3For|Phi3|BartFor|CLIPModel|Wav2Vec2For|Mamba)"
)


def _draw(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")


def check_architecture(name: str, levels: Sequence[str]) -> str:
    """The outcome for one model class; an exception that is no refusal is a failure of the compiler and is raised."""
    from mlirc.driver.compilation import Compilation
    from mlirc.errors import MlircError
    from mlirc.targets import get_target

    with tempfile.TemporaryDirectory() as folder:
        inputs = write_config(name, Path(folder))
        job = Compilation(name, get_target("sm_90a"), helpers=0)
        try:
            job.open(folder, inputs=inputs, random_weights=0)
            result = job.check(levels, kinds=KINDS)
        except MlircError as e:
            return f"refused: {_stable(' '.join(str(e).split()), folder)}"
    if not result.ok:
        return f"WRONG: {result.reason()}"
    return "right" if "plain" not in result.blank else result.line()


def _stable(text: str, folder: str) -> str:
    """A reason without what differs from run to run or between installations: folders, and lines of other projects."""
    text = text.replace(folder, "MODEL").replace(Path(folder).name, "MODEL")
    text = re.sub(r"/\S+/(site-packages/|(?=scripts/|compiler/|passes/))", "", text)
    return re.sub(r"(\b\w+\.py):\d+", r"\1", text)


def write_config(name: str, folder: Path) -> list[str]:
    """Writes the tiny config.json of a model class; returns the inputs for `--input`."""
    import transformers

    from support.architectures.overrides import INPUTS, OVERRIDES
    from support.architectures.tiny import merge, shrink

    model_class = getattr(transformers, name)
    config_class = model_class.config_class
    model_type = config_class.model_type
    with _quiet(transformers):
        fields = merge(shrink(config_class().to_dict()), OVERRIDES.get(model_type, {}))
        config = config_class(**fields)
        written = json.loads(config.to_json_string(use_diff=False))
    (folder / "config.json").write_text(json.dumps(written | {"architectures": [name], "model_type": model_type}))
    return INPUTS.get(model_type) or _inputs(model_class, config)


def _inputs(model_class: Any, config: Any) -> list[str]:
    known = inspect.signature(model_class.forward).parameters
    main = getattr(model_class, "main_input_name", "input_ids")
    found = {}
    if "input_ids" in known and main not in ("input_values", "input_features"):
        found["input_ids"] = f"i64[{_TEXT[0]},{_TEXT[1]}]"
        if "attention_mask" in known:
            found["attention_mask"] = f"i64[{_TEXT[0]},{_TEXT[1]}]"
    if main == "input_values":
        found["input_values"] = "f32[2,1600]"
    if main == "input_features":
        found["input_features"] = "f32[2,10,128]"
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in known:
        found["decoder_input_ids"] = f"i64[{_TARGET[0]},{_TARGET[1]}]"
    is_clip = {"input_ids", "pixel_values"} <= set(known) and not model_class.__name__.endswith("CausalLM")
    if main == "pixel_values" or is_clip:
        channels = getattr(config, "num_channels", None) or 3
        found["pixel_values"] = f"f32[2,{channels},32,32]"
    return [f"{key}={spec}" for key, spec in found.items()]


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
