"""Measures compiled models and operators against PyTorch: what `mlirc-bench` is made of.

`cases` says what is measured; `build` makes a case's torch module and inputs; `compiling` needs MLIR and no GPU;
`running`, `timing` and `reference` need a GPU and torch, and no MLIR, so that the two halves may be on two machines.
"""
