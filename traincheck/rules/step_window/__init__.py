"""Rules about backward, clipping, step and zero_grad."""
