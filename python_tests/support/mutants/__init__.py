"""Harmful changes of kernels and plans, one at a time."""
