"""What the tests share; benchmarks/ uses it, too."""
