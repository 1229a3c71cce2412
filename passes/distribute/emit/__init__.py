"""What every other room emits with: index arithmetic, teams of warps, the emission state of a kernel, values that are
under way, errors at a schedule's line."""
