"""Products of tiles: which generics are some, how one is laid over warps, and its operands in shared memory. What
issues them is in `instructions/`."""
