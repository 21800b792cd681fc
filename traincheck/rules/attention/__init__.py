"""Rules about attention: masks and normalization."""
