"""Rules about what is behind a loss."""
