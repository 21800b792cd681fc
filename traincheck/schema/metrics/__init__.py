"""Metrics: which are requested, their names, the sums that they follow from."""
