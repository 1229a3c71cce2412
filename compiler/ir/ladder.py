"""The names of the levels, in order, for those that only have to name one: everything else is in `mlirc.ir.levels`."""

LEVELS = ("torch", "linalg", "kernels", "schedule", "tiles", "async", "gpu", "llvm", "ptx")
