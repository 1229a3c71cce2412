"""Random numbers: PyTorch's distributions as arithmetic on the words of a Philox generator (docs/random.md)."""
