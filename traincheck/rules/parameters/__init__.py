"""Rules about parameters and the optimizer that holds them."""
