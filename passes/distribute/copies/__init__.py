"""Copies that run ahead of the program, or behind it: rings of slots in shared memory, tensor copies in and out of
it, and what they bring for a loop."""
