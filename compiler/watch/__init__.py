"""`mlirc --watch`: the imported model stays in memory, and an edit of a schedule costs the kernels that it changes."""
