"""Rules about the configuration of models and optimizers."""
