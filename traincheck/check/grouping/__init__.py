"""Which violations have one cause."""
