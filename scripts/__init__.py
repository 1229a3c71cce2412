"""Schedules: one file per kernel kind, each a Python function that builds a transform-dialect module."""
