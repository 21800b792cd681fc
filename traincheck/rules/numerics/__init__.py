"""Rules about sizes of values, gradients and updates."""
