"""Rules about how models and optimizers are configured."""
