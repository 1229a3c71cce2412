"""Which values are undefined: read from memory that nobody wrote, or poison. A kernel in which there are some runs a
second time, with a shadow beside every register and every byte of memory."""
