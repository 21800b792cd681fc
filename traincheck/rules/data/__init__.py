"""Rules about data order and random numbers."""
