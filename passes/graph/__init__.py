"""What the graph-level passes (linalg to kernels) share: the graph read off `main`, index algebra, kernel emission."""
