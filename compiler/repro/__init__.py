"""`--dump-dir`: a compilation's levels as files (`dump`), and a check of every kernel that runs by itself: its meaning
as PyTorch source (`torch_source`), inputs that make sense (`inputs`), and what those checks share (`kernel`)."""
