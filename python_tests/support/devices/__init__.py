"""What runs kernels: the GPU, a stand-in for it, the CPU."""
