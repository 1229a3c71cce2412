"""`schedule.apply_pass`: runs a pass of ours on payload modules, as `apply_registered_pass` does for upstream's."""

from __future__ import annotations

from mlirc.dialects.schedule._base import PayloadError, transform_op
from mlirc.errors import MlircError


def parse_options(text: str) -> dict[str, str]:
    """`"a=1 b=x"` as a dict. Raises ValueError for a word without `=`."""
    options = {}
    for word in text.split():
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"pass option '{word}' is not of the form name=value")
        options[key] = value
    return options


@transform_op("apply_pass", attributes={"pass_name": str, "options": str})
def apply_pass(rewriter, targets, *, pass_name: str, options: str) -> None:
    """Runs the pass `pass_name` (`mlirc-...`) with `options` (`name=value` words) on each target `builtin.module`."""
    from mlirc.passes import get_pass

    function = get_pass(pass_name)
    for target in targets:
        if target.operation.name != "builtin.module":
            raise PayloadError(f"{pass_name} runs on a builtin.module", target)
        with target.operation.location:
            try:
                function(target.operation.opview, **parse_options(options))
            except MlircError as e:
                raise PayloadError(f"{pass_name}: {str(e).removeprefix(pass_name + ': ')}") from e
