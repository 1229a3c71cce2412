"""Holds a PTX file against the `gpu` level beside it: its launch plan, byte by byte, and its kernels' text."""
