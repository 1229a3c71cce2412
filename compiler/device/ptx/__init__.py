"""Executes PTX on the CPU: the text that the back end makes, instruction by instruction, for all threads of many blocks
at a time. What an instruction that is not known here would do is never guessed: it is refused by name."""

from mlirc.device.ptx.plan import run_plan
from mlirc.device.ptx.run import run_entry, run_kernel, run_launch

__all__ = ["run_entry", "run_kernel", "run_launch", "run_plan"]
