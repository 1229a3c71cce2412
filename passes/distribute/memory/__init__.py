"""Memory as a tile program reads and writes it: windows of it, what is known of their offsets and sizes, vector
accesses of them."""
