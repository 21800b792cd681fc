"""Rules about warnings of torch."""
