"""Observe: instruments in the training process. The only folder that imports torch."""
