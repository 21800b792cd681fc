"""Rules about the order of dimensions."""
