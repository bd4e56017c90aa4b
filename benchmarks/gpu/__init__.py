"""What a private step costs on a GPU: `python -m benchmarks.gpu`."""
