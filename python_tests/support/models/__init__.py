"""Models, and what compares them with PyTorch."""
