"""traincheck: catches silent bugs in PyTorch training."""

__version__ = "0.1.0"
