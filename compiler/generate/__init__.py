"""Models that generate text: compiled with their cache, run token by token."""
