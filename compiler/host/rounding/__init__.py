"""How far rounding may take a kernel's results: error bounds, computed beside the numbers themselves."""

from mlirc.host.rounding.bounds import Unbounded, add_bounds

__all__ = ["Unbounded", "add_bounds"]
