"""Rules about saving, loading and averages of weights."""
