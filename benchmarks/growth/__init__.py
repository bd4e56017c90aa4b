"""What grows with the number of workers and of trained numbers: `python -m benchmarks.growth`."""
