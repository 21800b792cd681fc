"""Metrics of activations, parameters, gradients, updates and attention, in the training process."""
