"""Rules about the size of values, gradients and updates."""
