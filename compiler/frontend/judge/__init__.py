"""Judging model files before anything in them is used.

A model file comes from somewhere else, and PyTorch's loaders run code from it: pickles, symbolic expressions given to
`eval`, names pasted into generated Python, operators that touch files. Here archives are read as data alone, and what
is not known to be harmless is refused; docs/untrusted-files.md says what and why. `--allow-pickle` skips these
judgements, and keeps the checks that a file is whole.

| file | judges |
|---|---|
| `archive.py` | zip archives: whole, the same to every reader, no bombs |
| `program.py` | the graph, names and signatures of a torch.export archive |
| `expressions.py` | symbolic sizes |
| `pickles.py` | what a pickle imports, and its tensors |
| `operators.py` | which operators a file may call |
| `torchscript.py` | the code and pickles of a TorchScript archive |
| `folder.py` | Hugging Face folders: configs, weight files, what they point to |
"""
