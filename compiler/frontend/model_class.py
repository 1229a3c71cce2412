"""Which class of transformers a Hugging Face folder's config asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlirc.errors import MlircError
from mlirc.files.opening import shorten


def model_class_of(path: Path, config: Any) -> Any:
    """The class of transformers that a directory's config names, or that its type has. Raises MlircError where there is
    none, and where the two disagree."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names:
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            _check_type(path, config, found)
            return found
    if names:
        raise MlircError(
            f"{path}: transformers {transformers.__version__} has no model class {ascii(shorten(names[0], 80))}"
        )
    try:
        return transformers.MODEL_MAPPING[type(config)]
    except KeyError:
        raise MlircError(
            f"{path}: config.json names no architecture and its type '{config.model_type}' no model"
        ) from None


def _check_type(path: Path, config: Any, found: Any) -> None:
    """Raises MlircError where a config is not of the class's type, and no list of transformers has the two together:
    it would be built from settings of another model, many of which it reads as its own."""
    from transformers.models.auto import modeling_auto

    wanted = getattr(found, "config_class", None)
    if wanted is None or isinstance(config, wanted):
        return
    lists = (v for k, v in vars(modeling_auto).items() if k.endswith("_MAPPING_NAMES") and isinstance(v, dict))
    known = (names.get(config.model_type, ()) for names in lists)
    if not any(found.__name__ == n or (isinstance(n, tuple) and found.__name__ in n) for n in known):
        raise MlircError(
            f"{path}: config.json has 'model_type': {ascii(config.model_type)}, and {found.__name__} ('architectures') "
            f"is a model of type {ascii(wanted.model_type)}: correct the wrong one of the two"
        )
