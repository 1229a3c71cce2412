"""What a function computes at a level of its compilation, on inputs of the caller's choice."""

from __future__ import annotations

from mlirc.check.levels import level_runner
from mlirc.check.reference import TorchModel
from mlirc.driver.compilation import Compilation
from mlirc.targets import get_target
from support.models.together import Calls


def outputs(function, args, level, target="sm_90a"):
    """The results, a list of tensors."""
    job = Compilation("model", get_target(target), ())
    job.import_module(Calls(function), tuple(args), {}, False)
    job.lower(level)
    return level_runner(job, level, TorchModel(job.imported.source, False).tensors(job))(list(args))
