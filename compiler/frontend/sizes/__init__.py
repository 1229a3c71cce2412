"""Models for sizes up to a bound: the graph that is exported with symbols becomes one at the bound, in which padding
never reaches what is inside of the sizes (docs/sizes.md)."""
