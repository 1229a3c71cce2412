"""Kernels of every level, whole or in parts, and their checks."""
