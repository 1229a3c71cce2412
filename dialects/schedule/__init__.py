"""Transform ops of our own, one per file."""
