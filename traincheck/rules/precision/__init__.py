"""Rules about dtypes and mixed precision."""
