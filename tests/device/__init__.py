"""The pretend CUDA device: see `process.py` for how a test runs on it."""
