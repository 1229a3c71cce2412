"""The block program that is being emitted: what is known at a point of it, which block computes what, what it
leaves."""
