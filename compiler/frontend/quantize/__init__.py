"""Weights of few bits: schemes, packing, the op that unpacks them, layers and checkpoints that have them."""

from mlirc.frontend.quantize.scheme import Format, Scheme, parse_scheme

__all__ = ["Format", "Scheme", "parse_scheme"]
