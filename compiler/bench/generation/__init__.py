"""Models that generate, measured: a step of decoding at a length of the cache, the reading of a prompt."""
